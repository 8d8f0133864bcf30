"""The surfaces of the hosts and of remote servers: HTTP, A2A and MCP, on both sides. Requests take no socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import httpx
import mcp_types as types
from a2a import types as p
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from pydantic import ValidationError

import callgate
import callgate.mcp
from callgate import Effects, Gate
from callgate.errors import DefinitionError, RegistrationError
from callgate.mcp import McpServer
from callgate.runtime.hosts.a2a import agent, remote_tools
from callgate.runtime.models.wire.reply import Reply
from callgate.runtime.remote.mcp.definitions import admit_tools
from tests.attacks.fuzzing import HEAD_END, Surface, Take
from tests.runtime.conversation.conversing import FakeModel, says
from tests.runtime.hosts import making as http_making
from tests.runtime.hosts.a2a import making as a2a_making
from tests.runtime.hosts.a2a.making import SEARCH
from tests.runtime.hosts.catalogue import catalogue
from tests.runtime.hosts.mcp import world as mcp_making
from tests.runtime.hosts.serving import served
from tests.runtime.remote.mcp.test_hostile import ANN, Raw
from tests.runtime.remote.mcp.test_mounted import gate_with

LEAVES = 0.5
"""Seconds after which a client leaves that has no answer, such as that of an endless stream."""
INTERNAL = re.compile(rb"-32603|Traceback|hunter2")
"""What an answer has if an exception was not expected."""
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Unexpected(AssertionError):
    """An answer shows an exception that nothing had declared."""


def http(path: str, body: Any = None, method: str = "POST", **headers: str) -> bytes:
    """An HTTP request, as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "content-type: application/json", "authorization: Bearer ann"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + HEAD_END + (b"" if body is None else json.dumps(body).encode())


