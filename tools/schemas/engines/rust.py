"""jsonschema-rs, offline and with its own regular expressions: the default engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.admission import Guard, admit
from callgate.tools.schemas.engines.base import (
    NO_MATCH,
    Check,
    Compiled,
    Rejected,
    Validator,
    fit,
    guard_depth,
    validator_id,
)
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.dialect import Formats, asserts_formats
from callgate.tools.schemas.engines.document import Document, read
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, INPUT_LIMITS, SchemaLimits
from callgate.tools.schemas.engines.reasons import issues_of
from callgate.tools.schemas.engines.texts import basic_issues
from callgate.tools.values import SCALARS, clip, pointer

BACKTRACK_LIMIT = 10_000
REGEX_SIZE = 262_144
MAX_EXPLAINED = 2_000  # nodes of a value up to which every error is built
MAX_POINTED = 10_000  # nodes of a value up to which the first error is built
MAX_EFFORT = 5_000  # errors of about five microseconds
MAX_COUNTED = 100_000


@cache
def _library() -> Any:
    try:
        import jsonschema_rs
    except ImportError:
        return None
    return jsonschema_rs


def rust_installed() -> bool:
    """Check that jsonschema-rs can be imported; it has no wheel for some platforms."""
    return _library() is not None


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("jsonschema-rs")


class RustEngine:
    """jsonschema-rs: references are never fetched, regular expressions are bounded, formats are as *formats* says.

    Author-written schemas use its fancy-regex engine with a small backtracking limit. Schemas from outside use its
    linear-time engine, after ``callgate.tools.schemas.admission`` with these *limits*.
    """

    name = "jsonschema-rs"

    def __init__(self, limits: SchemaLimits = INPUT_LIMITS, formats: Formats | None = None) -> None:
        self.limits = limits
        self.formats: Formats | None = formats

    @property
    def version(self) -> str:
        """The installed version."""
        return _version()

    def compile(self, schema: Mapping[str, object], *, trusted: bool) -> Validator:
        """See ``Engine.compile``."""
        if trusted:
            document = read(schema)
            return self.build(document, Budget(document, AUTHOR_LIMITS), trusted=True)
        document, budget = admit(schema, self.limits)
        return self.build(document, budget, trusted=False)

    def build(self, document: Document, budget: Budget, *, trusted: bool) -> Validator:
        """Compile a document that was read, and admitted unless it is *trusted*."""
        asserts = asserts_formats(document.dialect, self.formats, trusted=trusted)
        native = _native(document, trusted=trusted, formats=asserts)
        limits = AUTHOR_LIMITS if trusted else self.limits
        guard = Guard(budget, limits) if budget.guarded or not trusted else None
        policy = f"offline,formats={'on' if asserts else 'off'}," + (
            f"fancy-regex={BACKTRACK_LIMIT}" if trusted else f"linear-regex={REGEX_SIZE},limits={limits.digest}"
        )
        ident = validator_id(self.name, self.version, policy, document.digest)
        find = _Finder(document, native, budget, guard).find
        if guard is not None:
            return Compiled(ident, self.name, self.version, _guarded(guard, native.is_valid), find)
        check = _unguarded(native.is_valid)
        return Compiled(ident, self.name, self.version, check, find, native=native.is_valid)


def _guarded(guard: Guard, is_valid: Check) -> Check:
    def check(value: object) -> None:
        guard(value)
        if not is_valid(value):
            raise Rejected("does not match the schema", "schema")

    return check


def _unguarded(is_valid: Check) -> Check:
    """Wrap ``is_valid``: ``validate`` would copy the failed value into errors, one for every branch of an anyOf."""

    def check(value: object) -> None:
        try:
            if is_valid(value):
                return
        except ValueError:
            pass
        if not is_valid(plain(value)):  # a tool may return a named tuple or a numpy.float64
            raise Rejected("does not match the schema", "schema")

    return check


def plain(value: object) -> Any:
    """Copy a value with the types of JSON in place of their subclasses, which jsonschema-rs does not know.

    Values of other types stay as they are.
    """
    if value.__class__ in SCALARS:
        return value
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _native(document: Document, *, trusted: bool, formats: bool) -> Any:
    """Compile offline; the library checks the schema against its meta-schema."""
    return _compiled(document, "validator_for", trusted=trusted, formats=formats)


def subschema_checks(document: Document) -> Callable[[str], Callable[[object], bool] | None]:
    """Make a function from the pointer of a subschema to its validity check, or None where it is unknown.

    Raises:
        SchemaRefused: jsonschema-rs is not installed, or cannot compile the schema.
    """
    compiled = _compiled(document, "validator_map_for", trusted=False, formats=False)

    def find(at: str) -> Callable[[object], bool] | None:
        validator = compiled.get(f"#{at}")
        return None if validator is None else validator.is_valid

    return find


def _compiled(document: Document, factory: str, *, trusted: bool, formats: bool) -> Any:
    library = _library()
    if library is None:
        raise SchemaRefused("no_engine", "jsonschema-rs is not installed")
    if trusted:
        regex = library.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=REGEX_SIZE)
    else:
        regex = library.RegexOptions(size_limit=REGEX_SIZE)
    # All references stay inside the document, so the base address is not needed; some cannot be parsed.
    schema = {key: item for key, item in document.schema.items() if key not in {"$id", "id"}}
    try:
        return getattr(library, factory)(
            schema, offline=True, validate_formats=formats, pattern_options=regex, mask="(value)"
        )
    except library.ValidationError as error:
        where = clip(pointer(error.instance_path), 200)
        raise SchemaRefused("invalid_schema", f"breaks its meta-schema: {clip(error.message, 160)}", where) from None
    except Exception as error:
        raise SchemaRefused("engine_failed", f"jsonschema-rs cannot compile it: {clip(str(error), 160)}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise SchemaRefused("engine_failed", "jsonschema-rs cannot compile it") from None


@dataclass(frozen=True, slots=True)
class _Finder:
    """Explains an invalid value. Building errors is eager and slow, so all of them are built for small values only."""

    document: Document
    native: Any
    budget: Budget
    guard: Guard | None

    def find(self, value: object, limit: int) -> list[Issue]:
        try:
            if self.guard is not None:
                self.guard(value)
            nodes = guard_depth(value)
            errors = self._errors(value if self.guard else plain(value), nodes)
        except Rejected as rejected:
            return [rejected.issue]
        except ValueError:
            return [Issue("", "json", "must be JSON")]
        return fit(errors, limit)

    def _errors(self, value: object, nodes: int) -> list[Issue]:
        schema = self.document.schema
        whole, branch = self._effort(value, nodes)
        if nodes <= MAX_EXPLAINED and whole <= MAX_EFFORT:
            return issues_of(self.native.iter_errors(value), value, schema)
        if self.native.is_valid(value):
            return []
        found = basic_issues(schema, value)
        if found or nodes > MAX_POINTED or branch > MAX_EFFORT:
            return found or [NO_MATCH]
        try:
            self.native.validate(value)
        except _library().ValidationError as error:
            return issues_of([error], value, schema)
        return []

    def _effort(self, value: object, nodes: int) -> tuple[int, int]:
        """The cost of all errors, and of those of the largest anyOf: even the first error holds them."""
        try:
            return self.budget.explaining(value, MAX_COUNTED) if nodes <= MAX_POINTED else (MAX_COUNTED, MAX_COUNTED)
        except Rejected:
            return MAX_COUNTED, MAX_COUNTED if self.budget.branches else 0
