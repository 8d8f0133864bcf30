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
import contextvars
import dataclasses
import gc
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import anyio

from callgate import DeadlineExceeded
from callgate.runtime import deadlines

T = TypeVar("T")
Scenario = Callable[["Ledger"], Awaitable[Any]]

FAR = 7_777_777.0
"""Seconds of a time limit that only the harness lets pass."""
TURN = 0.001
"""Seconds on the loop's clock that one turn of it takes, so that a busy loop gets on, too."""
STUCK = 200_000
"""Callbacks after which a run is given up: it goes round in circles."""


# ---------------------------------------------------------------------- the loop


class Stuck(AssertionError):
    """Nothing is left that could ever wake the loop, or it turns for ever."""


class _Jumping(selectors.DefaultSelector):
    """Does not sleep: the loop's clock jumps instead. Only where nothing but a thread can wake it, it waits for real."""

    loop: StepLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            self.loop.now += TURN
        elif timeout is not None:
            self.loop.now += timeout
        else:
            found = super().select(5.0)
            if not found:
                raise Stuck("nothing is left that could wake the loop")
        return found


class StepLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own that counts its callbacks and can act just before the k-th."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self.now = 1000.0
        self.steps = self.tasks_made = 0
        self.acts: dict[int, Callable[[], None]] = {}
        self.far: list[Callable[[], None]] = []
        self.faults: list[str] = []
        super().__init__(selector)
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)
        self.start_over()

    def time(self) -> float:
        return self.now

    def start_over(self) -> None:
        """Count from zero."""
        self.steps = self.tasks_made = 0
        self.acts, self.far, self.faults = {}, [], []

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._step, callback, args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(self._step, callback, args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = super().call_at(when, self._step, callback, args, context=context)
        if when - self.now >= FAR - 1.0:

            def pass_by() -> None:
                if not handle.cancelled():
                    handle.cancel()
                    callback(*args)

            self.far.append(pass_by)
        return handle

    def _step(self, callback: Any, args: Any) -> None:
        act = self.acts.get(self.steps)
        self.steps += 1
        if act is not None:
            from_outside(act)
        if self.steps > STUCK:
            self.stop()
            return
        callback(*args)

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        self.tasks_made += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def _note(self, loop: Any, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def settle(self, turns: int = 6) -> None:
        """Let what is ready run; no timer."""
        for _ in range(turns):
            super().call_soon(self.stop)
            self.run_forever()

    def drain(self, seconds: float = 100.0) -> None:
        """Let this much time pass."""
        super().call_at(self.now + seconds, self.stop)
        self.run_forever()


def from_outside(act: Callable[[], T]) -> T:
    """Do what a caller outside does: in a context that no scope or time limit of the scenario made."""
    return contextvars.Context().run(act)


def run_virtual(main: Coroutine[Any, Any, T], loop: StepLoop | None = None) -> T:
    """``asyncio.run`` on a clock that jumps."""
    own = loop or StepLoop()
    try:
        return own.run_until_complete(main)
    finally:
        if loop is None:
            close(own)


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop as ``asyncio.run`` does."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


# ---------------------------------------------------------------------- the ledger


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


# ---------------------------------------------------------------------- ways to cancel


class Mode:
    """One way to end a scenario from outside. ``strike`` sends it; ``verdict`` says what is wrong with how it ended."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.sent = 0
        self.finished = False

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        """The scenario, with whatever stands around it."""
        return await scenario()

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        """Cancel now. Nothing, where it cannot reach the scenario."""
        raise NotImplementedError

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        """None, or what is wrong."""
        raise NotImplementedError

    def _untouched(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        ended = Ending.of(task)
        if ended != usual:
            return f"invented: it ended with {ended}, usually {usual}"
        return _counts(task, 0)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a task ended: what it raised, or what it returned."""

    raised: str | None
    returned: Any = None

    @classmethod
    def of(cls, task: asyncio.Task[Any]) -> Ending:
        """Of a task that is done."""
        if task.cancelled():
            return cls("CancelledError")
        error = task.exception()
        return cls(type(error).__name__) if error is not None else cls(None, repr(task.result()))

    def __str__(self) -> str:
        return self.raised or f"the result {self.returned}"


def _counts(task: asyncio.Task[Any], right: int) -> str | None:
    return None if task.cancelling() == right else f"cancelling() is {task.cancelling()}, it ought to be {right}"


class Native(Mode):
    """``task.cancel()``; as often as it strikes."""

    name = "cancel"

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        self.sent += task.cancel()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.sent:
            return self._untouched(task, usual)
        if not task.cancelled():
            return f"cancellation lost: it ended with {Ending.of(task)}"
        return _counts(task, self.sent)


class Scope(Mode):
    """An anyio cancel scope around the scenario."""

    name = "anyio scope"

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        with anyio.CancelScope() as self.scope:
            try:
                return await scenario()
            finally:
                self.finished = True
                task = asyncio.current_task()
                assert task is not None
                self.sent = task.cancelling()

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        if hasattr(self, "scope") and not self.finished:
            self.scope.cancel()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.sent:
            return self._untouched(task, usual)
        if not self.scope.cancelled_caught:
            return f"cancellation lost: the scope caught nothing, it ended with {Ending.of(task)}"
        if task.cancelled() or task.exception() is not None:
            return f"the scope let {Ending.of(task)} through"
        return _counts(task, 0)


class ScopeThenNative(Scope):
    """A scope, and then ``task.cancel()``."""

    name = "anyio scope, then cancel"

    def __init__(self) -> None:
        super().__init__()
        self.strikes = self.native = 0

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        self.strikes += 1
        if self.strikes == 1:
            super().strike(task, loop)
        else:
            self.native += task.cancel()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.native:
            return super().verdict(task, usual)
        return None if task.cancelled() else f"cancellation lost: it ended with {Ending.of(task)}"


class TimeLimit(Mode):
    """``asyncio.timeout`` around the scenario."""

    name = "asyncio.timeout"

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(FAR) as self.limit:
            return await scenario()

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        if hasattr(self, "limit"):
            for pass_by in loop.far:
                pass_by()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not hasattr(self, "limit") or not self.limit.expired():
            return self._untouched(task, usual)
        if Ending.of(task).raised != "TimeoutError":
            return f"cancellation lost: the limit passed, it ended with {Ending.of(task)}"
        return _counts(task, 0)


class WaitFor(Mode):
    """``asyncio.wait_for`` around the scenario, which may finish at the very moment the time is up."""

    name = "asyncio.wait_for"

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            inner = asyncio.current_task()
            assert inner is not None
            try:
                return await scenario()
            finally:
                self.finished = True
                self.sent = inner.cancelling()

        return await asyncio.wait_for(inside(), FAR)

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        for pass_by in loop.far:
            pass_by()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        ended = Ending.of(task)
        if self.sent and ended.raised != "TimeoutError":
            return f"cancellation lost: the time was up, it ended with {ended}"
        if not self.sent and ended != usual and ended.raised != "TimeoutError":
            return f"invented: it ended with {ended}, usually {usual}"
        return _counts(task, 0)


class Deadline(Mode):
    """The call's own deadline, given as ``deadline=FAR``, passes."""

    name = "deadline"
    ends: ClassVar[frozenset[str]] = frozenset({"DeadlineExceeded", "OutcomeUnknown"})

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        self.sent += expire(loop)

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        ended = Ending.of(task)
        if ended != usual and ended.raised not in (self.ends if self.sent else ()):
            return f"a deadline ended it with {ended}"
        return _counts(task, 0)


class DeadlineThenNative(Deadline):
    """The deadline, and then (or at once) ``task.cancel()``: the outside wins."""

    name = "deadline, then cancel"

    def __init__(self) -> None:
        super().__init__()
        self.strikes = self.native = 0

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        self.strikes += 1
        if self.strikes == 1:
            super().strike(task, loop)
        else:
            self.native += task.cancel()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.native:
            return super().verdict(task, usual)
        if not task.cancelled():
            return f"cancellation lost: it ended with {Ending.of(task)}"
        return _counts(task, self.native)


class NativeThenDeadline(DeadlineThenNative):
    """``task.cancel()``, and then the deadline."""

    name = "cancel, then deadline"

    def strike(self, task: asyncio.Task[Any], loop: StepLoop) -> None:
        self.strikes += 1
        if self.strikes == 1:
            self.native += task.cancel()
        else:
            self.sent += expire(loop)


def expire(loop: asyncio.AbstractEventLoop) -> int:
    """Let every deadline that is armed on the loop pass now; how many there were."""
    table = deadlines._TABLES.get(loop)
    live = list(table.live) if table is not None else []
    for alarm in live:
        alarm.when = loop.time()
    if table is not None and live:
        table._scan(loop)
    return len(live)


SINGLE: tuple[type[Mode], ...] = (Native, Scope, TimeLimit, WaitFor)
"""Struck at each k."""
PAIRED: tuple[type[Mode], ...] = (Native, ScopeThenNative)
"""Struck at each k1 and at each later k2."""
DEADLINE: tuple[type[Mode], ...] = (Deadline,)
DEADLINE_PAIRED: tuple[type[Mode], ...] = (DeadlineThenNative, NativeThenDeadline)
"""For scenarios whose call has ``deadline=FAR``."""


# ---------------------------------------------------------------------- the sweep


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
    pairs: int | None = 120,
    stop_after: int = 50,
) -> Report:
    """Cancel *scenario* before each callback in each of *modes*, and at pairs of callbacks in each of *paired*.

    *pairs* is how many pairs to try in each paired mode, evenly spread; None means all of them.

    Raises:
        SweepFailed: something leaked, was late, lost or invented.
    """
    sweep = _Sweep(scenario, stop_after)
    for mode in modes:
        for k in range(sweep.report.steps):
            sweep.once(mode, k)
    for mode in paired:
        for pair in _spread(sweep.pairs(mode), pairs):
            sweep.once(mode, *pair)
    sweep.close()
    return sweep.report


def _spread(pairs: list[tuple[int, int]], most: int | None) -> Iterator[tuple[int, int]]:
    if most is None or len(pairs) <= most:
        yield from pairs
    else:
        for index in range(most):
            yield pairs[index * len(pairs) // most]


class _Sweep:
    def __init__(self, scenario: Scenario, stop_after: int) -> None:
        self.scenario = scenario
        self.stop_after = stop_after
        self.ledger = Ledger()
        self.loop = StepLoop()
        self.report = Report(0)
        task, problems = self._run(Mode(), ())
        self.usual, self.report.steps = Ending.of(task), self.steps
        self.report.leases = self.ledger.taken
        if problems:
            self._found(Mode, (), problems)
            self.close()
        if self.usual.raised == "CancelledError":
            raise AssertionError("the scenario is cancelled without anybody's cancelling it")

    def pairs(self, mode: type[Mode]) -> list[tuple[int, int]]:
        """Each first point with each later one of the run that it makes."""
        found: list[tuple[int, int]] = []
        for k in range(self.report.steps):
            self._run(mode(), (k,))
            found += [(k, later) for later in range(k, self.steps)]
        return found

    def once(self, mode: type[Mode], *at: int) -> None:
        """One run with a strike before each of these callbacks; two at the same one if it stands there twice."""
        made = mode()
        task, problems = self._run(made, at)
        if (verdict := made.verdict(task, self.usual)) is not None:
            problems.append(verdict)
        self.report.points += 1
        if problems:
            self._found(mode, at, problems)

    def _found(self, mode: type[Mode], at: tuple[int, ...], problems: list[str]) -> None:
        name = getattr(mode, "name", "undisturbed")
        self.report.findings += [Finding(name, at, problem) for problem in problems]
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
        for k in dict.fromkeys(at):
            times = at.count(k)
            loop.acts[k] = lambda times=times: [mode.strike(task, loop) for _ in range(times)]  # type: ignore[misc]
        try:
            loop.run_until_complete(task)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (the verdict looks at how it ended)
            if not task.done():
                problems.append(f"stuck: {error!r}")
                self._found(type(mode), at, problems)
                raise SweepFailed(self.report) from error
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


# ---------------------------------------------------------------------- counting what a call costs


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run made the loop do."""

    tasks: int
    callbacks: int


def cost_of(scenario: Scenario) -> Cost:
    """Tasks made and callbacks run by a scenario alone, measured on its second run."""
    loop, ledger = StepLoop(), Ledger()

    async def measured() -> Cost:
        await scenario(ledger)
        tasks, steps = loop.tasks_made, loop.steps
        await scenario(ledger)
        return Cost(loop.tasks_made - tasks, loop.steps - steps)

    return run_virtual(measured(), loop)
