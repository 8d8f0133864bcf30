"""A remote agent's skills as tools of ours: untrusted, and called through the gate like any other (threats B2, B5)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from callgate.errors import DefinitionError, RegistrationError, StageError, ToolError
from callgate.runtime.hosts.a2a.card import EXTENSION
from callgate.runtime.hosts.a2a.integers import as_sent, whole
from callgate.runtime.hosts.a2a.remote_call import PATIENCE, Talk
from callgate.runtime.hosts.a2a.remote_task import Said
from callgate.runtime.models.wire.address import Address
from callgate.runtime.models.wire.base_client import HttpClient
from callgate.runtime.models.wire.names import NameMap
from callgate.runtime.models.wire.shapes import is_mapping, mapping
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import Style, ToolRecord
from callgate.tools.values import clip

MAX_SKILLS = 256
"""Skills of one agent."""

_TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string", "minLength": 1, "description": "What to ask the agent for."}},
    "required": ["message"],
    "additionalProperties": False,
}
_INVISIBLE = re.compile(r"[^\S\n]+|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_TASK, _ROUND, _ID = "x-a2a-task", "x-a2a-round", "x-a2a-id"


async def remote_tools(agent: Any, *, httpx_client: HttpClient | None = None, prefix: str = "") -> list[ToolRecord]:
    """The skills of a remote A2A agent as tools for a gate; needs the extra ``a2a``.

    *agent* is the address of one, from which its card is read, or an ``AgentCard``. *httpx_client* carries credentials
    and limits, and is not closed; by default each call has one of its own, which reads 32 MiB at most. *prefix* goes before every name.

    Nothing that the agent says is trusted: names are made legal, texts are cut to 1024 visible characters, schemas are
    admitted like any from outside, the effect is undeclared. Hold the definitions to what they said at first with
    ``ToolPins``. A call sends a message and gives what comes back: text, or JSON. Where the agent asks for input, the
    call is suspended, and its answer goes on to the same remote task; a call that is cancelled cancels that, too.

    Raises:
        RegistrationError: there is no card, it cannot be used, or the extra is not installed.
        DefinitionError: two skills have one name, or a schema is refused.
    """
    card = await _card(agent, httpx_client)
    if not any(interface.protocol_binding == "JSONRPC" for interface in card.supported_interfaces):
        raise RegistrationError("the agent does not speak JSON-RPC")
    skills = list(card.skills)
    if len(skills) > MAX_SKILLS:
        raise RegistrationError(f"the agent has {len(skills)} skills; {MAX_SKILLS} is the most")
    names = NameMap.of([f"{prefix}{skill.id}" for skill in skills])
    told = _definitions(card)
    return [
        _record(card, skill, names.wire(f"{prefix}{skill.id}"), told.get(skill.id), httpx_client) for skill in skills
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
                f"the agent at {address} sends its callers, and what they authenticate with, elsewhere; "
                "give its AgentCard if that is meant"
            )
    return card


def _definitions(card: Any) -> Mapping[str, Mapping[str, Any]]:
    """What an agent with our extension says of its tools, by name."""
    from a2a.extensions.common import find_extension_by_uri
    from google.protobuf.json_format import MessageToDict

    extension = find_extension_by_uri(card, EXTENSION)
    tools = [] if extension is None else whole(MessageToDict(extension.params), None).get("tools", [])
    listed = tools if isinstance(tools, list) else []
    return {str(tool.get("name")): tool for tool in listed if isinstance(tool, dict)}


def _record(card: Any, skill: Any, name: str, told: Mapping[str, Any] | None, http: HttpClient | None) -> ToolRecord:
    parameters, output = (told or {}).get("parameters", _TEXT), (told or {}).get("outputSchema")
    if not isinstance(parameters, Mapping) or not isinstance(output, Mapping | None):
        raise DefinitionError(f"the schema of the skill {clip(skill.id)!r} is no object")
    definition = ToolDefinition(
        name,
        _visible(skill.description) or _visible(skill.name) or name,
        parameters,
        title=_visible(skill.name) or None,
        output_schema=output,
    )
    remote = _Remote(card, skill.id, direct=told is not None, output=output, http=http)
    return ToolRecord(definition, remote.call, Style.RECORD, trusted=False, resumable=True)


def _visible(text: str) -> str:
    """Text of an agent as a model may read it: no control or invisible characters, 1024 of the others at most."""
    return _INVISIBLE.sub(" ", text).strip()[:1024]


# ---------------------------------------------------------------------- calls


@asynccontextmanager
async def _http(given: HttpClient | None) -> AsyncGenerator[Any, None]:
    if given is not None:
        yield given
        return
    from callgate.runtime.hosts.a2a.http_client import bounded_client

    async with bounded_client(PATIENCE) as own:
        yield own


@dataclass(frozen=True, slots=True)
class _Remote:
    """One skill. ``direct``: it is a tool that takes arguments; else it takes a text."""

    card: Any
    skill: str
    direct: bool
    output: Mapping[str, Any] | None
    http: HttpClient | None

    async def call(self, arguments: dict[str, Any], ctx: Any) -> Any:
        """Send a message, or the answer to what the agent has asked, and give what comes back."""
        from a2a.client import ClientConfig, ClientFactory

        asked, answers = _before(ctx)
        async with _http(self.http) as http:
            client = ClientFactory(ClientConfig(httpx_client=http)).create(self.card)
            talk = Talk(client, ctx, asked.get(_TASK, ""), EXTENSION if self.direct else None)
            said = await talk.send(_answer(asked, answers[-1]) if answers else self._first(arguments))
            if not said.asks:
                return said.output(self.output)
            if not said.answerable:
                await talk.cancel()
                raise ToolError("The agent waits for something that it cannot be given here.", code="remote_waits")
            try:
                return self._ask(said, ctx, len(answers) + 1)
            except StageError:
                await talk.cancel()
                raise ToolError("The agent asks for input, and nobody can be asked.", code="remote_waits") from None

    def _first(self, arguments: Mapping[str, Any]) -> list[Any]:
        from a2a.helpers import new_data_part, new_text_part

        if not self.direct:
            return [new_text_part(arguments["message"])]
        return [new_data_part({"type": "tool_call", "name": self.skill, "arguments": as_sent(arguments)})]

    def _ask(self, said: Said, ctx: Any, number: int) -> Any:
        """Suspend the call until somebody answers. What must be known then lies with it: the call begins anew."""
        wanted = said.wanted
        own = wanted.get("schema")
        schema = {**(own if is_mapping(own) else {"type": "string"}), _TASK: said.task, _ROUND: number}
        schema |= {_ID: wanted["id"]} if isinstance(wanted.get("id"), str) else {}
        return ctx.suspend("input", f"The agent {clip(self.card.name)} asks: {said.question}", schema=schema)


def _before(ctx: Any) -> tuple[Mapping[str, Any], list[Any]]:
    """What the agent asked last, before this run of the call, and all answers so far."""
    resumed = getattr(ctx, "resumed", None)
    asked = mapping(None if resumed is None else resumed.bound.schema)
    if _TASK not in asked:
        return {}, []
    return asked, [ctx.suspend("input", "") for _ in range(asked[_ROUND])]  # each gives its answer now


def _answer(asked: Mapping[str, Any], answer: Any) -> list[Any]:
    from a2a.helpers import new_data_part, new_text_part

    if _ID in asked:
        return [new_data_part({"type": "answer", "id": asked[_ID], "value": as_sent(answer)})]
    return [new_text_part(answer) if isinstance(answer, str) else new_data_part(as_sent(answer))]
