"""Bodies that can be left behind, and plain functions in threads: design 5, 10.4; invariants I1b, I11, I12, I13."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from callgate import (
    DeadlineExceeded,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    OutcomeUnknown,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFailed,
    User,
    tool,
)
from callgate.errors import StageError
from callgate.runtime.pipeline.bodies import ABANDON_GRACE
from callgate.runtime.pipeline.deadlines import TICK
from callgate.runtime.pipeline.threads import Threads
from tests.harness.steploop import StepLoop, close_loop, on_virtual_time

USER = User("u")
OVERSHOOT = 0.05
"""Seconds that a call may end after deadline and grace (I12)."""


class Lease(Hook):
    """One lease; says when it is held."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ctx: Any = None

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.ctx = ctx
        self.log.append("taken")

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)
        self.log.append("given")


def hard(function: Any, **options: Any) -> Any:
    return tool(effect="read", hard_deadline=True, **options)(function)


def plain(function: Any, **options: Any) -> Any:
    options.setdefault("effect", "read")
    return tool(**options)(function)


async def seen_off(gate: Gate) -> None:
    """Wait until what was left behind has really ended."""
    left = gate._services.left_behind.tasks
    if left:
        await asyncio.wait(left)


def swallowing(seconds: float, ends: list[str] | None = None) -> Any:
    async def stubborn() -> int:
        """Swallow every cancellation."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        if ends is not None:
            ends.append("ended")
        return 7

    return stubborn


@pytest.fixture
def door() -> Iterator[threading.Event]:
    """A thread waits at it; open at the end, so that no thread outlives a test."""
    event = threading.Event()
    yield event
    event.set()


# ---------------------------------------------------------------------- coroutines that can be left behind


@on_virtual_time
async def test_a_body_that_swallows_cancellation_is_left_behind_after_the_grace(loop: StepLoop) -> None:
    """Design 5, 10.4. I12, I1b: outcome unknown; its lease is kept until it really ends, and the result says so."""
    ends: list[str] = []
    lease = Lease()
    async with Gate([hard(swallowing(30, ends))], [lease]) as gate:
        began = loop.time()
        result = await gate.call(ToolCall(id="c", name="stubborn"), user=USER, deadline=2.0)
        assert loop.time() - began <= 2.0 + TICK + ABANDON_GRACE + OVERSHOOT
        assert result.outcome is Outcome.UNKNOWN
        assert result.error is not None
        assert result.error.code == "outcome_unknown"
        assert result.pending_release
        assert lease.ctx.run.pending_release
        assert lease.log == ["taken"]
        assert ends == []
        await seen_off(gate)
        assert loop.time() - began >= 30
        assert ends == ["ended"]
        assert lease.log == ["taken", "given"]
        assert not lease.ctx.run.pending_release
        assert not gate._services.left_behind.tasks


@on_virtual_time
async def test_invoke_raises_that_the_outcome_is_unknown(loop: StepLoop) -> None:
    """Design 5."""
    async with Gate([hard(swallowing(5))]) as gate:
        with pytest.raises(OutcomeUnknown):
            await gate.invoke("stubborn", {}, user=USER, deadline=1.0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@on_virtual_time
async def test_a_body_without_leases_is_left_behind_with_nothing_pending(loop: StepLoop) -> None:
    """I1b."""
    async with Gate([hard(swallowing(5))]) as gate:
        result = await gate.call(ToolCall(id="c", name="stubborn"), user=USER, deadline=1.0)
        assert result.outcome is Outcome.UNKNOWN
        assert not result.pending_release


@on_virtual_time
async def test_a_body_that_is_cancelled_from_outside_is_left_behind_too(loop: StepLoop) -> None:
    """C1d, I12: the cancellation wins, within the grace; the lease stays with the body."""
    lease = Lease()
    async with Gate([hard(swallowing(30))], [lease]) as gate:
        calling = asyncio.ensure_future(gate.invoke("stubborn", {}, user=USER, deadline=10.0))
        await asyncio.sleep(1)
        began = loop.time()
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        assert loop.time() - began <= ABANDON_GRACE + OVERSHOOT
        assert lease.ctx.run.pending_release
        assert lease.log == ["taken"]
        await seen_off(gate)
        assert lease.log == ["taken", "given"]


@on_virtual_time
async def test_a_second_cancellation_in_the_grace_is_not_lost(loop: StepLoop) -> None:
    """I13."""
    async with Gate([hard(swallowing(30))]) as gate:
        calling = asyncio.ensure_future(gate.invoke("stubborn", {}, user=USER, deadline=1.0))
        await asyncio.sleep(1.1)  # the deadline has passed, the grace has not
        assert not calling.done()
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        assert calling.cancelling() == 1


@on_virtual_time
async def test_a_body_that_obeys_is_not_left_behind(loop: StepLoop) -> None:
    """I12."""
    lease = Lease()

    async def obeys() -> int:
        """Sleep."""
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(0.1)
        return 7

    async with Gate([hard(obeys)], [lease]) as gate:
        result = await gate.call(ToolCall(id="c", name="obeys"), user=USER, deadline=1.0)
        assert result.error is not None
        assert result.error.code == "deadline_exceeded"
        assert not result.pending_release
        assert lease.log == ["taken", "given"]
        assert not gate._services.left_behind.tasks


@on_virtual_time
async def test_a_body_that_ends_within_the_grace_has_ended_as_it_says(loop: StepLoop) -> None:
    """I10: what was done is not reported as not done; as for a soft deadline."""

    async def finishes() -> int:
        """Swallow, and finish soon."""
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        return 7

    async def fails() -> int:
        """Say why."""
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            raise ToolError("The other side did not answer.") from None
        return 7

    async with Gate([hard(finishes), hard(fails)]) as gate:
        assert await gate.invoke("finishes", {}, user=USER, deadline=1.0) == 7
        with pytest.raises(ToolError, match="did not answer"):
            await gate.invoke("fails", {}, user=USER, deadline=1.0)
        calling = asyncio.ensure_future(gate.invoke("finishes", {}, user=USER, deadline=10.0))
        await asyncio.sleep(0.5)
        calling.cancel()  # a caller that went away gets no result
        await asyncio.wait([calling])
        assert calling.cancelled()


@on_virtual_time
async def test_what_a_body_raises_after_it_was_left_behind_is_nobodys_news(loop: StepLoop) -> None:
    """I12: no "exception was never retrieved" (the loop's faults are looked at)."""
    lease = Lease()

    async def fails_late() -> int:
        """Raise, late."""
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        raise ConnectionError

    async with Gate([hard(fails_late)], [lease]) as gate:
        with pytest.raises(OutcomeUnknown):
            await gate.invoke("fails_late", {}, user=USER, deadline=1.0)
        await seen_off(gate)
        assert lease.log == ["taken", "given"]


@on_virtual_time
async def test_a_body_that_was_left_behind_takes_no_more_leases(loop: StepLoop) -> None:
    """I1: nobody would give them back; one under way is given back at once."""
    log: list[str] = []

    class Place:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        async def __aenter__(self) -> None:
            await asyncio.sleep(self.seconds)
            log.append("taken")

        async def __aexit__(self, *error: object) -> None:
            log.append("given")

    async def too_late(ctx: ToolContext) -> int:
        """Take a lease after the end."""
        leases: Any = ctx
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        try:
            await leases.lease(Place(0.0))
        except StageError as error:
            log.append(str(error)[:16])
        return 7

    async def under_way(ctx: ToolContext) -> int:
        """Take a lease over the end."""
        leases: Any = ctx
        await leases.lease(Place(1.5))
        return 7

    async with Gate([hard(too_late), hard(under_way)]) as gate:
        with pytest.raises(OutcomeUnknown):
            await gate.invoke("too_late", {}, user=USER, deadline=1.0)
        await seen_off(gate)
        assert log == ["the call is over"]
        log.clear()
        with pytest.raises(OutcomeUnknown):
            await gate.invoke("under_way", {}, user=USER, deadline=1.0)
        assert log == []
        await seen_off(gate)
        assert log == ["taken", "given"]


@on_virtual_time
async def test_a_stream_of_parts_can_be_left_behind_and_cleans_up_with_the_call(loop: StepLoop) -> None:
    """Design 10.4: async generators, too."""
    log: list[str] = []

    async def stubborn_parts() -> AsyncIterator[int]:
        """Yield, and swallow."""
        yield 1
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            log.append("ended")

    async def parts() -> AsyncIterator[int]:
        """Yield."""
        try:
            yield 1
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    async with Gate([hard(stubborn_parts), plain(parts)]) as gate:
        with pytest.raises(OutcomeUnknown):
            await gate.invoke("stubborn_parts", {}, user=USER, deadline=1.0)
        await seen_off(gate)
        assert log == ["ended"]
        with pytest.raises(DeadlineExceeded):
            await gate.invoke("parts", {}, user=USER, deadline=1.0)
        assert log == ["ended", "cleaned up"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration])
