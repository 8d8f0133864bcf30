"""``Timeout``, ``Deadline`` and ``Retry``: what ends when, what is tried again, and what never is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import (
    DeadlineExceeded,
    Denied,
    Effects,
    Gate,
    Hook,
    Invalid,
    InvokeContext,
    OutcomeUnknown,
    RetryLater,
    ToolContext,
    ToolError,
    tool,
)
from callgate.errors import HookError
from callgate.hooks.stock.resilience.retry import Backoff, Retry
from callgate.hooks.stock.resilience.timeout import Deadline, Timeout
from callgate.testing import FAR, LeaseLedger, every_cancel_point
from tests.harness.sweeps import swept
from tests.hooks.stock.capacity.limiting import USER, Desk, ask, work


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    with made.time:
        yield made


def steady(seconds: float) -> Any:
    return lambda retry: seconds


class Flaky:
    """A tool that fails with these errors, one after the other, and then works."""

    def __init__(self, *errors: BaseException, effect: Any = "read", takes: float = 0.0, **options: Any) -> None:
        self.errors = list(errors)
        self.began: list[float] = []

        @tool(effect=effect, name="flaky", **options)
        async def flaky(ctx: ToolContext, n: int = 1) -> str:
            """Fails now and then."""
            self.began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(takes)
            if self.errors:
                raise self.errors.pop(0)
            return "done"

        self.tool = flaky

    @property
    def waits(self) -> list[float]:
        return [round(after - before, 2) for before, after in zip(self.began, self.began[1:], strict=False)]


async def flaky_call(desk: Desk, flaky: Flaky, *hooks: Any, **options: Any) -> str:
    async with desk.gate(*hooks, tools=[flaky.tool]) as gate:
        return str((await ask(gate, tool="flaky", **options)).outcome)


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: Timeout(0),
        lambda: Timeout(float("nan")),
        lambda: Deadline(-1),
        lambda: Deadline(float("inf")),
        lambda: Retry(0),
        lambda: Retry(1000),
        lambda: Retry(on=KeyboardInterrupt),
        lambda: Retry(on="ConnectionError"),  # type: ignore[arg-type]
        lambda: Retry(max_retry_after=-1),
        lambda: Retry(wait=1.0),  # type: ignore[arg-type]
        lambda: Timeout(timedelta(seconds=5)),  # type: ignore[arg-type]
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(make: Any) -> None:
    """Contract C33."""
    with pytest.raises(HookError):
        make()


@pytest.mark.parametrize("hook", [Timeout(1, mode="shadow"), Deadline(1, mode="shadow"), Retry(mode="shadow")])
def test_what_stands_around_the_tool_cannot_be_a_shadow(hook: Hook) -> None:
    """Contract C33."""
    with pytest.raises(HookError, match="shadow"):
        Gate([work], [hook], effects=Effects(durable=False))


# ---------------------------------------------------------------------- time limits


def test_a_time_limit_ends_each_attempt_and_a_deadline_all_of_them(desk: Desk) -> None:
    """I12, C1d."""

    async def main() -> None:
        async with desk.gate(Timeout(2)) as gate:
            began = desk.now()
            with pytest.raises(DeadlineExceeded):
                await gate.invoke("work", {"seconds": 60})
            assert 2.0 <= desk.now() - began < 2.1
            assert await gate.invoke("work", {"seconds": 1.9}) == "done"
        async with desk.gate(Timeout(2), Deadline(5), Retry(9, wait=steady(0.1))) as gate:
            began = desk.now()
            with pytest.raises(DeadlineExceeded):
                await gate.invoke("work", {"seconds": 60})
            assert 4.0 < desk.now() - began < 5.1

    desk.run(main())


def test_a_time_limit_of_the_tool_itself_and_a_cancellation_are_let_through(desk: Desk) -> None:
    """I13: neither is taken for the hook's own."""

    @tool(effect="read")
    async def impatient() -> None:
        async with asyncio.timeout(0.5):
            await asyncio.sleep(9)

    async def main() -> None:
        async with desk.gate(Timeout(60), Deadline(60), tools=[impatient, work]) as gate:
            answer = await ask(gate, tool="impatient")
            assert answer.error is not None
            assert answer.error.code == "tool_failed"
            task = asyncio.create_task(gate.invoke("work", {"seconds": 9}))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    desk.run(main())


def test_a_deadline_counts_from_the_start_of_the_call_and_everybody_knows_it(desk: Desk) -> None:
    """Design 5: one deadline, split."""
    left: list[float | None] = []

    class Slow(Hook):
        async def will_authorize(self, ctx: InvokeContext) -> None:
            left.append(ctx.remaining())
            await asyncio.sleep(3)

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            left.append(ctx.remaining())
            return await next()

    async def main() -> None:
        async with desk.gate(Deadline(5), Slow()) as gate:
            with pytest.raises(DeadlineExceeded):
                await gate.invoke("work", {"seconds": 4})
            with pytest.raises(DeadlineExceeded):
                await gate.invoke("work", {"seconds": 4}, deadline=4)
            async with desk.gate(Deadline(2), Slow()) as late:
                with pytest.raises(DeadlineExceeded, match="no time is left"):
                    await late.invoke("work")
        assert [round(one or 0) for one in left[:4]] == [5, 2, 4, 1]

    desk.run(main())


