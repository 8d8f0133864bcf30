"""Protocols of validators and engines, and guards against values that are too deep or too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, final, runtime_checkable

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.values import clip, digest

Check = Callable[[object], object]

NO_MATCH = Issue("", "schema", "does not match the schema")
MAX_ISSUES = 16
MAX_TEXT = 2_000
MAX_INTEGER_BITS = 1_329  # 400 digits


@final
class AuthorSchema(Mapping[str, object]):
    """A schema that the author's code declared. Only such a schema may become code, with fastjsonschema.

    No data is of this type: it cannot be read from JSON, pickled or copied, and has no subclass. Wrap schemas of your own
    code only: who wraps a schema from outside makes code of it. The schema is copied, so later changes do not count.

    Raises:
        SchemaRefused: the schema nests too deep.
    """

    __slots__ = ("_schema",)

    def __init__(self, schema: Mapping[str, object]) -> None:
        try:
            self._schema: dict[str, object] = _copied(schema, {})
        except RecursionError:
            raise SchemaRefused("too_deep", "the schema nests too deep, or contains itself") from None

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("AuthorSchema has no subclasses: an object of one would be trusted like a schema of your code")

    def __getitem__(self, keyword: str) -> object:
        return self._schema[keyword]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AuthorSchema cannot be pickled or copied: it would be data")


def _copied(node: object, known: dict[int, tuple[object, object]]) -> Any:
    """Copy a schema. A part that stands at many places stays one: as a tree such a schema may have no end."""
    if not isinstance(node, Mapping | list | tuple):
        return node
    if id(node) in known:
        if known[id(node)][1] is None:
            raise RecursionError
        return known[id(node)][1]
    known[id(node)] = node, None  # under way: to meet it again is a circle
    parts: Mapping[object, object] | Sequence[object] = node
    made: object
    if isinstance(parts, Mapping):
        made = {key: _copied(part, known) for key, part in parts.items()}
    else:
        made = [_copied(part, known) for part in parts]
    known[id(node)] = node, made  # a node that is gone could lend its id to another
    return made


@runtime_checkable
class Validator(Protocol):
    """A compiled schema.

    ``id`` names engine, version, policies and schema digest, and changes with each of them.
    ``check`` is the hot path: it returns (anything) for a valid value and raises any exception for an invalid one.
    It takes JSON values only: finite numbers, string keys, at most 64 levels. ``guard_json`` checks for that.
    """

    @property
    def id(self) -> str:
        """Engine, version, policies and schema digest; for provenance."""
        ...

    @property
    def engine(self) -> str:
        """The engine's name."""
        ...

    @property
    def version(self) -> str:
        """The engine's version."""
        ...

    @property
    def check(self) -> Check:
        """Return for a valid value, raise for an invalid one."""
        ...

    def issues(self, value: object, limit: int = MAX_ISSUES) -> list[Issue]:
        """List every issue of the value: missing members, then unknown ones, then wrong types, then the rest."""
        ...


class Engine(Protocol):
    """A factory of validators. Implement it to plug in another library; see ``from_validate``."""

    @property
    def name(self) -> str:
        """A short name, such as ``fastjsonschema``."""
        ...

    @property
    def version(self) -> str:
        """The version of the validating library."""
        ...

    def compile(self, schema: Mapping[str, object], *, trusted: bool) -> Validator:
        """Compile a validator that enforces all of *schema*.

        Raises:
            SchemaRefused: the engine would not enforce it in full, or compilation is not safe.
        """
        ...


