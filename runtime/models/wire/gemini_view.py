"""The views for Gemini, which has two fields for a schema. Pure.

``gemini_view`` uses ``parametersJsonSchema``. It accepts JSON Schema with references, recursion, open objects, lists of
types and bounds, so the view loses nothing and arguments need no conversion. ``openapi_view`` is for servers that only
have the older ``parameters``: a subset of OpenAPI 3.0 that refuses a request with an unknown keyword.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.reverse import choice_text
from callgate.runtime.models.wire.schema_views import Dropped, View, with_object_root
from callgate.runtime.models.wire.view_builder import LOOKAROUND, Builder, InexpressibleError
from callgate.tools.definition import ToolDefinition
from callgate.tools.schemas.engines.texts import is_of_type

JSON_SCHEMA = "parametersJsonSchema"
OPENAPI = "parameters"
PROPERTY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
NODES = 5000  # in a schema with inlined references

_NULL = {"type": "NULL"}
_COPIED = frozenset(
    {
        *("title", "default", "format", "pattern", "minItems", "maxItems", "minLength", "maxLength"),
        *("minProperties", "maxProperties", "minimum", "maximum"),
    }
)
_KEPT = _COPIED | {"type", "properties", "required", "items"}
_BOUNDS = {"exclusiveMinimum": ("minimum", 1, max), "exclusiveMaximum": ("maximum", -1, min)}


def gemini_view(definition: ToolDefinition) -> View:
    """The schema for ``parametersJsonSchema``, with the keywords that Gemini reads; it allows the same values.

    A ``const`` becomes an ``enum`` with one value, a ``$ref`` beside other keywords moves into an ``anyOf``, and
    ``$schema`` is left out.
    """
    root = with_object_root(definition)
    root.pop("$schema", None)
    root.setdefault("properties", {})
    return View(_respelled(root), key=JSON_SCHEMA)


def openapi_view(definition: ToolDefinition) -> View:
    """The schema for ``parameters`` in the OpenAPI subset; if that cannot express it, ``gemini_view``.

    References are inlined, null becomes ``nullable``, and choices become text: other values are spelled as JSON, which
    ``canonical_arguments`` converts back. Keywords that the subset lacks move into the description.
    """
    builder = _OpenAPI(with_object_root(definition))
    try:
        made = builder.top()
    except InexpressibleError as why:
        return replace(gemini_view(definition), fallback=str(why))
    return View(made, dropped=tuple(dict.fromkeys(builder.dropped)), spelled=frozenset(builder.spelled), key=OPENAPI)


def _respelled(node: dict[str, object]) -> dict[str, object]:
    """Rewrite a schema and its subschemas in place."""
    if "const" in node and "enum" not in node:
        node["enum"] = [node.pop("const")]
    for below in walk.subschemas(node):
        if isinstance(below, dict):
            inner = cast("dict[str, object]", below)
            if "$ref" in inner and len(inner) > 1 and walk.asserted(inner) == {"$ref"}:
                inner["anyOf"] = [{"$ref": inner.pop("$ref")}]
            _respelled(inner)
    return node


class _OpenAPI(Builder):
    closes = False
    recursive = False
    type_lists = False

    def __init__(self, root: dict[str, object]) -> None:
        super().__init__(root)
        self.spelled: set[str] = set()
        self.nodes = 0

    def keeps(self, word: str, value: object, types: Sequence[str]) -> bool:
        match word:
            case "default":
                return is_of_type(value, types)
            case "format":
                return bool(value == "date-time")  # one of Google's two servers refuses other formats
            case "pattern":
                return not LOOKAROUND.search(str(value))
            case "additionalProperties":
                return value is True or (not isinstance(value, bool) and not value)
            case "exclusiveMinimum" | "exclusiveMaximum":
                return set(types) <= {"integer", "null"} and is_of_type(value, ["integer"])
            case _:
                return word in _KEPT

    def refer(self, node: object, where: str) -> dict[str, object]:
        return self.written(node, where)

    def node(self, node: object, at: str) -> dict[str, object]:
        self.nodes += 1
        if self.nodes > NODES:
            self.refuse(f"more than {NODES} nodes with inlined references", at)
        return super().node(node, at)

    def either(self, branches: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Build a union; null becomes ``nullable`` instead of a branch."""
        real = [branch for branch in branches if branch.get("type") != "NULL"]
        if not real or len(real) == len(branches):
            return {"anyOf": branches} if real else dict(_NULL)
        return {**(real[0] if len(real) == 1 else {"anyOf": real}), "nullable": True}

    def typed(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        if ("enum" in here or "const" in here) and not {"object", "array"} & set(types):
            return self.choice(here, types, at)
        return super().typed(here, types, at)

    def choice(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        """Build a list of scalars as a list of text."""
        word = "const" if "const" in here else "enum"
        listed = walk.choices(here, types)
        values = [value for value in listed if value is not None]
        if not values:
            return self.described(dict(_NULL), here, at, ()) if listed else self.refuse("an empty choice", at)
        null = {"nullable": True} if len(values) < len(listed) else {}
        if all(isinstance(value, str) for value in values):
            text = {name: value for name, value in here.items() if name not in {"enum", "const"}}
            lost = [*self.lost(text, ["string"]), *([word] if "" in values else ())]  # the API refuses an empty choice
            made = self.plain(text, ["string"], at) | ({} if "" in values else {"enum": values}) | null
            return self.described(made, here, at, lost)
        texts = [choice_text(value) for value in values]
        if "" in texts or len(set(texts)) < len(texts):
            self.refuse("choices that differ only in their types", at)
        self.spelled.add(at)
        lost = [name for name in here if name not in {"type", "enum", "const"} and walk.applies(name, types)]
        return self.described({"type": "STRING", "enum": texts, **null}, here, at, lost)

    def plain(self, here: Mapping[str, object], types: list[str], at: str) -> dict[str, object]:
        if types == ["null"]:
            return dict(_NULL)
        kept = [word for word in here if word in _COPIED and walk.applies(word, types)]
        made: dict[str, object] = {"type": types[0].upper()}
        made |= {word: here[word] for word in kept if self.keeps(word, here[word], types)}
        for word, (bound, step, closer) in _BOUNDS.items():
            value = here.get(word)
            if isinstance(value, int | float) and self.keeps(word, value, types):
                stated = made.get(bound)
                limit = int(value) + step
                made[bound] = closer(limit, stated) if isinstance(stated, int | float) else limit
        if types == ["object"] and "properties" in here:
            made |= self.object_node(here, at)
        if types == ["array"]:
            made["items"] = self.item(here, at)
        return made

    def object_node(self, here: Mapping[str, object], at: str) -> dict[str, object]:
        declared = walk.properties(here)
        if odd := [name for name in declared if not PROPERTY.fullmatch(name)]:
            self.refuse(f"the property {odd[0]!r} has a name it does not take", at)
        made = {name: self.node(node, walk.below(at, "properties", name)) for name, node in declared.items()}
        needed = [name for name in walk.required(here) if name in declared]
        if len(needed) < len(walk.required(here)):
            self.dropped.append(Dropped(at, "required"))
        return {"properties": made, **({"required": needed} if needed else {})}
