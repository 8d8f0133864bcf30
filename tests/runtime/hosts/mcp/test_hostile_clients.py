"""Hostile clients over HTTP. Each attack fails against our server, and its control succeeds.

The control is the same attack on a server that is sabotaged for it; for a replayed state, an honest client.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import httpx
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

import callgate.mcp
from callgate.mcp import OAuth
from callgate.runtime.hosts.mcp import access, server
from callgate.runtime.hosts.mcp.access import Access
from callgate.runtime.hosts.mcp.resumed_streams import SessionStreams
from callgate.runtime.hosts.mcp.server import GateServer
from tests.runtime.hosts.mcp.world import PEOPLE, Desk, who
from tests.runtime.hosts.serving import Served, served

pytestmark = pytest.mark.timeout(120)
LIMIT = 20
RESOURCE = "https://tools.example/mcp"
OTHER = "https://other.example/mcp"
MODERN = "2026-07-28"
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
ELICITS: dict[str, Any] = {"elicitation": {"form": {}}}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


@dataclass
class Scene:
    """A served desk, a plain client of it, and the tasks of patched objects."""

    desk: Desk
    running: Served
    http: httpx.AsyncClient
    patch: pytest.MonkeyPatch
    open: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def send(self, user: str, message: dict[str, Any], **headers: str) -> httpx.Response:
        known = {**HEADERS, "authorization": f"Bearer {user}", **headers}
        return await self.http.post("/mcp", json=message, headers=known)

    async def call(self, user: str, tool: str, meta: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """Call a tool in the new era, and return the result, or the error."""
        named = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": ELICITS,
            **(meta or {}),
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "_meta": named, **params}}
        response = await self.send(
            user, body, **{"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        )
        answer: dict[str, Any] = _json(response)
        result: dict[str, Any] = answer.get("result", answer)
        return result

    async def session(self, user: str) -> str | None:
        """Begin a session of the older era; None if that is refused."""
        id: str | None = (await self.send(user, INITIALIZE)).headers.get("mcp-session-id")
        return id

    async def half(self, length: int = 1_000) -> asyncio.StreamReader:
        """Send the beginning of a request, and no more."""
        reader, writer = await self.running.connect()
        self.open.append(writer)
        head = f"POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\nContent-Length: {length}\r\n\r\n{{"
        writer.write(head.encode())
        return reader


def _json(response: httpx.Response) -> dict[str, Any]:
    """The message in a response, which is JSON or one event of a stream."""
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [one[5:] for one in response.text.splitlines() if one.startswith("data:") and len(one) > 6]
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    plain: dict[str, Any] = response.json()
    return plain


class Tokens:
    """Verifies tokens of the form ``subject|resource``."""

    async def verify_token(self, token: str) -> AccessToken | None:
        subject, _, resource = token.partition("|")
        return AccessToken(token=token, client_id="app", scopes=["desk"], subject=subject, resource=resource)


@contextlib.asynccontextmanager
async def scene(patch: pytest.MonkeyPatch, **options: Any) -> AsyncGenerator[Scene]:
    """Serve a desk with small limits."""
    desk = Desk()
    known: dict[str, Any] = {"authenticate": who, "max_body": 2_000, "read_timeout": 0.3, "max_sessions": 5, **options}
    server = callgate.mcp.server(desk.gate(), name="desk", **known)
    async with served(server.asgi()) as running, running.client(None) as http:
        made = Scene(desk, running, http, patch)
        try:
            yield made
        finally:
            for writer in made.open:
                writer.close()


# ---------------------------------------------------------------------- identities

Attack = Callable[[pytest.MonkeyPatch, bool], Awaitable[bool]]


async def wrong_audience(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """A token that another service got is used here."""
    options = Access.sdk_options

    def careless(self: Access) -> dict[str, Any]:
        made = options(self)
        made["auth"] = made["auth"].model_copy(update={"validate_token_resource": False})
        return made

    if sabotaged:
        patch.setattr(Access, "sdk_options", careless)
    oauth = OAuth("https://login.example", RESOURCE, Tokens(), roles={"desk": {"clerk"}})
    async with scene(patch, authenticate=None, oauth=oauth) as at:
        assert await at.session(f"ann|{RESOURCE}"), "the right token is served"
        return await at.session(f"ann|{OTHER}") is not None


async def another_session(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Eve sends a request in the session that Ann began."""
    if sabotaged:  # the server does not tell users apart
        one = AccessToken(token="", client_id="all", scopes=[], subject="all")
        patch.setattr(access, "AuthenticatedUser", lambda _: AuthenticatedUser(one))
        patch.setattr(Access, "user_in", lambda *_: PEOPLE["ann"])
    async with scene(patch) as at:
        session = await at.session("ann")
        assert session is not None
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
        assert (await at.send("ann", listing, **{"mcp-session-id": session})).status_code == 200
        return (await at.send("eve", listing, **{"mcp-session-id": session})).status_code == 200


