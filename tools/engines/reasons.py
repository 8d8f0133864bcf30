"""Turns the errors of jsonschema-rs into issues: from keywords and the schema, never from its messages (contract 49)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from callgate.tools.calls import Issue
from callgate.tools.engines.texts import describe, missing, place, unknown, wrong_type
from callgate.tools.values import clip

_MISSING, _UNKNOWN, _TYPE, _REST = range(4)
_MAX_NAMES = 16
_MAX_BRANCHES = 4  # anyOf within anyOf

_Ranked = tuple[int, Issue]


def issues_of(errors: Iterable[Any], value: Any, schema: Mapping[str, Any]) -> list[Issue]:
    """Issues in contract 35's order: missing, unknown and wrongly typed parameters, then everything else."""
    ranked = [pair for error in errors for pair in _explain(error, value, schema, 0)]
    return [issue for _, issue in sorted(ranked, key=lambda pair: pair[0])]


def _explain(error: Any, value: Any, schema: Mapping[str, Any], depth: int) -> Iterator[_Ranked]:
    kind, path = error.kind, list(error.instance_path)
    name: str = kind.name
    tail = error.schema_path[-1] if error.schema_path else ""
    argument = next(iter(kind.as_dict().values()), None)
    if name == "required" and tail in {"required", name}:
        yield (_REST if path else _MISSING), missing(path, str(argument))
    elif name in {"additionalProperties", "unevaluatedProperties"}:
        known = _lookup(schema, error.schema_path[:-1]).get("properties", {})
        for member in (argument or [])[:_MAX_NAMES]:
            yield (_REST if path else _UNKNOWN), unknown(path, str(member), known, name)
    elif name == "type":
        yield (_REST if len(path) > 1 else _TYPE), wrong_type(path, argument or [], _at(value, path))
    elif name in {"anyOf", "oneOf"}:
        yield from _branches(name, path, argument or [], value, schema, depth)
    elif name == "propertyNames":
        inner = next(_explain(argument, value, schema, depth + 1), None)
        text = describe(path, name, None).expected if inner is None else f"has a property name that {inner[1].expected}"
        yield _REST, Issue(place(path), name, clip(text, 160))
    elif name == "falseSchema":
        yield _REST, describe(path, "false", None)
    else:
        keyword = tail if name in {"required", "contains"} and isinstance(tail, str) else name
        yield _REST, describe(path, keyword, argument)


def _branches(
    name: str, path: list[Any], branches: list[list[Any]], value: Any, schema: Mapping[str, Any], depth: int
) -> Iterator[_Ranked]:
    """The errors of the branch that came closest: one that fits the value's type, with the fewest errors."""
    if depth >= _MAX_BRANCHES or not branches or not all(branches):
        yield _REST, describe(path, name, None)
        return
    types = [_own_types(branch, path) for branch in branches]
    if all(types) and all(len(branch) == 1 for branch in branches):
        union = list(dict.fromkeys(one for listed in types for one in listed))
        yield (_REST if len(path) > 1 else _TYPE), wrong_type(path, union, _at(value, path))
        return
    fitting = [branch for branch, listed in zip(branches, types, strict=True) if not listed]
    closest = min(fitting or branches, key=len)
    for error in closest:
        yield from _explain(error, value, schema, depth + 1)


def _own_types(branch: list[Any], path: list[Any]) -> list[str]:
    """The types that a branch wanted of the value itself, when that is what it missed."""
    for error in branch:
        if error.kind.name == "type" and list(error.instance_path) == path:
            return list(error.kind.types)
    return []


def _at(value: Any, path: list[Any]) -> Any:
    for part in path:
        value = value[part]
    return value


def _lookup(schema: Any, path: list[Any]) -> Mapping[str, Any]:
    for part in path:
        try:
            schema = schema[part]
        except (LookupError, TypeError):
            return {}
    return schema if isinstance(schema, Mapping) else {}