class Rejected(ValueError):
    """A value was refused before validation: too deep, too large, too costly, or not JSON."""

    def __init__(self, expected: str, keyword: str = "limits", pointer: str = "") -> None:
        super().__init__(expected)
        self.issue = Issue(pointer, keyword, expected)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A ``Validator`` from its parts. ``inner`` is its check without a rule that was added.

    ``native`` is a function of the engine that returns True for a valid value; ``check`` decides about all others.
    """

    id: str
    engine: str
    version: str
    check: Check
    find: Callable[[object, int], list[Issue]]
    inner: Check | None = None
    native: Callable[[object], bool] | None = None

    def issues(self, value: object, limit: int = MAX_ISSUES) -> list[Issue]:
        """See ``Validator.issues``."""
        return self.find(value, limit)


def validator_id(engine: str, version: str, policy: str, schema_digest: str) -> str:
    """The id of a validator, for provenance."""
    return f"{engine}/{version};{policy};sha256:{schema_digest}"


def from_validate(
    validate: Callable[[object], Sequence[Issue]],
    *,
    engine: str,
    version: str,
    schema: Mapping[str, object],
    policy: str = "custom",
) -> Validator:
    """Make a ``Validator`` of a function that lists the issues of a value; an empty list means valid.

    *policy* names all else that decides the verdict (formats on or off, a regex engine); it is part of the id.
    """

    def check(value: object) -> None:
        if validate(value):
            raise Rejected("does not match the schema", "schema")

    return Compiled(
        validator_id(engine, version, policy, digest(schema)),
        engine,
        version,
        check,
        lambda value, limit: fit(validate(value), limit),
    )


def explain(validator: Validator, value: object, limit: int = MAX_ISSUES) -> tuple[Issue, ...]:
    """Explain a failed ``check``: one to *limit* issues of about 2 kB in all. Never raises."""
    try:
        return tuple(fit(validator.issues(value, limit), limit)) or (NO_MATCH,)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # noqa: BLE001 - a panic of a native engine is not an Exception
        return (NO_MATCH,)


def fit(issues: Iterable[Issue], limit: int = MAX_ISSUES) -> list[Issue]:
    """The first *limit* different issues, cut where their text exceeds about 2 kB."""
    kept: list[Issue] = []
    room = MAX_TEXT
    for issue in issues:
        shown = Issue(clip(issue.pointer, 200), clip(issue.keyword, 40), clip(issue.expected, 200))
        if shown in kept:
            continue
        room -= len(shown.pointer) + len(shown.expected) + len(shown.keyword)
        if len(kept) >= limit or (kept and room < 0):
            break
        kept.append(shown)
    return kept


def guard_depth(value: object, limit: int = 64) -> int:
    """Count the JSON nodes in *value*, without recursion.

    Raises:
        Rejected: the value nests deeper than *limit*.
    """
    level, count = [value], 0
    for _ in range(limit + 1):
        count += len(level)
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        if not below:
            return count
        level = below
    raise Rejected(f"must not nest deeper than {limit} levels")


def guard_json(value: object, *, depth: int = 64, nodes: int = 50_000, characters: int = 1_048_576) -> tuple[int, int]:
    """Check that *value* is JSON within limits; returns its node count and its characters.

    Run it before ``check`` on a value that no parser has limited, such as a tool's output.

    Raises:
        Rejected: too deep, too large, a number that is not finite or has over 400 digits, or not JSON.
    """
    level: list[Any] = [(value,)]
    count, size = 0, 0
    for _ in range(depth + 1):
        below: list[Any] = []
        for container in level:
            count += len(container)
            if count > nodes:
                raise Rejected(f"must not hold more than {nodes} values")
            if isinstance(container, dict):
                size += _key_size(container) + _look_into(container.values(), below)
            else:
                size += _look_into(container, below)
        if size > characters:
            raise Rejected(f"must not hold more than {characters} characters of text")
        if not below:
            return count, size
        level = below
    raise Rejected(f"must not nest deeper than {depth} levels")


def _look_into(items: Iterable[Any], below: list[object]) -> int:
    size = 0
    for item in items:
        kind = item.__class__
        if kind is str:
            size += len(item)
        elif kind is int or kind is float:
            if not -LARGE < item < LARGE:
                _require_number(item)
        elif kind is dict or kind is list or isinstance(item, _CONTAINERS):
            if item:
                below.append(item)
        elif item is not None and kind is not bool:
            raise Rejected("must be JSON", "json")
    return size


LARGE = 2**53
_CONTAINERS = (dict, list, tuple)


def _require_number(item: float) -> None:
    if isinstance(item, float):
        if not math.isfinite(item):
            raise Rejected("must hold finite numbers only", "json")
    elif item.bit_length() > MAX_INTEGER_BITS:
        raise Rejected("must not hold integers of over 400 digits")


def _key_size(container: dict[str, object]) -> int:
    try:
        return len("".join(container))
    except TypeError:
        raise Rejected("must have text as its property names", "json") from None
