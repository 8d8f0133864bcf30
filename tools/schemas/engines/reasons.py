"""Issues from the errors of jsonschema-rs: built from keywords and the schema, never from its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from callgate.tools.calls import Issue
from callgate.tools.schemas.engines.texts import describe, missing, pointer_of, unknown, wrong_type
from callgate.tools.values import clip

_MISSING, _UNKNOWN, _TYPE, _REST = range(4)
_MAX_NAMES = 16
_MAX_BRANCHES = 4  # anyOf within anyOf

_Ranked = tuple[int, Issue]


class _Error(Protocol):
    """An error of jsonschema-rs."""

    @property
    def kind(self) -> Any: ...  # its class says which members it has

    @property
    def instance_path(self) -> list[str | int]: ...

    @property
    def schema_path(self) -> list[str | int]: ...


def issues_of(errors: Iterable[_Error], value: object, schema: Mapping[str, object]) -> list[Issue]:
    """List issues in order: missing, unknown and wrongly typed parameters, then the rest."""
    ranked = [pair for error in errors for pair in _explain(error, value, schema, 0)]
    return [issue for _, issue in sorted(ranked, key=lambda pair: pair[0])]


def _explain(error: _Error, value: object, schema: Mapping[str, object], depth: int) -> Iterator[_Ranked]:
    kind, (path, at) = error.kind, _resolve(error.instance_path, value)
    name: str = kind.name
    tail = error.schema_path[-1] if error.schema_path else ""
    argument: Any = next(iter(kind.as_dict().values()), None)
    if name == "required" and tail in {"required", name}:
        yield (_REST if path else _MISSING), missing(path, str(argument))
    elif name in {"additionalProperties", "unevaluatedProperties"}:
        known = _lookup(schema, error.schema_path[:-1]).get("properties", {})
        for member in (argument or [])[:_MAX_NAMES]:
            yield (_REST if path else _UNKNOWN), unknown(path, str(member), known, name)
    elif name == "type":
        yield (_REST if len(path) > 1 else _TYPE), wrong_type(path, argument or [], at)
    elif name in {"anyOf", "oneOf"}:
        yield from _branches(error, argument or [], value, schema, depth)
    elif name == "propertyNames":
        inner = next(_explain(argument, value, schema, depth + 1), None)
        text = describe(path, name, None).expected if inner is None else f"has a property name that {inner[1].expected}"
        yield _REST, Issue(pointer_of(path), name, clip(text, 160))
    elif name == "falseSchema":
        yield from _forbidden(error.schema_path, path, at)
    elif type(kind).__name__ in {"BacktrackLimitExceeded", "RegexEngineFailure"}:
        yield _REST, Issue(pointer_of(path), name, "cannot be matched against its pattern; send something simpler")
    else:
        keyword = tail if name in {"required", "contains"} and isinstance(tail, str) else name
        yield _REST, describe(path, keyword, argument)


def _forbidden(schema_path: Sequence[object], path: list[str | int], at: object) -> Iterator[_Ranked]:
    """jsonschema-rs reports ``additionalProperties: false`` without properties as a false schema for the object."""
    whole = schema_path[-1:] == ["additionalProperties"] and schema_path[-2:-1] != ["properties"]
    if whole and isinstance(at, Mapping):
        for member in list(at)[:_MAX_NAMES]:
            yield (_REST if path else _UNKNOWN), unknown(path, member)
    else:
        yield _REST, describe(path, "false", None)


def _branches(
    error: _Error, branches: list[list[_Error]], value: object, schema: Mapping[str, object], depth: int
) -> Iterator[_Ranked]:
    """The errors of the closest branch: it fits the value's type and has the fewest errors."""
    path, at = _resolve(error.instance_path, value)
    if depth >= _MAX_BRANCHES or not branches or not all(branches):
        yield _REST, describe(path, error.kind.name, None)
        return
    types = [_own_types(branch, error.instance_path) for branch in branches]
    if all(types) and all(len(branch) == 1 for branch in branches):
        union = list(dict.fromkeys(one for listed in types for one in listed))
        yield (_REST if len(path) > 1 else _TYPE), wrong_type(path, union, at)
        return
    fitting = [branch for branch, listed in zip(branches, types, strict=True) if not listed]
    closest = min(fitting or branches, key=len)
    for inner in closest:
        yield from _explain(inner, value, schema, depth + 1)


def _own_types(branch: list[_Error], path: list[str | int]) -> list[str]:
    """The types that a branch demands of the value itself, when the value has another type."""
    for error in branch:
        if error.kind.name == "type" and error.instance_path == path:
            return list(error.kind.types)
    return []


def _resolve(path: list[str | int], value: Any) -> tuple[list[str | int], object]:
    """Resolve a path to names as text and the value there; the library gives properties named "0" and "00" as 0."""
    resolved: list[str | int] = []
    for part in path:
        name = _name(value, part) if isinstance(value, Mapping) else part
        resolved.append(name)
        try:
            value = value[name]
        except (LookupError, TypeError):
            value = None
    return resolved, value


def _name(members: Mapping[str, object], part: str | int) -> str:
    exact = str(part)
    if isinstance(part, str) or exact in members:
        return exact
    return next((name for name in members if name.isdecimal() and int(name) == part), exact)


def _lookup(schema: Any, path: Sequence[object]) -> Mapping[str, Any]:
    for part in path:
        try:
            schema = schema[part]
        except (LookupError, TypeError):
            return {}
    return schema if isinstance(schema, Mapping) else {}