def test_a_body_that_is_left_behind_ends_as_unknown_and_is_not_tried_again(desk: Desk) -> None:
    """I12, C1d."""
    began: list[int] = []

    @tool(effect="read", hard_deadline=True)
    async def stubborn() -> None:
        began.append(1)
        until = desk.now() + 5
        while desk.now() < until:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        async with desk.gate(Timeout(1), Retry(5), tools=[stubborn]) as gate:
            answer = await ask(gate, tool="stubborn")
            assert str(answer.outcome) == "unknown"
            assert answer.error is not None
            assert answer.error.code == "outcome_unknown"
        assert began == [1]

    desk.run(main())


async def test_a_plain_function_is_left_behind_in_its_thread() -> None:
    """I12."""

    ends = threading.Event()

    @tool(effect="read")
    def blocks() -> None:
        assert ends.wait(30)

    async with Gate([blocks], [Timeout(0.05)], effects=Effects(durable=False)) as gate:
        with pytest.raises(OutcomeUnknown):
            await gate.invoke("blocks")
        ends.set()  # only now: the call did not wait for it


# ---------------------------------------------------------------------- retry


def test_a_failed_tool_is_tried_again_and_the_stages_run(desk: Desk) -> None:
    """Contract 102."""
    seen: list[str] = []

    class Seeing(Hook):
        def on_retry(self, ctx: InvokeContext) -> None:
            seen.append(f"again {ctx.attempt}")

        def on_give_up(self, ctx: InvokeContext) -> None:
            seen.append(f"give up {ctx.attempt}")

    async def main() -> None:
        flaky = Flaky(ConnectionError(), ValueError())
        assert await flaky_call(desk, flaky, Retry(wait=steady(2)), Seeing()) == "success"
        assert flaky.waits == [2, 2]
        flaky = Flaky(*[ConnectionError()] * 3)
        assert await flaky_call(desk, flaky, Retry(wait=steady(2)), Seeing()) == "error"
        assert len(flaky.began) == 3
        assert seen == ["again 2", "again 3", "again 2", "again 3", "give up 3"]

    desk.run(main())


BROKEN = ConnectionError("broken")


@pytest.mark.parametrize(
    ("effect", "options", "hook", "error", "attempts"),
    [
        ("read", {}, {}, BROKEN, 3),
        ("idempotent", {}, {}, BROKEN, 3),
        ("keyed", {"key": ("n",)}, {}, BROKEN, 3),
        ("irreversible", {}, {}, BROKEN, 1),
        ("irreversible", {}, {}, RetryLater(1), 1),  # a nested call may have raised it, after an effect
        ("irreversible", {}, {"safe": ConnectionRefusedError}, BROKEN, 1),
        ("irreversible", {}, {"safe": ConnectionRefusedError}, ConnectionRefusedError(), 3),
        (None, {}, {"safe": ConnectionRefusedError}, ConnectionRefusedError(), 1),
        (None, {}, {}, RetryLater(1), 1),
    ],
)
def test_what_is_repeated_depends_on_the_effect(
    desk: Desk, effect: Any, options: Any, hook: Any, error: BaseException, attempts: int
) -> None:
    """Design 7."""
    flaky = Flaky(*[error] * 9, effect=effect, **options)
    desk.run(flaky_call(desk, flaky, Retry(3, **hook)))
    assert len(flaky.began) == attempts


