"""fastjsonschema: the default engine for author-written schemas, behind the gate (schemas.md 1).

It compiles a schema to Python source. It never sees a schema from outside, nor one that it would not enforce in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, NoReturn

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.engines import gate
from callgate.tools.schemas.engines.base import Check, Compiled, Validator, fit, validator_id
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.dialect import CONTAINERS, SUB_LIST, SUB_MAP, SUB_ONE, VALIDATION
from callgate.tools.schemas.engines.document import Document, read
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS
from callgate.tools.schemas.engines.rust import RustEngine, rust_installed
from callgate.tools.schemas.engines.texts import basic_issues, describe, missing, wrong_type

POLICY = f"gate={gate.VERSION},code=lean1,formats=off,defaults=off"


class _NoHandlers(Mapping[str, Callable[[str], Any]]):
    """Claims every URI scheme and refuses each: fastjsonschema fetches whatever has no handler."""

    def __contains__(self, _scheme: object) -> bool:
        return True

    def __getitem__(self, _scheme: str) -> Callable[[str], Any]:
        return _refuse_fetch

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _refuse_fetch(_uri: str) -> NoReturn:
    raise SchemaRefused("external_ref", "a reference leads outside the document")


@cache
def _version() -> str:
    return version("fastjsonschema")


class FastEngine:
    """fastjsonschema behind the gate; takes trusted schemas only (contract 18, 48)."""

    name = "fastjsonschema"

    @property
    def version(self) -> str:
        """The installed version."""
        return _version()

    def compile(self, schema: Mapping[str, Any], *, trusted: bool) -> Validator:
        """See ``Engine.compile``. With jsonschema-rs installed the schema is checked against its meta-schema too."""
        if not trusted:
            raise SchemaRefused("engine", "fastjsonschema does not take schemas from outside")
        document = read(schema)
        budget = Budget(document, AUTHOR_LIMITS)
        explainer = RustEngine().build(document, budget, trusted=True) if rust_installed() else None
        refused = refusal(document, budget)
        if refused is not None:
            message = f"fastjsonschema would not enforce {refused[0]} as it stands"
            raise SchemaRefused("not_enforced", message, refused[1])
        return self.build(document, explainer)

    def build(self, document: Document, explainer: Validator | None) -> Validator:
        """A validator of a document that has passed ``refusal``; *explainer* tells why a value is wrong."""
        reduced = _reduced(document.schema)

        def find(value: Any, limit: int) -> list[Issue]:
            if explainer is not None:
                return explainer.issues(value, limit)
            return fit(basic_issues(document.schema, value) or _first_error(reduced, value), limit)

        ident = validator_id(self.name, self.version, POLICY, document.digest)
        return Compiled(ident, self.name, self.version, _generate(reduced, detailed=False), find)


def refusal(document: Document, budget: Budget) -> tuple[str, str] | None:
    """The gate's verdict; what could be checked very often in a small value also goes to the guarded engine."""
    return (budget.heavy, "") if budget.heavy else gate.refusal(document)


def _generate(reduced: dict[str, Any], *, detailed: bool) -> Check:
    try:
        if not detailed:
            from callgate.tools.schemas.engines.codegen import compile_lean

            return compile_lean(_copy(reduced), _NoHandlers())
        import fastjsonschema

        return fastjsonschema.compile(_copy(reduced), handlers=_NoHandlers(), use_default=False, use_formats=False)
    except Exception as error:  # re.error, SyntaxError, RecursionError, … besides its own
        message = f"fastjsonschema cannot compile it ({type(error).__name__})"
        raise SchemaRefused("engine_failed", message) from error


def _reduced(schema: Any) -> Any:
    """A copy with nothing but what is enforced: annotations only bloat the code, and it resolves ``$ref`` in them.

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
    branches = kept.get("anyOf")
    if (
        branches
        and "type" not in kept
        and all(isinstance(one, dict) and one.keys() == {"type"} and isinstance(one["type"], str) for one in branches)
    ):
        kept["type"] = [one["type"] for one in kept.pop("anyOf")]  # says the same, and is one test
    if "const" in schema:
        only = {"enum": [schema["const"]]}
        kept = {"allOf": [kept, only]} if "enum" in kept else kept | only
    return kept


def _copy(reduced: Any) -> Any:
    if isinstance(reduced, dict):
        return {key: _copy(item) for key, item in reduced.items()}
    return [_copy(item) for item in reduced] if isinstance(reduced, list) else reduced


def _first_error(reduced: dict[str, Any], value: Any) -> list[Issue]:
    """The first thing that fastjsonschema itself finds; its dotted path becomes a pointer only where it is plain."""
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


def _path(parts: list[str], value: Any) -> tuple[list[str | int], Any]:
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
