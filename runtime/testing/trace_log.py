"""What a traced call does with its leases, put down by who takes and who gives back, not by the engine's own ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import RELEASE_OF, STAGES
from callgate.hooks.step import Step


def step_name(step: Step) -> str:
    """``"Places.will_acquire_semaphore"``; built-in steps in brackets."""
    return f"{step.name if step.hook is not None else f'[{step.name}]'}.{step.stage}"


@dataclass(frozen=True, slots=True)
class TracedLease:
    """One lease of a call.

    ``step`` is what took it, such as ``"Places.will_acquire_semaphore"``. ``taken`` is its place among the leases
    taken, from 1, or 0 for an acquire that failed and was given back all the same (``releases_by_token``).
    ``given_back`` are its places among all that was given back: one, if all is well. ``failed`` names what the release
    raised.
    """

    step: str
    taken: int
    given_back: tuple[int, ...] = ()
    failed: str | None = None

    @property
    def times(self) -> int:
        """How often it was given back."""
        return len(self.given_back)

    @property
    def held(self) -> bool:
        """Whether it was never given back."""
        return not self.given_back

    @property
    def told(self) -> str:
        """In words."""
        given = ", ".join(map(str, self.given_back))
        back = "NEVER GIVEN BACK" if self.held else f"given back {given}"
        twice = f", {self.times} TIMES" if self.times > 1 else ""
        return f"taken {self.taken}, {back}{twice}{f', {self.failed}' if self.failed else ''}"

    def __str__(self) -> str:
        return f"{self.step:<40} {self.told}"


@dataclass(slots=True)
class _Event:
    key: int
    name: str
    gives: bool
    row: list[Any] | None = None
    step: Step | None = None


class TraceLog:
    """The rows of one call's trace, and its leases."""

    def __init__(self) -> None:
        self._rows: list[tuple[list[Any], Step]] = []
        self._events: list[_Event] = []
        self._kept: list[Any] = []  # what keys are ids of lives as long as this

    def of(self, ctx: WatchedContext) -> _Rows:
        """The list that becomes ``ctx.trace``."""
        ctx.log = self
        return _Rows(ctx)

    def rows_and_steps(self) -> Iterator[tuple[list[Any], Step]]:
        """Rows as the engine wrote them, each with its step."""
        yield from self._rows

    def began(self, row: list[Any], step: Step, ctx: WatchedContext) -> None:
        """A step began; its row is finished later."""
        self._rows.append((row, step))
        if step.release is not None:
            self._note(step.release[2], step_name(step), row=row, step=step)
        elif step.hook is None and step.stage in RELEASE_OF:  # from here on, hooks that only give back hold
            for _, _, release in ctx.plan.releases_alone[step.stage]:
                self._note(release, step_name(release), row=row, step=step)
        elif STAGES[step.stage].gives_back is not None:
            self._note(step, step_name(step), gives=True, row=row, step=step)

    def managed(self, manager: Any, name: str, *, gives: bool = False, failed: str | None = None) -> None:
        """A manager of ``ctx.lease`` was entered, or left."""
        self._note(manager, name, gives=gives, row=[None, None, failed or "ok"])

    def _note(self, what: Any, name: str, *, gives: bool = False, row: list[Any], step: Step | None = None) -> None:
        self._kept.append(what)
        self._events.append(_Event(id(what), name, gives, row, step))

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
                place,
                tuple(number for number, _ in given.get(key, ())),
                next((verdict for _, verdict in given.get(key, ()) if verdict != "ok"), None),
            )
            for key, (name, place) in taken.items()
        )


def _refused(step: Step | None, ctx: InvokeContext | None) -> bool:
    """Whether an acquire returned a value, which is no yes: the engine fails the call there, and nothing is held."""
    if ctx is None or step is None or ctx.failed_in is not step:
        return False
    error: BaseException | None = ctx.error
    return isinstance(error, TypeError) or isinstance(getattr(error, "__cause__", None), TypeError)


class _Rows(list[Any]):
    """``ctx.trace``: as a row is added, ``ctx.step`` is the step that it is about."""

    def __init__(self, ctx: WatchedContext) -> None:
        super().__init__()
        self._ctx = ctx

    def append(self, row: Any) -> None:
        super().append(row)
        self._ctx.log.began(row, self._ctx.step, self._ctx)


class WatchedContext(InvokeContext):
    """A context that tells a log of what ``lease`` enters and leaves."""

    log: TraceLog

    async def lease(self, manager: AbstractAsyncContextManager[Any]) -> Any:
        """As in ``InvokeContext``."""
        return await super().lease(_Watched(manager, self.log, f"lease of {step_name(self.step)}"))


class _Watched(AbstractAsyncContextManager[Any]):
    def __init__(self, manager: AbstractAsyncContextManager[Any], log: TraceLog, name: str) -> None:
        self._manager, self._log, self._name = manager, log, name

    async def __aenter__(self) -> Any:
        resource = await self._manager.__aenter__()
        self._log.managed(self, self._name)
        return resource

    async def __aexit__(self, *error: Any) -> Any:  # noqa: PYI036  (handed on as it came)
        failed: str | None = None
        try:
            return await self._manager.__aexit__(*error)
        except BaseException as fault:
            failed = type(fault).__name__
            raise
        finally:
            self._log.managed(self, self._name, gives=True, failed=failed)
