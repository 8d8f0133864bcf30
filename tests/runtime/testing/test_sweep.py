"""``every_cancel_point`` as users have it: readings, whole leases, deadlines, and messages that say where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, ToolCall
from callgate.testing import FAR, LeaseLedger, SweepFailed, SweepReport, every_cancel_point
from tests.runtime.testing.making import Connected, Places, double

Scenario = Callable[[LeaseLedger], Any]


def calling(make: Callable[[], Any], **options: Any) -> Scenario:
    async def scenario(ledger: LeaseLedger) -> Any:
        hook = make()
        ledger.watch("used", lambda: hook.used)
        async with Gate([double], [hook]) as gate:
            return await gate.invoke(double, {"n": 1}, **options)

    return scenario


def findings(scenario: Scenario, *, stop_after: int = 4, deadline: bool = False) -> SweepReport:
    with pytest.raises(SweepFailed) as failed:
        every_cancel_point(scenario, stop_after=stop_after, deadline=deadline)
    return failed.value.report


@pytest.mark.parametrize("make", [Places, Connected])
def test_a_hook_that_pairs_its_leases_survives(make: Callable[[], Any]) -> None:
    """I1, I1b, I13."""
    assert every_cancel_point(calling(make)).points > 50
    assert every_cancel_point(calling(make, deadline=FAR), deadline=True).points > 30


class Forgets(Places):
    """Gives back only when the call went well."""

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        if ctx.error is None:
            await super().did_release_semaphore(ctx)


class Doubles(Places):
    """Gives back twice when the call was cancelled."""

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await super().did_release_semaphore(ctx)
        self.used -= ctx.error is not None


class Late(Places):
    """Releases its lease in a task that it does not await."""

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        self.task = asyncio.ensure_future(super().did_release_semaphore(ctx))


class Swallows(Hook):
    """Takes a cancellation for a failure of the tool."""

    used = 0

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            return await next()
        except asyncio.CancelledError:
            return 0


@pytest.mark.parametrize("deadline", [False, True])
def test_a_hook_that_forgets_or_doubles_on_failure_is_found_and_named(deadline: bool) -> None:
    """I1: control."""
    report = findings(calling(Forgets, deadline=FAR), deadline=deadline)
    assert report.count("leak: used is 1, it was 0") > 0
    report = findings(calling(Doubles, deadline=FAR), deadline=deadline)
    assert report.count("leak: used is -1, it was 0") > 0


def test_a_release_that_nobody_waits_for_and_a_lost_cancellation_are_found() -> None:
    """I1b, I13: control."""
    assert findings(calling(Late)).count("late release: used is 1") > 0
    assert findings(calling(Swallows)).count("cancellation lost") > 0


def test_a_failure_says_how_where_and_what() -> None:
    """Design 4."""
    with pytest.raises(SweepFailed) as failed:
        every_cancel_point(calling(Forgets), stop_after=40)
    text = str(failed.value)
    assert "findings at" in text
    assert "cancel at" in text
    assert "in will_acquire_semaphore (making.py:" in text
    assert any("in double (making.py:" in str(finding) for finding in failed.value.report.findings)
    assert "leak: used is 1, it was 0" in text
    assert failed.value.report.findings[0].where[0].startswith("in ")


def test_a_scenario_that_fails_undisturbed_has_not_passed() -> None:
    """Its mistake ended each run before a lease was taken, and the sweep found nothing."""

    async def mistaken(ledger: LeaseLedger) -> None:
        assert (await calling(Places)(ledger)) == "another result"

    for scenario in (mistaken, lambda ledger: ledger.no_such_method(), lambda: None, None):
        report = findings(scenario)  # type: ignore[arg-type]
        assert (report.points, report.findings[0].problem.split(":")[0]) == (0, "broken")


def test_a_scenario_may_end_with_a_refusal() -> None:
    """Control: a hook that refuses is swept, too."""

    class Full(Places):
        async def will_read_cache(self, ctx: InvokeContext) -> None:
            ctx.retry_after(50, "it is full")

    assert every_cancel_point(calling(Full)).points > 30


def test_the_line_inside_of_a_step_that_is_carried_through_is_named() -> None:
    """Design 4: such a step hangs on no chain of awaits."""

    class Torn(Hook):
        used = 0

        async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            self.used += 1
            await asyncio.sleep(0.01)

        async def did_release_semaphore(self, ctx: InvokeContext) -> None:
            pass

    undisturbed = findings(calling(Torn))
    assert undisturbed.points == 0
    assert str(undisturbed.findings[0]) == "undisturbed: late release: used is 1, it was 0"

    class TornWhenCancelled(Torn):
        async def did_release_semaphore(self, ctx: InvokeContext) -> None:
            self.used -= ctx.error is None

    found = findings(calling(TornWhenCancelled), stop_after=30)
    assert any("will_acquire_semaphore (test_sweep.py:" in str(finding) for finding in found.findings)


def test_results_are_compared_by_how_they_ended_not_by_their_times() -> None:
    """I13: a cancellation that came too late changes nothing."""

    async def scenario(ledger: LeaseLedger) -> Any:
        async with Gate([double]) as gate:
            call = ToolCall(id="c1", name="double", arguments={"n": 1})
            return [await gate.call(call), await gate.call(call)]

    assert every_cancel_point(scenario).findings == []


# ---------------------------------------------------------------------- the ledger


def test_whole_leases_are_counted_by_hand() -> None:
    """I1."""
    ledger = LeaseLedger()
    ledger.acquired("a")
    ledger.acquired("b")
    assert (ledger.taken, ledger.held()) == (2, ["a", "b"])
    ledger.released("b")
    ledger.released("a")
    assert (ledger.problems, ledger.held()) == ([], [])
    ledger.released("a")
    assert ledger.problems[-1] == "double release: a"
    ledger.start_over()
    ledger.acquired("a")
    ledger.acquired("b")
    ledger.released("a")
    assert ledger.problems == ["released out of order: a"]
    assert ledger.held() == ["b"]


def test_a_pipeline_that_tells_the_ledger_is_swept() -> None:
    """I1: and its control."""

    async def body(ledger: LeaseLedger) -> None:
        ledger.acquired("lock")
        try:
            await asyncio.sleep(0.01)
        finally:
            ledger.released("lock")

    async def bad(ledger: LeaseLedger) -> None:
        ledger.acquired("lock")
        await asyncio.sleep(0.01)
        ledger.released("lock")

    assert every_cancel_point(body).leases == 1
    assert findings(bad).count("leak: lock") > 0


async def _in_turns(_: LeaseLedger) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"modes": [], "paired": []}, "nothing was tried"),
        ({"modes": [], "pairs": 0, "deadline": True, "paired": []}, "nothing was tried"),
        ({"deadline": True}, "no deadline passed: the scenario gives its call deadline=FAR"),
    ],
)
def test_a_sweep_that_has_tried_nothing_fails(given: Any, says: str) -> None:
    """It passed: without modes, and with ``deadline=True`` where the call has no deadline."""
    with pytest.raises(SweepFailed, match=says):
        every_cancel_point(_in_turns, **given)
