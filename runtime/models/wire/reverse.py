"""Reverses a view on the arguments of a call: drops added nulls and reads choices spelled as text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jiter

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.shapes import is_list, is_mapping, items
from callgate.tools.arguments.exact_json import loses_fraction
from callgate.tools.schemas.engines.texts import is_of_type

_EXACT, _PLAIN, _OPEN = "has every property", "lacks optional properties", "has undeclared properties"
_SLACKS = (_EXACT, _PLAIN, _OPEN)


def canonical_arguments(
    arguments: object,
    schema: Mapping[str, object],
    nullable: AbstractSet[str],
    spelled: AbstractSet[str] = frozenset(),
) -> Any:
    """Convert arguments to the form of the canonical schema; it changes only what the view added.

    Nulls at *nullable* pointers are dropped. At *spelled* pointers, text that spells a choice becomes that choice. Text
    stays text, and an object stays an object. The same object is returned if there is nothing to change, or if the
    text is not strict JSON, which hydration then judges. ``ToolCall.chunk`` has the arguments as received.
    """
    if not nullable and not spelled:
        return arguments
    try:
        value = _parsed(arguments) if isinstance(arguments, str) else arguments
        bare = _Reverse(schema, nullable, spelled).value(value, schema, "")
        if bare is value:
            return arguments
        return json.dumps(bare, ensure_ascii=False, allow_nan=False) if isinstance(arguments, str) else bare
    except (ValueError, TypeError, RecursionError):
        return arguments


def _parsed(text: str) -> object:
    """Parse strict JSON: a duplicate key, NaN, great depth or a lost fraction raises, so that dumping loses nothing."""
    if loses_fraction(data := text.encode()):
        raise ValueError("a number has a fraction that a float loses")
    return jiter.from_json(data, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="none")


class _Reverse:
    """Walks a value along the schema that its view was made from."""

    def __init__(self, root: Mapping[str, object], nullable: AbstractSet[str], spelled: AbstractSet[str]) -> None:
        self.root = root
        self.nullable = nullable
        self.spelled = spelled
        self.seen: dict[tuple[str, int, str], bool] = {}  # also cuts cycles, and keeps nested unions polynomial

    def value(self, value: object, node: object, at: str) -> object:
        """Return the converted value, or the same object if nothing changes."""
        if not is_mapping(value) and not is_list(value) and not (self.spelled and isinstance(value, str)):
            return value
        node, at = walk.resolve_chain(self.root, node, at)
        if at in self.spelled:
            return choice_of_text(value, node)
        found = walk.union(node)
        if found:
            branch = self.branch(value, *found, at)
            return value if branch is None else self.value(value, *branch)
        if is_mapping(value):
            return self.object_value(value, node, at)
        return self.array(value, node, at) if is_list(value) else value

    def object_value(self, value: Mapping[str, object], node: Mapping[str, object], at: str) -> Mapping[str, object]:
        declared = walk.properties(node)
        bare: dict[str, object] = {}
        changed = False
        for name, item in value.items():
            where = walk.below(at, "properties", name)
            if item is None and where in self.nullable:
                changed = True
                continue
            bare[name] = self.value(item, declared[name], where) if name in declared else item
            changed = changed or bare[name] is not item
        return bare if changed else value

    def array(self, value: Sequence[object], node: Mapping[str, object], at: str) -> Sequence[object]:
        where = walk.below(at, "items")
        bare = [self.value(item, node.get("items"), where) for item in value]
        return bare if any(new is not old for new, old in zip(bare, value, strict=True)) else value

    def branch(self, value: object, keyword: str, branches: Sequence[object], at: str) -> tuple[object, str] | None:
        """The branch that the value fits most closely; the first one of several."""
        located = [(branch, walk.below(at, keyword, index)) for index, branch in enumerate(branches)]
        for slack in _SLACKS if self.spelled else _SLACKS[:2]:  # a view with added nulls has closed objects
            for branch, where in located:
                if self.fits(value, branch, where, slack):
                    return branch, where
        return None

    def fits(self, value: object, node: object, at: str, slack: str) -> bool:
        """True if the value has the shape of the node's view."""
        node, at = walk.resolve_chain(self.root, node, at)
        key = (at, id(value), slack)
        if key not in self.seen:
            self.seen[key] = False
            self.seen[key] = self._fits(value, node, at, slack)
        return self.seen[key]

    def _fits(self, value: object, node: Mapping[str, object], at: str, slack: str) -> bool:
        found = walk.union(node)
        if found:
            keyword, branches = found
            located = ((branch, walk.below(at, keyword, index)) for index, branch in enumerate(branches))
            return any(self.fits(value, branch, where, slack) for branch, where in located)
        if at in self.spelled:
            value = choice_of_text(value, node)
        types = walk.declared_types(node)
        if types and not is_of_type(value, types):
            return False
        if "const" in node and not walk.same(value, node["const"]):
            return False
        if "enum" in node and not any(walk.same(value, item) for item in items(node["enum"])):
            return False
        if is_mapping(value):
            return self._object_fits(value, node, at, slack)
        where = walk.below(at, "items")
        return all(self.fits(item, node.get("items"), where, slack) for item in items(value))

    def _object_fits(self, value: Mapping[str, object], node: Mapping[str, object], at: str, slack: str) -> bool:
        declared = walk.properties(node)
        wanted = set(declared) if slack == _EXACT else set(walk.required(node))
        if not wanted <= value.keys() or not (slack == _OPEN or value.keys() <= set(declared)):
            return False
        for name in declared.keys() & value.keys():
            item, where = value[name], walk.below(at, "properties", name)
            added = item is None and where in self.nullable
            if not added and not self.fits(item, declared[name], where, slack):
                return False
        return True


def choice_text(choice: object) -> str:
    """A choice as text, for wires whose choices are text: strings are unchanged, other values are JSON."""
    return choice if isinstance(choice, str) else json.dumps(choice)


def choice_of_text(value: object, node: Mapping[str, object]) -> object:
    """The choice that a text spells; the value itself if no choice matches."""
    if not isinstance(value, str):
        return value
    choices = [node["const"]] if "const" in node else items(node.get("enum"))
    return next((choice for choice in choices if choice_text(choice) == value), value)
