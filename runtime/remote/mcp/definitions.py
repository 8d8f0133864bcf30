"""Definitions of a remote server as definitions of a gate: bounded, cleaned, and marked as foreign."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.client.session import ClientSession
from mcp_types import PaginatedRequestParams, Tool

from callgate.errors import DefinitionError, RegistrationError, SchemaRefused
from callgate.runtime.models.wire.names import NameMap
from callgate.runtime.remote.mcp.face import McpServer
from callgate.tools.definition import Effect, ToolAnnotations, ToolDefinition
from callgate.tools.values import clip, deeper_than, pointer

MAX_PAGES = 64
"""Maximum number of pages of one list."""
MAX_DEPTH = 64
"""Maximum depth of a schema before its anchors are resolved."""
TAG = "remote"
"""The tag of every tool of a remote server; those of one server also have ``remote:NAME``."""
LONGEST_TEXT = 1_024

_INVISIBLE = re.compile(r"[^\S\n]+|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


@dataclass(slots=True)
class Found:
    """The admissible tools of a server, by their name in the gate, and the others with the reason."""

    tools: dict[str, tuple[str, ToolDefinition]] = field(default_factory=dict[str, tuple[str, ToolDefinition]])
    refused: dict[str, str] = field(default_factory=dict[str, str])


def visible(text: str | None) -> str:
    """Clean a text of a server: without control and invisible characters, and cut."""
    return _INVISIBLE.sub(" ", text or "").strip()[:LONGEST_TEXT]


async def read_tools(session: ClientSession, server: McpServer) -> list[Tool]:
    """Read the definitions of a server.

    Raises:
        RegistrationError: there are too many tools or pages, or the pages repeat.
    """
    tools: list[Tool] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        if len(tools) > server.max_tools:
            raise RegistrationError(f"the MCP server {server.name!r} has more than {server.max_tools} tools")
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if cursor in seen:
            raise RegistrationError(f"the MCP server {server.name!r} lists its tools without end")
        seen.add(cursor)
    raise RegistrationError(f"the MCP server {server.name!r} has more than {MAX_PAGES} pages of tools")


async def admit_tools(tools: list[Tool], server: McpServer) -> Found:
    """Translate the definitions. Schemas are compiled in a thread: a bad one takes until its budget ends."""
    prefix = f"{server.name}_" if server.prefix is None else server.prefix
    found = Found()
    once = {tool.name: tool for tool in tools}
    if len(once) < len(tools):
        found.refused["*"] = "a name is there twice; the last definition counts"
    names = NameMap.of([prefix + name for name in once])
    for name, tool in once.items():
        try:
            definition = _definition(tool, names.wire(prefix + name), server)
            # asyncio: the compiler has a budget of its own, and nothing waits for a thread that was left
            await asyncio.to_thread(definition.verify, trusted=False)
        except (DefinitionError, SchemaRefused) as error:
            found.refused[clip(name, 128)] = clip(str(error), 300)
        else:
            found.tools[definition.name] = name, definition
    return found


def _definition(tool: Tool, name: str, server: McpServer) -> ToolDefinition:
    own = tool.annotations
    hints = ToolAnnotations() if own is None else ToolAnnotations.from_dict(own.model_dump(exclude_none=True))
    text = visible(tool.description) or visible(tool.title) or visible(tool.name)
    return ToolDefinition(
        name,
        f"[{server.name}] {text}",  # a reader and a model see whose text it is
        _without_anchors(tool.input_schema),
        title=visible(tool.title) or None,
        output_schema=None if tool.output_schema is None else _without_anchors(tool.output_schema),
        effect=_effect(tool.name, hints, server),
        annotations=hints,
        tags={TAG, f"{TAG}:{server.name}"},
        metadata={"mcp": {"server": server.name, "name": clip(tool.name, 256)}},
    )


def _effect(name: str, hints: ToolAnnotations, server: McpServer) -> Effect | None:
    if name in server.effects:
        return Effect(server.effects[name])
    if not server.trust_hints:
        return None
    if hints.read_only_hint:
        return Effect.READ
    return Effect.IDEMPOTENT if hints.idempotent_hint else None


# ---------------------------------------------------------------------- anchors


def _without_anchors(schema: Mapping[str, object]) -> dict[str, Any]:
    """Replace references to an ``$anchor`` of the document by JSON Pointers; schemas from outside may have no anchors.

    Raises:
        DefinitionError: the schema nests too deep.
    """
    if deeper_than(schema, MAX_DEPTH):
        raise DefinitionError(f"a schema nests deeper than {MAX_DEPTH} levels")
    anchors: dict[str, str] = {}
    _collect(schema, (), anchors)
    return _resolved(schema, anchors) if anchors else dict(schema)


def _collect(value: object, path: tuple[str | int, ...], anchors: dict[str, str]) -> None:
    if isinstance(value, dict):
        if isinstance(name := value.get("$anchor"), str):
            anchors.setdefault(name, pointer(path))
        for key, part in value.items():
            _collect(part, (*path, key), anchors)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _collect(part, (*path, index), anchors)


def _resolved(value: object, anchors: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_resolved(part, anchors) for part in value]
    if not isinstance(value, dict):
        return value
    made = {key: _resolved(part, anchors) for key, part in value.items() if key != "$anchor"}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and reference[1:] in anchors:
        made["$ref"] = f"#{anchors[reference[1:]]}"
    return made
