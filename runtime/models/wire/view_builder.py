"""The base of views that rewrite a schema: it walks the schema and describes the keywords that a wire lacks. Pure.

A keyword that the wire lacks is dropped and put into the description. The view then allows more than the canonical
schema, which still validates the arguments. A schema that the wire could only narrow has no such view; the caller sends
another view, and the reason is recorded.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NoReturn

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.schema_views import Dropped
from callgate.runtime.models.wire.shapes import mapping

LOOKAROUND = re.compile(r"\(\?<?[=!]")
_NOT_DESCRIBED = frozenset(
    {"$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "description", "title"}
)
_DESCRIBED = walk.ASSERTIONS | {"default", "examples", "deprecated"}


class InexpressibleError(Exception):
    """A view of this kind would refuse values that the schema allows."""

    def __init__(self, reason: str, at: str) -> None:
        super().__init__(f"{reason} at {at or '/'}")


class Builder(ABC):
    """Builds the view of one schema and records its changes by pointer; each dialect has a subclass."""

    closes: ClassVar[bool] = True  # the view closes objects; dropping a keyword about other properties would narrow it
    recursive: ClassVar[bool] = True  # a schema may refer to itself
    type_lists: ClassVar[bool] = True  # a scalar may have a list of types

    def __init__(self, root: dict[str, object]) -> None:
        self.root = root
        self.dropped: list[Dropped] = []
        self.definitions: dict[str, dict[str, object]] = {}
        self.names: dict[str, str] = {}
        self.open: set[str] = {""}  # pointers being written: a reference to one is a recursion

    @abstractmethod
    def keeps(self, word: str, value: object, types: Sequence[str]) -> bool:
        """True if the wire supports a keyword with this value on a node of these types."""

    @abstractmethod
    def plain(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        """Build a node of these types, without its description."""

    def either(self, branches: list[dict[str, object]]) -> dict[str, object]:
        """Build a choice of nodes."""
        return {"anyOf": branches}

    def beside(self, made: dict[str, object]) -> dict[str, object]:
        """Wrap the node if a description may not stand beside it."""
        return {"anyOf": [made]} if "$ref" in made else made

    def refuse(self, reason: str, at: str) -> NoReturn:
        """Give up on this view.

        Raises:
            InexpressibleError: always.
        """
        raise InexpressibleError(reason, at)

    def top(self) -> dict[str, object]:
        """Build the root, which must be one object, with the definitions that it references."""
        if "$ref" in self.root or walk.declared_types(self.root) != ["object"] or walk.union(self.root):
            self.refuse("the root is not one object", "")
        try:
            made = self.typed(self.root, ["object"], "")
        except RecursionError:
            self.refuse("a schema too deep to respell", "")
        return {**made, "$defs": self.definitions} if self.definitions else made

    def node(self, node: object, at: str) -> dict[str, object]:
        """Build a node below the root."""
        here = mapping(node)
        if "$ref" in here:
            return self.described(self.reference(here["$ref"], at), here, at, _without(here, "$ref"))
        branch = walk.only_of_all(here)
        if branch is not None:
            made = self.node(branch, walk.below(at, "allOf", 0))
            return self.described(made, here, at, _without(here, "allOf"))
        found = walk.union(here)
        if found:
            return self.union(here, *found, at)
        types = walk.declared_types(here) or walk.types_of_values(here)
        if not types:
            self.refuse("an untyped node", at)
        return self.typed(here, types, at)

    def reference(self, reference: object, at: str) -> dict[str, object]:
        """Build a local reference."""
        target = walk.resolve(self.root, reference)
        if target is None:
            self.refuse("a reference that is not a local pointer", at)
        if not walk.resolve_chain(self.root, *target)[0]:
            self.refuse("a reference without a target", at)
        node, where = target
        if where in self.open and not self.recursive:
            self.refuse("a schema that refers to itself", at)
        return self.refer(node, where)

    def refer(self, node: object, where: str) -> dict[str, object]:
        """Refer to a definition, which is built at its first reference."""
        if not where:
            return {"$ref": "#"}
        if where not in self.names:
            stem = re.sub(r"[^A-Za-z0-9_-]", "_", where.rsplit("/", 1)[1]) or "_"
            name = next(name for name in _numbered(stem) if name not in self.definitions)
            self.names[where] = name
            self.definitions[name] = {}  # holds the name while the node refers to itself
            self.definitions[name] = self.written(node, where)
        return {"$ref": f"#/$defs/{self.names[where]}"}

    def written(self, node: object, where: str) -> dict[str, object]:
        """Build the target of a reference."""
        self.open.add(where)
        made = self.node(node, where)
        self.open.discard(where)
        return made

    def union(self, here: Mapping[str, object], keyword: str, branches: Sequence[object], at: str) -> dict[str, object]:
        """Build ``anyOf`` or ``oneOf``; a type beside it moves into the branches."""
        outer = walk.declared_types(here)
        made: list[dict[str, object]] = []
        for index, branch in enumerate(branches):
            where = walk.below(at, keyword, index)
            inner = walk.declared_types(mapping(branch))
            if outer and not inner and "$ref" not in mapping(branch):
                branch = {**mapping(branch), "type": here["type"]}
            elif outer and not set(inner) <= set(outer):
                self.refuse("a union beside a type", at)
            made.append(self.node(branch, where))
        if keyword == "oneOf":
            self.dropped.append(Dropped(at, keyword))  # exactly one becomes at least one
        return self.described(self.either(made), here, at, _without(here, keyword, "type"))

    def typed(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        """Build a node that has types and no branches."""
        compound = bool({"object", "array"} & set(types))
        if compound and ("enum" in here or "const" in here):
            self.refuse("a list of objects or arrays to choose from", at)
        lost = self.lost(here, types)
        if len(types) == 1 or (self.type_lists and not compound):
            return self.described(self.plain(here, types, at), here, at, lost)
        return self.described(self.either([self.plain(here, [name], at) for name in types]), here, at, lost)

    def lost(self, here: Mapping[str, object], types: Sequence[str]) -> list[str]:
        """The keywords of a node that affect these types and that the wire lacks."""
        return [word for word in here if walk.applies(word, types) and not self.keeps(word, here[word], types)]

    def item(self, here: Mapping[str, object], at: str) -> dict[str, object]:
        """Build the items of an array, which must have one schema."""
        if "prefixItems" in here or not isinstance(here.get("items"), Mapping):
            self.refuse("an array of untyped items", at)
        return self.node(here["items"], walk.below(at, "items"))

    def check_closed(self, here: Mapping[str, object], at: str) -> None:
        """Check that an object may be closed: it must not be declared as open.

        Raises:
            InexpressibleError: the object is open, or requires a property that it does not declare.
        """
        declared = walk.properties(here)
        others = here.get("additionalProperties", here.get("unevaluatedProperties"))
        silent = others is None and (declared or not at)  # a tool that declares no parameters accepts none
        if here.get("patternProperties") or not (silent or others is False):
            self.refuse("an open object", at)
        if not set(walk.required(here)) <= set(declared):
            self.refuse("a required property is not declared", at)

    def described(
        self, made: dict[str, object], here: Mapping[str, object], at: str, lost: Iterable[str]
    ) -> dict[str, object]:
        """Add the description, including the keywords that the node loses."""
        notes: list[str] = []
        for word in lost:
            if word in _NOT_DESCRIBED:
                continue
            self.check_losable(here, word, at)
            self.dropped.append(Dropped(at, word))
            if word in _DESCRIBED and not (
                word == "additionalProperties" and here[word] is False
            ):  # a model does not need it
                notes.append(f"{word}: {json.dumps(here[word], ensure_ascii=False)}")
        text = str(here.get("description") or ("" if "title" in made else here.get("title")) or "")
        lost_words = "; ".join(notes)
        text = f"{text} ({lost_words})" if text and notes else text or lost_words
        text = " ".join(filter(None, [text, str(made.get("description") or "")]))
        return {**self.beside(made), "description": text} if text else made

    def check_losable(self, here: Mapping[str, object], word: str, at: str) -> None:
        """Refuse to drop a composition about other properties: the closed object would reject them."""
        if not self.closes or word not in walk.ASSERTIONS:
            return
        mentioned = walk.names_in({word: here[word]})
        if mentioned is None or not mentioned <= set(walk.properties(here)):
            self.refuse(f"{word} mentions other properties", at)


def _without(here: Mapping[str, object], *words: str) -> list[str]:
    """The keywords of a node, without *words*."""
    return [word for word in here if word not in words]


def _numbered(stem: str) -> Iterable[str]:
    """Yield ``stem``, ``stem_2``, ``stem_3`` and so on."""
    yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1