def scope_of(head: bytes) -> dict[str, Any] | None:
    """The ASGI scope of a head; None for a head that a server refuses itself."""
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not words[1].isascii() or words[1][:1] != b"/":
        return None
    pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    if any(not _TOKEN.fullmatch(name) or re.search(rb"[\r\n\0]", value) for name, value in pairs):
        return None
    path, _, query = words[1].partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": words[0].decode().upper(),
        "scheme": "http",
        "path": unquote_to_bytes(path).decode("utf-8", "replace"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:80"), *pairs],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def exchange(app: Any, data: bytes) -> tuple[int, bytes] | None:
    """Send a request to an application; its status and body, or None for what a server refuses."""
    head, _, body = data.partition(HEAD_END)
    scope = scope_of(head)
    if scope is None:
        return None
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    status, answer = 0, bytearray()

    async def receive() -> MutableMapping[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(LEAVES)
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        answer.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, bytes(answer)


def taking(app: Any) -> Take:
    """Send requests to an application; an answer that shows an unexpected exception is a finding."""

    async def take(data: bytes) -> bool:
        answered = await exchange(app, data)
        if answered is None:
            return False
        status, body = answered
        if status in {0, 500} or INTERNAL.search(body):
            raise Unexpected(f"{status} {body[:200]!r}")
        return status < 300 and b'"error"' not in body

    return take


# ---------------------------------------------------------------------- HTTP


@contextlib.asynccontextmanager
async def over_http() -> AsyncGenerator[Take]:
    """The tools of a catalogue over HTTP, with the OpenAPI document."""
    async with catalogue() as gate:
        yield taking(callgate.asgi(gate, authenticate=http_making.who))


def http_seeds() -> Sequence[bytes]:
    """A request for each path, and for some tools."""
    gate = catalogue()
    values: dict[str, Any] = {"string": "a", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    made = [http("/openapi.json", method="GET"), http("/tools?wire=gemini", method="GET")]
    made.append(http("/health/ready", method="GET"))
    for definition in gate.registry.definitions():
        properties: Any = (definition.parameters or {}).get("properties", {})
        arguments = {name: values.get(str(one.get("type")), 1) for name, one in properties.items()}
        for end in ("", "/stream"):
            options = {"idempotency_key": "k", "x_request_id": "r", "x_session_id": "s", "x_deadline_ms": "900"}
            made.append(http(f"/tools/{definition.name}{end}", arguments, **options))
    return made


# ---------------------------------------------------------------------- A2A


class Parrot(FakeModel):
    """A model that ends each conversation, and keeps nothing."""

    def _next(self, messages: Any, tools: Any) -> Reply:
        return says("Done.")


@contextlib.asynccontextmanager
async def over_a2a() -> AsyncGenerator[Take]:
    """An agent with a model, in both dialects."""
    known: dict[str, Any] = {"name": "desk", "description": "A desk.", "url": "http://desk.test"}
    async with a2a_making.Desk().gate() as gate:
        yield taking(agent(gate, authenticate=a2a_making.who, model=Parrot(), **known))


def a2a_seeds() -> Sequence[bytes]:
    """A request for each method, and for each kind of part."""
    datas: list[Any] = [
        {"type": "tool_call", "name": "add", "arguments": {"a": 1}},
        {"type": "tool_call", "name": "refund", "arguments": {"order_id": "x", "cents": 1}},
        {"type": "tool_result", "id": "c1", "result": 1},
        {"type": "decision", "id": "c1", "decision": "deny", "reason": "no"},
        {"type": "answer", "id": "q", "value": 1},
    ]
    made: list[bytes] = []

    def rpc(path: str, method: str, params: Any) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        made.append(http(path, body, a2a_version="1.0"))

    def send(*parts: Any, **more: Any) -> None:
        rpc("/rpc", "SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts, **more}})

    send({"text": "Hello."})
    send({"data": {"type": "tools", "tools": [SEARCH]}}, {"text": "Go."}, contextId="c")
    for data in datas:
        send({"data": data})
    send({"data": datas[2]}, taskId="6f8fad5b-d9cb-469f-a165-70867728950e")
    for method in ("GetTask", "CancelTask"):
        rpc("/rpc", method, {"id": "6f8fad5b-d9cb-469f-a165-70867728950e", "historyLength": 1})
    rpc(
        "/rpc",
        "ListTasks",
        {"pageToken": "eyJhIjoxfQ==", "pageSize": 5, "contextId": "c", "status": "TASK_STATE_WORKING"},
    )
    said = {"role": "user", "parts": [{"kind": "text", "text": "Search"}], "contextId": "ctx-1"}
    rpc("/a2a", "message/stream", {"message": said, "tools": [{"type": "function", "function": SEARCH}]})
    results = [{"toolCallId": "c1", "toolName": "search", "success": True, "result": 1}]
    rpc("/a2a/tasks/resume", "tasks/resume", {"taskId": "t", "toolResults": results})
    return made


def card_json() -> dict[str, Any]:
    """The card of an agent with one skill."""
    skill = p.AgentSkill(id="act", name="act", description="Acts.", tags=["t"])
    interface = p.AgentInterface(url="http://agent.test/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
    made = p.AgentCard(name="a", description="d", version="1", supported_interfaces=[interface], skills=[skill])
    found: dict[str, Any] = agent_card_to_dict(made)
    return found


@contextlib.asynccontextmanager
async def cards() -> AsyncGenerator[Take]:
    """The card of a remote agent, whose skills become tools."""
    now = b""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=now))

    async with httpx.AsyncClient(transport=transport) as client:

        async def take(data: bytes) -> bool:
            nonlocal now
            now = data
            try:
                await remote_tools("http://agent.test", httpx_client=client)
            except (RegistrationError, DefinitionError):
                return False
            return True

        yield take


@contextlib.asynccontextmanager
async def agent_replies() -> AsyncGenerator[Take]:
    """The reply of a remote agent to a call."""
    card, now = json.dumps(card_json()).encode(), b""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, content=card)
        id = json.dumps(json.loads(request.content)["id"]).encode()
        return httpx.Response(200, content=b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (id, now))

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        tools = await remote_tools("http://agent.test", httpx_client=client)
        async with Gate(tools, allow_unguarded=True, effects=Effects(durable=False), signing_keys=["k" * 32]) as gate:

            async def take(data: bytes) -> bool:
                nonlocal now
                now = data
                result = await gate.call("act", {"message": "go"}, user=a2a_making.ANN, deadline=0.05)
                return result.ok

            yield take


def reply_seeds() -> Sequence[bytes]:
    """A message, and tasks in some states."""
    said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "Done."}]}
    made: list[Any] = [{"message": said}, {"message": {**said, "parts": [{"data": {"a": 1}}, {"text": "x"}]}}]
    for state in ("COMPLETED", "FAILED", "INPUT_REQUIRED", "REJECTED"):
        status = {"state": f"TASK_STATE_{state}", "message": said}
        artifact = {"artifactId": "a", "parts": [{"data": {"a": [1, None]}}]}
        made.append({"task": {"id": "t", "contextId": "c", "status": status, "artifacts": [artifact]}})
    for many in ([{"text": "a"}] * 4_000, [{"data": {"a": [0] * 9_000}}], [{"text": "a" * 1_000_000}]):  # large bodies
        made.append({"message": {**said, "parts": many}})
    return [json.dumps(one).encode() for one in made]


