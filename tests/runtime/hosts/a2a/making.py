"""Helpers of the A2A tests: a desk behind an agent on a real socket, and a client in each of the two dialects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import pytest
from a2a import helpers as h
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.types import a2a_pb2 as p
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from callgate import Gate, ToolError, User, tool
from callgate.runtime.hosts.a2a import agent
from callgate.tools.approval import Approval
from tests.harness.gate_options import gate_options
from tests.runtime.conversation.conversing import FakeModel, Turn
from tests.runtime.hosts.serving import Served, served

KEY = "a signing key for tests, long enough"
ANN = User("ann", tenant="acme", roles={"clerk"})
MAX = User("max", tenant="acme", roles={"manager"})
BEN = User("ben", tenant="acme", roles={"clerk"})
EVE = User("ann", tenant="other", roles={"clerk", "manager"})  # the same id, another tenant
TOKENS = {"ann": ANN, "max": MAX, "ben": BEN, "eve": EVE}
GOING = ("working", "submitted")
STRANGERS = ("ben", "eve", "max")
SEARCH = {
    "name": "search",
    "description": "Search the client's own files",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
        "required": ["query"],
    },
}


def who(request: Any) -> User | None:
    """By bearer token."""
    return TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))


@dataclass
class Desk:
    """Tools, and what they did: kept outside of any process that a test ends."""

    refunds: list[tuple[str, int]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)

    def gate(self, **options: Any) -> Gate:
        known: dict[str, Any] = {"open": True, "signing_keys": [KEY], **options}
        if "store" not in known:
            known["durable"] = False
        return Gate(self.tools(), **gate_options(**known))

    def tools(self) -> list[Any]:
        desk = self

        @tool(effect="read")
        async def add(a: int, b: int = 1) -> int:
            """Add two numbers."""
            desk.seen.append((a, b))
            return a + b

        @tool(effect="irreversible", requires_approval=Approval(roles={"manager"}))
        async def refund(order_id: str, cents: int) -> str:
            """Give money back."""
            desk.refunds.append((order_id, cents))
            return f"{cents} cents for {order_id}"

        @tool(effect="read", requires_approval=Approval(roles={"manager"}))
        async def salary(name: str) -> int:
            """Look up a salary."""
            desk.reads.append(name)
            return 5000

        @tool(effect="read")
        async def broken() -> str:
            """Fail."""
            raise ConnectionError("CANARY: postgres://app:hunter2@db")

        @tool(effect="read")
        async def sorry() -> str:
            """Fail, and say so."""
            raise ToolError("It cannot be done.", code="cannot")

        @tool(effect="read", allowed_roles={"manager"})
        async def secret(plan: str) -> str:
            """For managers."""
            return plan

        return [add, refund, salary, broken, sorry, secret]


@dataclass(frozen=True)
class Seen:
    """The state of a task, as its client sees it."""

    task: str
    state: str
    text: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    data: tuple[Any, ...] = ()


class Speaker(Protocol):
    """A client in one dialect."""

    async def start(self, text: str, *tools: Mapping[str, Any]) -> Seen: ...

    async def answer(self, task: str, call_id: str, result: Any = None, *, error: str | None = None) -> Seen: ...

    async def look(self, task: str) -> Seen: ...


class Refused(Exception):
    """An error of JSON-RPC: its code, and what it says."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error.get("message"))
        self.code = error.get("code")
        self.error = error


class Official:
    """The SDK's own client."""

    name = "a2a 1.0"
    streaming = True

    def __init__(self, served: Served, http: httpx.AsyncClient, card: Mapping[str, Any]) -> None:
        self.card = parse_agent_card(json.loads(json.dumps(card)))
        self.card.supported_interfaces[0].url = f"http://127.0.0.1:{served.port}/rpc"
        self.client: Client = ClientFactory(ClientConfig(httpx_client=http, streaming=self.streaming)).create(self.card)

    async def start(self, text: str, *tools: Mapping[str, Any]) -> Seen:
        parts = [h.new_text_part(text)]
        if tools:
            parts.append(h.new_data_part({"type": "tools", "tools": list(tools)}))
        return await self.send(*parts)

    async def call(self, name: str, arguments: Any = None, **more: Any) -> Seen:
        part = {"type": "tool_call", "name": name, **more}
        return await self.send(h.new_data_part(part if arguments is None else part | {"arguments": arguments}))

    async def answer(self, task: str, call_id: str, result: Any = None, *, error: str | None = None) -> Seen:
        said = {"error": error} if error else {"result": result}
        return await self.data({"type": "tool_result", "id": call_id, **said}, task=task)

    async def decide(self, task: str, call_id: str, decision: str, reason: str = "") -> Seen:
        return await self.data({"type": "decision", "id": call_id, "decision": decision, "reason": reason}, task=task)

    async def data(self, *data: Any, task: str = "") -> Seen:
        return await self.send(*map(h.new_data_part, data), task=task)

    async def send(self, *parts: p.Part, task: str = "", context: str = "") -> Seen:
        message = h.new_message(list(parts), role=p.Role.ROLE_USER)
        message.task_id, message.context_id = task, context
        async for event in self.client.send_message(p.SendMessageRequest(message=message)):
            if event.HasField("message"):
                return Seen(task, "message", data=tuple(h.get_data_parts(event.message.parts)))
            task = event.task.id or event.status_update.task_id or task
        return seen(await self.client.get_task(p.GetTaskRequest(id=task)))

    async def look(self, task: str) -> Seen:
        found = await self.client.get_task(p.GetTaskRequest(id=task))
        if found.status.state in {p.TASK_STATE_WORKING, p.TASK_STATE_SUBMITTED}:  # it has just been made to go on
            with contextlib.suppress(UnsupportedOperationError):  # it is over by now
                async for _ in self.client.subscribe(p.SubscribeToTaskRequest(id=task)):
                    pass
            found = await self.client.get_task(p.GetTaskRequest(id=task))
        return seen(found)

    async def cancel(self, task: str) -> Seen:
        return seen(await self.client.cancel_task(p.CancelTaskRequest(id=task)))


