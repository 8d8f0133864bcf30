"""Validation of arguments and outputs against JSON Schema, with every keyword enforced.

``compile_schema`` chooses the engine: jsonschema-rs, and where it has no wheel, fastjsonschema for author-written
schemas that it enforces in full. Every keyword is enforced: a schema that no engine enforces in full is refused, and
the refusal names the cause.

Another library plugs in as an ``Engine``. ``from_validate`` adapts a function from a value to a list of issues::

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

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.admission import Guard, admit, guarded
from callgate.tools.schemas.engines.base import (
    MAX_ISSUES,
    AuthorSchema,
    Check,
    Engine,
    Validator,
    explain,
    from_validate,
)
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.dialect import FormatRule, Formats, Role, asserts_formats, check_formats
from callgate.tools.schemas.engines.document import AuthorDocument, Document, read
from callgate.tools.schemas.engines.fast import FastEngine
from callgate.tools.schemas.engines.lint import lint_schema
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, INPUT_LIMITS, OUTPUT_LIMITS, SchemaLimits
from callgate.tools.schemas.engines.rust import RustEngine, rust_installed

__all__ = [
    "OUTPUT_LIMITS",
    "AuthorSchema",
    "Engine",
    "FastEngine",
    "Formats",
    "LazyValidator",
    "RustEngine",
    "Validator",
    "check_formats",
    "compile_schema",
    "explain",
    "from_validate",
    "lint_schema",
    "verify_schema",
    "wrap_properties",
]

CACHE_SIZE = 1_024
CACHE_BYTES = 8_388_608
"""Size of all schemas in the cache together; a validator takes a multiple of its schema."""


class _Cache:
    """An LRU cache of validators, bounded in number and in bytes of their schemas; safe to share between threads."""

    def __init__(self, size: int, max_bytes: int = CACHE_BYTES) -> None:
        self._size, self._left, self._lock = size, max_bytes, Lock()
        self._kept: OrderedDict[object, tuple[Validator, int]] = OrderedDict()

    def get(self, key: object) -> Validator | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return None if found is None else found[0]

    def put(self, key: object, validator: Validator, size: int) -> None:
        with self._lock:
            self._left += self._kept.pop(key, (validator, 0))[1] - size
            self._kept[key] = validator, size
            while len(self._kept) > self._size or self._left < 0:
                self._left += self._kept.popitem(last=False)[1][1]


_cache = _Cache(CACHE_SIZE)


def compile_schema(
    schema: Mapping[str, object],
    *,
    trusted: bool = True,
    engine: Engine | None = None,
    limits: SchemaLimits | None = None,
    formats: Formats | None = None,
) -> Validator:
    """Compile a validator that enforces all of *schema*; equal schemas of authors are compiled once.

    A validator of a schema from outside is not kept here: its record holds it, and it goes with its record.

    Args:
        schema: a JSON Schema. Only an ``AuthorSchema`` may run on fastjsonschema, which makes code of it.
        trusted: the author of the code wrote the schema. A schema from outside (False) is admitted within *limits*
            first, and its ``check`` limits every value.
        engine: replaces the automatic choice.
        limits: limits for the schema; ``INPUT_LIMITS`` by default, give ``OUTPUT_LIMITS`` for an output schema.
        formats: whether ``format`` restricts values; default: in schemas of the author always, in schemas from outside as
            their dialect says. An *engine* has its own setting.

    Raises:
        SchemaRefused: the schema is invalid or unsafe, or no engine enforces it in full.
    """
    if not trusted:
        document, budget = admit(schema, limits or INPUT_LIMITS)
        asserts = asserts_formats(document.dialect, formats, trusted=False)
        return _compile(document, budget, False, engine, limits, "assert" if asserts else "annotate")
    document = read(schema, limits or AUTHOR_LIMITS)
    asserts = asserts_formats(document.dialect, formats, trusted=True)
    key = (document.digest, type(document), engine, limits, asserts)
    found = _cache.get(key)
    if found is None:
        budget = Budget(document, limits or AUTHOR_LIMITS)
        found = _compile(document, budget, True, engine, limits, "assert" if asserts else "annotate")
        _cache.put(key, found, document.size)
    return found


def _compile(
    document: Document,
    budget: Budget,
    trusted: bool,
    engine: Engine | None,
    limits: SchemaLimits | None,
    formats: FormatRule,
) -> Validator:
    if isinstance(engine, FastEngine) and trusted:
        return engine.build(document, budget)
    if engine is not None:
        validator = engine.compile(document.schema, trusted=trusted)
        if isinstance(engine, RustEngine) or (trusted and not budget.guarded):
            return validator
        return guarded(validator, Guard(budget, limits or (AUTHOR_LIMITS if trusted else INPUT_LIMITS)))
    if trusted:
        return _for_author(document, budget, formats)
    if not rust_installed():
        message = "a schema from outside needs jsonschema-rs, which is not installed"
        raise SchemaRefused("no_engine", message)
    return RustEngine(limits or INPUT_LIMITS, formats).build(document, budget, trusted=False)


def _for_author(document: Document, budget: Budget, formats: FormatRule = "assert") -> Validator:
    # On real schemas jsonschema-rs compiles 22 times faster and checks 4 times faster than fastjsonschema.
    if rust_installed():
        return RustEngine(formats=formats).build(document, budget, trusted=True)
    if not isinstance(document, AuthorDocument):
        raise SchemaRefused(
            "no_engine", "a schema that was not declared with @tool needs jsonschema-rs, which is not installed"
        )
    return FastEngine().build(document, budget)


def verify_schema(schema: Mapping[str, object], role: Role = "parameters", *, trusted: bool = True) -> None:
    """Check a schema at registration; fastjsonschema compiles it only where jsonschema-rs is missing.

    ``role="parameters"`` demands an object at the root; an output schema may have any root.

    Raises:
        SchemaRefused: a rule is broken; the error says which, where, and the correction.
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


