"""The middleware of a plan: ``around_execute`` hooks nested around the attempt, composed once, at registration."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from callgate.errors import ControlRespond, StageError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import PlanParts
from callgate.hooks.selection import Registration
from callgate.hooks.stages import Stage
from callgate.hooks.state.host import Steps
from callgate.hooks.state.step import ASYNC, PlanStep, StepCall
from callgate.providers.foreign_errors import is_pressed
from callgate.providers.logs import LogEvent, emit, emit_fault
from callgate.runtime.pipeline.failure import counted, crashed
from callgate.runtime.pipeline.guards import applies_to, is_failure, limited
from callgate.runtime.pipeline.waiting import cancel_and_wait

Inner: TypeAlias = Callable[[InvokeContext], Awaitable[object]]
Replaced: TypeAlias = Callable[[InvokeContext, "_NextCall", object], object]


def wrap_attempt(attempt: Inner, parts: PlanParts, around: Steps, *, in_units: bool) -> Inner:
    """Wrap *attempt* in the middleware of a plan, and in its unit of work; the result is the output."""
    wrappers = list(zip(around, parts.by_stage[Stage.AROUND_EXECUTE], strict=True))
    if not in_units:
        return nested(wrappers, attempt, _output_replaced)
    from callgate.runtime.pipeline.units import in_unit  # only gates with such a provider need it

    retrying = [number for number, (_, one) in enumerate(wrappers, 1) if one.option("repeats", False)]
    outside = retrying[-1] if retrying else 0  # each attempt has a unit of its own, and a retry sees a failed commit
    unit = in_unit(parts, nested(wrappers[outside:], attempt, _output_replaced))
    return nested(wrappers[:outside], unit, _output_replaced)


def nested(
    wrappers: Iterable[tuple[StepCall, Registration]],
    inner: Inner,
    replaced: Replaced = lambda _ctx, _call, output: output,
) -> Inner:
    """Wrap *inner* in its middleware; the first wrapper is outermost. *replaced* takes an output that a wrapper made."""
    for (kind, call, step), registration in reversed(list(wrappers)):
        inner = _layer(call if kind == ASYNC else _awaited(call), step, inner, registration, replaced)
    return inner


def _output_replaced(ctx: InvokeContext, inner_call: _NextCall, output: object) -> object:
    if output is None and inner_call.state == "done" and inner_call.output is not None:
        emit(LogEvent.OUTPUT_DROPPED, ctx, stage=Stage.AROUND_EXECUTE, hook=inner_call.step.name)
    ctx.run.put_output(output)
    return ctx.run.output


class _NextCall:
    """The state of one wrapper in one invocation: permission to call ``next()``, and its result."""

    __slots__ = ("ctx", "error", "failed_in", "inner", "is_over", "output", "repeats", "shown", "state", "step", "task")

    def __init__(self, ctx: InvokeContext, step: PlanStep, inner: Inner, repeats: bool) -> None:
        self.ctx = ctx
        self.step = step
        self.inner = inner
        self.repeats = repeats
        self.is_over = False  # True once the wrapper has ended
        self.state = "new"
        self.output: object = None
        self.shown: object = None
        self.error: BaseException | None = None
        self.failed_in = step
        self.task: asyncio.Task[object] | None = None

    async def next(self, ctx: InvokeContext | None = None) -> object:
        """Continue with the next wrapper or the tool; the wrapper calls this as ``next()`` or ``next(ctx)``."""
        if self.error is not None:
            self.overcome()
        if (mistake := self._mistake(ctx)) is not None:
            raise StageError(f"{self.step.name} called {mistake}")
        self.state, self.task = "running", asyncio.current_task()
        try:
            self.output = await self.inner(self.ctx)
        except (KeyboardInterrupt, SystemExit) as error:  # wrappers see a crash as a failure and may retry it
            pressed = is_pressed(error)  # no wrapper retries or answers that
            scrubbed = error if pressed else self.ctx.run.scrubbed(crashed(self.ctx, error))
            self.state, self.error, self.failed_in = "failed", scrubbed, self.ctx.run.step
            if pressed:
                raise
            raise scrubbed from error
        except BaseException as error:
            scrubbed = self.ctx.run.scrubbed(error)  # before a wrapper records it
            self.state, self.error, self.failed_in = "failed", scrubbed, self.ctx.run.step
            if scrubbed is not error:
                raise scrubbed from None
            raise
        else:
            self.state = "done"
            self.shown = self.ctx.output if self.output is self.ctx.run.output else self.output
            return self.shown
        finally:
            self.ctx.run.step = self.step

    def _mistake(self, ctx: InvokeContext | None) -> str | None:
        if ctx is not None and ctx is not self.ctx:
            return f"next({type(ctx).__name__}); write `await next()` or `await next(ctx)`"
        if self.is_over:  # a task of the wrapper begins it: the tool would run after the call has its outcome
            return "next() after it had ended; await next() in around_execute"
        if self.state == "running":
            return "next() while its first call was still running"
        if self.state != "new" and not self.repeats:
            return "next() twice; a hook that retries declares repeats = True"
        return None

    def ended(self, error: BaseException, *, ignored: bool) -> None:
        """Take note of the error with which the wrapper itself ended."""
        ctx = self.ctx
        if error is self.error:
            ctx.run.step = self.failed_in  # the error passed through this hook from another step
        elif self.error is not None:
            self.overcome()
        if self.state == "done" and ctx.run.claim is not None and not (ignored or isinstance(error, ControlRespond)):
            ctx.run.claim.wrapper_failed(error)

    def overcome(self) -> None:
        """Log the failure of the last ``next()`` if nothing expected it: the wrapper handles it, so no one else will."""
        error, failed_in = self.error, self.failed_in
        assert error is not None
        self.error = None
        emit_fault(LogEvent.ATTEMPT_FAILED, error, ctx=self.ctx, stage=failed_in.stage, hook=failed_in.name)

    async def end(self) -> None:
        """Cancel a call of ``next()`` that the wrapper left behind in another task, and wait for its end."""
        if self.task is not None and self.task is not asyncio.current_task():
            await cancel_and_wait(self.task)
        elif self.ctx.run.claim is not None:  # driven by hand, and left in the middle: the tool may have begun
            self.ctx.run.claim.failed(StageError(f"{self.step.name} left next() in the middle"))


def _layer(
    call: Callable[..., Awaitable[object]], step: PlanStep, inner: Inner, registration: Registration, replaced: Replaced
) -> Inner:
    applies = applies_to(registration)
    repeats = bool(registration.option("repeats", False))
    ignores = registration.option("on_failure", "deny") == "ignore"
    if limit := registration.option("timeout"):
        call = limited(call, float(limit), step)

    async def layer(ctx: InvokeContext) -> object:
        ctx.run.step = step
        if applies is not None and not await applies(ctx):
            return await inner(ctx)
        inner_call = _NextCall(ctx, step, inner, repeats)
        try:
            try:
                output = await call(ctx, inner_call.next)
            finally:
                inner_call.is_over = True
                if inner_call.state == "running":
                    await inner_call.end()
        except BaseException as raised:
            error = counted(ctx, raised)
            ignored = ignores and inner_call.state in {"new", "done"} and is_failure(error)
            inner_call.ended(error, ignored=ignored)
            if not ignored:
                if error is raised:
                    raise
                raise error from None
            ctx.suppress(error)
            return inner_call.output if inner_call.state == "done" else await inner(ctx)
        if inner_call.error is not None:
            inner_call.overcome()
        if inner_call.state == "done" and output is inner_call.shown:
            return inner_call.output
        return replaced(ctx, inner_call, output)

    return layer


def _awaited(call: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    """Await the result of a ``def`` wrapper, which may return the awaitable of ``next()``, or a value."""

    async def awaited(ctx: InvokeContext, proceed: Callable[[], object]) -> object:
        answer = call(ctx, proceed)
        return await answer if inspect.isawaitable(answer) else answer

    return awaited
