"""The way back from a strict view: drop the nulls that it added (design 10.11; schemas 6). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jiter

from callgate.runtime.wire import schema_walk as walk
from callgate.runtime.wire.shapes import is_list, is_mapping, items


def canonical_arguments(arguments: Any, schema: Mapping[str, Any], nullable: AbstractSet[str]) -> Any:
    """Arguments in the form of the canonical schema: added nulls are dropped, nothing else is touched.

    Text stays text and an object an object; the very same value comes back when there is nothing to drop, or when
    the text is not strict JSON: then it is for hydration to judge. What was sent is in ``ToolCall.chunk``.
    """
    if not nullable:
        return arguments
    try:
        text = isinstance(arguments, str)
        value = _parsed(arguments) if text else arguments
        bare = _Reverse(schema, nullable).value(value, schema, "")
        if bare is value:
            return arguments
        return json.dumps(bare, ensure_ascii=False, allow_nan=False) if text else bare
    except (ValueError, TypeError, RecursionError):
        return arguments


def _parsed(text: str) -> Any:
    """Strict JSON: a duplicate key, NaN or great depth raises, so that dumping it again loses nothing."""
    return jiter.from_json(text.encode(), catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="none")


class _Reverse:
    """Walks a value along the schema its view was made from."""

    def __init__(self, root: Mapping[str, Any], nullable: AbstractSet[str]) -> None:
        self.root = root
        self.nullable = nullable
        self.seen: dict[tuple[str, int, bool], bool] = {}  # also cuts cycles, and keeps nested unions polynomial

    def value(self, value: Any, node: Any, at: str) -> Any:
        """The value without added nulls; the same object if there was none."""
        if not is_mapping(value) and not is_list(value):
            return value
        node, at = walk.settle(self.root, node, at)
        found = walk.union(node)
        if found:
            branch = self.branch(value, *found, at)
            return value if branch is None else self.value(value, *branch)
        return self.object(value, node, at) if is_mapping(value) else self.array(items(value), node, at)

    def object(self, value: Mapping[str, Any], node: Mapping[str, Any], at: str) -> Mapping[str, Any]:
        declared = walk.properties(node)
        bare: dict[str, Any] = {}
        changed = False
        for name, item in value.items():
            where = walk.below(at, "properties", name)
            if item is None and where in self.nullable:
                changed = True
                continue
            bare[name] = self.value(item, declared[name], where) if name in declared else item
            changed = changed or bare[name] is not item
        return bare if changed else value

    def array(self, value: Sequence[Any], node: Mapping[str, Any], at: str) -> Sequence[Any]:
        where = walk.below(at, "items")
        bare = [self.value(item, node.get("items"), where) for item in value]
        return bare if any(new is not old for new, old in zip(bare, value, strict=True)) else value

    def branch(self, value: Any, keyword: str, branches: Sequence[Any], at: str) -> tuple[Any, str] | None:
        """The branch that the value was written for: it fits as a strict view does, or else as plain JSON."""
        placed = [(branch, walk.below(at, keyword, index)) for index, branch in enumerate(branches)]
        for exact in (True, False):
            for branch, where in placed:
                if self.fits(value, branch, where, exact=exact):
                    return branch, where
        return None

    def fits(self, value: Any, node: Any, at: str, *, exact: bool) -> bool:
        """Whether the value has the shape of the node's view; *exact*: every property is there, be it null."""
        node, at = walk.settle(self.root, node, at)
        key = (at, id(value), exact)
        if key not in self.seen:
            self.seen[key] = False
            self.seen[key] = self._fits(value, node, at, exact=exact)
        return self.seen[key]

    def _fits(self, value: Any, node: Mapping[str, Any], at: str, *, exact: bool) -> bool:
        found = walk.union(node)
        if found:
            keyword, branches = found
            places = ((branch, walk.below(at, keyword, index)) for index, branch in enumerate(branches))
            return any(self.fits(value, branch, where, exact=exact) for branch, where in places)
        types = walk.types_of(node)
        if types and not any(is_type(value, name) for name in types):
            return False
        if "const" in node and not same(value, node["const"]):
            return False
        if "enum" in node and not any(same(value, item) for item in items(node["enum"])):
            return False
        if is_mapping(value):
            return self._object_fits(value, node, at, exact=exact)
        where = walk.below(at, "items")
        return all(self.fits(item, node.get("items"), where, exact=exact) for item in items(value))

    def _object_fits(self, value: Mapping[str, Any], node: Mapping[str, Any], at: str, *, exact: bool) -> bool:
        declared = walk.properties(node)
        wanted = set(declared) if exact else set(walk.required(node))
        if not wanted <= value.keys() <= set(declared):
            return False
        for name, item in value.items():
            where = walk.below(at, "properties", name)
            added = item is None and where in self.nullable
            if not added and not self.fits(item, declared[name], where, exact=exact):
                return False
        return True


def same(left: Any, right: Any) -> bool:
    """JSON equality of scalars: true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def is_type(value: Any, name: str) -> bool:
    """Whether a JSON value is of a JSON Schema type; 2.0 is an integer, true is no number (contract C7)."""
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            number = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return number and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return is_list(value)
        case "object":
            return is_mapping(value)
        case _:
            return False
