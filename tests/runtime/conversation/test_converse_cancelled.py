"""A conversation is cancelled at every point: nothing leaks, nothing runs afterwards. Issue 5; contract C1; I1, I13."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.runtime.conversation import channel as conversation_events
from callgate.runtime.conversation import loop as conversation_loop
from callgate.runtime.conversation.converse import converse, converse_events
from callgate.runtime.conversation.events import RoundEnded
from callgate.runtime.models.wire.codec import Translation
from callgate.runtime.models.wire.reply import Reply, ReplyEvent
from callgate.runtime.pipeline import batch
from callgate.runtime.testing import cancel
from callgate.runtime.testing.cancel import SweepFailed, SweepReport
from callgate.runtime.testing.cancel_modes import Native
from callgate.runtime.testing.lease_ledger import LeaseLedger
from tests.harness.sweeps import swept
from tests.runtime.conversation.conversing import FakeModel, asks, call, check_paired, says
from tests.runtime.pipeline.cancel_cases import USER, Case
from tests.runtime.pipeline.leasing import Place, Quota

Sweep = Callable[..., SweepReport]


class HeldModel(FakeModel):
    """Holds a connection while it answers."""

    def __init__(self, case: Talking, *script: Any) -> None:
        super().__init__(*script)
        self.case = case

    async def reply(self, messages: Sequence[Mapping[str, Any]], tools: Translation) -> Reply:
        with self.case.holding("request"):
            await asyncio.sleep(0)
            return await super().reply(messages, tools)

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Translation
    ) -> AsyncGenerator[ReplyEvent, None]:
        with self.case.holding("stream"):
            async for event in super().stream(messages, tools):
                yield event
                await asyncio.sleep(0)


class Holding:
    def __init__(self, case: Talking, name: str) -> None:
        self.case, self.lease = case, (name, object())

    def __enter__(self) -> None:
        if self.case.over:
            self.case.ledger.problems.append(f"it runs afterwards: {self.lease[0]}")
        self.case.ledger.acquired(self.lease)

    def __exit__(self, *error: object) -> None:
        self.case.ledger.released(self.lease)


class Talking(Case):
    """Two rounds: two calls at once and one alone, then the end. Hooks, tools and the connection hold leases."""

    def __init__(self, *, stream: bool, read: bool = False) -> None:
        super().__init__()
        self.stream, self.read, self.over = stream, read, False

        @tool(effect="read")
        async def note(n: int) -> int:
            with self.holding("body"):
                await asyncio.sleep(0)
                await asyncio.sleep(1 / n)
            return n

        @tool(effect="read", parallel=False)
        async def alone(n: int) -> int:
            with self.holding("body"):
                await asyncio.sleep(0)
            return n

        self.runs(note, alone).use(Quota(self.held("quota")), Place(self.held("place")))

    def holding(self, name: str) -> Holding:
        return Holding(self, name)

    async def call(self, gate: Gate) -> Any:
        self.over, self.ledger.in_order = False, False
        history = [{"role": "user", "content": "hello"}]
        model = HeldModel(self, asks(call("a", n=1), call("b", n=2), call("c", "alone", n=3), text="so"), says("end"))
        try:
            if self.read:
                return await self.reading(model, gate, history)
            done = await converse(model, gate, history, user=USER, stream=self.stream)
            return done.ended, [one.result.outcome.value for one in done.calls]
        finally:
            self.over = True
            if history != [{"role": "user", "content": "hello"}]:
                self.ledger.problems.append("the caller's history was changed")

    async def reading(self, model: Any, gate: Gate, history: Any) -> int:
        number = 0
        async with aclosing(converse_events(model, gate, history, user=USER, stream=self.stream)) as events:
            async for event in events:
                number += 1
                if isinstance(event, RoundEnded):
                    check_paired(event.messages)
                await asyncio.sleep(0)
        return number


CASES: dict[str, Callable[[], Talking]] = {
    "awaited": lambda: Talking(stream=False),
    "awaited, streamed": lambda: Talking(stream=True),
    "read": lambda: Talking(stream=False, read=True),
    "read, streamed": lambda: Talking(stream=True, read=True),
}


@swept
@pytest.mark.parametrize("name", CASES)
def test_nothing_leaks_and_nothing_runs_after_a_cancellation_at_any_point(
    name: str, sweep: dict[str, Any], every_cancel_point: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I13; contract C1."""
    monkeypatch.setattr(conversation_events, "WAITING", 2)  # so that telling waits for the reader, too
    report = every_cancel_point(CASES[name](), **sweep)
    assert report.findings == []
    assert report.points >= 2 * report.steps >= 150
    assert report.leases >= 11  # two for each call and its body, one for each request


# ---------------------------------------------------------------------- the sweep finds what it is there to find


def findings(case: Talking) -> SweepReport:
    with pytest.raises(SweepFailed) as failed:
        cancel.every_cancel_point(case, (Native,), paired=(), stop_after=40)
    return failed.value.report


def test_control_calls_that_go_on_by_themselves_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""
    real = batch.call_many

    async def shielded(*args: Any, **options: Any) -> Any:
        return await asyncio.shield(asyncio.ensure_future(real(*args, **options)))

    monkeypatch.setattr(batch, "call_many", shielded)
    report = findings(Talking(stream=False))
    assert report.count("late release") > 0


def test_control_a_reader_that_does_not_wait_for_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""

    async def leave(running: asyncio.Future[Any]) -> None:
        running.cancel()

    monkeypatch.setattr(conversation_events, "cancel_and_wait", leave)
    assert findings(Talking(stream=True, read=True)).count("late release") > 0


def test_control_a_stream_that_is_not_closed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""

    @asynccontextmanager
    async def left_open(stream: Any) -> AsyncGenerator[Any, None]:
        kept.append(stream)
        yield stream

    kept: list[Any] = []
    opener: Callable[[Any], AbstractAsyncContextManager[Any]] = left_open
    monkeypatch.setattr(conversation_loop, "aclosing", opener)
    monkeypatch.setattr(conversation_events, "WAITING", 2)
    assert findings(Talking(stream=True, read=True)).count("stream") > 0


def test_the_ledger_is_told_of_what_runs_too_late() -> None:
    """Control of the control."""
    case = Talking(stream=False)
    case.ledger, case.over = LeaseLedger(), True
    with case.holding("body"):
        pass
    assert case.ledger.problems == ["it runs afterwards: body"]
