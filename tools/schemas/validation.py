"""Validation of arguments and outputs against JSON Schema, in full, by an engine that can be trusted to (contract 18).

``compile_schema`` chooses the engine: author-written schemas that pass the gate run on fastjsonschema, everything
else and every schema from outside on jsonschema-rs. No keyword is ever silently unenforced: where no engine enforces
the whole schema it is refused, and the refusal says what stands in the way.

Another library plugs in as an ``Engine``; where it offers one function from a value to a list of issues,
``from_validate`` does the rest::

    class Mine:
        name, version = "mine", "1.0"

        def compile(self, schema, *, trusted):
            return from_validate(make_validate(schema), engine=self.name, version=self.version, schema=schema)

    validator = compile_schema(schema, engine=Mine())
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Literal

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.admission import Guard, SchemaLimits, admit, guarded
from callgate.tools.schemas.engines.base import (
    MAX_ISSUES,
    Check,
    Engine,
    Rejected,
    Validator,
    explain,
    from_validate,
    guard_depth,
    guard_json,
)
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.document import Document, read
from callgate.tools.schemas.engines.fast import FastEngine, refusal
from callgate.tools.schemas.engines.lint import lint_schema
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, INPUT_LIMITS, OUTPUT_LIMITS
from callgate.tools.schemas.engines.rust import RustEngine, rust_installed

__all__ = [
    "INPUT_LIMITS",
    "OUTPUT_LIMITS",
    "Check",
    "Engine",
    "FastEngine",
    "LazyValidator",
    "Rejected",
    "RustEngine",
    "SchemaLimits",
    "Validator",
    "compile_schema",
    "explain",
    "from_validate",
    "guard_depth",
    "guard_json",
    "lint_schema",
    "verify_schema",
    "wrap_properties",
]

CACHE_SIZE = 1_024
Role = Literal["parameters", "output"]


class _Cache:
    """The compiled validators used last; safe to share between threads."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, Lock()
        self._kept: OrderedDict[Any, Validator] = OrderedDict()

    def get(self, key: Any) -> Validator | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: Any, validator: Validator) -> None:
        with self._lock:
            self._kept[key] = validator
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


_cache = _Cache(CACHE_SIZE)


def compile_schema(
    schema: Mapping[str, Any],
    *,
    trusted: bool = True,
    engine: Engine | None = None,
    limits: SchemaLimits | None = None,
) -> Validator:
    """A validator that enforces all of *schema* (contract 11, 18); the same schema is compiled once.

    *trusted* says that the author of the code wrote the schema; one from outside (False) is admitted within *limits*
    first (``INPUT_LIMITS``; give ``OUTPUT_LIMITS`` for an output schema), and its ``check`` bounds every value.
    *engine* replaces the automatic choice.

    Raises:
        SchemaRefused: invalid, unsafe, or no engine here would enforce all of it.
    """
    if trusted:
        document = read(schema, limits or AUTHOR_LIMITS)
        budget = Budget(document, limits or AUTHOR_LIMITS)
    else:
        document, budget = admit(schema, limits or INPUT_LIMITS)
    key = (document.digest, trusted, engine, limits)
    found = _cache.get(key)
    if found is None:
        found = _compile(document, budget, trusted, engine, limits)
        _cache.put(key, found)
    return found


def _compile(
    document: Document, budget: Budget, trusted: bool, engine: Engine | None, limits: SchemaLimits | None
) -> Validator:
    if engine is not None:
        validator = engine.compile(document.schema, trusted=trusted)
        if trusted or isinstance(engine, RustEngine):
            return validator
        return guarded(validator, Guard(budget, limits or INPUT_LIMITS))
    if trusted:
        return _for_author(document, budget)
    if not rust_installed():
        message = "a schema from outside needs jsonschema-rs, which is not installed"
        raise SchemaRefused("no_engine", message)
    return RustEngine(limits or INPUT_LIMITS).build(document, budget, trusted=False)


def _for_author(document: Document, budget: Budget) -> Validator:
    rust = RustEngine().build(document, budget, trusted=True) if rust_installed() else None
    refused = refusal(document, budget)
    if refused is None:
        try:
            return FastEngine().build(document, rust)
        except SchemaRefused:
            refused = ("the schema", "")
    if rust is not None:
        return rust
    message = f"fastjsonschema would not enforce {refused[0]} as it stands, and jsonschema-rs is not installed"
    raise SchemaRefused("not_enforced", message, refused[1])


def verify_schema(schema: Mapping[str, Any], role: Role = "parameters", *, trusted: bool = True) -> None:
    """The checks at registration (contract 13, 19, C31; schemas.md 8); code is generated only without jsonschema-rs.

    ``role="parameters"`` demands an object at the root; an output schema may have any root.

    Raises:
        SchemaRefused: which rule is broken, where, and how to mend it.
    """
    outside = OUTPUT_LIMITS if role == "output" else INPUT_LIMITS
    if trusted:
        document = read(schema)
        budget = Budget(document, AUTHOR_LIMITS)
    else:
        document, budget = admit(schema, outside)
    if role == "parameters" and document.schema.get("type", "object") != "object":
        message = 'the root of a parameters schema must be {"type": "object", …}'
        raise SchemaRefused("root_type", message, "/type")
    if rust_installed():
        RustEngine(outside).build(document, budget, trusted=trusted)
    elif not trusted:
        raise SchemaRefused("no_engine", "a schema from outside needs jsonschema-rs, which is not installed")
    else:
        _for_author(document, budget)


def wrap_properties(properties: Mapping[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    """A parameters schema around a bare map of properties (contract C31); unknown arguments stay allowed.

    Raises:
        SchemaRefused: *required* names a property that is not there, or a property's schema is not an object.
    """
    names = list(required)
    for name, schema in properties.items():
        if not isinstance(schema, Mapping | bool):
            raise SchemaRefused("bad_subschema", f"{name} is not a schema; pass required= by itself", f"/{name}")
    for name in names:
        if name not in properties:
            raise SchemaRefused("unknown_required", f"required names {name}, which is not among the properties")
    wrapped: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    return wrapped | {"required": names} if names else wrapped


class LazyValidator:
    """Compiles at first use instead of at registration (contract 18); safe to share between threads.

    ``compile()`` does it now. A schema that is refused then makes ``check`` raise ``SchemaRefused``: no value passes.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        trusted: bool = True,
        engine: Engine | None = None,
        limits: SchemaLimits | None = None,
    ) -> None:
        self._arguments = (schema, trusted, engine, limits)
        self._lock = Lock()
        self._compiled: Validator | None = None
        self.check: Check = self._first_check

    def compile(self) -> Validator:
        """The compiled validator; compiled now if it has not been.

        Raises:
            SchemaRefused: no engine enforces the schema.
        """
        with self._lock:
            if self._compiled is None:
                schema, trusted, engine, limits = self._arguments
                self._compiled = compile_schema(schema, trusted=trusted, engine=engine, limits=limits)
                self.check = self._compiled.check
            return self._compiled

    def _first_check(self, value: Any) -> object:
        return self.compile().check(value)

    @property
    def id(self) -> str:
        """See ``Validator.id``; compiles."""
        return self.compile().id

    @property
    def engine(self) -> str:
        """See ``Validator.engine``; compiles."""
        return self.compile().engine

    @property
    def version(self) -> str:
        """See ``Validator.version``; compiles."""
        return self.compile().version

    def issues(self, value: Any, limit: int = MAX_ISSUES) -> list[Issue]:
        """See ``Validator.issues``; compiles."""
        return self.compile().issues(value, limit)
