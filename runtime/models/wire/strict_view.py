"""The view for OpenAI's strict mode: objects are closed, all properties required, optional ones nullable. Pure.

Strict mode cannot express open objects, typed maps, untyped nodes and tuples without narrowing them. A tool with one of
them is offered without strict mode, and the reason is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire import strict_rules as rules
from callgate.runtime.models.wire.schema_views import NO_SCHEMA, View, has_no_schema, with_object_root
from callgate.runtime.models.wire.shapes import items
from callgate.runtime.models.wire.view_builder import Builder, InexpressibleError
from callgate.tools.definition import ToolDefinition


def openai_view(definition: ToolDefinition) -> View:
    """The schema for OpenAI: a strict view if the definition asks for it and one exists, else the plain schema.

    ``strict`` is sent only if the definition sets it.
    """
    root = with_object_root(definition)
    plain = {**root, "properties": root.get("properties", {})}  # the API refuses an object schema without them
    if definition.strict is not True:
        return View(plain, strict=definition.strict)
    if has_no_schema(definition):
        return View(plain, strict=False, fallback=NO_SCHEMA)
    try:
        return _Strict(root).view()
    except InexpressibleError as why:
        return View(plain, strict=False, fallback=str(why))


class _Strict(Builder):
    def __init__(self, root: dict[str, object]) -> None:
        super().__init__(root)
        self.nullable: set[str] = set()
        self.ambiguous: set[str] = set()
        self.nulls: dict[str, bool] = {}

    def view(self) -> View:
        made = self.top()
        if (reason := rules.over_limits(made)) is not None:
            self.refuse(reason, "")
        return View(made, True, tuple(self.dropped), frozenset(self.nullable), frozenset(self.ambiguous))

    def keeps(self, word: str, value: object, types: Sequence[str]) -> bool:
        return rules.kept(word, value, types)

    def plain(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        made: dict[str, object] = {"type": types[0] if len(types) == 1 else types}
        for word, value in here.items():
            if word not in rules.NESTED and walk.applies(word, types) and self.keeps(word, value, types):
                made.setdefault(word, value)
        if types == ["object"]:
            made |= self.object_node(here, at)
        if types == ["array"]:
            made["items"] = self.item(here, at)
        return made

    def object_node(self, here: Mapping[str, object], at: str) -> dict[str, object]:
        self.check_closed(here, at)
        needed = walk.required(here)
        made: dict[str, dict[str, object]] = {}
        for name, node in walk.properties(here).items():
            where = walk.below(at, "properties", name)
            made[name] = self.node(node, where)
            if name not in needed and self.allows_null(node, where):
                self.ambiguous.add(where)
            elif name not in needed:
                self.nullable.add(where)
                made[name] = rules.with_null(made[name])
        return {"properties": made, "required": list(made), "additionalProperties": False}

    def allows_null(self, node: object, at: str) -> bool:
        """True if the canonical schema allows null here, so that a null must be kept."""
        if isinstance(node, bool):
            return node
        here, at = walk.resolve_chain(self.root, node, at)
        if at not in self.nulls:
            self.nulls[at] = False  # ends cycles
            self.nulls[at] = self._allows_null(here, at)
        return self.nulls[at]

    def _allows_null(self, here: Mapping[str, object], at: str) -> bool:
        def branches(keyword: str) -> list[bool]:
            listed = enumerate(items(here.get(keyword)))
            return [self.allows_null(item, walk.below(at, keyword, index)) for index, item in listed]

        types = walk.declared_types(here)
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