# ---------------------------------------------------------------------- MCP

VERSION = "2026-07-28"


@contextlib.asynccontextmanager
async def over_mcp() -> AsyncGenerator[Take]:
    """An MCP server over HTTP, in both eras of the protocol."""
    server = callgate.mcp.server(mcp_making.Desk().gate(), name="desk", authenticate=mcp_making.who)
    app = server.asgi()
    async with app.lifespan():
        yield taking(app)


def mcp_seeds() -> Sequence[bytes]:
    """A request for each method, and calls of some tools."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    made: list[bytes] = []

    def rpc(method: str, **params: Any) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **params}}
        named = {"mcp_name": params["name"]} if "name" in params else {}
        headers = {"accept": "application/json, text/event-stream", "mcp_protocol_version": VERSION}
        made.append(http("/mcp", body, mcp_method=method, **headers, **named))

    for name, arguments in (("add", {"a": 1}), ("whoami", {}), ("note", {"text": "x"}), ("flight", {"to": "x"})):
        rpc("tools/call", name=name, arguments=arguments)
    answers = {"answer": {"action": "accept", "content": {"approve": True}}}
    rpc("tools/call", name="refund", arguments={"order": "1", "cents": 1}, requestState="x", inputResponses=answers)
    rpc("tools/list", cursor="add")
    rpc("server/discover")
    rpc("tasks/get", taskId="x")
    old = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": old}
    made.append(http("/mcp", body, accept="application/json, text/event-stream"))
    return made


@contextlib.asynccontextmanager
async def mcp_lists() -> AsyncGenerator[Take]:
    """The list of a remote server, whose tools are admitted; the SDK's models refuse what has another shape."""
    server = McpServer(name="evil", url="http://evil.test/mcp")

    async def take(data: bytes) -> bool:
        try:
            found = types.ListToolsResult.model_validate_json(data)
        except ValidationError:
            return False
        return bool((await admit_tools(found.tools, server)).tools)

    yield take


def list_seeds() -> Sequence[bytes]:
    """A list of two tools."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}, "b": {"$ref": "#p"}},
        "$defs": {
            "p": {"$anchor": "p", "type": "array", "items": {"anyOf": [{"type": "integer"}, {"enum": [1, "x"]}]}}
        },
        "required": ["a"],
    }
    tool = {"name": "act", "title": "Act", "description": "Act.", "inputSchema": schema, "outputSchema": schema}
    hints = {"readOnlyHint": True, "title": "x"}
    return [
        json.dumps({"tools": [tool, {"name": "b", "inputSchema": {"type": "object"}, "annotations": hints}]}).encode()
    ]


@contextlib.asynccontextmanager
async def mcp_results() -> AsyncGenerator[Take]:
    """The result of a remote server, on a real connection."""
    now = b""

    async def answer(asked: Any, send: Any) -> None:
        id = json.dumps(asked["id"]).encode()
        await Raw.send_json(send, b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (id, now))

    raw = Raw(answer)
    async with served(raw, timeout_graceful_shutdown=1) as running, gate_with() as gate:
        await gate.mount(McpServer(name="evil", url=f"http://127.0.0.1:{running.port}/mcp"))

        async def take(data: bytes) -> bool:
            nonlocal now
            now = data
            raw.seen.clear()
            return (await gate.call("evil_act", {}, user=ANN, deadline=0.05)).ok

        yield take


def result_seeds() -> Sequence[bytes]:
    """Results with each kind of block."""
    blocks: list[Any] = [
        {"type": "text", "text": "x", "annotations": {"priority": 0.5}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x", "mimeType": "text/plain"}},
    ]
    made = [
        {"content": blocks},
        {"content": blocks[:1], "isError": True},
        {"content": [], "structuredContent": {"a": [1]}},
    ]
    return [json.dumps(one).encode() for one in made]


HOSTS = (
    Surface("HTTP requests", http_seeds, over_http, quick=150, soak=120_000),
    Surface("A2A requests", a2a_seeds, over_a2a, quick=60, soak=40_000),
    Surface("A2A cards", lambda: [json.dumps(card_json()).encode()], cards, quick=60, soak=30_000),
    Surface("A2A replies", reply_seeds, agent_replies, quick=20, soak=6_000),
    Surface("MCP requests", mcp_seeds, over_mcp, quick=60, soak=40_000),
    Surface("MCP tool lists", list_seeds, mcp_lists, quick=60, soak=60_000),
    Surface("MCP results", result_seeds, mcp_results, quick=20, soak=6_000),
)
