"""The harness must fail on what it is there to find: sabotaged engines and hand-written pipelines with known faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
import pytest

from callgate.runtime.pipeline import closing, deadlines, leases, run, scopes, shield
from callgate.runtime.testing import cancel
from callgate.runtime.testing.cancel import SweepFailed, SweepReport
from callgate.runtime.testing.cancel_modes import (
    DEADLINE_MODES,
    DEADLINE_PAIRED_MODES,
    AnyioScope,
    Native,
    NativeThenScope,
)
from callgate.runtime.testing.lease_ledger import LeaseLedger
from tests.runtime.pipeline import cancel_cases as cases
from tests.runtime.pipeline.leasing import asyncio_limit, leave_out_shields


def findings(scenario: Any, *args: Any, **options: Any) -> SweepReport:
    """The report of a sweep that must fail."""
    with pytest.raises(SweepFailed) as failed:
        cancel.every_cancel_point(scenario, *args, **{"paired": (), "stop_after": 10_000, **options})
    assert failed.value.report.findings
    return failed.value.report


# ---------------------------------------------------------------------- sabotaged engines


def test_a_release_that_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""
    pushed = leases.push

    def forgetful(ctx: Any, release: Any) -> None:
        if release[2].name != "Place":
            pushed(ctx, release)

    monkeypatch.setattr(leases, "push", forgetful)
    report = findings(cases.plain())
    assert report.count("leak") == report.count("late") == 2  # both places, in the undisturbed run already
    assert report.points == 0


def test_a_release_that_is_dropped_only_after_a_cancellation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""
    pushed = leases.push

    async def forgetful(ctx: Any, coroutine: Any, pending: Any, step: Any) -> Any:
        shielded = shield.Shielded(coroutine, grace=shield.ACQUIRE_GRACE)
        answer = await shielded.finish(pending)
        if shielded.deferred is not None:
            raise shielded.deferred
        pushed(ctx, step.release)
        return answer

    monkeypatch.setattr(run, "finish_acquire", forgetful)
    monkeypatch.setattr(leases, "finish_acquire", forgetful)
    report = findings(cases.plain(), (Native,))
    assert report.count("leak") > 10
    assert report.count("double") == 0


def test_a_release_that_is_doubled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""
    pushed = leases.push

    def twice(ctx: Any, release: Any) -> None:
        pushed(ctx, release)
        pushed(ctx, release)

    monkeypatch.setattr(leases, "push", twice)
    assert findings(cases.plain()).count("double release") >= 6


def test_releases_in_the_wrong_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1a: control."""
    releases_of = leases.releases_of
    monkeypatch.setattr(closing, "releases_of", lambda ledger: releases_of(ledger)[::-1])
    assert findings(cases.plain()).count("out of order") >= 5


def test_a_release_that_is_not_waited_for_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1b: control."""
    tasks = set()

    class Later(shield.Shielded[object]):
        async def finish(self, pending: object) -> None:
            task = asyncio.ensure_future(super().finish(pending))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    monkeypatch.setattr(closing, "Shielded", Later)
    report = findings(cases.plain())
    assert report.count("late release") >= 4
    assert report.count("stray task") >= 1


def test_acquires_that_are_just_awaited_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what the prototype's figures say of plain awaiting; control."""

    async def just_awaited(ctx: Any, coroutine: Any, pending: Any, step: Any) -> Any:
        pending._asyncio_future_blocking = True
        answer = await _Rest(coroutine, pending)
        leases.push(ctx, step.release)
        return answer

    monkeypatch.setattr(run, "finish_acquire", just_awaited)
    monkeypatch.setattr(leases, "finish_acquire", just_awaited)
    report = findings(cases.other_tasks(), (Native,))
    assert report.count("leak") > 5


class _Rest:
    """The rest of a coroutine that has yielded a future, as ``await`` would drive it."""

    def __init__(self, coroutine: Any, pending: Any) -> None:
        self.coroutine, self.pending = coroutine, pending

    def __await__(self) -> Generator[Any, Any, Any]:
        pending, thrown = self.pending, None
        while True:
            try:
                yield pending
            except BaseException as error:  # noqa: BLE001
                thrown = error
            try:
                pending = self.coroutine.send(None) if thrown is None else self.coroutine.throw(thrown)
            except StopIteration as stop:
                return stop.value
            thrown = None


def test_a_cancellation_that_an_acquire_swallows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: control."""
    monkeypatch.setattr(leases, "_raise_deferred", lambda shielded, error=None: None)
    assert findings(cases.plain(), (Native, AnyioScope)).count("cancellation lost") > 10


def test_a_cancellation_that_the_closing_swallows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: control."""
    for module in (leases, closing):
        monkeypatch.setattr(module, "defer", lambda ctx, cancelled: None)
    assert findings(cases.plain(), (Native,)).count("cancellation lost") > 5


