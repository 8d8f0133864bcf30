"""The views for Gemini, which has two fields for a schema and takes one of them. Pure.

``gemini_view`` uses ``parametersJsonSchema``, which takes JSON Schema: references, recursion, open objects, lists of
types and bounds of every kind go out as they are, so nothing is lost and nothing has to be mapped back.
``openapi_view`` is for servers that know only the older ``parameters``, a subset of OpenAPI 3.0 that refuses a whole
request for one keyword it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.reverse import spelling
from callgate.runtime.models.wire.schema_views import Dropped, View, rooted
from callgate.runtime.models.wire.view_builder import LOOKAROUND, Builder, InexpressibleError
from callgate.tools.definition import ToolDefinition

JSON_SCHEMA = "parametersJsonSchema"
OPENAPI = "parameters"
PROPERTY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
NODES = 5000  # of a schema whose references are written out

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
    """The schema under ``parametersJsonSchema``: as it is, but in the words that Gemini reads.

    A ``const`` becomes an ``enum`` of one, what stands beside a ``$ref`` goes around it, and ``$schema`` is left out:
    the same values are allowed.
    """
    root = rooted(definition)
    root.pop("$schema", None)
    root.setdefault("properties", {})
    return View(_respelled(root), key=JSON_SCHEMA)


def openapi_view(definition: ToolDefinition) -> View:
    """The schema under ``parameters``, in the OpenAPI subset; under ``parametersJsonSchema`` if that cannot say it.

    References are written out, null is ``nullable``, choices are text: values that are none are spelled as JSON, and
    ``canonical_arguments`` reads them back. What the subset lacks is dropped and told in the description.
    """
    builder = _OpenAPI(rooted(definition))
    try:
        made = builder.top()
    except InexpressibleError as why:
        return replace(gemini_view(definition), fallback=str(why))
    return View(made, dropped=tuple(dict.fromkeys(builder.dropped)), spelled=frozenset(builder.spelled), key=OPENAPI)


def _respelled(node: dict[str, Any]) -> dict[str, Any]:
    """A schema that is ours to change, changed in place, and all below it."""
    if "const" in node and "enum" not in node:
        node["enum"] = [node.pop("const")]
    for below in walk.subschemas(node):
        if isinstance(below, dict):
            inner = cast("dict[str, Any]", below)
            if "$ref" in inner and len(inner) > 1 and walk.asserted(inner) == {"$ref"}:
                inner["anyOf"] = [{"$ref": inner.pop("$ref")}]
            _respelled(inner)
    return node


class _OpenAPI(Builder):
    closes = False
    recursive = False
    type_lists = False

    def __init__(self, root: dict[str, Any]) -> None:
        super().__init__(root)
        self.spelled: set[str] = set()
        self.nodes = 0

    def keeps(self, word: str, value: Any, types: Sequence[str]) -> bool:
        match word:
            case "default":
                return any(walk.is_type(value, name) for name in types)
            case "format":
                return bool(value == "date-time")  # others are refused for text by one of Google's two servers
            case "pattern":
                return not LOOKAROUND.search(str(value))
            case "additionalProperties":
                return value is True or (not isinstance(value, bool) and not value)
            case "exclusiveMinimum" | "exclusiveMaximum":
                return set(types) <= {"integer", "null"} and walk.is_type(value, "integer")
            case _:
                return word in _KEPT

    def refer(self, node: Any, where: str) -> dict[str, Any]:
        return self.written(node, where)

    def node(self, node: Any, at: str) -> dict[str, Any]:
        self.nodes += 1
        if self.nodes > NODES:
            self.refuse(f"more than {NODES} nodes with references written out", at)
        return super().node(node, at)

    def either(self, branches: list[dict[str, Any]]) -> dict[str, Any]:
        """A choice; null is no branch of it but ``nullable``."""
        real = [branch for branch in branches if branch.get("type") != "NULL"]
        if not real or len(real) == len(branches):
            return {"anyOf": branches} if real else dict(_NULL)
        return {**(real[0] if len(real) == 1 else {"anyOf": real}), "nullable": True}

    def typed(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        if ("enum" in here or "const" in here) and not {"object", "array"} & set(types):
            return self.choice(here, types, at)
        return super().typed(here, types, at)

    def choice(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        """A list of scalars, as a list of text."""
        word = "const" if "const" in here else "enum"
        listed = walk.choices(here, types)
        values = [value for value in listed if value is not None]
        if not values:
            return self.described(dict(_NULL), here, at, ()) if listed else self.refuse("an empty choice", at)
        null = {"nullable": True} if len(values) < len(listed) else {}
        if all(isinstance(value, str) for value in values):
            text = {name: value for name, value in here.items() if name not in {"enum", "const"}}
            lost = [*self.lost(text, ["string"]), *([word] if "" in values else ())]  # it takes no empty choice
            made = self.plain(text, ["string"], at) | ({} if "" in values else {"enum": values}) | null
            return self.described(made, here, at, lost)
        texts = [spelling(value) for value in values]
        if "" in texts or len(set(texts)) < len(texts):
            self.refuse("choices that are told apart by their types", at)
        self.spelled.add(at)
        lost = [name for name in here if name not in {"type", "enum", "const"} and walk.applies(name, types)]
        return self.described({"type": "STRING", "enum": texts, **null}, here, at, lost)

    def plain(self, here: Mapping[str, Any], types: list[str], at: str) -> dict[str, Any]:
        if types == ["null"]:
            return dict(_NULL)
        kept = [word for word in here if word in _COPIED and walk.applies(word, types)]
        made: dict[str, Any] = {"type": types[0].upper()}
        made |= {word: here[word] for word in kept if self.keeps(word, here[word], types)}
        for word, (bound, step, closer) in _BOUNDS.items():
            if word in here and self.keeps(word, here[word], types):
                made[bound] = closer(int(here[word]) + step, made.get(bound, int(here[word]) + step))
        if types == ["object"] and "properties" in here:
            made |= self.object(here, at)
        if types == ["array"]:
            made["items"] = self.item(here, at)
        return made

    def object(self, here: Mapping[str, Any], at: str) -> dict[str, Any]:
        declared = walk.properties(here)
        if odd := [name for name in declared if not PROPERTY.fullmatch(name)]:
            self.refuse(f"the property {odd[0]!r} has a name it does not take", at)
        made = {name: self.node(node, walk.below(at, "properties", name)) for name, node in declared.items()}
        needed = [name for name in walk.required(here) if name in declared]
        if len(needed) < len(walk.required(here)):
            self.dropped.append(Dropped(at, "required"))
        return {"properties": made, **({"required": needed} if needed else {})}
