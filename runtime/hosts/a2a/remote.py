"""The skills of a remote A2A agent as tools: untrusted, and called through the gate like any other tool."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from callgate.errors import DefinitionError, RegistrationError, StageError, ToolError
from callgate.hooks.tool_view import ToolView
from callgate.runtime.hosts.a2a.card import EXTENSION
from callgate.runtime.hosts.a2a.integers import encode_integers, restore_integers
from callgate.runtime.hosts.a2a.remote_call import SILENCE_LIMIT, RemoteCall
from callgate.runtime.hosts.a2a.remote_task import RemoteTask
from callgate.runtime.models.wire.address import Address
from callgate.runtime.models.wire.base_client import HttpClient
from callgate.runtime.models.wire.names import NameMap
from callgate.runtime.models.wire.shapes import is_mapping, mapping
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import Style, ToolRecord
from callgate.tools.values import clip

MAX_SKILLS = 256
"""Maximum number of skills of one agent."""

_TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string", "minLength": 1, "description": "What to ask the agent for."}},
    "required": ["message"],
    "additionalProperties": False,
}
_INVISIBLE = re.compile(r"[^\S\n]+|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_TASK, _ROUND, _ID = "x-a2a-task", "x-a2a-round", "x-a2a-id"


async def remote_tools(agent: object, *, httpx_client: HttpClient | None = None, prefix: str = "") -> list[ToolRecord]:
    """Return the skills of a remote A2A agent as tools for a gate; needs the extra ``a2a``.

    The agent is not trusted: names are made legal, texts are cut to 1024 visible characters, schemas pass the admission
    limits, and the effect is undeclared. ``ToolPins`` detects later changes of the definitions. A call sends a message
    and returns text or JSON. If the agent asks for input, the call is suspended; the answer goes to the same remote
    task. Cancelling the call cancels the remote task.

    Args:
        agent: the address of the agent, which serves its card, or an ``AgentCard``.
        httpx_client: a client with credentials and limits, which stays open. By default each call has a client of its
            own, which reads at most 32 MiB.
        prefix: goes before every name.

    Raises:
        RegistrationError: there is no usable card, or the extra is not installed.
        DefinitionError: two skills have the same name, or a schema is refused.
    """
    card = await _card(agent, httpx_client)
    if not any(interface.protocol_binding == "JSONRPC" for interface in card.supported_interfaces):
        raise RegistrationError("the agent does not offer JSON-RPC")
    skills = list(card.skills)
    if len(skills) > MAX_SKILLS:
        raise RegistrationError(f"the agent has {len(skills)} skills; the maximum is {MAX_SKILLS}")
    names = NameMap.of([f"{prefix}{skill.id}" for skill in skills])
    listed = _definitions(card)
    return [
        _record(card, skill, names.wire(f"{prefix}{skill.id}"), listed.get(skill.id), httpx_client) for skill in skills
    ]


# ---------------------------------------------------------------------- definitions


async def _card(agent: Any, http: HttpClient | None) -> Any:
    try:
        from a2a.client import A2ACardResolver
        from a2a.types import AgentCard
        from a2a.utils.errors import A2AError
    except ImportError as error:
        raise RegistrationError("A2A needs its SDK: pip install 'callgate[a2a]'") from error

    if isinstance(agent, AgentCard):
        return agent
    address = Address.of(agent)
    try:
        async with _http(http) as client:
            card = await A2ACardResolver(client, str(address)).get_agent_card()
    except A2AError:
        raise RegistrationError(f"there is no agent card at {address}") from None
    for interface in card.supported_interfaces:
        if Address.of(interface.url).origin != address.origin:
            raise RegistrationError(
                f"the agent at {address} would send calls and credentials to another origin; "
                "give its AgentCard to allow that"
            )
    return card


def _definitions(card: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the tools of an agent with the extension of Callgate, by name."""
    from a2a.extensions.common import find_extension_by_uri
    from google.protobuf.json_format import MessageToDict

    extension = find_extension_by_uri(card, EXTENSION)
    tools = [] if extension is None else restore_integers(MessageToDict(extension.params), None).get("tools", [])
    listed = tools if isinstance(tools, list) else []
    return {str(tool.get("name")): tool for tool in listed if isinstance(tool, dict)}