async def another_stream(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Eve reads the result of Ann's call in a session of her own, with the id of Ann's last event."""
    if sabotaged:  # the messages of all sessions are together, as in the store of the SDK's examples
        shared: list[SessionStreams] = []

        def together(*given: Any, **more: Any) -> SessionStreams:
            shared.append(shared[0] if shared else SessionStreams(*given, **more))
            return shared[0]

        patch.setattr(server, "SessionStreams", together)
    async with scene(patch) as at:
        texts: list[str] = []
        for user in ("ann", "eve"):
            named = {"mcp-session-id": await at.session(user) or "", "mcp-protocol-version": "2025-11-25"}
            if user == "ann":
                call = {"name": "add", "arguments": {"a": 41}}
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
                texts.append((await at.send(user, body, **named)).text)
                assert "42" in texts[0]
            first = texts[0].split("id: ", 1)[1].split()[0]
            known = {**HEADERS, "authorization": f"Bearer {user}", "last-event-id": first, **named}
            texts.append((await at.http.get("/mcp", headers=known)).text)
        assert "42" in texts[1], "Ann reads it"
        return "42" in texts[2]


async def another_state(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Eve approves Ann's refund with the request state of Ann's client."""
    async with scene(patch) as at:
        asked = await at.call("ann", "refund", arguments={"order": "A1", "cents": 5})
        _as_ann(patch, sabotaged)
        answers = {"answer": {"action": "accept", "content": {"approve": True}}}
        await at.call("eve", "refund", arguments={}, requestState=asked["requestState"], inputResponses=answers)
        return at.desk.ran == ["A1 5"]


async def replayed_state(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """One approval is sent again, many times at once. The control has an approval for each call."""
    async with scene(patch) as at:
        asked = await at.call("ann", "refund", arguments={"order": "A1", "cents": 5})
        answers = {"answer": {"action": "accept", "content": {"approve": True}}}

        async def again() -> None:
            state = asked["requestState"]
            if sabotaged:
                asked_now = await at.call("ann", "refund", arguments={"order": f"B{len(at.desk.ran)}", "cents": 5})
                state = asked_now["requestState"]
            await at.call("ann", "refund", arguments={}, requestState=state, inputResponses=answers)

        for _ in range(3):
            await again()
        if not sabotaged:
            await asyncio.gather(*(again() for _ in range(10)))
        return len(at.desk.ran) > 1


async def another_handle(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Eve reads the outcome of Ann's call by its handle in ``_meta``."""
    async with scene(patch) as at:
        asked = await at.call("ann", "refund", arguments={"order": "A1", "cents": 5})
        answers = {"answer": {"action": "accept", "content": {"approve": True}}}
        done = await at.call("ann", "refund", requestState=asked["requestState"], inputResponses=answers, arguments={})
        assert "5 for A1" in str(done)
        _as_ann(patch, sabotaged)
        read = await at.call("eve", "refund", {"callgate/handle": asked["requestState"]}, arguments={})
        return "5 for A1" in str(read)


async def another_key(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Eve uses Ann's idempotency key to read Ann's result."""
    async with scene(patch) as at:
        key = {"callgate/idempotencyKey": "k1"}
        await at.call("ann", "count", key, arguments={})
        _as_ann(patch, sabotaged)
        read = await at.call("eve", "count", key, arguments={})
        return read["_meta"].get("callgate/replayed") is True


async def claimed_user(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Eve says in ``_meta`` and in headers that she is a lead."""
    async with scene(patch) as at:
        if sabotaged:
            patch.setattr(Access, "user_of", lambda *_: PEOPLE["lea"])
        claims = {"user": "lea", "roles": ["lead"], "callgate/user": {"id": "lea", "roles": ["lead"]}}
        found = await at.call("eve", "ledger", claims, arguments={})
        return "42" in str(found)


def _as_ann(patch: pytest.MonkeyPatch, sabotaged: bool) -> None:
    """Sabotage: each request counts as Ann's."""
    if sabotaged:
        patch.setattr(Access, "user_of", lambda *_: PEOPLE["ann"])


# ---------------------------------------------------------------------- load


async def large_body(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """A request is larger than the limit."""
    async with scene(patch, max_body=10_000_000 if sabotaged else 2_000) as at:
        response = await at.send("ann", {**INITIALIZE, "padding": "x" * 100_000})
        return response.status_code == 200


async def large_body_without_length(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """The same in chunks, so that no header says how much comes."""
    sent = 0

    async def chunks() -> AsyncGenerator[bytes]:
        nonlocal sent
        for _ in range(1_000):
            sent += 1_000
            yield b" " * 1_000

    async with scene(patch, max_body=10_000_000 if sabotaged else 2_000, read_timeout=60.0) as at:
        known = {**HEADERS, "authorization": "Bearer ann"}
        try:
            response = await at.http.post("/mcp", content=chunks(), headers=known)
        except httpx.TransportError:  # the server has closed the connection
            return False
        return response.status_code != 413


async def slow_body(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """Many requests stop half way and stay; another client is served meanwhile."""
    async with scene(patch, read_timeout=600.0 if sabotaged else 0.3) as at:
        readers = [await at.half() for _ in range(50)]
        began = time.monotonic()
        assert await at.session("lea"), "the others are served"
        assert time.monotonic() - began < 5
        lines = await asyncio.gather(
            *(asyncio.wait_for(reader.readline(), 1.0 if sabotaged else LIMIT) for reader in readers),
            return_exceptions=True,
        )
        return any(not isinstance(line, bytes) or line.split()[1] != b"413" for line in lines)


async def many_sessions(patch: pytest.MonkeyPatch, sabotaged: bool) -> bool:
    """One client opens sessions without an end."""
    async with scene(patch, max_sessions=10_000 if sabotaged else 5) as at:
        opened = [await at.session("ann") for _ in range(60)]
        return sum(one is not None for one in opened) > 5


ATTACKS: list[Attack] = [
    wrong_audience,
    another_session,
    another_stream,
    another_state,
    replayed_state,
    another_handle,
    another_key,
    claimed_user,
    large_body,
    large_body_without_length,
    slow_body,
    many_sessions,
]


@pytest.mark.parametrize("sabotaged", [False, True], ids=["ours", "sabotaged"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: one.__name__)
async def test_an_attack_fails(attack: Attack, sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(60):
        assert await attack(monkeypatch, sabotaged) is sabotaged


@pytest.mark.parametrize("sabotaged", [False, True], ids=["ours", "sabotaged"])
async def test_sessions_that_have_ended_leave_no_memory(sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients begin a session, list the tools and go away: a server that keeps the sessions for notices holds 19 KB each."""
    kept: list[Any] = []
    if sabotaged:
        monkeypatch.setattr(GateServer, "_listen", lambda _, ctx: kept.append(ctx.session))
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}

    async def visit(at: Scene) -> None:
        session = await at.session("ann")
        assert session is not None
        named = {"mcp-session-id": session}
        assert (await at.send("ann", listing, **named)).status_code == 200
        gone = await at.http.delete("/mcp", headers={"authorization": "Bearer ann", **named})
        assert gone.status_code == 200

    async with scene(monkeypatch, max_sessions=10_000) as at:
        for _ in range(20):
            await visit(at)
        tracemalloc.start()
        try:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(60):
                await visit(at)
            gc.collect()
            grown = (tracemalloc.get_traced_memory()[0] - before) / 60
        finally:
            tracemalloc.stop()
    assert (grown > 10_000) is sabotaged, grown
    assert grown < 5_000 or sabotaged, grown
