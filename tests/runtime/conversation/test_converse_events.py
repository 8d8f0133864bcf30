"""A conversation as events for a user interface. Issue 5."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from callgate import GateClosed, ToolCall
from callgate.runtime.conversation.channel import WAITING, events_of
from callgate.runtime.conversation.converse import converse, converse_events
from callgate.runtime.conversation.events import (
    CallFinished,
    CallsStarted,
    ConversationEvent,
    Ended,
    Ending,
    RoundEnded,
    RoundStarted,
)
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, Reply, TextDelta
from callgate.testing import run_virtual
from tests.runtime.conversation.conversing import ANN, FakeModel, Notes, asks, call, check_paired, says
from tests.runtime.gate.making import gate_of


def events(client: Any, gate: Any, **options: Any) -> list[ConversationEvent]:
    async def run() -> list[ConversationEvent]:
        async with gate:
            return [event async for event in converse_events(client, gate, "hello", user=ANN, **options)]

    return run_virtual(run())


def script() -> list[Reply]:
    return [
        asks(call("a", n=1), ToolCall(id="x", name="none", arguments={}), call("b", n=3), text="Let me"),
        says("All is noted."),
    ]


def test_every_step_is_told_and_the_end_is_last() -> None:
    """Issue 5."""
    told = events(FakeModel(*script()), gate_of([Notes().tool()]))
    kinds = [type(event) for event in told]
    assert kinds == [
        RoundStarted,
        *[TextDelta] * 2,
        *[CallDelta] * 3,
        CallsStarted,
        *[CallFinished] * 3,
        RoundEnded,
        RoundStarted,
        *[TextDelta] * 3,
        RoundEnded,
        Ended,
    ]
    assert [event.round for event in told if isinstance(event, RoundStarted)] == [1, 2]
    assert next(event.tools for event in told if isinstance(event, RoundStarted)) == ("note",)
    finished = [event.result.call_id for event in told if isinstance(event, CallFinished)]
    assert finished == ["x", "b", "a"]  # as they come
    first, second = [event for event in told if isinstance(event, RoundEnded)]
    assert [result.call_id for result in first.results] == ["a", "x", "b"]  # in order
    assert second.reply is not None
    assert second.reply.text == "All is noted."


def test_events_and_awaiting_come_to_the_same_streamed_or_not() -> None:
    """One loop behind both."""

    async def awaited(stream: bool) -> Any:
        async with gate_of([Notes().tool()]) as gate:
            return await converse(FakeModel(*script()), gate, "hello", user=ANN, stream=stream)

    ends = [run_virtual(awaited(stream)) for stream in (False, True)]
    for stream in (False, True):
        last = events(FakeModel(*script()), gate_of([Notes().tool()]), stream=stream)[-1]
        assert isinstance(last, Ended)
        ends.append(last.conversation)
    shown = [(end.ended, end.text, end.rounds, [one.result.output for one in end.calls]) for end in ends]
    assert shown == [shown[0]] * 4
    texts = [[m.get("content") for m in end.messages if m["role"] != "tool"] for end in ends]
    assert texts == [texts[0]] * 4


def test_without_streaming_a_text_comes_as_one_piece() -> None:
    """A user interface need not care."""
    reply = says("All is noted.", reasoning="Hm. So.")
    told = events(FakeModel(reply), gate_of([]), stream=False)
    assert told[1:3] == [ReasoningDelta("Hm. So."), TextDelta("All is noted.")]


def test_each_round_ends_with_a_history_that_a_provider_takes() -> None:
    """What to keep after a crash."""
    told = events(FakeModel(*script()), gate_of([Notes().tool()]))
    histories = [event.messages for event in told if isinstance(event, RoundEnded)]
    for history in histories:
        check_paired(history)
    last = told[-1]
    assert isinstance(last, Ended)
    assert histories[-1] == last.conversation.messages


def test_calls_that_a_limit_keeps_from_running_are_told_too_each_once() -> None:
    """Every call that is started is finished, once."""
    client = FakeModel(asks(*[call(f"c{n}", n=n) for n in range(5)]))
    told = events(client, gate_of([Notes().tool()]), max_calls=2)
    started = [one.id for event in told if isinstance(event, CallsStarted) for one in event.calls]
    finished = [event.result.call_id for event in told if isinstance(event, CallFinished)]
    assert sorted(started) == sorted(finished) == [f"c{n}" for n in range(5)]


async def test_wrong_arguments_and_a_closed_gate_are_refused_at_once() -> None:
    """Not only once somebody reads."""
    with pytest.raises(GateClosed):
        converse_events(FakeModel(), gate_of([]), "hello")
    async with gate_of([]) as gate:
        with pytest.raises(ValueError, match="max_rounds"):
            converse_events(FakeModel(), gate, "hello", max_rounds=0)


async def test_nothing_happens_before_somebody_reads() -> None:
    """An async generator."""
    client = FakeModel(says("never"))
    async with gate_of([]) as gate:
        unread = converse_events(client, gate, "hello")
        await asyncio.sleep(0)
        await unread.aclose()
    assert client.seen == []


@pytest.mark.parametrize(
    "stop", [TextDelta, CallDelta, CallsStarted, CallFinished, RoundEnded], ids=lambda s: s.__name__
)
async def test_a_reader_that_leaves_ends_the_conversation_before_it_is_out(stop: type[Any]) -> None:
    """Nothing runs afterwards: no tool, no request, no task."""
    notes, client = Notes(), FakeModel(asks(call("a", n=1), call("b", n=99), text="so"), says("never"))
    before = asyncio.all_tasks()
    async with gate_of([notes.tool()]) as gate:
        tasks = asyncio.all_tasks()
        async with aclosing(converse_events(client, gate, "hello", user=ANN)) as stream:
            async for event in stream:
                if isinstance(event, stop):
                    break
        assert asyncio.all_tasks() == tasks
        assert client.streams_open == 0
        seen = (len(client.seen), list(notes.ran), list(notes.finished))
        await asyncio.sleep(0.01)
        assert (len(client.seen), notes.ran, notes.finished) == seen
    assert asyncio.all_tasks() == before


async def test_what_the_conversation_raises_the_reader_gets() -> None:
    """Errors that are no end of a conversation."""
    client = FakeModel(asks(call("a")), LookupError("a bug"))
    seen = []
    async with gate_of([Notes().tool()]) as gate:
        with pytest.raises(LookupError, match="a bug"):
            async for event in converse_events(client, gate, "hello", user=ANN):
                seen.append(event)
    assert isinstance(seen[-1], RoundStarted)


async def test_a_slow_reader_slows_the_conversation_down() -> None:
    """What waits for a reader is bounded."""
    told: list[int] = []

    async def run(tell: Any) -> None:
        for n in range(500):
            await tell(n)
            told.append(n)

    async with aclosing(events_of(run)) as stream:
        assert await anext(stream) == 0
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(told) <= WAITING + 1
        assert [n async for n in stream] == list(range(1, 500))


def test_a_suspended_conversation_ends_without_the_end_of_its_round() -> None:
    """The round goes on when it is resumed."""
    from tests.runtime.conversation.conversing import Asking

    told = events(FakeModel(asks(call("a", n=7))), gate_of([Notes().tool()], Asking(suspends=[7])))
    assert not any(isinstance(event, RoundEnded) for event in told)
    last = told[-1]
    assert isinstance(last, Ended)
    assert last.conversation.ended is Ending.SUSPENDED
