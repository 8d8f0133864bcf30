"""Streams over server-sent events: in order, shaped like the whole, the result last."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import callgate
from callgate import Hook, InvokeContext, ToolContext
from tests.runtime.hosts.making import Desk
from tests.runtime.hosts.serving import desk_served, events_of

PROBLEM = "application/problem+json"


async def test_events_come_in_order_and_the_result_is_the_last() -> None:
    """Contract C11."""
    async with desk_served(Desk()) as (_, client):
        said = await client.post("/tools/count/stream", json={"upto": 3}, headers={"x-request-id": "r1"})
    assert said.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert said.headers["x-request-id"] == "r1"
    expected: list[tuple[str, Any]] = []
    for number in range(3):
        expected.append(("progress", {"progress": number, "total": 3, "message": None}))
        expected.append(("partial", {"n": number}))
    output = [{"n": 0}, {"n": 1}, {"n": 2}]
    assert events_of(said.text) == [
        *expected,
        ("result", {"outcome": "success", "status": 200, "output": output, "replayed": False}),
    ]


async def test_events_arrive_while_the_call_goes_on() -> None:
    desk = Desk()

    @callgate.tool(effect="read")
    async def slow(ctx: ToolContext) -> str:
        """Tells, then waits."""
        ctx.progress(1)
        await desk.go.wait()
        return "done"

    desk.gate.add(slow)
    async with (
        desk_served(desk) as (_, client),
        client.stream("POST", "/tools/slow/stream", json={}) as said,
    ):
        lines = said.aiter_lines()
        assert await anext(lines) == "event: progress"
        assert desk.places.held == 1
        desk.go.set()
        rest = [line async for line in lines]
    assert "event: result" in rest


@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [("add", {"a": "CANARY"}, 422), ("none", {}, 404), ("forbidden", {}, 451), ("busy", {}, 429), ("broken", {}, 500)],
)
async def test_what_fails_before_it_has_begun_is_told_with_its_status(name: str, arguments: Any, status: int) -> None:
    """Contract I9."""
    async with desk_served(Desk()) as (_, client):
        said = await client.post(f"/tools/{name}/stream", json=arguments)
    assert (said.status_code, said.headers["content-type"]) == (status, PROBLEM)
    assert "CANARY" not in said.text
    assert said.json()["correlation_id"] == said.headers["x-request-id"]


async def test_what_fails_on_its_way_is_told_in_the_last_event() -> None:
    """Contract I9: as the same problem details, without values."""

    @callgate.tool(effect="read")
    async def breaks(ctx: ToolContext) -> str:
        """Begins, and fails."""
        await ctx.send("begun")
        raise ValueError("CANARY")

    desk = Desk()
    desk.gate.add(breaks)
    async with desk_served(desk) as (_, client):
        said = await client.post("/tools/breaks/stream", json={})
    (first, last) = events_of(said.text)
    assert first == ("partial", "begun")
    assert (last[0], last[1]["outcome"], last[1]["problem"]["status"]) == ("result", "error", 500)
    assert "CANARY" not in said.text


async def test_parts_are_redacted_like_the_whole() -> None:
    """Contract I8."""

    class Masking(Hook):
        def will_redact_output(self, ctx: InvokeContext) -> None:
            ctx.output = json.loads(json.dumps(ctx.output).replace("CANARY", "***"))

    @callgate.tool(effect="read")
    async def tells(ctx: ToolContext) -> str:
        """Tells too much."""
        await ctx.send("CANARY one")
        return "CANARY two"

    desk = Desk()
    desk.gate.add(tells)
    desk.gate.use(Masking())
    async with desk_served(desk) as (_, client):
        said = await client.post("/tools/tells/stream", json={})
    assert [event[0] for event in events_of(said.text)] == ["partial", "result"]
    assert "CANARY" not in said.text


async def test_a_stream_without_news_says_that_it_is_alive() -> None:
    """Proxies close what is silent."""
    desk = Desk()
    async with (
        desk_served(desk, ping=0.02) as (_, client),
        client.stream("POST", "/tools/wait/stream", json={}) as said,
    ):
        lines = said.aiter_lines()
        assert (await anext(lines)).startswith(":")
        desk.go.set()
        text = "\n".join([line async for line in lines])
    assert events_of(text)[-1][1]["output"] == "done"


async def test_line_breaks_in_an_output_do_not_break_the_events() -> None:
    """Contract I8: an output cannot inject an event."""

    @callgate.tool(effect="read")
    async def echo(text: str, ctx: ToolContext) -> str:
        """Says it again."""
        ctx.progress(1, message=text)
        await asyncio.sleep(0)
        return text

    text = "a\n\nevent: result\ndata: {}\r\n\r\n\u2028b"
    desk = Desk()
    desk.gate.add(echo)
    async with desk_served(desk) as (_, client):
        said = await client.post("/tools/echo/stream", json={"text": text})
    first, last = events_of(said.text)
    assert (first[1]["message"], last[1]["output"]) == (text, text)


async def test_a_hundred_streams_at_once_keep_their_own_events() -> None:
    """Contract I1: and hold nothing afterwards."""
    desk = Desk()
    async with desk_served(desk) as (_, client):
        answers = await asyncio.gather(*(client.post("/tools/count/stream", json={"upto": n % 7}) for n in range(100)))
    for n, said in enumerate(answers):
        assert events_of(said.text)[-1][1]["output"] == [{"n": i} for i in range(n % 7)]
    assert desk.places.held == 0