def _record(card: Any, skill: Any, name: str, listed: Mapping[str, Any] | None, http: HttpClient | None) -> ToolRecord:
    parameters, output = (listed or {}).get("parameters", _TEXT), (listed or {}).get("outputSchema")
    if not isinstance(parameters, Mapping) or not isinstance(output, Mapping | None):
        raise DefinitionError(f"the schema of the skill {clip(skill.id)!r} is not an object")
    definition = ToolDefinition(
        name,
        _visible(skill.description) or _visible(skill.name) or name,
        parameters,
        title=_visible(skill.name) or None,
        output_schema=output,
    )
    remote = _RemoteSkill(card, skill.id, direct=listed is not None, output=output, http=http)
    return ToolRecord(definition, remote.call, Style.RECORD, trusted=False, resumable=True)


def _visible(text: str) -> str:
    """Clean a text of an agent for a model: without control and invisible characters, and at most 1024 characters."""
    return _INVISIBLE.sub(" ", text).strip()[:1024]


# ---------------------------------------------------------------------- calls


@asynccontextmanager
async def _http(given: HttpClient | None) -> AsyncGenerator[Any, None]:
    if given is not None:
        yield given
        return
    from callgate.runtime.hosts.a2a.http_client import limited_client

    async with limited_client(SILENCE_LIMIT) as own:
        yield own


@dataclass(frozen=True, slots=True)
class _RemoteSkill:
    """One skill. A ``direct`` skill is a tool that takes arguments; any other skill takes a text."""

    card: Any
    skill: str
    direct: bool
    output: Mapping[str, Any] | None
    http: HttpClient | None

    async def call(self, arguments: dict[str, Any], ctx: ToolView) -> Any:
        """Send a message, or the answer to the agent's question, and return the output."""
        from a2a.client import ClientConfig, ClientFactory

        question, answers = _previous_question(ctx)
        async with _http(self.http) as http:
            client = ClientFactory(ClientConfig(httpx_client=http)).create(self.card)
            exchange = RemoteCall(client, ctx, question.get(_TASK, ""), EXTENSION if self.direct else None)
            task = await exchange.send(
                _answer_parts(question, answers[-1]) if answers else self._first_message(arguments)
            )
            if not task.waits_for_input:
                return task.output(self.output)
            if not task.answerable:
                await exchange.cancel()
                raise ToolError("The agent waits for a reply that Callgate cannot give.", code="remote_waits")
            try:
                return self._suspend(task, ctx, len(answers) + 1)
            except StageError:
                await exchange.cancel()
                raise ToolError(
                    "The agent asks for input, and this call cannot be suspended.", code="remote_waits"
                ) from None

    def _first_message(self, arguments: Mapping[str, Any]) -> list[Any]:
        from a2a.helpers import new_data_part, new_text_part

        if not self.direct:
            return [new_text_part(arguments["message"])]
        return [new_data_part({"type": "tool_call", "name": self.skill, "arguments": encode_integers(arguments)})]

    def _suspend(self, task: RemoteTask, ctx: ToolView, number: int) -> Any:
        """Suspend the call until the question is answered. The schema keeps the state: a resumed call starts again."""
        wanted = task.request
        own = wanted.get("schema")
        schema = {**(own if is_mapping(own) else {"type": "string"}), _TASK: task.task, _ROUND: number}
        schema |= {_ID: wanted["id"]} if isinstance(wanted.get("id"), str) else {}
        return ctx.suspend("input", f"The agent {clip(self.card.name)} asks: {task.question}", schema=schema)


def _previous_question(ctx: ToolView) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the agent's last question before this run of the call, and all answers so far."""
    question = mapping(ctx.resumed_schema)
    if _TASK not in question:
        return {}, []
    return question, [ctx.suspend("input", "") for _ in range(question[_ROUND])]  # returns the recorded answer


def _answer_parts(question: Mapping[str, object], answer: object) -> list[Any]:
    from a2a.helpers import new_data_part, new_text_part

    if _ID in question:
        return [new_data_part({"type": "answer", "id": question[_ID], "value": encode_integers(answer)})]
    return [new_text_part(answer) if isinstance(answer, str) else new_data_part(encode_integers(answer))]
