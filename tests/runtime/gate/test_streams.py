"""One call as a series of events: progress, parts shaped like the whole, the result last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from pydantic import BaseModel

from callgate import Gate, Hook, InvokeContext, Outcome, ToolCall, ToolContext, tool
from callgate.runtime.pipeline.streams import QUEUE, Event, Partial, Progress, Result
from tests.runtime.gate.making import ANYTHING, USER, Seeing, call, gate_of, made


async def events_of(gate: Gate, asked: Any = None, **options: Any) -> list[Event]:
    return [event async for event in gate.stream(asked or call(), user=USER, **options)]


class Masking(Hook):
    """Takes a secret out of whatever it sees."""

    def will_redact_output(self, ctx: InvokeContext) -> None:
        ctx.output = (
            [self.masked(part) for part in ctx.output] if isinstance(ctx.output, list) else self.masked(ctx.output)
        )

    def masked(self, part: Any) -> Any:
        return {**part, "secret": "***"} if isinstance(part, dict) else part


async def test_progress_and_parts_come_in_order_and_the_result_last() -> None:
    """Contract 70, C11."""

    async def work(n: int, ctx: Any) -> int:
        ctx.progress(1, 3, "one")
        await ctx.send({"part": 1})
        ctx.progress(2)
        await asyncio.sleep(0)
        return n

    async with gate_of([made(work, context_parameter="ctx")]) as gate:
        events = await events_of(gate)
    assert events[:-1] == [Progress("work", 1, 3, "one"), Partial("work", {"part": 1}), Progress("work", 2)]
    assert isinstance(events[-1], Result)
    assert events[-1].result.output == 2


async def test_parts_and_the_whole_are_redacted_alike() -> None:
    """Contract 97, I8."""

    async def work(n: int) -> AsyncIterator[Any]:
        for i in range(n):
            yield {"i": i, "secret": "SECRET"}

    async with gate_of([made(work, streams=True)], Masking()) as gate:
        events = await events_of(gate)
        whole = await gate.call(call(), user=USER)
    assert [event.value for event in events if isinstance(event, Partial)] == [
        {"i": 0, "secret": "***"},
        {"i": 1, "secret": "***"},
    ]
    assert "SECRET" not in repr(events)
    assert whole.output == [{"i": 0, "secret": "***"}, {"i": 1, "secret": "***"}]


class Part(BaseModel):
    number: int


async def test_an_async_generator_with_typed_parts_sends_each_as_json() -> None:
    """Contract 70, C11."""

    @tool(effect="read")
    async def typed(n: int) -> AsyncIterator[Part]:
        for i in range(n):
            yield Part(number=i)

    async with gate_of([typed]) as gate:
        events = await events_of(gate, ToolCall(id="c", name="typed", arguments={"n": 2}))
    assert [event.value for event in events if isinstance(event, Partial)] == [{"number": 0}, {"number": 1}]
    assert isinstance(events[-1], Result)
    assert events[-1].result.output == [{"number": 0}, {"number": 1}], events[-1].result


async def test_a_class_whose_run_is_an_async_generator_streams_too() -> None:
    """Contract 22, 70."""

    @tool(effect="read", parameters=ANYTHING)
    class Streaming:
        async def run(self) -> AsyncIterator[int]:
            for i in range(3):
                yield i

    async with gate_of([Streaming]) as gate:
        events = await events_of(gate, ToolCall(id="c", name="Streaming", arguments={}))
    assert [event.value for event in events if isinstance(event, Partial)] == [0, 1, 2]
    assert isinstance(events[-1], Result)
    assert events[-1].result.output == [0, 1, 2]


@pytest.mark.parametrize(
    "part", [float("nan"), {object()}, object(), "x" * 2_000_000], ids=["nan", "set", "object", "large"]
)
async def test_a_part_that_could_not_be_an_output_ends_the_call(part: Any) -> None:
    """Contract 97, I15."""

    async def work(n: int) -> AsyncIterator[Any]:
        yield "fine"
        yield part

    async with gate_of([made(work, streams=True)]) as gate:
        events = await events_of(gate)
    assert [event.value for event in events if isinstance(event, Partial)] == ["fine"]
    assert isinstance(events[-1], Result)
    assert events[-1].result.outcome is Outcome.ERROR


@pytest.mark.parametrize("way", ["raises", "is denied", "is invalid", "is unknown"])
async def test_a_stream_of_a_call_that_fails_ends_with_its_result(way: str) -> None:
    """Contract 36, C12."""

    class Refusing(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            if way == "is denied":
                ctx.abort("no")

    async def work(n: int, ctx: Any) -> int:
        ctx.progress(1)
        raise LookupError("SECRET")

    asked = call({} if way == "is invalid" else None, "nope" if way == "is unknown" else "work")
    async with gate_of([made(work, context_parameter="ctx")], Refusing()) as gate:
        events = await events_of(gate, asked)
    *before, last = events
    assert isinstance(last, Result)
    assert not last.result.ok
    assert before == ([Progress("work", 1)] if way == "raises" else [])
    assert "SECRET" not in repr(last.result.error)


async def test_a_plain_function_reports_from_its_thread_at_once() -> None:
    """Contract 70, 77."""

    read = threading.Event()

    @tool(effect="read")
    def slow(ctx: ToolContext) -> str:
        ctx.progress(0.5)
        assert read.wait(30), "the reader was not woken"
        return "done"

    async with gate_of([slow]) as gate:
        seen: list[Event] = []
        async for event in gate.stream(ToolCall(id="c", name="slow"), user=USER):
            seen.append(event)
            read.set()
    assert seen[0] == Progress("slow", 0.5)
    assert isinstance(seen[-1], Result)
    assert seen[-1].result.output == "done"


async def test_a_reader_that_stops_early_cancels_the_call_and_waits_for_its_end() -> None:
    """Contract C1d, I1."""
    log: list[str] = []

    async def work(n: int, ctx: Any) -> int:
        try:
            await ctx.send("first")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("body ended")
        return n

    class Place(Hook):
        async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            log.append("taken")

        async def did_release_semaphore(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0)
            log.append("given back")

    seeing = Seeing()
    async with gate_of([made(work, context_parameter="ctx")], Place(), seeing) as gate:
        stream: Any = gate.stream(call(), user=USER)
        async with aclosing(stream):
            async for event in stream:
                assert event == Partial("work", "first")
                break
        assert log == ["taken", "body ended", "given back"]
        assert [outcome for outcome, _ in seeing.audited] == ["cancelled"]


async def test_a_reader_that_is_cancelled_cancels_the_call() -> None:
    """Contract C1d, I1."""
    inside, ended = asyncio.Event(), list[str]()

    async def work(n: int) -> int:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("body")
        return n

    async with gate_of([made(work)]) as gate:
        reading = asyncio.ensure_future(events_of(gate))
        await inside.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert ended == ["body"]


async def test_a_slow_reader_loses_progress_but_no_part() -> None:
    """Contract 70, I11."""

    async def work(n: int, ctx: Any) -> int:
        for i in range(2 * QUEUE):
            ctx.progress(i)
        for i in range(2 * QUEUE):
            await ctx.send(i)
        return n

    async with gate_of([made(work, context_parameter="ctx")]) as gate:
        events = await events_of(gate)
    assert [event.value for event in events if isinstance(event, Partial)] == list(range(2 * QUEUE))
    assert sum(isinstance(event, Progress) for event in events) == QUEUE
    assert isinstance(events[-1], Result)


async def test_a_stream_nobody_reads_runs_nothing() -> None:
    """Contract 55."""
    ran: list[int] = []

    async def work(n: int) -> int:
        ran.append(n)
        return n

    async with gate_of([made(work)]) as gate:
        stream: Any = gate.stream(call(), user=USER)
        await stream.aclose()
    assert not ran


async def test_a_hydrated_call_can_be_streamed() -> None:
    """Contract 53."""

    async def work(n: int) -> AsyncIterator[int]:
        yield n

    async with gate_of([made(work, streams=True)]) as gate:
        events = await events_of(gate, gate.hydrate(call()))
    assert events[0] == Partial("work", 2)
    assert len(events) == 2


async def test_progress_without_a_reader_costs_and_breaks_nothing() -> None:
    """Contract 70."""

    async def work(n: int, ctx: Any) -> int:
        ctx.progress(1)
        await ctx.send(object())
        return n

    async with gate_of([made(work, context_parameter="ctx")]) as gate:
        assert (await gate.call(call(), user=USER)).output == 2
