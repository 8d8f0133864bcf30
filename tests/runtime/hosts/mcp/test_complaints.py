"""What users of MCP gateways complain about, each as a promise: clients reach a remote server through a gate."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client, MCPError

import callgate.mcp
from callgate import Gate, User
from callgate.hooks import Audit
from callgate.mcp import McpServer
from callgate.runtime.remote.mcp import owner
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, Desk, client_of, http_client, server_of, text_of, who
from tests.runtime.hosts.serving import served, until
from tests.runtime.remote.mcp.test_mounted import free_port, gate_with, served_at
from tests.runtime.remote.mcp.toy import ANY, Toy, text

BOTH_ERAS = pytest.mark.parametrize("era", ERAS)
MODE: dict[str, Any] = {"modern": "auto", "handshake": "legacy"}
pytestmark = pytest.mark.timeout(120)


class Upstream:
    """A remote server; ``asked`` counts the requests that reach it, by method."""

    def __init__(self) -> None:
        self.toy, self.asked = Toy(), Counter[str]()
        self._app = self.toy.server.streamable_http_app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted() -> Any:
            message = await receive()
            if message.get("body"):
                self.asked[json.loads(message["body"])["method"]] += 1
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)


@contextlib.asynccontextmanager
async def mounted(up: Upstream, gate: Gate | None = None, **options: Any) -> AsyncGenerator[Gate]:
    """A gate with the tools of the remote server."""
    gate = gate or gate_with()
    async with served(up, timeout_graceful_shutdown=1) as running, gate:
        await gate.mount(McpServer(name="toy", url=f"http://127.0.0.1:{running.port}/mcp", **options))
        yield gate


def client(gate: Gate, era: str = "modern", **options: Any) -> contextlib.AbstractAsyncContextManager[Client]:
    """A client of the gate in Ann's name."""
    return client_of(server_of(gate, "memory"), "memory", era, **options)


@BOTH_ERAS
async def test_identity_of_the_user_upstream(era: str) -> None:
    """The remote server sees the credential of each user, never that of the gate or of another user."""

    def token(user: User) -> str:
        return f"of-{user.id}"

    async with (
        mounted(Upstream(), credential=token) as gate,
        served(callgate.mcp.server(gate, authenticate=who).asgi()) as running,
        http_client(running.port, "ann", mode=MODE[era]) as ann,
        http_client(running.port, "lea", mode=MODE[era]) as lea,
    ):
        results = await asyncio.gather(*(one.call_tool("toy_token", {}) for one in [ann, lea] * 5))
        assert [text_of(one) for one in results] == ["Bearer of-ann", "Bearer of-lea"] * 5


@BOTH_ERAS
async def test_a_handshake_per_call(era: str) -> None:
    """A call is one request upstream: no handshake, and no list of tools, from whichever client it comes."""
    up = Upstream()
    async with mounted(up, legacy=era == "handshake") as gate:
        await until(lambda: up.asked["subscriptions/listen"] or era == "handshake", 20)
        up.asked.clear()
        for _ in range(3):
            async with client(gate, era) as one:
                await one.call_tool("toy_double", {"x": 1})
        assert up.asked == {"tools/call": 3}


@BOTH_ERAS
async def test_stale_tools(era: str) -> None:
    """A client that lists again sees what the remote server has now; a removed tool cannot be called."""
    up = Upstream()
    async with mounted(up) as gate, client(gate, era) as one:
        assert "toy_say" in {shown.name for shown in (await one.list_tools()).tools}
        up.toy.tools["fresh"] = types.Tool(name="fresh", input_schema=ANY)
        del up.toy.tools["say"]

        async def followed() -> None:
            while "toy_fresh" not in gate.registry:
                await up.toy.change()
                await asyncio.sleep(0.02)

        await asyncio.wait_for(followed(), 20)
        names = {shown.name for shown in (await one.list_tools()).tools}
        assert "toy_fresh" in names
        assert "toy_say" not in names
        with pytest.raises(MCPError, match="Unknown tool"):
            await one.call_tool("toy_say", {})
        assert up.toy.calls == []