@pytest.mark.parametrize("kind", ["hard", "thread"])
@on_virtual_time
async def test_what_a_body_elsewhere_raises_does_not_stop_its_host(
    loop: StepLoop, kind: str, error: type[BaseException]
) -> None:
    """I13: in a task or thread of its own; a StopIteration in a thread would leave the call waiting for ever."""

    async def raises() -> int:
        """Raise in a task."""
        await asyncio.sleep(0)
        raise error

    def raises_in_thread() -> int:
        """Raise in a thread."""
        raise error

    async with Gate([hard(raises), plain(raises_in_thread)]) as gate:
        with pytest.raises(ToolFailed) as raised:
            await gate.invoke("raises" if kind == "hard" else "raises_in_thread", {}, user=USER)
        causes: list[str] = []
        cause: BaseException | None = raised.value.__cause__
        while cause is not None:
            causes.append(type(cause).__name__)
            cause = cause.__cause__ or cause.__context__
        assert error.__name__ in causes
        assert await asyncio.sleep(0, "alive") == "alive"


@pytest.mark.parametrize("kind", ["hard", "thread"])
def test_what_was_left_behind_is_given_back_when_the_loop_is_shut_down(kind: str, door: threading.Event) -> None:
    """I1: as ``asyncio.run`` ends; nobody waits any longer."""
    lease, inside = Lease(), threading.Event()
    body = hard(swallowing(1e6), name="body") if kind == "hard" else plain(blocking(door, inside), name="body")

    async def main() -> None:
        gate = Gate([body], [lease])
        await gate.__aenter__()
        calling = asyncio.ensure_future(gate.invoke("body", {}, user=USER, deadline=1.0))
        await asyncio.sleep(0)
        assert kind == "hard" or inside.wait(5)
        with pytest.raises(OutcomeUnknown):
            await calling

    loop = StepLoop()
    loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.drain()
    door.set()
    assert lease.log == ["taken", "given"]
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.now += 1e7
    close_loop(loop)