def test_a_cancellation_that_no_longer_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: ``cancelling()``; control."""

    async def uncounted(self: shield.Shielded[object]) -> None:
        if self.requests:
            self.deferred = asyncio.CancelledError()

    monkeypatch.setattr(shield.Shielded, "_deliver", uncounted)
    assert findings(cases.plain(), (Native,)).count("cancelling() is 0, expected 1") > 10


def test_a_deadline_that_passes_for_a_cancellation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12, I13: control."""

    def never_alone(self: deadlines.Alarm) -> bool:
        self.fired = False
        self.task.uncancel()
        return False

    monkeypatch.setattr(deadlines.Alarm, "forget", never_alone)
    report = findings(cases.with_deadline(), DEADLINE_MODES)
    assert report.count("a deadline ended it with CancelledError") > 10


def test_a_deadline_that_is_not_taken_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: control."""

    def kept(self: deadlines.Alarm) -> bool:
        alone, self.fired = self.alone, False
        return alone

    monkeypatch.setattr(deadlines.Alarm, "forget", kept)
    assert findings(cases.with_deadline(), DEADLINE_MODES).count("cancelling() is 1, expected 0") > 10


def test_an_outside_cancellation_that_a_deadline_hides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: control."""
    forget = deadlines.Alarm.forget

    def always_alone(self: deadlines.Alarm) -> bool:
        forget(self)
        return True

    monkeypatch.setattr(deadlines.Alarm, "forget", always_alone)
    assert findings(cases.with_deadline(), (), paired=DEADLINE_PAIRED_MODES).count("cancellation lost") > 3


def test_own_time_limits_that_pass_for_outside_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: control."""
    leave_out_shields(monkeypatch)
    cancelled = shield.Shielded.cancel

    def all_outside(self: shield.Shielded[object], msg: Any) -> bool:
        self.mark = object()
        return cancelled(self, msg)

    monkeypatch.setattr(shield.Shielded, "cancel", all_outside)
    report = findings(cases.own_limit(asyncio_limit)())
    assert report.points == 0  # already undisturbed: its acquire is cancelled by nobody
    assert report.count("leak") >= 1


# ---------------------------------------------------------------------- hand-written pipelines


class Pipeline:
    """Three leases about a body, written by hand; ``step`` is how a step of a lease is run."""

    def __init__(self, step: Callable[[Awaitable[None]], Awaitable[Any]]) -> None:
        self.step = step

    async def __call__(self, ledger: LeaseLedger) -> None:
        await self.nest(ledger, 3)

    async def nest(self, ledger: LeaseLedger, depth: int) -> None:
        if not depth:
            await asyncio.sleep(0)
            return
        await self.step(self.take(ledger, depth))
        try:
            await self.nest(ledger, depth - 1)
        finally:
            await self.step(self.give(ledger, depth))

    async def take(self, ledger: LeaseLedger, lease: int) -> None:
        ledger.take(lease)
        await asyncio.sleep(0)
        ledger.take(lease)
        await asyncio.sleep(0)

    async def give(self, ledger: LeaseLedger, lease: int) -> None:
        await asyncio.sleep(0)
        ledger.give(lease)
        await asyncio.sleep(0)
        ledger.give(lease)


async def plainly(step: Awaitable[None]) -> None:
    await step


async def shielded(step: Awaitable[None]) -> None:
    with anyio.CancelScope(shield=True):
        await step


def test_try_finally_leaks_when_its_steps_wait() -> None:
    """I1: control."""
    report = findings(Pipeline(plainly), (Native,))
    assert report.count("leak") > 5


@pytest.mark.parametrize(("modes", "paired"), [((AnyioScope,), ()), ((), (NativeThenScope,))], ids=["one", "two"])
def test_a_clean_up_that_a_scope_cuts_off_again_and_again_is_found(
    modes: Any, paired: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract C1d: control, without the driver of calls in scopes."""
    monkeypatch.setattr(scopes, "is_inside", lambda: False)
    report = findings(cases.Tidying(cancellations=2 if paired else 1), modes, paired=paired)
    assert report.count("cut off") > 2


def test_an_anyio_shield_holds_against_scopes_and_leaks_under_a_native_cancellation() -> None:
    """I1: what invariants.md says of shields."""
    cancel.every_cancel_point(Pipeline(shielded), (AnyioScope,), paired=())
    assert findings(Pipeline(shielded), (Native,)).count("leak") > 5


def test_a_task_that_is_left_running_is_found() -> None:
    """I1b: control."""

    async def leaves_a_task(ledger: LeaseLedger) -> None:
        ledger.scratch["task"] = asyncio.ensure_future(asyncio.sleep(5))

    assert findings(leaves_a_task).count("stray task") >= 1


def test_a_callback_that_fails_is_found() -> None:
    """Control."""

    def fails() -> None:
        raise ValueError

    async def calls(ledger: LeaseLedger) -> None:
        asyncio.get_running_loop().call_soon(fails)

    assert findings(calls).count("unhandled") >= 1


def test_a_pipeline_that_hangs_is_found() -> None:
    """Control."""

    async def hangs(ledger: LeaseLedger) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    assert findings(hangs).count("stuck") == 1


def test_a_good_pipeline_passes() -> None:
    """Control."""

    async def good(ledger: LeaseLedger) -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return 3

    report = cancel.every_cancel_point(good)
    assert report.findings == []
    assert report.points > 10
