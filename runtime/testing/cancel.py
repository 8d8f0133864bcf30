"""Cancel a scenario before every callback of its event loop, in every way a caller can, and look at what is left.

``every_cancel_point(scenario)`` runs a scenario once to count the callbacks of the loop (K), then again for each k,
with a cancellation just before the k-th: natively, twice, by an anyio scope, by a time limit around it, by the call's
own deadline. Nothing waits for real: the loop's clock jumps to the next timer. After each run it asks

* of the ``Ledger``: is every lease given back, once, in reverse, by the time the call returned (I1, I1b)?
* of the task: was the cancellation neither lost nor invented, and is ``cancelling()`` what it ought to be (I13)?
* of the loop: is any task left behind, did any callback fail?
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias

from callgate.runtime.lifespan import background as upkeep
from callgate.runtime.testing.cancel_modes import DEADLINE, DEADLINE_PAIRED, PAIRED, SINGLE, Ending, Mode
from callgate.runtime.testing.lease_ledger import Ledger
from callgate.runtime.testing.task_position import waits_in
from callgate.runtime.testing.virtual_time import StepLoop, Stepping, close

Scenario: TypeAlias = Callable[[Ledger], Awaitable[Any]]
"""What is cancelled: an async function of the ledger that it tells of its leases."""


@dataclasses.dataclass(frozen=True)
class SweepFinding:
    """One thing that is wrong after one cancellation.

    ``at`` are the callbacks of the event loop before which it was sent, counted from 0; ``where`` the lines that the
    scenario stood at; ``problem`` begins with what is wrong (``leak``, ``late release``, ``double release``, …) and
    names the lease.
    """

    mode: str
    at: tuple[int, ...]
    problem: str
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.at:
            return f"{self.mode}: {self.problem}"
        lines = " and ".join(dict.fromkeys(place for place in self.where if place)) or "before its first line"
        return f"{self.mode} at {', '.join(map(str, self.at))}, {lines}: {self.problem}"


@dataclasses.dataclass
class SweepReport:
    """What a sweep did.

    ``steps`` are the callbacks of the undisturbed run and ``leases`` what it took; ``points`` counts runs in which a
    cancellation was sent.
    """

    steps: int
    points: int = 0
    leases: int = 0
    findings: list[SweepFinding] = dataclasses.field(default_factory=list)

    def count(self, word: str) -> int:
        """Findings that mention a word."""
        return sum(word in finding.problem for finding in self.findings)


class SweepFailed(AssertionError):
    """A scenario does not survive every cancellation; ``report`` has all findings."""

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
    """Cancel *scenario* before each callback of its event loop, in each way, and look at what is left.

    Without *modes* and *paired* it is cancelled as callers do: by ``task.cancel()``, an anyio scope,
    ``asyncio.timeout`` and ``asyncio.wait_for``, and twice, at pairs of callbacks. With ``deadline=True`` the call's own
    deadline, which the scenario gives as ``deadline=FAR``, passes there instead. *pairs* is how many pairs to try in
    each paired mode, evenly spread; None means all of them. It ends once *stop_after* findings are made. *loop* makes
    the event loop; the sweep uses one for all runs, as an application would.

    Nothing waits for real. The scenario must do the same each time, and wait for no socket and no thread.

    Raises:
        SweepFailed: something leaked, was late, lost or invented; it says at which point, and which lease.
    """
    modes = modes if modes is not None else DEADLINE if deadline else SINGLE
    paired = paired if paired is not None else DEADLINE_PAIRED if deadline else PAIRED
    sweep = _Sweep(scenario, stop_after, loop())
    for mode in modes:
        for k in range(sweep.report.steps):
            sweep.once(mode, k)
    for mode in paired:
        for pair in _spread(sweep.pairs(mode), pairs):
            sweep.once(mode, *pair)
    sweep.close()
    return sweep.report


def _left_on(loop: Stepping) -> list[Any]:
    """Coroutines of tasks that are not done; those that look after an open gate live as long as that."""
    return [task.get_coro() for task in asyncio.all_tasks(loop) if not task.get_name().startswith(upkeep.TASKS)]


def _strike(mode: Mode, task: asyncio.Task[Any], loop: Stepping, where: list[str], times: int) -> None:
    where.append(waits_in(task))
    for _ in range(times):
        mode.strike(task, loop)


def _spread(pairs: list[tuple[int, int]], most: int | None) -> Iterator[tuple[int, int]]:
    if most is None or len(pairs) <= most:
        yield from pairs
    else:
        for index in range(most):
            yield pairs[index * len(pairs) // most]


class _Sweep:
    def __init__(self, scenario: Scenario, stop_after: int, loop: Stepping) -> None:
        self.scenario = scenario
        self.stop_after = stop_after
        self.ledger = Ledger()
        self.loop = loop
        self.report = SweepReport(0)
        self.where: list[str] = []
        self.lengths: dict[tuple[type[Mode], int], int] = {}
        task, problems = self._run(Mode(), ())
        self.usual, self.report.steps = Ending.of(task), self.steps
        self.report.leases = self.ledger.taken
        if problems:
            self._found(Mode, (), problems)
            self.close()
        if self.usual.raised == "CancelledError":
            self._found(Mode, (), ["invented: it is cancelled without anybody's cancelling it"])
            self.close()

    def pairs(self, mode: type[Mode]) -> list[tuple[int, int]]:
        """Each first point with each later one of the run that it makes."""
        found: list[tuple[int, int]] = []
        first = mode.begins_as or mode
        for k in range(self.report.steps):
            if (first, k) not in self.lengths:
                self.once(first, k)
            found += [(k, later) for later in range(k, self.lengths[first, k])]
        return found

    def once(self, mode: type[Mode], *at: int) -> None:
        """One run with a strike before each of these callbacks; two at the same one if it stands there twice."""
        made = mode()
        task, problems = self._run(made, at)
        if len(at) == 1:
            self.lengths[mode, at[0]] = self.steps
        if (verdict := made.verdict(task, self.usual)) is not None:
            problems.append(verdict)
        self.report.points += 1
        if problems:
            self._found(mode, at, problems)

    def _found(self, mode: type[Mode], at: tuple[int, ...], problems: list[str]) -> None:
        self.report.findings += [SweepFinding(mode.name, at, problem, tuple(self.where)) for problem in problems]
        if len(self.report.findings) >= self.stop_after:
            self.close()

    def close(self) -> None:
        """Say what was found."""
        close(self.loop)
        if self.report.findings:
            raise SweepFailed(self.report)

    def _run(self, mode: Mode, at: tuple[int, ...]) -> tuple[asyncio.Task[Any], list[str]]:
        loop, ledger = self.loop, self.ledger
        ledger.start_over()
        loop.start_over()
        self.where = []
        problems = ledger.problems

        async def main() -> Any:
            try:
                return await self.scenario(ledger)
            finally:
                if not ledger.excuse():
                    problems.extend(f"late release: {lease}" for lease in ledger.held())

        task = asyncio.Task(mode.run(main), loop=loop)
        for k, times in Counter(at).items():
            loop.acts[k] = functools.partial(_strike, mode, task, loop, self.where, times)
        try:
            loop.run_until_complete(task)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (the verdict looks at how it ended)
            if not task.done():
                self.report.findings.append(SweepFinding(mode.name, at, f"stuck: {error!r}", tuple(self.where)))
                loop.start_over()
                self.close()
        self.steps = loop.steps
        loop.acts = {}
        loop.settle()
        if not ledger.excuse():
            problems += [f"stray task: {left}" for left in _left_on(loop)]
        if _left_on(loop):
            loop.drain()
            problems += [f"task that never ends: {left}" for left in _left_on(loop)]
        problems += [f"leak: {lease}" for lease in ledger.held()]
        problems += [f"unhandled: {fault}" for fault in loop.faults]
        if problems:
            gc.collect()
        return task, list(problems)
