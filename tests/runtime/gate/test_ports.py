"""What a port needs is public: the how-to runs in ``test_docs.py``; here, the parts hold in every way a host may use them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate import Gate, InvokeContext, Outcome, ToolCall, ToolContext, ToolRecord, User, tool
from callgate.ports import Consumer, Event, Events, NameMap, Partial, Progress, Result, Style, result_text
from tests.harness.gate_options import gate_options

ANN = User("ann")


@tool(effect="read")
async def works(ctx: ToolContext) -> str:
    """Report, and send parts."""
    ctx.progress(1, 2, "half way")
    await ctx.send("a part")
    return "done"


class Noted:
    """A consumer of a host's own."""

    def __init__(self) -> None:
        self.in_order = asyncio.Lock()
        self.seen: list[Any] = []

    def progress(self, ctx: InvokeContext, progress: float, total: float | None, message: str | None) -> None:
        """Note it."""
        self.seen.append((ctx.tool_id, progress, total, message))

    async def partial(self, ctx: InvokeContext, value: Any) -> None:
        """Note it."""
        self.seen.append((ctx.tool_id, value))


async def test_a_stream_a_queue_and_an_own_consumer_get_the_same_events() -> None:
    """Three ways to pass events on to a host."""
    call = ToolCall(id="1", name="works")
    async with Gate([works]) as gate:
        streamed: list[Event] = [event async for event in gate.stream(call, user=ANN)]
        queued, noted = Events(), Noted()
        consumer: Consumer[InvokeContext] = noted
        await gate.call(call, user=ANN, events=queued)
        result = await gate.call(call, user=ANN, events=consumer)
    *first, last = streamed
    assert first == [Progress("works", 1, 2, "half way"), Partial("works", "a part")]
    assert isinstance(last, Result)
    assert [queued.queue.get_nowait() for _ in first] == first
    assert (queued.queue.empty(), queued.left()) == (True, [])
    assert noted.seen == [("works", 1, 2, "half way"), ("works", "a part")]
    assert (result.outcome, result_text(result), result_text(last.result)) == (Outcome.SUCCESS, "done", "done")


def _of_names(a: int) -> int:
    return a


class Runs:
    """A class whose instance runs."""

    def __init__(self, arguments: dict[str, int]) -> None:
        self.a = arguments["a"]

    def run(self) -> int:
        """Run."""
        return self.a


@pytest.mark.parametrize(
    ("style", "execute"),
    [
        (Style.RECORD, lambda arguments, _ctx: arguments["a"]),
        (Style.KEYWORDS, _of_names),
        (Style.COMPONENT, Runs),
    ],
)
async def test_a_tool_of_the_host_is_called_in_its_style(style: Style, execute: Any) -> None:
    """The name of the host's tool is mapped to one that a gate accepts, and back."""
    names = NameMap.of(["host.tool"])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    record = ToolRecord(
        name=names.wire("host.tool"),
        description="A tool of the host.",
        input_schema=schema,
        effect="read",
        execute=execute,
        style=style,
        is_async=False,
    )
    async with Gate([record], **gate_options()) as gate:
        assert await gate.invoke(names.wire("host.tool"), {"a": 3}, user=ANN) == 3
    assert names.tool(names.wire("host.tool")) == "host.tool"
