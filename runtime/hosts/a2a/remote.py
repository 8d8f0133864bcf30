"""The skills of a remote A2A agent as tools: untrusted, and called through the gate like any other tool."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from callgate.errors import DefinitionError, RegistrationError, StageError, ToolError
from callgate.hooks.tool_view import ToolView
from callgate.providers.http.bounded import MAX_MEMORY
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
from callgate.tools.schemas.allowance import SchemaAllowance, Spending
from callgate.tools.schemas.engines.raw import INPUT_LIMITS
from callgate.tools.schemas.outside import compile_outside
from callgate.tools.values import clip
from callgate.tools.visible import INVISIBLE

if TYPE_CHECKING:
    from a2a.types import AgentCard, AgentSkill, Part


MAX_SKILLS = 256
"""Maximum number of skills of one agent."""
CARD_TIMEOUT = 30.0
"""Seconds in which the whole card of an agent must arrive."""

_TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string", "minLength": 1, "description": "What to ask the agent for."}},
    "required": ["message"],
    "additionalProperties": False,
}
_INVISIBLE = re.compile(rf"[^\S\n]+|{INVISIBLE.pattern}")
_TASK, _ROUND, _ID = "x-a2a-task", "x-a2a-round", "x-a2a-id"


async def remote_tools(
    agent: object,
    *,
    httpx_client: HttpClient | None = None,
    prefix: str = "",
    max_memory: int = MAX_MEMORY,
) -> list[ToolRecord]:
    """Return the skills of a remote A2A agent as tools for a gate; needs the extra ``a2a``.

    The agent is not trusted: names are made legal, texts are cut to 1024 visible characters, schemas pass the admission
    limits, and the effect is undeclared. ``ToolPins`` detects later changes of the definitions. A call sends a message
    and returns text or JSON. If the agent asks for input, the call is suspended; the answer goes to the same remote
    task. Cancelling the call cancels the remote task.

    Args:
        agent: the address of the agent, which serves its card, or an ``AgentCard``.
        httpx_client: a client with credentials and limits, which stays open. By default each call has a client of its
            own. With either, a reply is not compressed, nests at most 256 levels deep, and has at most 10,000 JSON
            values.
        prefix: goes before every name.
        max_memory: maximum memory that one reply takes, in bytes: by default 5.3 MB of JSON, or an image of 4 MB. Of
            this limit, 32 bytes are for one character of plain text: by default, a reply has 1,000,000 of those.

    Raises:
        RegistrationError: there is no usable card, or the extra is not installed.
        DefinitionError: two skills have the same name, or a schema is refused.
    """
    card = await _card(agent, httpx_client, max_memory)
    if not any(interface.protocol_binding == "JSONRPC" for interface in card.supported_interfaces):
        raise RegistrationError("the agent does not offer JSON-RPC")
    skills = list(card.skills)
    if len(skills) > MAX_SKILLS:
        raise RegistrationError(f"the agent has {len(skills)} skills; the maximum is {MAX_SKILLS}")
    names = NameMap.of([f"{prefix}{skill.id}" for skill in skills])
    listed = _definitions(card)
    made = [
        _record(card, skill, names.wire(f"{prefix}{skill.id}"), listed.get(skill.id), httpx_client, max_memory)
        for skill in skills
    ]
    # asyncio: the work is bounded by the allowance of an agent, and nothing waits for a thread that was left
    await asyncio.to_thread(_compile, made)
    return made


def _compile(records: list[ToolRecord]) -> None:
    """Compile the schemas of an agent, within one allowance for all of them."""
    spending = Spending(SchemaAllowance(max_tools=MAX_SKILLS), INPUT_LIMITS)
    for record in records:
        for schema in (record.definition.parameters, record.definition.output_schema):
            spending.count(schema or {})
    for record in records:
        spending.check_time()
        record.validators.update(compile_outside(record.definition, record.formats))


# ---------------------------------------------------------------------- definitions


async def _card(agent: Any, http: HttpClient | None, max_memory: int) -> AgentCard:
    try:
        from a2a.client import A2ACardResolver
        from a2a.types import AgentCard
        from a2a.utils.errors import A2AError
        from google.protobuf.json_format import ParseError
    except ImportError as error:
        raise RegistrationError("A2A needs its SDK: pip install 'callgate[a2a]'") from error

    if isinstance(agent, AgentCard):
        return agent
    from callgate.runtime.hosts.a2a.http_client import MAX_CARD_VALUES, limited_client

    address = Address.of(agent)
    try:
        async with limited_client(CARD_TIMEOUT, http, max_values=MAX_CARD_VALUES, max_memory=max_memory) as client:
            card = await A2ACardResolver(client, str(address)).get_agent_card()
    except (A2AError, ParseError, ValueError, RecursionError, SystemError):  # protobuf: half of a surrogate pair
        raise RegistrationError(f"there is no agent card at {address}") from None
    for interface in card.supported_interfaces:
        if Address.of(interface.url).origin != address.origin:
            raise RegistrationError(
                f"the agent at {address} would send calls and credentials to another origin; "
                "give its AgentCard to allow that"
            )
    return card


def _definitions(card: AgentCard) -> Mapping[str, Mapping[str, object]]:
    """Return the tools of an agent with the extension of Callgate, by name."""
    from a2a.extensions.common import find_extension_by_uri
    from google.protobuf.json_format import MessageToDict

    extension = find_extension_by_uri(card, EXTENSION)
    tools = [] if extension is None else restore_integers(MessageToDict(extension.params), None).get("tools", [])
    listed = tools if isinstance(tools, list) else []
    return {str(tool.get("name")): tool for tool in listed if isinstance(tool, dict)}


def _record(
    card: AgentCard,
    skill: AgentSkill,
    name: str,
    listed: Mapping[str, object] | None,
    http: HttpClient | None,
    max_memory: int,
) -> ToolRecord:
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
    remote = _RemoteSkill(card, skill.id, direct=listed is not None, output=output, http=http, max_memory=max_memory)
    return ToolRecord(definition, remote.call, Style.RECORD, trusted=False, resumable=True)


def _visible(text: str) -> str:
    """Clean a text of an agent for a model: without control and invisible characters, and at most 1024 characters."""
    return _INVISIBLE.sub(" ", text).strip()[:1024]


# ---------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class _RemoteSkill:
    """One skill. A ``direct`` skill is a tool that takes arguments; any other skill takes a text."""

    card: AgentCard
    skill: str
    direct: bool
    output: Mapping[str, object] | None
    http: HttpClient | None
    max_memory: int

    async def call(self, arguments: dict[str, object], ctx: ToolView) -> object:
        """Send a message, or the answer to the agent's question, and return the output."""
        from a2a.client import ClientConfig, ClientFactory

        from callgate.runtime.hosts.a2a.http_client import limited_client

        question, answers = _previous_question(ctx)
        async with limited_client(SILENCE_LIMIT, self.http, max_memory=self.max_memory) as http:
            client = ClientFactory(ClientConfig(httpx_client=http)).create(self.card)
            exchange = RemoteCall(client, ctx, str(question.get(_TASK, "")), EXTENSION if self.direct else None)
            task = await exchange.send(
                _answer_parts(question, answers[-1]) if answers else self._first_message(arguments)
            )
            await asyncio.sleep(0)  # the SDK's parsing and ours are two steps of the loop
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

    def _first_message(self, arguments: Mapping[str, object]) -> list[Part]:
        from a2a.helpers import new_data_part, new_text_part

        if not self.direct:
            return [new_text_part(str(arguments["message"]))]
        return [new_data_part({"type": "tool_call", "name": self.skill, "arguments": encode_integers(arguments)})]

    def _suspend(self, task: RemoteTask, ctx: ToolView, number: int) -> object:
        """Suspend the call until the question is answered. The schema keeps the state: a resumed call starts again."""
        wanted = task.request
        own = wanted.get("schema")
        schema = {**(own if is_mapping(own) else {"type": "string"}), _TASK: task.task, _ROUND: number}
        schema |= {_ID: wanted["id"]} if isinstance(wanted.get("id"), str) else {}
        return ctx.suspend("input", f"The agent {clip(self.card.name)} asks: {task.question}", schema=schema)


def _previous_question(ctx: ToolView) -> tuple[Mapping[str, object], list[object]]:
    """Return the agent's last question before this run of the call, and all answers so far."""
    question = mapping(ctx.resumed_schema)
    rounds = question.get(_ROUND)
    if _TASK not in question or not isinstance(rounds, int):
        return {}, []
    return question, [ctx.suspend("input", "") for _ in range(rounds)]  # returns the recorded answer


def _answer_parts(question: Mapping[str, object], answer: object) -> list[Part]:
    from a2a.helpers import new_data_part, new_text_part

    if _ID in question:
        return [new_data_part({"type": "answer", "id": question[_ID], "value": encode_integers(answer)})]
    return [new_text_part(answer) if isinstance(answer, str) else new_data_part(encode_integers(answer))]
