"""A client up to version 2025-11-25 loses its connection in a call: it takes the stream up, and the call runs once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

import callgate.mcp
from callgate import Gate, RegistrationError, ToolContext, tool
from callgate.hooks import Authorize, permit
from callgate.mcp import Resumption
from callgate.providers.clock import FakeClock
from callgate.runtime.hosts.mcp import server as server_module
from callgate.runtime.hosts.mcp.resumed_streams import Held, SessionStreams
from callgate.runtime.hosts.mcp.user_memory import UserMemory
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.test_hostile_clients import HEADERS, INITIALIZE
from tests.runtime.hosts.mcp.world import PEOPLE, http_client, text_of, who
from tests.runtime.hosts.serving import served

pytestmark = pytest.mark.timeout(120)
ANN, EVE = ("acme", "ann"), ("evil", "eve")
DEFAULT = Resumption()
SOON = 0.01
"""Seconds of timers that a test waits for by what they cause."""


@dataclass
class Works:
    """A tool that reports, and waits until it is set free."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    ran: int = 0

    def gate(self, **options: Any) -> Gate:
        @tool(effect="irreversible")
        async def work(*, ctx: ToolContext) -> str:
            """Work."""
            self.ran += 1
            self.begun.set()
            await self.free.wait()
            ctx.progress(1, 2, "nearly")
            return "done"

        known = gate_options(durable=False, store="memory://", signing_keys=["k" * 32], **options)
        return Gate([work], [Authorize(permit("staff", roles={"clerk"}))], **known)


@dataclass
class Events:
    """The events of one response, read one by one."""

    response: httpx.Response
    _lines: AsyncIterator[str] | None = None

    async def next(self) -> dict[str, str] | None:
        """Return the fields of the next event; None at the end."""
        self._lines = self._lines or self.response.aiter_lines()
        event: dict[str, str] = {}
        async for line in self._lines:
            if not line and event:
                return event
            if line and not line.startswith(":"):
                name, _, value = line.partition(":")
                event[name] = value.strip()
        return None

    async def rest(self) -> list[Any]:
        """Return the messages until the end."""
        found = []
        while (event := await self.next()) is not None:
            found.append(json.loads(event["data"]) if event["data"] else None)
        return found


@dataclass
class Peer:
    """A plain client in the name of a user, in a session of its own."""

    http: httpx.AsyncClient
    user: str
    session: str = ""

    def headers(self, **more: str) -> dict[str, str]:
        known = {**HEADERS, "authorization": f"Bearer {self.user}", "mcp-protocol-version": "2025-11-25"}
        return known | ({"mcp-session-id": self.session} if self.session else {}) | more

    async def open(self) -> Peer:
        begun = await self.http.post("/mcp", json=INITIALIZE, headers=self.headers())
        self.session = begun.headers["mcp-session-id"]
        return self

    @contextlib.asynccontextmanager
    async def call(self, version: str = "2025-11-25") -> AsyncGenerator[Events]:
        meta = {"progressToken": "p"}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "work", "_meta": meta}}
        headers = self.headers(**{"mcp-protocol-version": version})
        async with self.http.stream("POST", "/mcp", json=body, headers=headers) as response:
            yield Events(response)

    @contextlib.asynccontextmanager
    async def resumed(self, after: str) -> AsyncGenerator[Events]:
        headers = self.headers(**{"last-event-id": after})
        async with self.http.stream("GET", "/mcp", headers=headers) as response:
            yield Events(response)

    async def lost(self, works: Works) -> str:
        """Begin a call, lose the connection, and return the id of the last event."""
        async with self.call() as events:
            first = await events.next()
            await works.begun.wait()
        assert first is not None
        assert first["data"] == ""
        return first["id"]


@contextlib.asynccontextmanager
async def peers(
    resumption: Resumption | None = DEFAULT, *, local: bool = False, **options: Any
) -> AsyncGenerator[tuple[Works, Peer, Peer]]:
    """Ann with two sessions of a served gate; all connections are apart. A *local* server has Ann as its only user."""
    works = Works()
    access: dict[str, Any] = {"user": PEOPLE["ann"]} if local else {"authenticate": who}
    server = callgate.mcp.server(works.gate(**options), resumption=resumption, **access)
    async with served(server.asgi(), timeout_graceful_shutdown=1) as running, running.client(None) as http:
        try:
            yield works, await Peer(http, "ann").open(), await Peer(http, "ann").open()
        finally:
            works.free.set()


def results(messages: list[Any]) -> list[str]:
    return [one["result"]["content"][0]["text"] for one in messages if one and "result" in one]


# ---------------------------------------------------------------------- over HTTP