class Plain(Official):
    """The same without streams."""

    name = "a2a 1.0, not streamed"
    streaming = False

    async def look(self, task: str) -> Seen:
        while (found := seen(await self.client.get_task(p.GetTaskRequest(id=task)))).state in GOING:  # noqa: ASYNC110  (a poll has no event to wait for)
            await asyncio.sleep(0.01)
        return found


def seen(task: p.Task) -> Seen:
    """A task of the SDK's."""
    parts = [part for one in task.artifacts for part in one.parts] or task.status.message.parts
    data = h.get_data_parts(parts)
    calls = tuple(item for item in data if isinstance(item, dict) and item.get("type") == "tool_call")
    state = p.TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
    return Seen(task.id, state, "\n".join(h.get_text_parts(parts)), calls, tuple(data))


class Documents:
    """A client of the documents' dialect, by hand."""

    name = "documents"

    def __init__(self, served: Served, http: httpx.AsyncClient, card: Mapping[str, Any]) -> None:
        self.http = http

    async def start(self, text: str, *tools: Mapping[str, Any]) -> Seen:
        message = {"role": "user", "parts": [{"kind": "text", "text": text}], "contextId": "ctx-123"}
        wrapped = [{"type": "function", "function": one} for one in tools]
        found = Seen("", "")
        async with contextlib.aclosing(self.stream({"message": message, "tools": wrapped})) as events:
            async for event in events:
                found = read(event)
                if event["final"] or found.state == "input-required":
                    break
        return found

    async def stream(self, params: Any) -> AsyncGenerator[dict[str, Any], None]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": params}
        async with self.http.stream("POST", "/a2a/message/stream", json=body) as response:
            if not response.headers["content-type"].startswith("text/event-stream"):
                await response.aread()
                raise Refused(response.json()["error"])
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield result(json.loads(line[6:]))

    async def answer(self, task: str, call_id: str, result: Any = None, *, error: str | None = None) -> Seen:
        told = {"toolCallId": call_id, "toolName": "search", "success": error is None}
        return await self.resume(task, told | ({"error": error} if error else {"result": result}))

    async def look(self, task: str) -> Seen:
        return await self.resume(task)

    async def resume(self, task: str, *results: Any) -> Seen:
        params = {"taskId": task, "toolResults": list(results)}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tasks/resume", "params": params}
        return read(result((await self.http.post("/a2a/tasks/resume", json=body)).json()))


def result(body: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in body:
        raise Refused(body["error"])
    found: dict[str, Any] = body["result"]
    return found


def read(event: Mapping[str, Any]) -> Seen:
    """A status update of the documents."""
    assert event["kind"] == "status-update"
    message = event["status"]["message"]
    assert message["role"] == "assistant"
    calls = [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "arguments": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("toolCalls", ())
    ]
    return Seen(event["taskId"], event["status"]["state"], message["content"], tuple(calls))


SPEAKERS = [Official, Plain, Documents]
each_speaker = pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda one: one.name)


@dataclass
class Running:
    """An agent on a socket."""

    served: Served
    gate: Gate
    card: Mapping[str, Any]
    stack: contextlib.AsyncExitStack

    async def as_user(self, token: str, speaker: Any = Official) -> Any:
        http = await self.stack.enter_async_context(self.served.client(token))
        return speaker(self.served, http, self.card)

    async def http(self, token: str | None = "ann") -> httpx.AsyncClient:
        return await self.stack.enter_async_context(self.served.client(token))


@contextlib.asynccontextmanager
async def running(gate: Gate, *script: Turn, **options: Any) -> AsyncGenerator[Running, None]:
    """Serve a gate as an agent whose model plays a script; without one it takes calls only.

    ``grace``: seconds that the server leaves to requests under way as it ends.
    """
    grace = options.pop("grace", 5)
    model = options.pop("model", FakeModel(*script) if script else None)
    known: dict[str, Any] = {
        "authenticate": who,
        "name": "desk",
        "description": "A desk.",
        "url": "http://desk.test",
        **options,
    }
    async with contextlib.AsyncExitStack() as stack:
        served_now = await stack.enter_async_context(
            served(agent(gate, model=model, **known), timeout_graceful_shutdown=grace)
        )
        async with served_now.client(None) as http:
            card = (await http.get("/.well-known/agent-card.json")).json()
        async with contextlib.AsyncExitStack() as clients:
            yield Running(served_now, gate, card, clients)


async def approve(gate: Gate, by: User = MAX, *, here: bool = True) -> Any:
    """Decide the one call that waits for this person, elsewhere."""
    (waiting,) = await gate.waits.pending(by, kind="approval")
    return await gate.resume(waiting.handle, "approve", approver=by, here=here)


def as_json(message: Any) -> Any:
    return MessageToDict(message)
