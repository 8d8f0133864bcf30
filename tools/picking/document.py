"""The searched texts of a tool by field, and the weight of each word."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.stemming import stem
from callgate.tools.picking.text import MAX_TEXT, as_text, joined, terms
from callgate.tools.picking.weights import FAINT_WORD, FIELDS, GROUP, K1, NUMBER, WEAK_WORD
from callgate.tools.picking.words import FAINT, GROUPS, WEAK

_MAX_PARAMETERS = 256
_MAX_PARTS = 4_096
_HOLDING = frozenset({"properties", "items", "anyOf", "oneOf", "allOf"})  # keywords of a schema that hold subschemas
_MAX_DEPTH = 8
_PAIRED_FIELDS = ("name", "title", "description")  # parameters have no meaningful order
_WORTH = dict.fromkeys(map(stem, WEAK), WEAK_WORD) | dict.fromkeys(map(stem, FAINT), FAINT_WORD)


def _groups() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for number, words in enumerate(GROUPS):
        for word in words:
            found.setdefault(stem(word), {})[f"~{number}"] = None
    return {word: tuple(groups) for word, groups in found.items()}


GROUPS_OF = _groups()
"""The lines of ``words.GROUPS`` with a stem, as terms of their own."""


def worth(term: str) -> float:
    """The factor of a term beside its rarity: lower for words of little meaning."""
    if term[0] == "~":
        return GROUP
    if term.isdecimal():
        return NUMBER
    return _WORTH.get(term, 1.0)


def member(definition: ToolDefinition | Mapping[str, object], name: str) -> object:
    """Read a member of a definition, or of its JSON form, by its Python name; None where it is absent.

    In the wrapped form a member may stand in the inner object or beside it.
    """
    if isinstance(definition, ToolDefinition):
        return getattr(definition, name, None)
    inner = definition.get("function")
    return inner[name] if isinstance(inner, Mapping) and name in inner else definition.get(name)


def texts_of(tool: ToolDefinition | Mapping[str, object]) -> dict[str, str]:
    """Collect the searched texts by field, from a definition or its JSON form (flat, wrapped or of MCP)."""
    schemas = (member(tool, name) for name in ("parameters", "inputSchema", "input_schema"))
    parameters = _parameters(next(filter(None, schemas), None))
    found = {name: as_text(member(tool, name)) for name in ("name", "title", "description", "tags", "examples")}
    return found | {
        "parameter_names": joined(name for name, _ in parameters),
        "parameter_descriptions": joined(description for _, description in parameters)[:MAX_TEXT],
    }


def read_tool(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The terms of each field that has some."""
    return {name: found for name, text in texts.items() if text and (found := terms(text))}


def weigh(fields: Mapping[str, list[str]]) -> dict[str, float]:
    """Compute the saturated BM25F weight of each term of a tool; the catalogue adds the rarity."""
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
    """The pairs of neighbouring words in texts with a word order, each pair once."""
    return dict.fromkeys(pair for name in _PAIRED_FIELDS for pair in pairwise(fields.get(name, ())))


def _parameters(schema: object) -> list[tuple[str, str]]:
    """Collect name and description of a schema's parameters, nested ones included, higher levels first.

    References are not followed. The number of visited nodes is limited.
    """
    found: list[tuple[str, str]] = []
    waiting: deque[tuple[object, int]] = deque([(schema, 0)])
    for _ in range(_MAX_PARTS):
        if not waiting or len(found) >= _MAX_PARAMETERS:
            break
        part, depth = waiting.popleft()
        if not isinstance(part, Mapping) or depth > _MAX_DEPTH:
            continue
        below = [part.get("items")]
        properties = part.get("properties")
        for name, inner in sorted(properties.items(), key=_name) if isinstance(properties, Mapping) else ():
            description = inner.get("description") if isinstance(inner, Mapping) else None
            found.append((str(name), description if isinstance(description, str) else ""))
            below.append(inner)
        for word in ("anyOf", "oneOf", "allOf"):
            parts = part.get(word)
            below += parts[:_MAX_PARTS] if isinstance(parts, list | tuple) else ()
        if len(waiting) < _MAX_PARTS:
            waiting += [(one, depth + 1) for one in below if isinstance(one, Mapping) and not _HOLDING.isdisjoint(one)]
    return found[:_MAX_PARAMETERS]


def _name(pair: tuple[object, object]) -> str:
    return str(pair[0])