@pytest.mark.parametrize("local", [False, True], ids=["authenticated", "local"])
@pytest.mark.parametrize("early", [True, False], ids=["before the result", "after the result"])
async def test_a_client_takes_up_the_call_whose_connection_it_lost(early: bool, local: bool) -> None:
    """Whether it comes back before or after the result: it gets each message once, and the tool has run once."""
    async with peers(local=local) as (works, ann, _):
        last = await ann.lost(works)
        if not early:
            works.free.set()
            async with ann.resumed(last) as events:  # it ends with the result, which is held then
                await events.rest()
        async with ann.resumed(last) as events:
            works.free.set()
            messages = await events.rest()
        assert [one.get("method") for one in messages] == ["notifications/progress", None]
        assert results(messages) == ["done"]
        assert works.ran == 1


async def test_a_client_gets_only_what_came_after_its_last_event() -> None:
    async with peers() as (works, ann, _):
        last = await ann.lost(works)
        works.free.set()
        async with ann.resumed(last) as events:
            progress = await events.next()
            assert progress is not None
        async with ann.resumed(progress["id"]) as events:
            messages = await events.rest()
        assert [*map(len, (messages, results(messages)))] == [1, 1]


async def test_an_older_client_gets_no_ids_and_the_control_without_resumption_neither() -> None:
    """A client before version 2025-11-25 cannot read an event without data."""
    for resumption, version in ((Resumption(), "2025-06-18"), (None, "2025-11-25")):
        async with peers(resumption) as (works, ann, _):
            works.free.set()
            async with ann.call(version) as events:
                first = await events.next()
                assert first is not None
                assert "id" not in first
                assert results(await events.rest()) == ["done"]


@pytest.mark.parametrize("end", ["another session", "deleted", "expired", "unknown"])
async def test_an_id_of_another_session_and_one_of_the_past_read_nothing(end: str) -> None:
    """The control: until then, the id reads the result."""
    clock = FakeClock()
    async with peers(Resumption(ttl=60), clock=clock) as (works, ann, other):
        last = await ann.lost(works)
        works.free.set()
        async with ann.resumed(last) as events:
            assert results(await events.rest()) == ["done"]
        reader = ann
        if end == "another session":
            reader = other
        elif end == "deleted":
            assert (await ann.http.delete("/mcp", headers=ann.headers())).status_code == 200
        elif end == "expired":
            clock.advance(60)
        else:
            last = f"{last}x"
        async with reader.resumed(last) as events:
            assert await events.rest() == []
            assert (events.response.status_code == 404) == (end == "deleted")


async def test_the_server_closes_the_stream_of_a_long_call_and_the_official_client_comes_back() -> None:
    """For proxies that cut long responses; the control is a server that closes none."""
    for close_after in (SOON, None):
        works, resumed = Works(), asyncio.Event()
        resumption = Resumption(close_after=close_after, retry=SOON)
        app = callgate.mcp.server(works.gate(), authenticate=who, resumption=resumption).asgi()

        async def noting(scope: Any, receive: Any, send: Any, app: Any = app, resumed: asyncio.Event = resumed) -> None:
            if any(name == b"last-event-id" for name, _ in scope.get("headers", ())):
                resumed.set()
            await app(scope, receive, send)

        async with (
            served(noting, timeout_graceful_shutdown=1) as running,
            http_client(running.port, "ann", mode="legacy") as client,
            asyncio.TaskGroup() as group,
        ):
            calling = group.create_task(client.call_tool("work", {}))
            await works.begun.wait()
            if close_after is not None:
                await resumed.wait()
            works.free.set()
            assert text_of(await calling) == "done"
            assert (works.ran, resumed.is_set()) == (1, close_after is not None)


async def test_a_later_reader_of_a_stream_ends_the_one_before() -> None:
    """A client that lost its connection again leaves no request behind."""
    async with peers() as (works, ann, _):
        last = await ann.lost(works)
        async with ann.resumed(last) as first, ann.resumed(last) as second:
            assert await first.rest() == []
            works.free.set()
            assert results(await second.rest()) == ["done"]


