"""A record that waits, and from a given time on the releases beside it, both in the task of the call.

A record that is slow goes on while the releases run: it may hold a lock or a connection for which a release waits. Both
keep the task of the call as their own, because a lease may belong to the task that took it. So the task drives both and
resumes the step whose future is done. Each step has its own mark, its own stack of anyio scopes, and its own position
in the lifecycle.

The ``Shielded`` around both defers a cancellation from outside. A cancellation that descends from a release reaches the
releases, and a cancellation that descends from the record reaches the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.runtime.pipeline.leases import finish
from callgate.runtime.pipeline.shield import (
    ENCLOSING,
    INSIDE,
    Shielded,
    Wait,
    enter_stack,
    innermost,
    set_mark,
    take_over,
)


class _Strand:
    """A coroutine that shares the task, and what has to be restored before it continues."""

    def __init__(self, ctx: InvokeContext, coroutine: Coroutine[Any, None, None], mark: object, scope: object) -> None:
        self.coroutine, self.mark, self.scope = coroutine, mark, scope
        self.step, self.enclosing = ctx.run.step, ENCLOSING.get()
        self.pending: Any = None
        self.resumed = 0
        self.is_over = False
        self.error: BaseException | None = None


class Beside:
    """Drives a record that waits for *pending*, and after *delay* seconds what *releases* returns for a mark."""

    def __init__(
        self,
        ctx: InvokeContext,
        shielded: Shielded[None],
        pending: object,
        releases: Callable[[object], Coroutine[object, None, None]],
        delay: float,
    ) -> None:
        self.ctx, self.releases, self.delay = ctx, releases, delay
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        self.mark = object()  # of the releases
        self.record = _Strand(ctx, finish(ctx, shielded, pending), shielded.mark, innermost(self.task))
        self.strands = [self.record]
        self.current = self.cancelled = self.record
        self.ready: list[tuple[_Strand, int]] = []
        self.due = False
        self.wait: Wait | None = None

    def __await__(self) -> Generator[object, None, None]:
        timer = self.loop.call_later(max(0.0, self.delay), self._end_patience, context=Context())
        try:
            self._resume(self.record)
            while any(not one.is_over for one in self.strands):
                yield from self._next()
        finally:
            timer.cancel()
            self.wait = None  # it refers to this object: a circle
            self._switch_to(self.record)
            enter_stack(self.task, self.ctx.run.shield)
        for one in self.strands:
            if one.error is not None:
                raise one.error

    def _next(self) -> Generator[object, None, None]:
        """Wait until a strand can continue, and resume it."""
        if self.due:
            self.due = False
            strand = _Strand(self.ctx, self.releases(self.mark), self.mark, self.ctx.run.shield)
            strand.enclosing = (*self.record.enclosing, self.record.mark)
            self.strands.append(strand)
            return self._resume(strand)
        if self.ready:
            strand, resumed = self.ready.pop(0)
            if resumed == strand.resumed and not strand.is_over:
                self._resume(strand)
            return None
        self.wait = Wait(loop=self.loop)
        self.wait.work = self
        try:
            yield from self.wait
        except GeneratorExit:  # the coroutine of the call is closed: awaiting is no longer possible
            for one in reversed(self.strands):
                self._switch_to(one)
                one.coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  (a cancellation that is that of a strand)
            self._resume(self._alive(self.cancelled), error)

    def _resume(self, strand: _Strand, thrown: BaseException | None = None) -> None:
        self._switch_to(strand)
        strand.resumed += 1
        try:
            pending = strand.coroutine.send(None) if thrown is None else strand.coroutine.throw(thrown)
        except StopIteration:
            strand.is_over = True
        except BaseException as error:  # noqa: BLE001  (raised once both have ended)
            strand.is_over, strand.error = True, error
        else:
            strand.pending, resumption = pending, (strand, strand.resumed)
            if pending is None:  # a bare yield, such as asyncio.sleep(0)
                self.loop.call_soon(self._is_ready, resumption)
            else:
                take_over(pending)
                pending.add_done_callback(lambda _: self._is_ready(resumption))
        strand.enclosing, strand.step, strand.scope = ENCLOSING.get(), self.ctx.run.step, innermost(self.task)

    def _switch_to(self, strand: _Strand) -> None:
        self.current, self.ctx.run.step = strand, strand.step
        set_mark(strand.mark)
        ENCLOSING.set(strand.enclosing)
        enter_stack(self.task, strand.scope)

    def _is_ready(self, resumption: tuple[_Strand, int]) -> None:
        self.ready.append(resumption)
        self._wake()

    def _end_patience(self) -> None:
        self.due = True
        self._wake()

    def _wake(self) -> None:
        if self.wait is not None:
            self.wait.wake()

    def _alive(self, strand: _Strand) -> _Strand:
        return next((one for one in (strand, *self.strands) if not one.is_over), strand)

    def cancel(self, msg: object) -> bool:
        """Route a cancellation of the task to the step that it descends from."""
        strand = self.record
        if asyncio.current_task(self.loop) is self.task:
            strand = self.current
        elif self.mark is INSIDE.get() or self.mark in ENCLOSING.get():
            strand = self.strands[-1]
        self.cancelled = strand = self._alive(strand)
        return strand.pending is not None and bool(strand.pending.cancel(msg=msg))

    def expire(self) -> None:
        """Cancel both steps: the time of the step around this call is up."""
        for one in self.strands:
            if not one.is_over and isinstance(one.pending, Wait):
                one.pending.work.expire()