@on_virtual_time
async def test_a_call_cancelled_from_outside_whose_body_goes_on_is_recorded_as_unknown(loop: StepLoop) -> None:
    """I3, I10: the caller gets its cancellation; the record says what is known of the effect: nothing."""
    seen: list[Any] = []

    class Audit(Hook):
        def will_audit(self, ctx: InvokeContext) -> None:
            seen.append(ctx.outcome)

    async with Gate([hard(swallowing(5))], [Audit()]) as gate:
        calling = asyncio.ensure_future(gate.invoke("stubborn", {}, user=USER))
        await asyncio.sleep(1)
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        assert seen == [Outcome.UNKNOWN]


# ---------------------------------------------------------------------- plain functions in threads


@on_virtual_time
async def test_a_plain_function_runs_in_a_thread_in_the_callers_context(loop: StepLoop) -> None:
    """Design 10.4."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")

    def looks() -> list[Any]:
        """Look around."""
        return [threading.current_thread() is threading.main_thread(), variable.get()]

    async with Gate([plain(looks), plain(looks, inline=True, name="inline")]) as gate:
        assert await gate.invoke("looks", {}, user=USER) == [False, "here"]
        assert await gate.invoke("inline", {}, user=USER) == [True, "here"]


@on_virtual_time
async def test_a_call_waits_for_a_thread_within_its_deadline(loop: StepLoop, door: threading.Event) -> None:
    """Design 10.4. I7, I11: a call whose time ends in the queue never runs, and what was taken for it is given back."""
    ran: list[int] = []
    lease = Lease()

    def waits(n: int) -> int:
        """Wait at the door."""
        ran.append(n)
        door.wait(5)
        return n

    async with Gate([plain(waits, max_threads=2)], [lease]) as gate:
        first = [asyncio.ensure_future(gate.invoke("waits", {"n": n}, user=USER)) for n in range(3)]
        await asyncio.sleep(0)
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await gate.invoke("waits", {"n": 7}, user=USER, deadline=1.0)
        assert loop.time() - began <= 1.0 + TICK + OVERSHOOT  # without the grace of a running body
        assert lease.log.count("given") == 1
        door.set()
        assert await asyncio.gather(*first) == [0, 1, 2]
        assert sorted(ran) == [0, 1, 2]
        assert lease.log.count("taken") == lease.log.count("given") == 4


async def test_an_effect_that_never_got_a_thread_did_not_happen(door: threading.Event) -> None:
    """A repeat under the same key runs; the outcome is not ``unknown``."""

    def pays(n: int) -> int:
        """Wait at the door."""
        door.wait(5)
        return n

    record = plain(pays, max_threads=1, effect="irreversible")
    async with Gate([record], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        first = asyncio.ensure_future(gate.call(record, {"n": 1}, user=USER))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(gate.call(record, {"n": 2}, user=USER, idempotency_key="k"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        door.set()
        assert (await first).ok
        again = await gate.call(record, {"n": 2}, user=USER, idempotency_key="k")
        assert (again.outcome, again.replayed, again.output) == (Outcome.SUCCESS, False, 2)


async def test_too_many_waiting_calls_are_refused(door: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.runtime.pipeline.threads.MAX_WAITING", 2)

    def waits() -> None:
        """Wait at the door."""
        door.wait(5)

    async with Gate([plain(waits, max_threads=1)]) as gate:
        calls = [asyncio.ensure_future(gate.call("waits", user=USER)) for _ in range(3)]
        await asyncio.sleep(0)
        refused = await gate.call("waits", user=USER)
        assert (refused.outcome, refused.error and refused.error.code) == (Outcome.RETRY_LATER, "threads_busy")
        calls[1].cancel()  # makes room
        await asyncio.wait([calls[1]])
        calls[1] = asyncio.ensure_future(gate.call("waits", user=USER))
        await asyncio.sleep(0)
        door.set()
        assert [(await one).outcome for one in calls] == [Outcome.SUCCESS] * 3


async def test_forty_calls_of_one_plain_function_all_run() -> None:
    def adds(n: int) -> int:
        """Add one."""
        return n + 1

    async with Gate([plain(adds)]) as gate:
        results = await gate.call_many([("adds", {"n": n}) for n in range(40)], user=USER, at_once=40)
        assert [result.output for result in results] == list(range(1, 41))


@on_virtual_time
async def test_a_thread_that_overruns_keeps_its_place_and_its_lease_until_it_returns(
    loop: StepLoop, door: threading.Event
) -> None:
    """Design 10.4. I12, I1b."""
    lease, inside = Lease(), threading.Event()

    def blocks() -> int:
        """Wait at the door."""
        inside.set()
        door.wait(5)
        return 7

    async with Gate([plain(blocks, max_threads=1)], [lease]) as gate:
        began = loop.time()
        calling = asyncio.ensure_future(gate.call(ToolCall(id="c", name="blocks"), user=USER, deadline=1.0))
        await asyncio.sleep(0)
        assert inside.wait(5)
        result = await calling
        assert loop.time() - began <= 1.0 + TICK + ABANDON_GRACE + OVERSHOOT
        assert result.outcome is Outcome.UNKNOWN
        assert result.pending_release
        assert lease.log == ["taken"]
        refused = await gate.call(ToolCall(id="c", name="blocks"), user=USER, deadline=1.0)
        assert refused.error is not None
        assert refused.error.code == DeadlineExceeded.code
        assert lease.log == ["taken", "taken", "given"]
        door.set()
        await seen_off(gate)
        assert lease.log == ["taken", "taken", "given", "given"]
        assert await gate.invoke("blocks", {}, user=USER) == 7


@on_virtual_time
async def test_a_thread_whose_caller_goes_away_keeps_its_lease_until_it_returns(
    loop: StepLoop, door: threading.Event
) -> None:
    """C1d: a thread cannot be cancelled, a caller can."""
    lease, inside = Lease(), threading.Event()

    def blocks() -> int:
        """Wait at the door."""
        inside.set()
        door.wait(5)
        return 7

    async with Gate([plain(blocks)], [lease]) as gate:
        calling = asyncio.ensure_future(gate.invoke("blocks", {}, user=USER))
        await asyncio.sleep(0)
        assert inside.wait(5)
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        assert lease.log == ["taken"]
        door.set()
        await seen_off(gate)
        assert lease.log == ["taken", "given"]


@on_virtual_time
async def test_no_more_threads_run_than_allowed_however_many_calls_come(loop: StepLoop) -> None:
    """I11: peak, and none lost."""
    lock = threading.Lock()
    running: list[int] = []
    peak: list[int] = [0]

    def counts() -> int:
        """Count those at work."""
        with lock:
            running.append(1)
            peak[0] = max(peak[0], len(running))
        with lock:
            running.pop()
        return 1

    async with Gate([plain(counts, max_threads=3)]) as gate:
        calls = [ToolCall(id=f"c{n}", name="counts") for n in range(60)]
        results = await gate.call_many(calls, user=USER, at_once=20)
        assert {result.outcome for result in results} == {Outcome.SUCCESS}
        assert peak[0] <= 3
        assert await gate.invoke("counts", {}, user=USER) == 1


# ---------------------------------------------------------------------- every fault of a body ends in time


async def sleeps() -> int:
    """Sleep."""
    await asyncio.sleep(1e9)
    return 7


async def cleans_up_slowly() -> int:
    """Clean up for ever."""
    try:
        await asyncio.sleep(1e9)
    finally:
        await asyncio.sleep(1e9)
    return 7


FAULTS: dict[str, Callable[[threading.Event], Any]] = {
    "sleeps, soft": lambda door: plain(sleeps, name="body"),
    "sleeps": lambda door: hard(sleeps, name="body"),
    "swallows cancellation": lambda door: hard(swallowing(1000), name="body"),
    "cleans up for ever": lambda door: hard(cleans_up_slowly, name="body"),
    "blocks a thread": lambda door: plain(blocking(door), name="body"),
}


def blocking(door: threading.Event, inside: threading.Event | None = None) -> Any:
    def blocks() -> int:
        """Wait at the door."""
        if inside is not None:
            inside.set()
        door.wait(5)
        return 7

    return blocks


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", ["deadline", "cancel"])
@on_virtual_time
async def test_every_call_ends_by_its_deadline_and_a_grace(
    loop: StepLoop, door: threading.Event, fault: str, way: str
) -> None:
    """I12: from the caller's view. A soft body that swallows is the documented exception (test_deadlines.py)."""
    async with Gate([FAULTS[fault](door)], [Lease()]) as gate:
        began = loop.time()
        calling = asyncio.ensure_future(gate.invoke("body", {}, user=USER, deadline=3.0 if way == "deadline" else None))
        if way == "cancel":
            loop.call_later(3.0, calling.cancel)
        await asyncio.wait([calling])
        assert loop.time() - began <= 3.0 + TICK + ABANDON_GRACE + OVERSHOOT
        if way == "cancel":
            assert calling.cancelled()
        else:
            assert isinstance(calling.exception(), DeadlineExceeded | OutcomeUnknown)
        door.set()
        for task in list(gate._services.left_behind.tasks):
            task.cancel()


async def test_a_plain_tool_has_one_pool_of_threads_however_often_its_plan_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Threads] = []

    class Counted(Threads):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("callgate.runtime.pipeline.threads.Threads", Counted)

    @tool(effect="read")
    def plain() -> int:
        return 1

    gate = Gate([plain])
    for _ in range(3):
        gate.use(Lease())  # plans are made anew
    async with gate:
        assert await gate.invoke("plain") == 1
    async with Gate([plain]) as other:
        assert await other.invoke("plain") == 1
    assert len(made) == 1
