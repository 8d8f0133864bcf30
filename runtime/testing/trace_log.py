"""The steps and leases of a traced call, recorded independently of the engine's own lease ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType

from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import RELEASE_OF, STAGES
from callgate.hooks.state.facts import TraceRow
from callgate.hooks.state.run import Run
from callgate.hooks.state.step import PlanStep, plan_step


def step_name(step: PlanStep) -> str:
    """The name of a step, such as ``"Permits.will_acquire_semaphore"``; that of a built-in step is in brackets."""
    return f"{step.name if step.hook is not None else f'[{step.name}]'}.{step.stage}"


@dataclass(frozen=True, slots=True)
class TracedLease:
    """One lease of a call.

    Attributes:
        step: the step that acquired it, such as ``"Permits.will_acquire_semaphore"``.
        taken: its position among the acquired leases, from 1; 0 for a failed acquire that was released nevertheless
            (``releases_by_token``).
        given_back: its positions among all releases: exactly one, unless there is a defect.
        failed: the name of the exception that its release raised, or None.
    """

    step: str
    taken: int
    given_back: tuple[int, ...] = ()
    failed: str | None = None

    @property
    def times(self) -> int:
        """The number of its releases."""
        return len(self.given_back)

    @property
    def held(self) -> bool:
        """True if it was never released."""
        return not self.given_back

    @property
    def summary(self) -> str:
        """A description in words."""
        given = ", ".join(map(str, self.given_back))
        back = "NEVER GIVEN BACK" if self.held else f"given back {given}"
        twice = f", {self.times} TIMES" if self.times > 1 else ""
        return f"taken {self.taken}, {back}{twice}{f', {self.failed}' if self.failed else ''}"

    def __str__(self) -> str:
        return f"{self.step:<40} {self.summary}"


@dataclass(slots=True)
class _LeaseEvent:
    key: int
    name: str
    gives: bool
    row: TraceRow | None = None
    step: PlanStep | None = None


class TraceLog:
    """The rows and the leases of one traced call."""

    def __init__(self) -> None:
        self._rows: list[tuple[list[object], PlanStep]] = []
        self._events: list[_LeaseEvent] = []
        self.ctx: InvokeContext | None = None
        self._releases: set[int] = set()
        self._kept: list[object] = []  # keeps the objects alive whose ids are keys

    def follow(self, ctx: InvokeContext) -> list[TraceRow]:
        """Return the list for the engine's rows, and record what ``ctx.lease`` enters."""
        self.ctx = ctx
        ctx.run.watch = self._watched
        return _Rows(self, ctx.run)

    def _watched(self, ctx: InvokeContext, manager: AbstractAsyncContextManager[object]) -> _WatchedManager:
        return _WatchedManager(manager, self, f"lease of {step_name(ctx.run.step)}")

    def rows_and_steps(self) -> Iterator[tuple[TraceRow, PlanStep]]:
        """The rows that the engine wrote, each with its step."""
        yield from self._rows

    def began(self, row: TraceRow, run: Run[InvokeContext]) -> None:
        """Record that a step began; the engine completes its row later."""
        step = run.step
        if (step.stage, step.name) != (row[0], row[1]):  # the unit of work ends while its tool is the current step
            step = plan_step(row[0], row[1])
        self._rows.append((row, step))
        if step.release is not None:
            self._releases.add(id(step.release[2]))
            self._note(step.release[2], step_name(step), row=row, step=step)
        elif id(step) in self._releases:  # also in a stage that gives nothing back: the outcome releases a claim
            self._note(step, step_name(step), gives=True, row=row, step=step)
        elif step.hook is None and step.stage in RELEASE_OF:  # from here on, hooks that only release hold a lease
            for _, _, release in run.plan.releases_alone[step.stage]:
                self._note(release, step_name(release), row=row, step=step)
        elif STAGES[step.stage].gives_back is not None:
            self._note(step, step_name(step), gives=True, row=row, step=step)

    def managed(self, manager: object, name: str, *, gives: bool = False, failed: str | None = None) -> None:
        """Record that a context manager of ``ctx.lease`` was entered or left."""
        self._note(manager, name, gives=gives, row=[None, None, failed or "ok"])

    def _note(
        self, what: object, name: str, *, gives: bool = False, row: list[object], step: PlanStep | None = None
    ) -> None:
        self._kept.append(what)
        self._events.append(_LeaseEvent(id(what), name, gives, row, step))

    def leases(self, ctx: InvokeContext | None) -> tuple[TracedLease, ...]:
        """The leases so far."""
        taken: dict[int, tuple[str, int]] = {}
        given: dict[int, list[tuple[int, str]]] = {}
        gives = takes = 0
        for event in self._events:
            verdict = event.row[2] if event.row else "ok"
            if event.gives:
                gives += 1
                given.setdefault(event.key, []).append((gives, verdict))
                taken.setdefault(event.key, (event.name, 0))
            elif verdict == "ok" and not _refused(event.step, ctx):
                takes += 1
                taken[event.key] = (event.name, takes)
        return tuple(
            TracedLease(
                name,
                position,
                tuple(number for number, _ in given.get(key, ())),
                next((verdict for _, verdict in given.get(key, ()) if verdict != "ok"), None),
            )
            for key, (name, position) in taken.items()
        )


def _refused(step: PlanStep | None, ctx: InvokeContext | None) -> bool:
    """True if an acquire failed by returning a value: the engine ends the call, and no lease is held."""
    if ctx is None or step is None or ctx.run.failed_in is not step:
        return False
    error: BaseException | None = ctx.run.error
    return isinstance(error, TypeError) or isinstance(getattr(error, "__cause__", None), TypeError)


class _Rows(list[TraceRow]):
    """The rows of a trace: as the engine adds one, ``run.step`` is the step of that row."""

    def __init__(self, log: TraceLog, run: Run[InvokeContext]) -> None:
        super().__init__()
        self._log, self._run = log, run

    def append(self, row: TraceRow) -> None:
        super().append(row)
        self._log.began(row, self._run)


class _WatchedManager(AbstractAsyncContextManager[object]):
    def __init__(self, manager: AbstractAsyncContextManager[object], log: TraceLog, name: str) -> None:
        self._manager, self._log, self._name = manager, log, name

    async def __aenter__(self) -> object:
        resource = await self._manager.__aenter__()
        self._log.managed(self, self._name)
        return resource

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        failed: str | None = None
        try:
            return await self._manager.__aexit__(kind, error, traceback)
        except BaseException as fault:
            failed = type(fault).__name__
            raise
        finally:
            self._log.managed(self, self._name, gives=True, failed=failed)