@pytest.mark.parametrize(
    "error",
    [
        Denied("no"),
        Invalid("no"),
        OutcomeUnknown("perhaps"),
        ToolError("There is no such order."),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_decisions_control_and_cancellation_are_never_repeated(desk: Desk, error: BaseException) -> None:
    """Contract C20."""
    flaky = Flaky(error, error)
    desk.run(flaky_call(desk, flaky, Retry(3, on=Exception if isinstance(error, Denied) else None)))
    assert len(flaky.began) == 1


def test_a_response_and_a_suspension_are_no_failures(desk: Desk) -> None:
    """Contract C20, 99."""
    began: list[int] = []

    @tool(effect="read")
    async def responds(ctx: ToolContext) -> str:
        began.append(1)
        ctx.respond("done")

    async def main() -> None:
        async with desk.gate(Retry(3), tools=[responds]) as gate:
            assert await gate.invoke("responds") == "done"

    desk.run(main())
    assert began == [1]


@pytest.mark.parametrize(
    ("on", "attempts"),
    [
        (ConnectionError, 2),
        ((ValueError, ConnectionError), 3),
        (lambda error: isinstance(error, ConnectionError), 2),
        (lambda error: 7.0, 3),
        (lambda error: False, 1),
    ],
)
def test_what_is_worth_another_try_can_be_declared(desk: Desk, on: Any, attempts: int) -> None:
    """Contract 102."""
    flaky = Flaky(ConnectionError(), ValueError(), ValueError())
    desk.run(flaky_call(desk, flaky, Retry(3, on=on, wait=steady(1))))
    assert len(flaky.began) == attempts
    if attempts == 3 and callable(on) and not isinstance(on, tuple):
        assert flaky.waits == [7, 7]


def test_the_time_that_the_tool_asks_for_is_waited_for_within_patience(desk: Desk) -> None:
    """Contract 88, 102."""

    async def main() -> None:
        flaky = Flaky(RetryLater(4000), RetryLater(0))
        assert await flaky_call(desk, flaky, Retry(3, wait=steady(99))) == "success"
        assert flaky.waits == [4, 0]
        flaky = Flaky(RetryLater(60_000))
        assert await flaky_call(desk, flaky, Retry(3)) == "retry_later"
        assert len(flaky.began) == 1

    desk.run(main())


def test_no_attempt_begins_that_cannot_end_in_time(desk: Desk) -> None:
    """Design 5."""

    async def main() -> None:
        flaky = Flaky(*[BROKEN] * 9, takes=2)
        began = desk.now()
        assert await flaky_call(desk, flaky, Retry(9, wait=steady(1)), Deadline(7.5)) == "error"
        assert len(flaky.began) == 2  # a third would begin at 6 and end at 8
        assert desk.now() - began < 5.2
        flaky = Flaky(*[BROKEN] * 9, takes=2)
        assert await flaky_call(desk, flaky, Retry(9, wait=steady(1)), deadline=8.5) == "error"
        assert len(flaky.began) == 3

    desk.run(main())


def test_an_attempt_that_hangs_is_ended_and_the_next_one_gets_its_turn(desk: Desk) -> None:
    """Design 4: the bands."""
    began: list[int] = []

    @tool(effect="read")
    async def hangs_once() -> str:
        began.append(1)
        if len(began) == 1:
            await asyncio.sleep(3600)
        return "done"

    async def main() -> None:
        async with desk.gate(Timeout(1), Retry(3), tools=[hangs_once]) as gate:
            assert await gate.invoke("hangs_once") == "done"
        assert len(began) == 2

    desk.run(main())


def test_a_call_that_is_cancelled_while_it_waits_ends_at_once(desk: Desk) -> None:
    """C1d."""

    async def main() -> None:
        flaky = Flaky(*[BROKEN] * 9)
        async with desk.gate(Retry(9, wait=steady(60)), tools=[flaky.tool]) as gate:
            task = asyncio.create_task(gate.invoke("flaky"))
            await asyncio.sleep(30)
            task.cancel()
            await asyncio.wait([task], timeout=0.1)
            assert task.cancelled()
        assert len(flaky.began) == 1

    desk.run(main())


@given(
    st.integers(1, 100), st.floats(0, 1, exclude_max=True), st.floats(0.001, 10), st.floats(0.001, 60), st.floats(1, 4)
)
def test_the_wait_grows_has_full_jitter_and_an_upper_end(
    retry: int, roll: float, initial: float, most: float, factor: float
) -> None:
    """Design 3."""
    wait = Backoff(initial, most, factor, lambda: roll)(retry)
    assert 0 <= wait <= most
    assert wait == min(most, initial * factor ** (retry - 1)) * roll


def test_the_bands_hold_without_a_word_of_the_user(desk: Desk) -> None:
    """Design 4."""
    gate = desk.gate(Timeout(1), Retry(), Deadline(1))
    plan = [
        line.split()[1]
        for line in str(gate.explain("work")).splitlines()
        if "around_execute" in line and "[" not in line
    ]
    assert plan[:3] == ["Deadline", "Retry", "Timeout"]
    assert gate.lint() == []
    wrong = desk.gate(Timeout(1, priority=999), Retry(), Deadline(1))
    assert [finding.rule for finding in wrong.lint()] == ["bands"]


@swept
@pytest.mark.parametrize("deadline", [False, True])
def test_cancelled_at_any_point_the_cancellation_is_neither_lost_nor_invented(
    deadline: bool, sweep: dict[str, Any]
) -> None:
    """I13, I12."""

    async def scenario(ledger: LeaseLedger) -> Any:
        flaky = Flaky(BROKEN, BROKEN, takes=0.01)
        hooks = [Timeout(9), Retry(3, wait=steady(0.01)), Deadline(60)]
        async with Gate([flaky.tool], hooks, allow_unguarded=True, effects=Effects(durable=False)) as gate:
            return await gate.invoke("flaky", user=USER, deadline=FAR)

    options: dict[str, Any] = {"pairs": sweep["pairs"], "deadline": True} if deadline else sweep
    assert every_cancel_point(scenario, **options).points > 20
