"""The schemas that providers are shown: copies, never the canonical one (contract 20, 60).

Facts about each provider's rules: the strict view of OpenAI is in ``strict_view``; Anthropic (plain) and Ollama take
a plain JSON Schema with an object at its root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from callgate.tools.definition import ToolDefinition
from callgate.tools.values import thaw


@dataclass(frozen=True, slots=True)
class Dropped:
    """A keyword that a view leaves out; the canonical schema still enforces it."""

    pointer: str
    keyword: str


@dataclass(frozen=True, slots=True)
class View:
    """A schema for a provider, and what was done to the source to get it. Pointers are into the source.

    ``strict`` is the flag to send, None for none. See ``TranslatedTool`` for the rest.
    """

    schema: dict[str, Any]
    strict: bool | None = None
    dropped: tuple[Dropped, ...] = ()
    nullable: frozenset[str] = frozenset()
    ambiguous: frozenset[str] = frozenset()
    fallback: str | None = None


def rooted(definition: ToolDefinition) -> dict[str, Any]:
    """A plain copy of the schema to show, with the object root that every provider asks for.

    The compact ``provider_schema`` if there is one (contract 20), else the canonical schema; an open object for a
    tool that has none (contract 14).
    """
    source = definition.provider_schema if definition.provider_schema is not None else definition.parameters
    if source is None:
        return {"type": "object", "properties": {}, "additionalProperties": True}
    root: dict[str, Any] = thaw(source)
    root.setdefault("type", "object")
    return root


def plain_view(definition: ToolDefinition) -> View:
    """The schema as it is: for providers that take JSON Schema and have no strict mode (contract 12)."""
    return View(rooted(definition))
