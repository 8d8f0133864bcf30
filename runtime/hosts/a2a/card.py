"""The agent card: the public description of a gate's tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from callgate.runtime.models.wire.neutral import to_neutral
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import thaw

if TYPE_CHECKING:
    from a2a.types import AgentCard, AgentSkill


EXTENSION = "urn:callgate:a2a:tools:1"
"""The A2A extension of direct tool calls, client tools, and answers to suspended calls."""

CONVERSE = "converse"
"""The id of the skill that takes text, if there is a model."""

_EXTENSION_TEXT = (
    "Data parts: tool_call {name, arguments, id?} calls a tool; tools {tools} offers the client's own; tool_result "
    "{id, result | error}, answer {id, value}, decision {id, decision, reason?} and continue {} resume a task."
)


def agent_card(
    tools: Iterable[ToolDefinition], *, name: str, description: str, url: str, version: str, converses: bool
) -> AgentCard:
    """Build the card of these tools; their schemas are in the parameters of the extension.

    *url* is the address of the application, without a trailing slash.
    """
    from a2a.types import a2a_pb2 as p

    tools = list(tools)
    skills = [_skill(tool) for tool in tools]
    if converses or not skills:  # A2A requires a skill
        about = "Answers a text." if converses else "Calls tools, for users who may see them."
        own = CONVERSE if converses else "tools"
        while own in {tool.name for tool in tools}:
            own += "_"
        skills.append(p.AgentSkill(id=own, name=name, description=about, tags=["agent"]))
    extension = p.AgentExtension(
        uri=EXTENSION, description=_EXTENSION_TEXT, params={"tools": [_tool_json(tool) for tool in tools]}
    )
    return p.AgentCard(
        name=name,
        description=description,
        version=version,
        supported_interfaces=[p.AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=p.AgentCapabilities(streaming=True, extended_agent_card=True, extensions=[extension]),
        default_input_modes=["text/plain", "application/json"] if converses else ["application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=skills,
    )


def _tool_json(tool: ToolDefinition) -> dict[str, object]:
    output = {} if tool.output_schema is None else {"outputSchema": thaw(tool.output_schema)}
    return to_neutral(tool) | output


def _skill(tool: ToolDefinition) -> AgentSkill:
    from a2a.types import a2a_pb2 as p

    return p.AgentSkill(
        id=tool.name,
        name=tool.title or tool.name,
        description=tool.description or tool.title or tool.name,
        tags=sorted(tool.tags) or ["tool"],
        input_modes=["application/json"],
        output_modes=["application/json"],
    )
