"""Cancels a scenario before every callback of its event loop, in every way that a caller can, and checks the result.

``every_cancel_point(scenario)`` runs a scenario once and counts the callbacks of the loop. Then it runs the scenario
again for each callback, with a cancellation just before it: natively, twice, by an anyio scope, by a timeout around it,
or by the call's own deadline. The loop's clock jumps to the next timer instead of waiting. After each run it checks:

* the ``LeaseLedger``: every lease was released once, in reverse order, before the call returned;
* the task: the cancellation was neither lost nor invented, and ``cancelling()`` has the right value;
* the loop: no task is left behind, and no callback failed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from callgate.errors import CallgateError
from callgate.runtime.lifespan import background
from callgate.runtime.testing.cancel_modes import (
    DEADLINE_MODES,
    DEADLINE_PAIRED_MODES,
    PAIRED_MODES,
    SINGLE_MODES,
    CallDeadline,
    Mode,
    TaskOutcome,
)
from callgate.runtime.testing.lease_ledger import LeaseLedger
from callgate.runtime.testing.task_position import waiting_at
from callgate.runtime.testing.virtual_time import StepLoop, Stepping, close_loop

Scenario: TypeAlias = Callable[[LeaseLedger], Awaitable[object]]
"""An async function to be cancelled; it reports its leases to the ledger."""


@dataclasses.dataclass(frozen=True)
class SweepFinding:
    """One problem after one cancellation.

    ``at`` has the numbers, from 0, of the event loop's callbacks before which the cancellation was sent. ``where`` has
    the lines at which the scenario waited. ``problem`` begins with its kind (``leak``, ``late release``,
    ``double release``, …) and names the lease.
    """

    mode: str
    at: tuple[int, ...]
    problem: str
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.at:
            return f"{self.mode}: {self.problem}"
        lines = " and ".join(dict.fromkeys(line for line in self.where if line)) or "before its first line"
        return f"{self.mode} at {', '.join(map(str, self.at))}, {lines}: {self.problem}"


@dataclasses.dataclass
class SweepReport:
    """The result of a sweep.

    ``steps`` counts the callbacks of the undisturbed run, ``leases`` its leases, and ``points`` the runs with a
    cancellation.
    """

    steps: int
    points: int = 0
    leases: int = 0
    findings: list[SweepFinding] = dataclasses.field(default_factory=list)

    def count(self, word: str) -> int:
        """Count the findings that contain a word."""
        return sum(word in finding.problem for finding in self.findings)


class SweepFailed(AssertionError):
    """A scenario fails under some cancellation; ``report`` has all findings."""

    def __init__(self, report: SweepReport) -> None:
        kinds = Counter(finding.problem.split(":")[0] for finding in report.findings)
        first = "\n".join(f"  {finding}" for finding in report.findings[:8])
        super().__init__(f"{len(report.findings)} findings at {report.points} cancel points {dict(kinds)}\n{first}")
        self.report = report


def every_cancel_point(
    scenario: Scenario,
    modes: Sequence[type[Mode]] | None = None,
    *,
    deadline: bool = False,
    paired: Sequence[type[Mode]] | None = None,
    pairs: int | None = 60,
    stop_after: int = 50,
    loop: Callable[[], Stepping] = StepLoop,
) -> SweepReport:
    """Cancel *scenario* before each callback of its event loop, in each mode, and check the result.

    The scenario must do the same in each run, and must not wait for sockets or threads. It runs on virtual time. It may
    end with an error of Callgate, such as that of a refused call; any other error of the undisturbed run is a finding.

    Args:
        scenario: the async function to cancel.
        modes: the ways to cancel at one callback. Default: ``task.cancel()``, an anyio scope, ``asyncio.timeout`` and
            ``asyncio.wait_for``.
        deadline: let the call's own deadline pass instead; the scenario sets it as ``deadline=FAR``.
        paired: the ways to cancel at two callbacks. Default: ``task.cancel()`` twice, and a scope before or after it.
        pairs: the maximum number of pairs in each paired mode, evenly spread; None tries all.
        stop_after: stop after this number of findings.
        loop: makes the event loop, which serves all runs.

    Raises:
        SweepFailed: a lease leaked or was released late, a cancellation was lost or invented, the scenario fails
            undisturbed, or nothing was tried: there are no modes, or no call of the scenario has ``deadline=FAR``.
    """
    modes = modes if modes is not None else DEADLINE_MODES if deadline else SINGLE_MODES
    paired = paired if paired is not None else DEADLINE_PAIRED_MODES if deadline else PAIRED_MODES
    sweep = _Sweep(scenario, stop_after, loop())
    for mode in modes:
        for k in range(sweep.report.steps):
            sweep.once(mode, k)
    for mode in paired:
        for pair in _spread(sweep.pairs(mode), pairs):
            sweep.once(mode, *pair)
    sweep.check_tried()
    sweep.close()
    return sweep.report


def _left_on(loop: Stepping) -> list[object]:
    """The coroutines of pending tasks, without the background tasks of an open gate."""
    return [task.get_coro() for task in asyncio.all_tasks(loop) if not task.get_name().startswith(background.TASKS)]


def _send_cancellations(mode: Mode, task: asyncio.Task[object], loop: Stepping, where: list[str], times: int) -> None:
    where.append(waiting_at(task))
    for _ in range(times):
        mode.cancel_from_outside(task, loop)


def _spread(pairs: list[tuple[int, int]], maximum: int | None) -> Iterator[tuple[int, int]]:
    if maximum is None or len(pairs) <= maximum:
        yield from pairs
    else:
        for index in range(maximum):
            yield pairs[index * len(pairs) // maximum]


class _Sweep:
    def __init__(self, scenario: Scenario, stop_after: int, loop: Stepping) -> None:
        self.scenario = scenario
        self.stop_after = stop_after
        self.ledger = LeaseLedger()
        self.loop = loop
        self.report = SweepReport(0)
        self.where: list[str] = []
        self.waits_for_deadline = self.has_passed = False  # a deadline is to pass; one has passed
        self.lengths: dict[tuple[type[Mode], int], int] = {}
        task, problems = self._run(Mode(), ())
        self.usual, self.report.steps = TaskOutcome.of(task), self.steps
        self.report.leases = self.ledger.taken
        if problems:
            self._found(Mode, (), problems)
            self.close()
        broken = None if task.cancelled() else task.exception()
        if broken is not None and not isinstance(broken, CallgateError):
            self._found(Mode, (), [f"broken: it fails undisturbed, so nothing was tried: {broken!r}"])
            self.close()
        if self.usual.raised == "CancelledError":
            self._found(Mode, (), ["invented: it ends as cancelled, although it was not cancelled"])
            self.close()

    def pairs(self, mode: type[Mode]) -> list[tuple[int, int]]:
        """Pair each first point with each later point of the run that it leads to."""
        found: list[tuple[int, int]] = []
        first = mode.begins_as or mode
        for k in range(self.report.steps):
            if (first, k) not in self.lengths:
                self.once(first, k)
            found += [(k, later) for later in range(k, self.lengths[first, k])]
        return found

    def once(self, mode: type[Mode], *at: int) -> None:
        """Run once, with one cancellation before each of these callbacks; a repeated number sends several."""
        made = mode()
        task, problems = self._run(made, at)
        if len(at) == 1:
            self.lengths[mode, at[0]] = self.steps
        if (verdict := made.verdict(task, self.usual)) is not None:
            problems.append(verdict)
        self.report.points += 1
        if isinstance(made, CallDeadline):
            self.waits_for_deadline, self.has_passed = True, self.has_passed or made.sent > 0
        if problems:
            self._found(mode, at, problems)

    def check_tried(self) -> None:
        """Add a finding if the sweep has proved nothing."""
        if not self.report.points:
            self._found(Mode, (), ["nothing was tried: give modes, or leave them out for the default"])
        elif self.waits_for_deadline and not self.has_passed:
            self._found(Mode, (), ["no deadline passed: the scenario gives its call deadline=FAR"])

    def _found(self, mode: type[Mode], at: tuple[int, ...], problems: list[str]) -> None:
        self.report.findings += [SweepFinding(mode.name, at, problem, tuple(self.where)) for problem in problems]
        if len(self.report.findings) >= self.stop_after:
            self.close()

    def close(self) -> None:
        """Close the loop, and raise if there are findings."""
        close_loop(self.loop)
        if self.report.findings:
            raise SweepFailed(self.report)

    def _run(self, mode: Mode, at: tuple[int, ...]) -> tuple[asyncio.Task[object], list[str]]:
        loop, ledger = self.loop, self.ledger
        ledger.start_over()
        loop.start_over()
        self.where = []
        problems = ledger.problems

        async def main() -> object:
            try:
                return await self.scenario(ledger)
            finally:
                if not ledger.may_outlive_call():
                    problems.extend(f"late release: {lease}" for lease in ledger.held())

        task = asyncio.Task(mode.run(main), loop=loop)
        for k, times in Counter(at).items():
            loop.acts[k] = functools.partial(_send_cancellations, mode, task, loop, self.where, times)
        try:
            loop.run_until_complete(task)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (the verdict checks the outcome)
            if not task.done():
                self.report.findings.append(SweepFinding(mode.name, at, f"stuck: {error!r}", tuple(self.where)))
                loop.start_over()
                self.close()
        self.steps = loop.steps
        loop.acts = {}
        loop.settle()
        if not ledger.may_outlive_call():
            problems += [f"stray task: {left}" for left in _left_on(loop)]
        if _left_on(loop):
            loop.drain()
            problems += [f"task that never ends: {left}" for left in _left_on(loop)]
        problems += [f"leak: {lease}" for lease in ledger.held()]
        problems += [f"unhandled: {fault}" for fault in loop.faults]
        if problems:
            gc.collect()
        return task, list(problems)
