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
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any

from tests.harness.cancel_modes import PAIRED, SINGLE, Ending, Mode
from tests.harness.steploop import StepLoop, Stepping, close

Scenario = Callable[["Ledger"], Awaitable[Any]]


class Ledger:
    """What a scenario's leases tell of themselves.

    A lease is two units: a careful reader sees a torn acquire as one unit held. ``take`` and ``give`` move one unit.
    ``excuse`` says whether a lease may outlive the call (``pending_release``).
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything."""
        self.units: Counter[Hashable] = Counter()
        self.stack: list[Hashable] = []
        self.problems: list[str] = []
        self.taken = 0
        self.in_order = True
        self.excuse: Callable[[], bool] = lambda: False
        self.kept: dict[str, Any] = {}

    def take(self, lease: Hashable) -> None:
        """One of the two units of an acquire."""
        self.units[lease] += 1
        if self.units[lease] == 2:
            self.taken += 1
            self.stack.append(lease)
        elif self.units[lease] > 2:
            self.problems.append(f"acquired twice: {lease}")

    def undo(self, lease: Hashable) -> None:
        """An acquire that fails cleans up after itself."""
        self.units[lease] = 0

    def give(self, lease: Hashable) -> None:
        """One of the two units of a release."""
        if self.units[lease] == 2:
            if self.in_order and self.stack[-1:] != [lease]:
                self.problems.append(f"released out of order: {lease}")
            if lease in self.stack:
                self.stack.remove(lease)
        self.units[lease] -= 1
        if self.units[lease] < 0:
            self.problems.append(f"double release: {lease}")

    def held(self) -> list[Hashable]:
        """Leases that are not given back, or only half."""
        return [lease for lease, units in self.units.items() if units]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong after one cancellation."""

    mode: str
    at: tuple[int, ...]
    problem: str

    def __str__(self) -> str:
        return f"{self.mode} at {', '.join(map(str, self.at)) or 'no point'}: {self.problem}"


@dataclasses.dataclass
class Report:
    """What a sweep did. ``points`` counts runs in which a cancellation was sent."""

    steps: int
    points: int = 0
    leases: int = 0
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def count(self, word: str) -> int:
        """Findings that mention a word."""
        return sum(word in finding.problem for finding in self.findings)


class SweepFailed(AssertionError):
    """A scenario does not survive every cancellation; ``report`` has all findings."""

    def __init__(self, report: Report) -> None:
        kinds = Counter(finding.problem.split(":")[0] for finding in report.findings)
        first = "\n".join(f"  {finding}" for finding in report.findings[:8])
        super().__init__(f"{len(report.findings)} findings at {report.points} cancel points {dict(kinds)}\n{first}")
        self.report = report


def every_cancel_point(
    scenario: Scenario,
    modes: Sequence[type[Mode]] = SINGLE,
    *,
    paired: Sequence[type[Mode]] = PAIRED,
    pairs: int | None = 60,
    stop_after: int = 50,
    loop: Callable[[], Stepping] = StepLoop,
) -> Report:
    """Cancel *scenario* before each callback in each of *modes*, and at pairs of callbacks in each of *paired*.

    *pairs* is how many pairs to try in each paired mode, evenly spread; None means all of them. *loop* makes the
    event loop; the sweep uses one for all runs, as an application would.

    Raises:
        SweepFailed: something leaked, was late, lost or invented.
    """
    sweep = _Sweep(scenario, stop_after, loop())
    for mode in modes:
        for k in range(sweep.report.steps):
            sweep.once(mode, k)
    for mode in paired:
        for pair in _spread(sweep.pairs(mode), pairs):
            sweep.once(mode, *pair)
    sweep.close()
    return sweep.report


def _strike(mode: Mode, task: asyncio.Task[Any], loop: Stepping, times: int) -> None:
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
        self.report = Report(0)
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
        self.report.findings += [Finding(mode.name, at, problem) for problem in problems]
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
        problems = ledger.problems

        async def main() -> Any:
            try:
                return await self.scenario(ledger)
            finally:
                if not ledger.excuse():
                    problems.extend(f"late release: {lease}" for lease in ledger.held())

        task = asyncio.Task(mode.run(main), loop=loop)
        for k, times in Counter(at).items():
            loop.acts[k] = functools.partial(_strike, mode, task, loop, times)
        try:
            loop.run_until_complete(task)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (the verdict looks at how it ended)
            if not task.done():
                self.report.findings.append(Finding(mode.name, at, f"stuck: {error!r}"))
                loop.start_over()
                self.close()
        self.steps = loop.steps
        loop.acts = {}
        loop.settle()
        if not ledger.excuse():
            problems += [f"stray task: {left.get_coro()}" for left in asyncio.all_tasks(loop)]
        if asyncio.all_tasks(loop):
            loop.drain()
            problems += [f"task that never ends: {left.get_coro()}" for left in asyncio.all_tasks(loop)]
        problems += [f"leak: {lease}" for lease in ledger.held()]
        problems += [f"unhandled: {fault}" for fault in loop.faults]
        if problems:
            gc.collect()
        return task, list(problems)
