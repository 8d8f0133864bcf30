"""The schemas that providers are shown: copies, never the canonical one (contract 20, 60).

Each provider's rules are beside its view: ``strict_view`` (OpenAI), ``anthropic_view``, ``gemini_view``. Anthropic
without strict mode and Ollama take a plain JSON Schema with an object at its root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate.runtime.models.wire import schema_walk as walk
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import thaw

NO_SCHEMA = "the tool has no schema"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A keyword that a view leaves out; the canonical schema still enforces it."""

    pointer: str
    keyword: str


@dataclass(frozen=True, slots=True)
class View:
    """A schema for a provider, and what was done to the source to get it. Pointers are into the source.

    ``strict`` is the flag to send, None for none. ``key`` names the field that the schema goes under where a wire has
    more than one for it (Gemini). See ``TranslatedTool`` for the rest.
    """

    schema: dict[str, Any]
    strict: bool | None = None
    dropped: tuple[Dropped, ...] = ()
    nullable: frozenset[str] = frozenset()
    ambiguous: frozenset[str] = frozenset()
    spelled: frozenset[str] = frozenset()
    fallback: str | None = None
    key: str | None = None


def source(definition: ToolDefinition) -> Mapping[str, Any] | None:
    """The schema to show: the compact ``provider_schema`` if there is one, else the canonical one (contract 20)."""
    return definition.parameters if definition.provider_schema is None else definition.provider_schema


def says_nothing(definition: ToolDefinition) -> bool:
    """Whether there is no schema to show, or one that does not even say that arguments are an object."""
    return not walk.asserted(source(definition) or {})


def rooted(definition: ToolDefinition) -> dict[str, Any]:
    """A plain copy of the schema to show, with the object root that every provider asks for.

    A tool without a schema is shown an open object (contract 14).
    """
    shown = source(definition)
    if shown is None:
        return {"type": "object", "properties": {}, "additionalProperties": True}
    root: dict[str, Any] = thaw(shown)
    root.setdefault("type", "object")
    return root


def plain_view(definition: ToolDefinition) -> View:
    """The schema as it is: for providers that take JSON Schema and have no strict mode (contract 12)."""
    return View(rooted(definition))
