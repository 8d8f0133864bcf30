"""Definitions of a remote server as definitions of a gate: bounded, cleaned, and marked as foreign."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mcp.client.session import ClientSession
from mcp_types import PaginatedRequestParams, Tool

from callgate.errors import DefinitionError, RegistrationError, SchemaRefused
from callgate.runtime.models.wire.names import NameMap
from callgate.runtime.remote.mcp.face import McpServer
from callgate.tools.definition import Effect, ToolAnnotations, ToolDefinition
from callgate.tools.schemas.allowance import SchemaAllowance, Spending
from callgate.tools.schemas.engines.base import Validator
from callgate.tools.schemas.engines.dialect import Role
from callgate.tools.schemas.engines.raw import INPUT_LIMITS
from callgate.tools.schemas.outside import compile_outside
from callgate.tools.values import clip, deeper_than, pointer
from callgate.tools.visible import INVISIBLE, folded

MAX_PAGES = 64
"""Maximum number of pages of one list."""
MAX_DEPTH = 64
"""Maximum depth of a schema before its references to anchors are resolved."""
TAG = "remote"
"""The tag of every tool of a remote server; those of one server also have ``remote:NAME``."""
LONGEST_TEXT = 1_024

_INVISIBLE = re.compile(rf"[^\S\n]+|{INVISIBLE.pattern}")


Admitted: TypeAlias = tuple[str, ToolDefinition, dict[Role, Validator]]
"""The name of a tool at its server, its definition, and the validators of its schemas."""


@dataclass(slots=True)
class Found:
    """The admissible tools of a server, by their name in the gate, and the others with the reason."""

    tools: dict[str, Admitted] = field(default_factory=dict[str, Admitted])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    def leave_out_lookalikes(self, others: Iterable[str]) -> None:
        """Leave out names that a reader takes for one of *others*, or for another of this server: an approver is a reader."""
        alike: dict[str, set[str]] = {}
        for name in (*others, *self.tools):
            alike.setdefault(folded(name), set()).add(name)
        for name in [name for name in self.tools if len(alike[folded(name)]) > 1]:
            found = ", ".join(sorted(alike[folded(name)] - {name}))
            self.refused[name] = f"the name looks like that of another tool: {found}; give McpServer a prefix="
            del self.tools[name]


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
    """Translate the definitions, and compile their schemas in a thread, within one allowance for the server."""
    # asyncio: the work has a budget of its own, and nothing waits for a thread that was left
    return await asyncio.to_thread(_admitted, tools, server)


def _admitted(tools: list[Tool], server: McpServer) -> Found:
    prefix = f"{server.name}_" if server.prefix is None else server.prefix
    found = Found()
    once = {tool.name: tool for tool in tools}
    if len(once) < len(tools):
        found.refused["*"] = "a name is there twice; the last definition counts"
    names = NameMap.of([prefix + name for name in once])
    spending = Spending(SchemaAllowance(max_tools=server.max_tools), INPUT_LIMITS)
    for name, tool in once.items():
        try:
            spending.check_time()
            for schema in (tool.input_schema, tool.output_schema or {}):
                spending.count(schema)
            definition = _definition(tool, names.wire(prefix + name), server)
            validators = compile_outside(definition, None)
        except (DefinitionError, SchemaRefused) as error:
            found.refused[clip(name, 128)] = clip(str(error), 300)
        else:
            found.tools[definition.name] = name, definition, validators
    return found


def _definition(tool: Tool, name: str, server: McpServer) -> ToolDefinition:
    if tool.execution is not None and tool.execution.task_support == "required":  # only version 2025-11-25 has it
        raise DefinitionError(
            "the server runs this tool as a task of version 2025-11-25 only; a gate supports tasks since version 2026-07-28"
        )
    own = tool.annotations
    hints = ToolAnnotations() if own is None else ToolAnnotations.from_dict(own.model_dump(exclude_none=True))
    text = visible(tool.description) or visible(tool.title) or visible(tool.name)
    return ToolDefinition(
        name,
        f"[{server.name}] {text}",  # a reader and a model see whose text it is
        _with_pointers(tool.input_schema),
        title=visible(tool.title) or None,
        output_schema=None if tool.output_schema is None else _with_pointers(tool.output_schema),
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


def _with_pointers(schema: Mapping[str, object]) -> dict[str, object]:
    """Replace references to an ``$anchor`` of the document by JSON Pointers: few models know anchors.

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
    made = {key: _resolved(part, anchors) for key, part in value.items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and reference[1:] in anchors:
        made["$ref"] = f"#{anchors[reference[1:]]}"
    return made