async def test_the_session_of_each_message_is_known_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK names no session: each message belongs to the session in whose context the SDK handles it."""
    made: list[SessionStreams] = []

    def noted(*given: Any, **more: Any) -> SessionStreams:
        made.append(SessionStreams(*given, **more))
        return made[-1]

    monkeypatch.setattr(server_module, "SessionStreams", noted)
    async with peers() as (works, *both):
        works.free.set()
        for ann in both:
            async with ann.call() as events:
                first = await events.next()
                assert first is not None
                assert made[both.index(ann)]._id in first["id"]
                await events.rest()
        assert [len(one._open) for one in made] == [1, 1], "each response has ended its stream"


@pytest.mark.parametrize("name", ["ttl", "max_bytes", "max_count", "retry", "close_after"])
def test_a_number_is_positive(name: str) -> None:
    given: Any = {name: 0}
    with pytest.raises(RegistrationError, match=name):
        Resumption(**given)


# ---------------------------------------------------------------------- one session


def held(max_count: int = 1_000, max_bytes: int = 1_000_000) -> Held:
    return UserMemory(max_bytes, max_count, 60.0, lambda: 0.0)


def note(number: int) -> JSONRPCMessage:
    return JSONRPCNotification(jsonrpc="2.0", method=f"n{number}")


def response(request: str) -> JSONRPCMessage:
    return JSONRPCResponse(jsonrpc="2.0", id=request, result={})


@given(st.lists(st.sampled_from("abc"), max_size=30), st.data())
async def test_a_reader_gets_each_later_message_of_its_stream_once_and_in_order(requests: list[str], data: Any) -> None:
    """Messages of several streams, some of which come while the reader is sent earlier ones."""
    streams = SessionStreams(held(), ANN)
    ids = {request: [streams.add(request, None)] for request in "abc"}
    coming = [(request, note(number)) for number, request in enumerate(requests)]
    coming += [(request, response(request)) for request in "abc"]
    expected = {request: [message for of, message in coming if of == request] for request in "abc"}

    def come() -> None:
        request, message = coming.pop(0)
        ids[request].append(streams.add(request, message))

    for _ in range(data.draw(st.integers(0, len(coming)))):
        come()
    request = data.draw(st.sampled_from("abc"))
    place = data.draw(st.integers(0, len(ids[request]) - 1))
    got: list[EventMessage] = []

    async def send(event: EventMessage) -> None:
        got.append(event)
        for _ in range(data.draw(st.integers(0, 3))):
            if coming:
                come()
        await asyncio.sleep(0)

    async with asyncio.timeout(20):
        reading = asyncio.ensure_future(streams.replay(ids[request][place], send))
        while not reading.done():
            await asyncio.sleep(0)
            if coming:
                come()
        await reading
    assert [one.message for one in got] == expected[request][place:]
    assert [one.event_id for one in got] == ids[request][place + 1 : place + 1 + len(got)]


async def test_a_reader_that_waits_gets_a_message_while_the_request_goes_on() -> None:
    """Progress that came with the response only would be none. A session that ends lets the reader go."""
    streams = SessionStreams(held(), ANN)
    last, came = streams.add("a", None), asyncio.Event()

    async def send(_: EventMessage) -> None:
        came.set()

    async with asyncio.timeout(20):
        reading = asyncio.ensure_future(streams.replay(last, send))
        for number in range(3):
            await asyncio.sleep(0)
            streams.add("a", note(number))
            await came.wait()
            came.clear()
        streams.close()
        await reading


@pytest.mark.parametrize(
    "id", ["", "-", "--", "x", "1", "-1-1", "SESSION-1-x", "SESSION-1-²", f"SESSION-1-{'9' * 5_000}"]
)
async def test_an_id_that_is_none_reads_nothing(id: str) -> None:
    streams = SessionStreams(held(), ANN)
    streams.add("a", None)
    streams.add("a", response("a"))
    got: list[EventMessage] = []

    async def send(event: EventMessage) -> None:
        got.append(event)

    await streams.replay(id.replace("SESSION-1", f"{streams._id}-2"), send)
    assert got == []
    await streams.replay(f"{streams._id}-2-1", send)
    assert len(got) == 1, "the control: an id of the stream reads the response"


async def test_streams_that_have_ended_leave_no_memory_once_their_messages_have_gone() -> None:
    """The control: while the messages are held, the streams are there."""
    memory = held(max_count=10)
    streams = SessionStreams(memory, ANN)

    def calls(count: int) -> None:
        for number in range(count):
            streams.add(str(number), None)
            for part in range(3):
                streams.add(str(number), note(part))
            streams.add(str(number), response(str(number)))

    calls(2)
    gc.collect()
    assert len(streams._streams) == 1 + 2
    calls(500)
    gc.collect()
    assert len(streams._streams) <= 1 + 10
    streams.close()
    gc.collect()
    assert (memory.size, len(streams._streams)) == (0, 0)


async def test_messages_of_a_flood_are_dropped_and_the_response_is_read() -> None:
    """A tool that reports without end loses its own reports, the oldest first, and none of another user."""
    memory = held(max_count=10)
    eve, ann = SessionStreams(memory, EVE), SessionStreams(memory, ANN)
    ids = [one.add("a", None) for one in (eve, ann)]
    eve.add("a", response("a"))
    for number in range(5_000):
        ann.add("a", note(number))
    ann.add("a", response("a"))
    for streams, last, count in ((eve, ids[0], 1), (ann, ids[1], 9)):
        got: list[JSONRPCMessage] = []

        async def send(event: EventMessage, got: list[JSONRPCMessage] = got) -> None:
            got.append(event.message)

        await streams.replay(last, send)
        assert len(got) == count
        assert got[-1] == response("a")


async def test_a_request_with_the_id_of_one_that_goes_on_is_another_stream() -> None:
    """Its reader gets nothing of the other one."""
    streams = SessionStreams(held(), ANN)
    first = streams.add("a", None)
    streams.add("a", note(1))
    second = streams.add("a", None)
    streams.add("a", response("a"))
    for last, expected in ((first, [note(1)]), (second, [response("a")])):
        got: list[JSONRPCMessage] = []

        async def send(event: EventMessage, got: list[JSONRPCMessage] = got) -> None:
            got.append(event.message)

        await streams.replay(last, send)
        assert got == expected
