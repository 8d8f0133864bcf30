"""The middleware of a plan: ``around_execute`` hooks nested around the attempt, composed once, at registration."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from callgate.errors import StageError
from callgate.hooks.guards import applies_to, is_failure, limited
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, select_for_stage
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, Compiled, Step
from callgate.runtime.call.failure import crashed

Inner: TypeAlias = Callable[[Any], Awaitable[Any]]


def wrap_attempt(plan: Plan, attempt: Inner) -> Inner:
    """Wrap the attempt in the middleware of its plan; the result is the output."""
    chosen = select_for_stage(Stage.AROUND_EXECUTE, plan.definition, plan.registrations)
    return _outermost(nested(zip(plan.around, chosen, strict=True), attempt))


def nested(wrappers: Iterable[tuple[Compiled, Registration]], inner: Inner) -> Inner:
    """Wrap *inner* in its middleware; the first wrapper is outermost."""
    for (kind, call, step), registration in reversed(list(wrappers)):
        inner = _layer(call if kind == ASYNC else _awaited(call), step, inner, registration)
    return inner


class _Turn:
    """The state of one wrapper in one invocation: permission to call ``next()``, and its result."""

    __slots__ = ("ctx", "error", "failed_in", "inner", "output", "repeats", "state", "step")

    def __init__(self, ctx: Any, step: Step, inner: Inner, repeats: bool) -> None:
        self.ctx = ctx
        self.step = step
        self.inner = inner
        self.repeats = repeats
        self.state = "new"
        self.output: Any = None
        self.error: BaseException | None = None
        self.failed_in = step

    async def proceed(self, ctx: Any = None) -> Any:
        """Continue with the next wrapper or the tool; the wrapper calls this as ``next()`` or ``next(ctx)``."""
        if ctx is not None and ctx is not self.ctx:
            raise StageError(
                f"{self.step.name} called next({type(ctx).__name__}); write `await next()` or `await next(ctx)`"
            )
        if self.state == "running":
            raise StageError(f"{self.step.name} called next() while its first call was still running")
        if self.state != "new" and not self.repeats:
            raise StageError(f"{self.step.name} called next() twice; a hook that retries declares repeats = True")
        self.state = "running"
        try:
            self.output = await self.inner(self.ctx)
        except (KeyboardInterrupt, SystemExit) as error:  # wrappers see a crash as a failure and may retry it
            told = self.ctx.run.scrubbed(crashed(self.ctx, error))
            self.state, self.error, self.failed_in = "failed", told, self.ctx.run.step
            raise told from error
        except BaseException as error:
            told = self.ctx.run.scrubbed(error)  # before a wrapper records it
            self.state, self.error, self.failed_in = "failed", told, self.ctx.run.step
            if told is not error:
                raise told from None
            raise
        else:
            self.state = "done"
            return self.output
        finally:
            self.ctx.run.step = self.step


def _layer(call: Callable[..., Any], step: Step, inner: Inner, registration: Registration) -> Inner:
    applies = applies_to(registration)
    repeats = bool(registration.option("repeats", False))
    ignores = registration.option("on_failure", "deny") == "ignore"
    if limit := registration.option("timeout"):
        call = limited(call, float(limit), step)

    async def layer(ctx: Any) -> Any:
        ctx.run.step = step
        if applies is not None and not await applies(ctx):
            return await inner(ctx)
        turn = _Turn(ctx, step, inner, repeats)
        try:
            return await call(ctx, turn.proceed)
        except BaseException as error:
            if error is turn.error:
                ctx.run.step = turn.failed_in  # the error passed through this hook from another step
            if not (ignores and turn.state in {"new", "done"} and is_failure(error)):
                raise
            ctx.suppress(error)
        return turn.output if turn.state == "done" else await inner(ctx)

    return layer


def _awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    """Await the result of a ``def`` wrapper, which may return the awaitable of ``next()``, or a value."""

    async def awaited(ctx: Any, proceed: Callable[[], Any]) -> Any:
        answer = call(ctx, proceed)
        return await answer if inspect.isawaitable(answer) else answer

    return awaited


def _outermost(inner: Inner) -> Inner:
    async def execute(ctx: Any) -> Any:
        output = await inner(ctx)
        if output is not ctx.run.output:
            ctx.run.output = output
        return output

    return execute
