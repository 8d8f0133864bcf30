"""Every cancel point of an invocation, in every way to cancel: contract C1, C1a, C1c, C1d; invariants I1, I1b, I13."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from callgate.runtime.testing.cancel import SweepReport
from callgate.runtime.testing.cancel_modes import (
    DEADLINE_MODES,
    DEADLINE_PAIRED_MODES,
    PAIRED_MODES,
    SINGLE_MODES,
    AnyioScope,
    Mode,
    Native,
    NativeThenScope,
    ScopeThenNative,
)
from tests.harness.steploop import uvloop_stepping
from tests.runtime.pipeline import cancel_cases as cases
from tests.runtime.pipeline import leasing

Sweep = Callable[..., SweepReport]
Make = Callable[[], cases.Case]

CASES: dict[str, Make] = {
    "six hooks that hold leases": cases.plain,
    "steps that wait several times": cases.many_waits,
    "steps that wait for other tasks": cases.other_tasks,
    "audit, error and shaping hooks that wait": cases.watched,
    "releases beside a record with asyncio.timeout": cases.slow_record(cases.asyncio_seconds, cases.other_lease),
    "releases beside a record with anyio.fail_after": cases.slow_record(cases.anyio_seconds, cases.limited_lease),
    "the tool raises": cases.tool_fails,
    "the tool responds": cases.tool_responds,
    "a hook suspends": cases.suspends,
    "releases raise": cases.release_fails,
    "the tool and releases raise": cases.tool_and_release_fail,
    **{f"acquire {n + 1} of 6 raises": cases.acquire_fails(n) for n in range(6)},
    "own asyncio.timeout": cases.own_limit(leasing.asyncio_limit),
    "own asyncio.timeout, over at once": cases.own_limit(leasing.no_time_limit),
    "own asyncio.wait_for": cases.own_limit(leasing.wait_for_limit),
    "own anyio.fail_after": cases.own_limit(leasing.anyio_limit),
    "own task group, whose child fails": cases.own_limit(leasing.group_limit),
    "a capacity limiter and a contended lock": cases.limiter,
    "nested calls": cases.nested,
    "a tool that goes to the gate by itself": cases.nested_without_ctx,
    "a call inside an acquire": cases.call_in_an_acquire,
    "around_execute hooks that lease": cases.around,
    "a time limit about the tool passes inside ctx.lease": cases.limit_around_a_lease,
    "a hook's own time limit passes inside ctx.lease": cases.limited_hook_that_leases,
    "retries": cases.retried,
    "filters and time limits of hooks": cases.guarded,
    "plain methods that return awaitables": cases.plain_methods,
    "a batch": cases.batch,
    "a stream whose reader stops early": cases.streamed,
    "results instead of exceptions": cases.as_results,
    "a body in a task of its own": cases.hard_body,
    "a body in a task of its own that leases": cases.limits_in_release_of_a_hard_body,
    "a deadline that passes": cases.deadline_passes,
}
WITH_DEADLINE: dict[str, Make] = {
    "six leases": cases.with_deadline,
    "nested calls": cases.nested_with_deadlines,
    "a body in a task of its own": cases.hard_body_with_deadline,
    "a body that swallows cancellations": cases.stubborn_body,
    "a nested body that swallows cancellations": cases.nested_stubborn_body,
    "a hook that raises its first cancellation late": cases.tidy_hook,
    "a body that raises its first cancellation late": cases.tidy_body,
    "a nested body that raises its first cancellation late": partial(cases.tidy_body, nested=True),
}
LEAST = 135
"""Cancel points that every case has at the least."""


@pytest.mark.parametrize("name", CASES)
def test_no_lease_leaks_is_late_or_given_back_twice_at_any_cancel_point(name: str, every_cancel_point: Sweep) -> None:
    """Contract C1, C1a, C1c, C1d. I1, I1b, I13."""
    report = every_cancel_point(CASES[name]())
    assert report.findings == []
    assert report.points >= LEAST


@pytest.mark.parametrize("name", WITH_DEADLINE)
def test_a_deadline_at_any_point_leaks_nothing_and_outside_cancellations_win(
    name: str, every_cancel_point: Sweep
) -> None:
    """Contract C1d, C14. I1, I12."""
    report = every_cancel_point(
        WITH_DEADLINE[name](),
        (*DEADLINE_MODES, *SINGLE_MODES),
        paired=(*DEADLINE_PAIRED_MODES, *PAIRED_MODES),
        pairs=60,
    )
    assert report.findings == []
    assert report.points >= LEAST


def test_the_sweeps_try_at_least_5000_cancel_points() -> None:
    """I1."""
    assert (len(CASES) + len(WITH_DEADLINE)) * LEAST >= 5_000  # by the floor alone; the summary tells the real number


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("modes", "paired"), [((Native, AnyioScope), ()), ((), (NativeThenScope, ScopeThenNative))], ids=["one", "two"]
)
def test_a_scope_that_cancels_while_a_tool_cleans_up_interrupts_it_once(
    modes: tuple[type[Mode], ...], paired: tuple[type[Mode], ...], nested: bool, every_cancel_point: Sweep
) -> None:
    """Contract C1d: each cancellation interrupts one wait, whatever comes first, as in asyncio."""
    made = cases.Tidying(cancellations=(len(modes) and 1) or 2)
    report = every_cancel_point(made.nested() if nested else made, modes, paired=paired, pairs=200)
    assert report.findings == []
    assert report.points >= 50


def test_uvloop_behaves_the_same(every_cancel_point: Sweep) -> None:
    """I1, I1b."""
    pytest.importorskip("uvloop")
    for make in (cases.watched, cases.own_limit(leasing.asyncio_limit), cases.hard_body):
        report = every_cancel_point(make(), (Native,), paired=(), loop=uvloop_stepping)
        assert report.findings == []
        assert report.steps > 20


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_soak_every_pair_of_cancel_points(name: str, every_cancel_point: Sweep) -> None:
    """I1, I1b: all pairs."""
    assert every_cancel_point(CASES[name](), pairs=None).findings == []


@pytest.mark.soak
@pytest.mark.parametrize("name", WITH_DEADLINE)
def test_soak_every_pair_with_a_deadline(name: str, every_cancel_point: Sweep) -> None:
    """I1, I12: all pairs."""
    modes: Any = (*DEADLINE_MODES, *SINGLE_MODES)
    assert (
        every_cancel_point(
            WITH_DEADLINE[name](), modes, paired=(*DEADLINE_PAIRED_MODES, *PAIRED_MODES), pairs=None
        ).findings
        == []
    )