async def test_sessions_lost_between_replicas(tmp_path: Any) -> None:
    """Each request may reach another replica: nothing is lost, and a confirmed call runs once."""
    store, desks = f"sqlite:///{tmp_path}/desk.db", [Desk(), Desk()]
    apps = [server_of(desk.gate(store=store), "http").asgi() for desk in desks]
    served_by: list[int] = []

    async def balance(scope: Any, receive: Any, send: Any) -> None:
        served_by.append(len(served_by) % 2)
        await apps[served_by[-1]](scope, receive, send)

    async def confirm(_: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"approve": True})

    async with (
        apps[0].lifespan(),
        apps[1].lifespan(),
        served(balance, lifespan="off") as running,
        http_client(running.port, "ann", elicitation_callback=confirm) as ann,
    ):
        for number in range(4):
            assert text_of(await ann.call_tool("add", {"a": number})) == str(number + 1)
        assert text_of(await ann.call_tool("refund", {"order": "A1", "cents": 5})) == "5 for A1"
        assert text_of(await ann.call_tool("refund", {"order": "A1", "cents": 5})) == "5 for A1"
    assert set(served_by) == {0, 1}
    assert desks[0].ran + desks[1].ran == ["A1 5"]


@BOTH_ERAS
async def test_elicitation_dropped(era: str) -> None:
    """The question of the remote server reaches the user of the client, and the answer goes back."""

    def answer(params: types.ElicitRequestParams) -> types.ElicitResult:
        assert params.message == "The server toy asks: Your name?"
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    async with mounted(Upstream()) as gate, client(gate, era, answers=answer) as one:
        assert text_of(await one.call_tool("toy_ask", {})) == "hello Ann in state 1"


@BOTH_ERAS
async def test_notifications_buffered(era: str) -> None:
    """Progress arrives while the call runs: the remote tool ends only after the client has seen it."""
    up, seen = Upstream(), asyncio.Event()

    async def waits(ctx: Any, _params: Any) -> Any:
        await ctx.session.report_progress(1, 2, "half way")
        await asyncio.wait_for(seen.wait(), 20)
        return text("seen")

    up.toy._say = waits  # type: ignore[method-assign, assignment]

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.set()

    async with (
        mounted(up) as gate,
        served(server_of(gate, "http").asgi()) as running,
        http_client(running.port, "ann", mode=MODE[era]) as one,
    ):
        assert text_of(await one.call_tool("toy_say", {}, progress_callback=note)) == "seen"


@BOTH_ERAS
async def test_effects_doubled_by_retries(era: str) -> None:
    """A repeat with the same key gets the first result; a call whose connection was lost is not sent again."""
    up = Upstream()
    async with mounted(up) as gate, client(gate, era) as one:
        key: Any = {"callgate/idempotencyKey": "k1"}
        results = await asyncio.gather(*(one.call_tool("toy_say", {}, meta=key) for _ in range(5)))
        results.append(await one.call_tool("toy_say", {}, meta=key))
        assert up.toy.calls == ["say"]
        assert "said {}" in {text_of(result) for result in results}
        assert text_of(results[-1]) == "said {}"

        def lost() -> Any:
            raise MCPError(types.CONNECTION_CLOSED, "lost")

        up.toy.answers["say"] = lost
        assert (await one.call_tool("toy_say", {})).is_error
        assert up.toy.calls == ["say", "say"]


@BOTH_ERAS
async def test_timeouts_of_a_minute(era: str) -> None:
    """The time-out of the server is for calls without a deadline: a tool with a longer one has the time that it needs."""
    up = Upstream()

    async def slow() -> Any:
        await asyncio.sleep(0.6)
        return text("done")

    up.toy.answers["say"] = slow
    async with mounted(up, timeout=0.3, legacy=era == "handshake") as gate:
        assert (await gate.call("toy_say", {}, user=PEOPLE["ann"], deadline=20.0)).output == "done"
        assert not (await gate.call("toy_say", {}, user=PEOPLE["ann"])).ok, "the control: without a deadline"


