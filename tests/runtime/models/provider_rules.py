"""The schema rules of each provider, read from the sample data and checked by an independent walk.

Nothing of the code under test is used here: ``broken`` lists what a provider would refuse or pass over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.conftest import DATA

Finder = Callable[[dict[str, Any], dict[str, Any]], Iterator[str]]
_LOOKAROUND = re.compile(r"\(\?(=|!|<=|<!)")


def read_rules(data: Path = DATA) -> dict[str, Any]:
    """The facts, as they were gathered."""
    rules: dict[str, Any] = json.loads((data / "provider_schema_rules.json").read_text("utf-8"))
    return rules


def words(listed: list[str]) -> set[str]:
    """The keywords of a list such as ``["$ref (no siblings)", "minLength/maxLength (…)", "format:[date,time]"]``."""
    return {word for entry in listed for word in re.split(r"[ (:]", entry)[0].split("/")}


def formats(listed: list[str]) -> set[str]:
    """The values of ``format`` that a list allows."""
    (entry,) = (entry for entry in listed if entry.startswith("format:["))
    return set(entry.removeprefix("format:[").rstrip("]").split(","))


def nodes(node: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, with its place."""
    if not isinstance(node, dict):
        return
    yield at, node
    for word in ("properties", "$defs", "definitions", "patternProperties"):
        for name, inner in node.get(word, {}).items():
            yield from nodes(inner, f"{at}/{word}/{name}")
    for word in ("items", "additionalProperties", "not", "contains", "propertyNames"):
        yield from nodes(node.get(word), f"{at}/{word}")
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, inner in enumerate(node.get(word, ())):
            yield from nodes(inner, f"{at}/{word}/{index}")


def _common(view: dict[str, Any], known: set[str], known_formats: set[str]) -> Iterator[str]:
    """The rules of both strict modes."""
    if view.get("type") != "object" or "anyOf" in view:
        yield "the root is no object"
    for at, node in nodes(view):
        if unknown := set(node) - known:
            yield f"{at}: {sorted(unknown)} not supported"
        if node.get("type") == "object" and node.get("additionalProperties") is not False:
            yield f"{at}: an open object"
        if not {"type", "anyOf", "allOf", "enum", "const", "$ref"} & set(node):
            yield f"{at}: untyped"
        if "array" in _types(node) and not node.get("items"):
            yield f"{at}: untyped items"
        if "format" in node and node["format"] not in known_formats:
            yield f"{at}: format {node['format']}"
        if _LOOKAROUND.search(node.get("pattern", "")):
            yield f"{at}: lookaround"
        if "$ref" in node and len(node) > 1:
            yield f"{at}: a reference with siblings"
        if (
            "$ref" in node
            and node["$ref"] != "#"
            and node["$ref"].removeprefix("#/$defs/") not in view.get("$defs", {})
        ):
            yield f"{at}: a reference to nothing"


def _types(node: dict[str, Any]) -> list[str]:
    kinds = node.get("type", [])
    return kinds if isinstance(kinds, list) else [kinds]


def openai_strict(view: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    facts = rules["openai_strict"]
    yield from _common(view, words(facts["supported"]), formats(facts["supported"]))
    for at, node in nodes(view):
        if "properties" in node and sorted(node.get("required", ())) != sorted(node["properties"]):
            yield f"{at}: not every property is required"
    limits = facts["limits"]
    found = {
        "properties_total": sum(len(node.get("properties", ())) for _, node in nodes(view)),
        "enum_values_total": sum(len(node.get("enum", ())) for _, node in nodes(view)),
        "string_chars_total": sum(_characters(node) for _, node in nodes(view)),
        "nesting": max(at.count("/properties/") for at, _ in nodes(view)),
    }
    yield from (f"{limit}: {count}" for limit, count in found.items() if count > limits[limit])


def _characters(node: dict[str, Any]) -> int:
    names = [*node.get("properties", ()), *node.get("$defs", ())]
    return sum(len(text) for text in [*names, *node.get("enum", ()), node.get("const", "")] if isinstance(text, str))


def anthropic_strict(view: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    facts = rules["anthropic_strict"]
    known = words(facts["supported"]) | {"additionalProperties"}
    yield from _common(view, known, formats(facts["supported"]))
    for at, node in nodes(view):
        if isinstance(node.get("type"), list):
            yield f"{at}: a list of types"
        if node.get("minItems", 0) not in (0, 1):
            yield f"{at}: minItems {node['minItems']}"
        if re.search(r"\\[1-9b]", node.get("pattern", "")):
            yield f"{at}: a pattern with a backreference or \\b"
    if _refers_to_itself(view):
        yield "recursion"


def _refers_to_itself(view: dict[str, Any]) -> bool:
    leads = {
        name: {inner["$ref"].rpartition("/")[2] for _, inner in nodes(node) if "$ref" in inner}
        for name, node in view.get("$defs", {}).items()
    }
    for start, first in leads.items():
        seen: set[str] = set()
        todo = set(first)
        while todo:
            name = todo.pop()
            seen.add(name)
            todo |= leads.get(name, set()) - seen
        if start in seen or "#" in seen:
            return True
    return any(node.get("$ref") == "#" for _, node in nodes(view))


def anthropic_request(views: list[dict[str, Any]], rules: dict[str, Any]) -> Iterator[str]:
    """The limits on the strict tools of one request."""
    limits = rules["anthropic_strict"]["limits_per_request"]
    every = [node for view in views for _, node in nodes(view)]
    found = {
        "strict_tools": len(views),
        "optional_parameters": sum(
            len(set(node.get("properties", ())) - set(node.get("required", ()))) for node in every
        ),
        "union_parameters": sum("anyOf" in node for node in every),
    }
    yield from (f"{limit}: {count}" for limit, count in found.items() if count > limits[limit])


def gemini_openapi(view: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    facts = rules["gemini"]
    known = words(facts["openapi_subset_fields"]) - {"additionalProperties", "$ref", "$defs"}
    if view.get("type") != "OBJECT":
        yield "the root is no object"
    for at, node in nodes(view):
        if unknown := set(node) - known:
            yield f"{at}: {sorted(unknown)} not supported"
        if "anyOf" not in node and not (isinstance(node.get("type"), str) and node["type"].isupper()):
            yield f"{at}: type {node.get('type')}"
        if any(not isinstance(value, str) or not value for value in node.get("enum", ())):
            yield f"{at}: an enum of more than text"
        if node.get("type") == "ARRAY" and not node.get("items"):
            yield f"{at}: untyped items"
        if not set(node.get("required", ())) <= set(node.get("properties", ())):
            yield f"{at}: required but not declared"
        for name in node.get("properties", ()):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
                yield f"{at}: the name {name}"


def json_schema(view: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    """A plain JSON Schema with an object at its root."""
    if view.get("type") != "object":
        yield "the root is no object"


def gemini(view: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    yield from json_schema(view, rules)
    for at, node in nodes(view):
        if {"const", "$schema"} & set(node):
            yield f"{at}: const or $schema"
        if "$ref" in node and len(node) > 1:
            yield f"{at}: a reference with siblings"


RULES: dict[str, Finder] = {
    "openai": json_schema,
    "openai strict": openai_strict,
    "anthropic": json_schema,
    "anthropic strict": anthropic_strict,
    "gemini": gemini,
    "gemini openapi": gemini_openapi,
    "ollama": json_schema,
}
