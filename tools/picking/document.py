"""What of a tool is searched: its texts field by field, and what each word of them weighs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.stemming import stem
from callgate.tools.picking.text import MAX_TEXT, as_text, joined, terms
from callgate.tools.picking.weights import FAINT_WORD, FIELDS, GROUP, K1, NUMBER, WEAK_WORD
from callgate.tools.picking.words import FAINT, GROUPS, WEAK

__all__ = ["GROUPS_OF", "pairs_of", "read_tool", "texts_of", "weigh", "worth"]

_MAX_PARAMETERS = 256
_MAX_DEPTH = 8
_PAIRED_FIELDS = ("name", "title", "description")  # parameters have no order that means anything
_WORTH = dict.fromkeys(map(stem, WEAK), WEAK_WORD) | dict.fromkeys(map(stem, FAINT), FAINT_WORD)


def _groups() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for number, words in enumerate(GROUPS):
        for word in words:
            found.setdefault(stem(word), {})[f"~{number}"] = None
    return {word: tuple(groups) for word, groups in found.items()}


GROUPS_OF = _groups()
"""The lines of ``words.GROUPS`` that a stem is in, as terms of their own."""


def worth(term: str) -> float:
    """What a term counts beside its rarity: less where it says little."""
    if term[0] == "~":
        return GROUP
    if term.isdecimal():
        return NUMBER
    return _WORTH.get(term, 1.0)


def texts_of(tool: ToolDefinition | Mapping[str, Any]) -> dict[str, str]:
    """The texts that are searched, by field; of a definition, or of its JSON form (also MCP's and the wrapped one)."""
    if isinstance(tool, ToolDefinition):
        found: Any = {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "tags": sorted(tool.tags),
            "parameters": tool.parameters,
            "examples": tool.examples,
        }
    else:
        inner = tool.get("function")
        found = inner if isinstance(inner, Mapping) else tool
    schema = next((found[key] for key in ("parameters", "inputSchema", "input_schema") if found.get(key)), None)
    names: list[str] = []
    descriptions: list[str] = []
    for name, description in _parameters(schema, 0):
        names.append(name)
        descriptions.append(description)
        if len(names) >= _MAX_PARAMETERS:
            break
    return {
        "name": as_text(found.get("name")),
        "title": as_text(found.get("title")),
        "description": as_text(found.get("description")),
        "tags": as_text(found.get("tags")),
        "parameter_names": joined(names),
        "parameter_descriptions": joined(descriptions)[:MAX_TEXT],
        "examples": as_text(found.get("examples")),
    }


def read_tool(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The terms of each field that has some."""
    return {name: found for name, text in texts.items() if text and (found := terms(text))}


def weigh(fields: Mapping[str, list[str]]) -> dict[str, float]:
    """What each term of a tool weighs in BM25F, saturated; rarity comes later, it is the catalogue's matter."""
    raw: dict[str, float] = {}
    for field in FIELDS:
        found = fields.get(field.name)
        if not found:
            continue
        one = field.weight / (1.0 - field.b + field.b * len(found) / field.usual)
        for term in found:
            raw[term] = raw.get(term, 0.0) + one
            for group in GROUPS_OF.get(term, ()):
                raw[group] = raw.get(group, 0.0) + one
    return {term: weight * (K1 + 1.0) / (K1 + weight) for term, weight in raw.items()}


def pairs_of(fields: Mapping[str, list[str]]) -> dict[tuple[str, str], None]:
    """The words that stand side by side in the texts that are read in order, each pair once."""
    return dict.fromkeys(pair for name in _PAIRED_FIELDS for pair in pairwise(fields.get(name, ())))


def _parameters(schema: Any, depth: int) -> Iterator[tuple[str, str]]:
    """The parameters of a schema and of what they hold: name and description. References are not followed."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        description = inner.get("description") if isinstance(inner, Mapping) else None
        yield str(name), description if isinstance(description, str) else ""
        yield from _parameters(inner, depth + 1)
    yield from _parameters(schema.get("items"), depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        for part in parts if isinstance(parts, list | tuple) else ():
            yield from _parameters(part, depth + 1)
