"""The view for OpenAI's strict mode: closed objects, everything required, optional as nullable (schemas 6). Pure.

A keyword that strict mode lacks is dropped and told in the description: the view then admits more than the canonical
schema, which is what validates. What strict mode could only narrow (open objects, typed maps, untyped nodes, tuples)
has no strict view; the tool is then offered without strict mode, and the reason is recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from callgate.runtime.wire import schema_walk as walk
from callgate.runtime.wire import strict_rules as rules
from callgate.runtime.wire.schema_views import Dropped, View, rooted, source
from callgate.runtime.wire.shapes import items, mapping
from callgate.tools.definition import ToolDefinition

_SILENT = frozenset({"$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "description", "title"})
_TOLD = walk.ASSERTIONS | {"default", "examples", "deprecated"}


def openai_view(definition: ToolDefinition) -> View:
    """The schema for OpenAI: strict if the definition asks for it and it can be told so, else as it is (contract 12).

    ``strict`` is sent only if the definition sets it.
    """
    root = rooted(definition)
    plain = {"properties": {}, **root}  # the wire refuses an object schema without them
    if definition.strict is not True:
        return View(plain, strict=definition.strict)
    if source(definition) is None:
        return View(plain, strict=False, fallback="the tool has no schema")
    try:
        return _Builder(root).view()
    except _InexpressibleError as why:
        return View(plain, strict=False, fallback=str(why))


class _InexpressibleError(Exception):
    """No strict view could say this without refusing what the schema allows."""

    def __init__(self, reason: str, at: str) -> None:
        super().__init__(f"{reason} at {at or '/'}")


class _Builder:
    """Writes the view of one schema, and keeps what it did by pointer."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.dropped: list[Dropped] = []
        self.nullable: set[str] = set()
        self.ambiguous: set[str] = set()
        self.definitions: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        self.nulls: dict[str, bool] = {}

    def view(self) -> View:
        if "$ref" in self.root or walk.types_of(self.root) != ["object"] or walk.union(self.root):
            raise _InexpressibleError("the root is not one object", "")
        made = self.typed(self.root, ["object"], "")
        if self.definitions:
            made["$defs"] = self.definitions
        if (reason := rules.over_limits(made)) is not None:
            raise _InexpressibleError(reason, "")
        return View(made, True, tuple(self.dropped), frozenset(self.nullable), frozenset(self.ambiguous))

    def node(self, node: Any, at: str) -> dict[str, Any]:
        here = mapping(node)
        if "$ref" in here:
            return self.described(self.reference(here["$ref"], at), here, at, rules.without(here, "$ref"))
        branch = walk.only_of_all(here)
        if branch is not None:
            made = self.node(branch, walk.below(at, "allOf", 0))
            return self.described(made, here, at, rules.without(here, "allOf"))
        found = walk.union(here)
        if found:
            return self.union(here, *found, at)
        types = walk.types_of(here) or rules.types_of_values(here)
        if not types:
            raise _InexpressibleError("an untyped node", at)
        return self.typed(here, types, at)

    def reference(self, reference: Any, at: str) -> dict[str, Any]:
        target = walk.resolve(self.root, reference)
        if target is None:
            raise _InexpressibleError("a reference that is no local pointer", at)
        if not walk.settle(self.root, *target)[0]:
            raise _InexpressibleError("a reference that leads to nothing", at)
        node, where = target
        if not where:
            return {"$ref": "#"}
        if where not in self.names:
            stem = re.sub(r"[^A-Za-z0-9_-]", "_", where.rsplit("/", 1)[1]) or "_"
            self.names[where] = next(name for name in rules.numbered(stem) if name not in self.definitions)
            self.definitions[self.names[where]] = {}  # holds the name while the node refers to itself
            self.definitions[self.names[where]] = self.node(node, where)
        return {"$ref": f"#/$defs/{self.names[where]}"}

    def union(self, here: Mapping[str, Any], keyword: str, branches: Sequence[Any], at: str) -> dict[str, Any]:
        outer = walk.types_of(here)
        made: list[dict[str, Any]] = []
        for index, branch in enumerate(branches):
            where = walk.below(at, keyword, index)
            inner = walk.types_of(mapping(branch))
            if outer and not inner and "$ref" not in mapping(branch):
                branch = {**mapping(branch), "type": here["type"]}
            elif outer and not set(inner) <= set(outer):
                raise _InexpressibleError("a union beside a type", at)
            made.append(self.node(branch, where))
        if keyword == "oneOf":
            self.dropped.append(Dropped(at, keyword))  # exactly one becomes at least one
        return self.described({"anyOf": made}, here, at, rules.without(here, keyword, "type"))

    def typed(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        lost = [word for word in here if walk.applies(word, types) and not rules.kept(word, here[word], types)]
        compound = bool({"object", "array"} & set(types))
        if compound and ("enum" in here or "const" in here):
            raise _InexpressibleError("a list of objects or arrays to choose from", at)
        if len(types) == 1 or not compound:
            return self.described(self.plain(here, types, at), here, at, lost)
        return self.described({"anyOf": [self.plain(here, [name], at) for name in types]}, here, at, lost)

    def plain(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        words = [word for word in here if word not in rules.OBJECT and word not in {"items", "type"}]
        made: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
        made |= {
            word: here[word] for word in words if walk.applies(word, types) and rules.kept(word, here[word], types)
        }
        if types == ["object"]:
            made |= self.object(here, at)
        if types == ["array"]:
            if "prefixItems" in here or not isinstance(here.get("items"), Mapping):
                raise _InexpressibleError("an array of untyped items", at)
            made["items"] = self.node(here["items"], walk.below(at, "items"))
        return made

    def object(self, here: Mapping[str, Any], at: str) -> dict[str, Any]:
        declared, needed = walk.properties(here), walk.required(here)
        self.check_closed(here, declared, at)
        if not set(needed) <= set(declared):
            raise _InexpressibleError("a required property is not declared", at)
        made: dict[str, Any] = {}
        for name, node in declared.items():
            where = walk.below(at, "properties", name)
            made[name] = self.node(node, where)
            if name not in needed and self.allows_null(node, where):
                self.ambiguous.add(where)
            elif name not in needed:
                self.nullable.add(where)
                made[name] = rules.with_null(made[name])
        return {"properties": made, "required": list(made), "additionalProperties": False}

    def check_closed(self, here: Mapping[str, Any], declared: Mapping[str, Any], at: str) -> None:
        """An object that says nothing of other properties is closed; one that says it is open has no strict view."""
        others = here.get("additionalProperties", here.get("unevaluatedProperties"))
        silent = others is None and (declared or not at)  # a tool that declares no parameter takes none
        if here.get("patternProperties") or not (silent or others is False):
            raise _InexpressibleError("an open object", at)

    def described(self, made: dict[str, Any], here: Mapping[str, Any], at: str, lost: Iterable[str]) -> dict[str, Any]:
        """The node with its description, in which the keywords that it loses are told."""
        told: list[str] = []
        for word in lost:
            if word in _SILENT:
                continue
            self.check_losable(here, word, at)
            self.dropped.append(Dropped(at, word))
            if word in _TOLD:
                told.append(f"{word}: {json.dumps(here[word], ensure_ascii=False)}")
        text = str(here.get("description") or here.get("title") or "")
        lost_words = "; ".join(told)
        text = f"{text} ({lost_words})" if text and told else text or lost_words
        text = " ".join(filter(None, [text, made.get("description")]))
        if not text:
            return made
        return {**({"anyOf": [made]} if "$ref" in made else made), "description": text}

    def check_losable(self, here: Mapping[str, Any], word: str, at: str) -> None:
        """A composition that speaks of other properties cannot be dropped: closing the object would refuse them."""
        if word not in walk.ASSERTIONS:
            return
        mentioned = rules.names_in({word: here[word]})
        if mentioned is None or not mentioned <= set(walk.properties(here)):
            raise _InexpressibleError(f"{word} speaks of other properties", at)

    def allows_null(self, node: Any, at: str) -> bool:
        """Whether the canonical schema itself takes null here, so that a null must be kept."""
        if isinstance(node, bool):
            return node
        here, at = walk.settle(self.root, node, at)
        if at not in self.nulls:
            self.nulls[at] = False  # cuts cycles
            self.nulls[at] = self._allows_null(here, at)
        return self.nulls[at]

    def _allows_null(self, here: Mapping[str, Any], at: str) -> bool:
        def branches(keyword: str) -> list[bool]:
            listed = enumerate(items(here.get(keyword)))
            return [self.allows_null(item, walk.below(at, keyword, index)) for index, item in listed]

        types = walk.types_of(here)
        return not (
            (types and "null" not in types)
            or here.get("const") is not None
            or ("enum" in here and None not in items(here["enum"]))
            or ("anyOf" in here and not any(branches("anyOf")))
            or ("oneOf" in here and sum(branches("oneOf")) != 1)
            or not all(branches("allOf"))
            or "not" in here
            or "if" in here
        )