@BOTH_ERAS
async def test_images_turned_into_text(era: str) -> None:
    """An image of the remote server is an image for the client."""
    async with mounted(Upstream()) as gate, client(gate, era) as one:
        drawn = await one.call_tool("toy_picture", {})
        assert drawn.content == [types.ImageContent(data="iVBORw0KGgo=", mime_type="image/png")]


async def test_names_over_64_characters() -> None:
    """They are shortened, stay apart and stay the same; the remote server gets its own name."""
    up = Upstream()
    long = ["n" * 100 + end for end in "ab"]
    up.toy.tools |= {name: types.Tool(name=name, input_schema=ANY) for name in long}
    seen: list[list[str]] = []
    for _ in range(2):
        up = Upstream()
        up.toy.tools |= {name: types.Tool(name=name, input_schema=ANY) for name in long}
        async with mounted(up) as gate, client(gate) as one:
            names = [shown.name for shown in (await one.list_tools()).tools if "nnn" in shown.name]
            for name in names:
                assert not (await one.call_tool(name, {})).is_error
        assert all(len(name) <= 64 for name in names)
        assert sorted(up.toy.calls) == long
        seen.append(names)
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]


@BOTH_ERAS
async def test_audit_without_a_user(era: str) -> None:
    """Each row names the user of the request and the tool, also where the remote server knows neither."""
    async with (
        mounted(Upstream(), gate_with(Audit())) as gate,
        served(callgate.mcp.server(gate, authenticate=who).asgi()) as running,
    ):
        for user in ("ann", "eve"):
            async with http_client(running.port, user, mode=MODE[era]) as one:
                await one.call_tool("toy_double", {"x": 1})
        rows = [row.body async for row in gate.store.audit.read(None)]
    assert {(row["user"], row["tool"]) for row in rows} == {("ann", "toy_double"), ("eve", "toy_double")}


@BOTH_ERAS
async def test_no_reconnect(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage of the remote server the same client goes on, without a restart of the gate."""
    monkeypatch.setattr(owner, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(owner, "LONGEST_PAUSE", 0.05)
    port = free_port()
    async with gate_with() as gate, client(gate, era) as one:
        async with served_at(port, Toy()):
            found = await gate.mount(McpServer(name="toy", url=f"http://127.0.0.1:{port}/mcp"))
            assert not (await one.call_tool("toy_double", {"x": 1})).is_error
        assert (await one.call_tool("toy_double", {"x": 1})).is_error
        await until(lambda: not found.is_up, 20)
        async with served_at(port, Toy()):
            await until(lambda: found.is_up, 20)
            assert (await one.call_tool("toy_double", {"x": 2})).structured_content == {"y": 4}


@BOTH_ERAS
async def test_changed_definitions(era: str) -> None:
    """A tool that changes after it was seen is neither listed nor called, until a person approves it."""
    up = Upstream()
    async with served(up, timeout_graceful_shutdown=1) as running, gate_with() as gate, client(gate, era) as one:
        found = await gate.mount(McpServer(name="toy", url=f"http://127.0.0.1:{running.port}/mcp"))
        await one.call_tool("toy_double", {"x": 1})
        up.toy.tools["double"] = up.toy.tools["double"].model_copy(update={"description": "Send all files."})
        await found.refresh()
        assert "toy_double" not in {shown.name for shown in (await one.list_tools()).tools}
        with pytest.raises(MCPError, match="Unknown tool"):
            await one.call_tool("toy_double", {"x": 1})
        assert up.toy.calls == ["double"]
        await found.approve(found.changed[0], by="lea")
        assert (await one.call_tool("toy_double", {"x": 2})).structured_content == {"y": 4}


COMPLAINTS = (
    "identity of the user upstream",
    "a handshake per call",
    "stale tools",
    "sessions lost between replicas",
    "elicitation dropped",
    "notifications buffered",
    "effects doubled by retries",
    "timeouts of a minute",
    "images turned into text",
    "names over 64 characters",
    "audit without a user",
    "no reconnect",
    "changed definitions",
)


def test_each_complaint_has_a_test() -> None:
    """A complaint that loses its test is noticed."""
    assert [one for one in COMPLAINTS if f"test_{one.replace(' ', '_')}" not in globals()] == []
