"""Views: the copies of a tool's schema that are sent to providers. The canonical schema is never changed.

The modules ``strict_view`` (OpenAI), ``anthropic_view`` and ``gemini_view`` have the rules of each provider. Ollama, and
Anthropic without strict mode, accept plain JSON Schema with an object at its root.
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
    """A keyword that a view leaves out; validation still enforces it."""

    pointer: str
    keyword: str


@dataclass(frozen=True, slots=True)
class View:
    """A schema for a provider, with its differences from the source. JSON Pointers refer to the source.

    ``strict`` is the flag to send; None sends no flag. ``key`` is the name of the schema's field on a wire that has
    several (Gemini). See ``TranslatedTool`` for the other fields.
    """

    schema: dict[str, Any]
    strict: bool | None = None
    dropped: tuple[Dropped, ...] = ()
    nullable: frozenset[str] = frozenset()
    ambiguous: frozenset[str] = frozenset()
    spelled: frozenset[str] = frozenset()
    fallback: str | None = None
    key: str | None = None


def source(definition: ToolDefinition) -> Mapping[str, object] | None:
    """The schema to send: the compact ``provider_schema`` if there is one, else the canonical schema."""
    return definition.parameters if definition.provider_schema is None else definition.provider_schema


def has_no_schema(definition: ToolDefinition) -> bool:
    """True if there is no schema, or one without any assertion."""
    return not walk.asserted(source(definition) or {})


def with_object_root(definition: ToolDefinition) -> dict[str, object]:
    """Copy the schema to send, with the object root that every provider requires.

    For a tool without a schema it is an open object.
    """
    schema = source(definition)
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": True}
    root: dict[str, object] = thaw(schema)
    root.setdefault("type", "object")
    return root


def plain_view(definition: ToolDefinition) -> View:
    """The unchanged schema, for providers that accept JSON Schema and have no strict mode."""
    return View(with_object_root(definition))
