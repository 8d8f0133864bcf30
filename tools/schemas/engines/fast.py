"""fastjsonschema: an engine for author-written schemas, and the default one where jsonschema-rs has no wheel.

It compiles a schema to Python source. The gate refuses every schema that it would not enforce in full.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NoReturn

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.admission import Guard, guarded
from callgate.tools.schemas.engines import gate
from callgate.tools.schemas.engines.base import Check, Compiled, Validator, fit, validator_id
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.dialect import CONTAINERS, SUB_LIST, SUB_MAP, SUB_ONE, VALIDATION
from callgate.tools.schemas.engines.document import AuthorDocument, Document, read
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS
from callgate.tools.schemas.engines.rust import RustEngine, rust_installed
from callgate.tools.schemas.engines.texts import basic_issues, describe, missing, wrong_type

POLICY = f"gate={gate.VERSION},formats=off,defaults=off"


class _NoHandlers(Mapping[str, Callable[[str], object]]):
    """A handler for every URI scheme that refuses the request: fastjsonschema fetches URIs without a handler."""

    def __contains__(self, _scheme: object) -> bool:
        return True

    def __getitem__(self, _scheme: str) -> Callable[[str], object]:
        return _refuse_fetch

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _refuse_fetch(_uri: str) -> NoReturn:
    raise SchemaRefused("external_ref", "a reference leads outside the document")


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("fastjsonschema")


class FastEngine:
    """fastjsonschema behind the gate, through its public interface. It takes an ``AuthorSchema`` only."""

    name = "fastjsonschema"

    @property
    def version(self) -> str:
        """The installed version."""
        return _version()

    def compile(self, schema: Mapping[str, object], *, trusted: bool) -> Validator:
        """See ``Engine.compile``. With jsonschema-rs installed, the schema is checked against its meta-schema too."""
        document = read(schema)
        if not trusted:
            raise _refusal()
        return self.build(document, Budget(document, AUTHOR_LIMITS))

    def build(self, document: Document, budget: Budget) -> Validator:
        """Compile a document that was read; jsonschema-rs explains invalid values where it is installed.

        Raises:
            SchemaRefused: fastjsonschema would ignore a keyword, a small value could cost very much, or the document is
                no ``AuthorDocument``.
        """
        if not isinstance(document, AuthorDocument):
            raise _refusal()
        explainer = RustEngine().build(document, budget, trusted=True) if rust_installed() else None
        refused = (budget.heavy, "") if budget.heavy else gate.refusal(document)
        if refused is not None:
            missing_engine = "" if explainer else ", and jsonschema-rs is not installed"
            message = f"fastjsonschema would not enforce {refused[0]} as it stands{missing_engine}"
            raise SchemaRefused("not_enforced", message, refused[1])
        reduced = _reduced(document.schema)

        def find(value: object, limit: int) -> list[Issue]:
            if explainer is not None:
                return explainer.issues(value, limit)
            return fit(basic_issues(document.schema, value) or _first_error(reduced, value), limit)

        ident = validator_id(self.name, self.version, POLICY, document.digest)
        made = Compiled(ident, self.name, self.version, _generate(reduced, detailed=False), find)
        return guarded(made, Guard(budget, AUTHOR_LIMITS)) if budget.guarded else made


def _refusal() -> SchemaRefused:
    return SchemaRefused(
        "engine", "fastjsonschema makes code of a schema, so it takes an AuthorSchema only; declare the tool with @tool"
    )


def _generate(reduced: dict[str, object], *, detailed: bool) -> Check:
    import fastjsonschema

    try:
        # The library makes references absolute in the schema that it is given, so it gets a copy.
        check: Check = fastjsonschema.compile(
            copy.deepcopy(reduced),
            handlers=_NoHandlers(),
            use_default=False,
            use_formats=False,
            detailed_exceptions=detailed,
        )
    except Exception as error:  # re.error, SyntaxError, RecursionError, … besides its own
        message = f"fastjsonschema cannot compile it ({type(error).__name__})"
        raise SchemaRefused("engine_failed", message) from error
    return check


def _reduced(schema: Any) -> Any:
    """Copy the enforced keywords only: annotations enlarge the code, and fastjsonschema resolves ``$ref`` in them.

    ``const`` becomes ``enum``: without detailed exceptions fastjsonschema cannot compile ``const``.
    """
    if isinstance(schema, bool):
        return schema
    kept: dict[str, Any] = {}
    for key, item in schema.items():
        if key in SUB_MAP:
            kept[key] = {name: _reduced(child) for name, child in item.items()}
        elif key in SUB_LIST and isinstance(item, list):
            kept[key] = [_reduced(child) for child in item]
        elif key in SUB_ONE:
            kept[key] = _reduced(item)
        elif key in VALIDATION and key != "const":
            kept[key] = item
    if "$ref" in kept:
        return {key: kept[key] for key in kept if key == "$ref" or key in CONTAINERS}
    if "const" in schema:
        only = {"enum": [schema["const"]]}
        kept = {"allOf": [kept, only]} if "enum" in kept else kept | only
    return kept


def _first_error(reduced: dict[str, object], value: object) -> list[Issue]:
    """The first error of fastjsonschema; its dotted path becomes a pointer only where it is unambiguous."""
    import fastjsonschema

    try:
        _generate(reduced, detailed=True)(value)
    except fastjsonschema.JsonSchemaValueException as error:
        path, at = _path(error.path[1:], value)
        rule = error.rule or "schema"
        argument = error.rule_definition
        if rule == "required" and isinstance(at, dict):
            return [missing(path, name) for name in argument if name not in at]
        if rule == "type":
            return [wrong_type(path, [argument] if isinstance(argument, str) else argument, at)]
        return [describe(path, rule, argument)]
    return []


def _path(parts: list[str], value: object) -> tuple[list[str | int], object]:
    path: list[str | int] = []
    at = value
    for part in parts:
        if isinstance(at, dict) and part in at:
            path.append(part)
            at = at[part]
        elif isinstance(at, list | tuple) and part.isdecimal() and int(part) < len(at):
            path.append(int(part))
            at = at[int(part)]
        else:
            return [], value
    return path, at