def wrap_properties(properties: Mapping[str, object], required: Iterable[str] = ()) -> dict[str, object]:
    """Make a parameters schema of a bare map of properties; unknown arguments stay allowed.

    Raises:
        SchemaRefused: *required* names an unknown property, or a property's schema is not an object.
    """
    names = list(required)
    for name, schema in properties.items():
        if not isinstance(schema, Mapping | bool):
            raise SchemaRefused("bad_subschema", f"{name} is not a schema; pass required= by itself", f"/{name}")
    for name in names:
        if name not in properties:
            raise SchemaRefused("unknown_required", f"required names {name}, which is not among the properties")
    wrapped: dict[str, object] = {"type": "object", "properties": dict(properties)}
    return wrapped | {"required": names} if names else wrapped


class LazyValidator:
    """A validator that is compiled at first use instead of at registration; safe to share between threads.

    ``compile()`` compiles it now. For a schema that is refused, ``check`` raises ``SchemaRefused`` for every value.
    """

    def __init__(
        self,
        schema: Mapping[str, object],
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
        """Return the compiled validator, and compile it at first use.

        Raises:
            SchemaRefused: no engine enforces the schema.
        """
        with self._lock:
            if self._compiled is None:
                schema, trusted, engine, limits = self._arguments
                self._compiled = compile_schema(schema, trusted=trusted, engine=engine, limits=limits)
                self.check = self._compiled.check
            return self._compiled

    def _first_check(self, value: object) -> object:
        return self.compile().check(value)

    @property
    def id(self) -> str:
        """See ``Validator.id``. Compiles."""
        return self.compile().id

    @property
    def engine(self) -> str:
        """See ``Validator.engine``. Compiles."""
        return self.compile().engine

    @property
    def version(self) -> str:
        """See ``Validator.version``. Compiles."""
        return self.compile().version

    def issues(self, value: object, limit: int = MAX_ISSUES) -> list[Issue]:
        """See ``Validator.issues``. Compiles."""
        return self.compile().issues(value, limit)
