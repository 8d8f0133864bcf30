"""Helpers for tests of the strict view: short makers, and an assertion of the provider's rules."""

from __future__ import annotations

from typing import Any

from callgate.runtime.models.wire.schema_views import View
from callgate.runtime.models.wire.strict_view import openai_view
from tests.runtime.models.wires import tool

SPOKEN = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$defs", "$ref"),
        *(
            "description",
            "pattern",
            "format",
            "multipleOf",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
        ),
        *("minItems", "maxItems"),
    }
)


def view(schema: dict[str, Any]) -> View:
    """The view for OpenAI of a tool that asks for strict mode."""
    return openai_view(tool(schema, strict=True))


def of(inner: dict[str, Any], *, needed: bool = True, beside: Any = None) -> View:
    """The view of an object with this one property."""
    required = {"required": ["p"]} if needed else {}
    return view({"type": "object", "properties": {"p": inner}, **required, **(beside or {})})


def assert_spoken(node: Any, at: str = "") -> None:
    """The rules of provider_schema_rules.json, openai_strict, for one node and all below."""
    assert set(node) <= SPOKEN, (at, set(node) - SPOKEN)
    if "$ref" in node:
        assert set(node) == {"$ref"}, at
        return
    assert node.get("type") or node.get("anyOf"), at
    if node.get("type") == "object":
        assert node["additionalProperties"] is False, at
        assert node["required"] == list(node["properties"]), at
    if node.get("type") == "array":
        assert_spoken(node["items"], f"{at}/items")
    for name, inner in {**node.get("properties", {}), **node.get("$defs", {})}.items():
        assert_spoken(inner, f"{at}/{name}")
    for index, inner in enumerate(node.get("anyOf", ())):
        assert_spoken(inner, f"{at}/{index}")
