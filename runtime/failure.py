"""What happens when an invocation fails: name the outcome, tell ``on_error``, keep the truth."""

from __future__ import annotations

import asyncio
from typing import Any

from callgate.errors import (
    Conflict,
    ControlSuspend,
    DeadlineExceeded,
    Denied,
    InFlight,
    Invalid,
    InvocationError,
    OutcomeUnknown,
    RetryLater,
    Suspended,
    ToolFailed,
)
from callgate.hooks.plan import Plan
from callgate.hooks.stages import OnFailure, Section
from callgate.hooks.step import SYNC
from callgate.runtime.leases import RELEASE_LIMIT, carry
from callgate.tools.calls import ErrorInfo, Outcome

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (Invalid, Outcome.INVALID),
    (Denied, Outcome.DENIED),
    (RetryLater, Outcome.RETRY_LATER),
    (Suspended, Outcome.SUSPENDED),
    (Conflict, Outcome.CONFLICT),
    (InFlight, Outcome.IN_FLIGHT),
    (OutcomeUnknown, Outcome.UNKNOWN),
)


async def fail(plan: Plan, ctx: Any, error: BaseException) -> None:
    """Record *error* as ``ctx.error`` with its outcome and run ``on_give_up`` and ``on_error``, carried through.

    A suspension is no error: its stages are not run. The original object is kept, never wrapped (contract C20).
    """
    failed_at = ctx.failed_in = ctx.step
    ctx.special = True
    if isinstance(error, ControlSuspend):
        ctx.pending = error.pending
        ctx.error, ctx.outcome = Suspended(error.pending), Outcome.SUSPENDED
        return
    if isinstance(error, GeneratorExit) and failed_at is not plan.running:
        raise error  # the coroutine itself is being closed: nothing may be awaited any more
    ctx.error = told = contain(plan, ctx, error)
    ctx.outcome = outcome_of(told, failed_at)
    if plan.on_give_up and plan.repeats and ctx.tries and not ctx.executed and ctx.outcome is not Outcome.CANCELLED:
        await _tell(ctx, plan.on_give_up)
    await _tell(ctx, plan.on_error)


async def _tell(ctx: Any, steps: Any) -> None:
    for kind, call, step in steps:
        ctx.step = step
        try:
            if kind == SYNC:
                call(ctx)
            else:
                await carry(ctx, call(ctx), RELEASE_LIMIT)
        except BaseException as error:  # noqa: BLE001  (an observer that raises SystemExit is still an observer)
            if isinstance(error, InvocationError) or (isinstance(error, Exception) and error.__cause__ is ctx.error):
                if error.__cause__ is None:
                    error.__cause__ = ctx.error
                ctx.error, ctx.outcome = error, outcome_of(error, step)
            else:
                ctx.suppress(error)


def contain(plan: Plan, ctx: Any, error: BaseException) -> BaseException:
    """The error as the invocation's own: a fired deadline, a real cancellation, or what a tool must not do to its host."""
    if isinstance(error, asyncio.CancelledError):
        if ctx.alarm is not None and ctx.alarm.fired:
            ctx.alarm.forget()
            if ctx.abandoned:
                lost = OutcomeUnknown(f"{ctx.tool_id} was left behind after its deadline; it may still take effect")
                lost.__cause__ = error
                return lost
            late = DeadlineExceeded(f"{ctx.tool_id} did not end within its deadline")
            late.__cause__ = error
            return late
        task = asyncio.current_task()
        if ctx.deferred is not None or (task is not None and task.cancelling()):
            return error
        return _crashed(error)  # nobody cancelled us: the tool raised it by itself
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) and ctx.step is plan.running:
        return _crashed(error)
    return error


def _crashed(error: BaseException) -> ToolFailed:
    crashed = ToolFailed(f"the tool raised {type(error).__name__}", code="tool_crashed")
    crashed.__cause__ = error
    return crashed


def outcome_of(error: BaseException, step: Any) -> Outcome:
    """The outcome that an error means, given where it was raised."""
    if isinstance(error, asyncio.CancelledError):
        return Outcome.CANCELLED
    if isinstance(error, Invalid) and error.stage == "output":
        return Outcome.ERROR
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            return outcome
    denies = step.row.on_failure is OnFailure.DENY and step.row.section is Section.BEFORE
    return Outcome.DENIED if denies else Outcome.ERROR


def as_invocation_error(ctx: Any) -> BaseException:
    """What ``gate.invoke`` raises: an ``InvocationError`` with a correlation id, the original as its cause."""
    error: BaseException = ctx.error
    if isinstance(error, InvocationError):
        told = error
    elif not isinstance(error, Exception):
        return error
    elif ctx.outcome is Outcome.DENIED:
        told = Denied("a policy failed to run", code="policy_error")
        told.__cause__ = error
    else:
        told = ToolFailed(
            f"{ctx.tool_id} failed", code="tool_failed" if ctx.failed_in is ctx.plan.running else "hook_failed"
        )
        told.__cause__ = error
    told.correlation_id = ctx.request_id
    return told


def error_info(error: BaseException) -> ErrorInfo:
    """The value-free view of an error that may go to a model (design 5)."""
    if not isinstance(error, InvocationError):
        return ErrorInfo("error", InvocationError.default_public)
    issues = getattr(error, "issues", ()) if getattr(error, "stage", "") != "output" else ()
    return ErrorInfo(error.code, error.public, tuple(issues), error.correlation_id)
