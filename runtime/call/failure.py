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
    NotRecorded,
    OutcomeUnknown,
    RetryLater,
    Suspended,
    ToolError,
    ToolFailed,
)
from callgate.hooks.plan import Plan
from callgate.hooks.stages import OnFailure, Section
from callgate.hooks.step import SYNC
from callgate.providers.logs import Event, emit
from callgate.runtime.call.leases import RELEASE_LIMIT, carry
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

MAX_PUBLIC_BYTES = 1536
"""Public text that is longer is cut: with code, id and issues about it, a model reads 2 KiB of an error at most (I9)."""


async def fail(plan: Plan, ctx: Any, error: BaseException) -> None:
    """Record *error* as ``ctx.error`` with its outcome and run ``on_give_up`` and ``on_error``, carried through.

    A suspension is no error: its stages are not run. The original object is kept, never wrapped (contract C20).
    """
    failed_at = ctx.failed_in = ctx.step
    ctx.special = True
    if isinstance(error, ControlSuspend):
        try:
            await _suspend(ctx, error)
        except InvocationError as refused:
            error = refused
        except Exception as broken:  # noqa: BLE001  (nobody is told to wait for what was not written down)
            error = NotRecorded(f"{ctx.tool_id}: that it waits could not be written down")
            error.__cause__ = broken
        else:
            return
    elif ctx.claim is not None and failed_at is plan.running:
        ctx.claim.failed(error)
    if isinstance(error, GeneratorExit) and failed_at is not plan.running:
        raise error  # the coroutine itself is being closed: nothing may be awaited any more
    told = contain(ctx, error)
    ctx._error = told = told if ctx.scrubber is None else ctx.scrubber.error(told)
    ctx.outcome = Outcome.UNKNOWN if ctx.abandoned else outcome_of(told, failed_at)
    attempted = ctx.tries and failed_at.row.section is Section.EXECUTE
    if plan.repeats and attempted and ctx.outcome in {Outcome.ERROR, Outcome.UNKNOWN}:  # a decision is not given up on
        await _tell(ctx, plan.on_give_up)
    await _tell(ctx, plan.on_error)
    _log(ctx)


async def _suspend(ctx: Any, asked: ControlSuspend) -> None:
    """Let the call wait: where there is a store, it is written down before anybody is told.

    Raises:
        InvocationError: it may not wait, or could not be written down.
    """
    pending, step, waits = asked.pending, ctx.step, ctx.host.waits
    if waits is not None:
        pending = await carry(ctx, waits.keep(ctx, pending), RELEASE_LIMIT)
    ctx.pending = pending
    ctx._error, ctx.outcome = Suspended(pending), Outcome.SUSPENDED
    emit(Event.CALL_SUSPENDED, ctx, stage=step.stage, hook=step.name, kind=pending.kind)


def _log(ctx: Any) -> None:
    """How the call ended, once the hooks have had their say: by a decision, from outside, or because something broke."""
    error, step = ctx.error, ctx.failed_in
    if ctx.outcome is Outcome.CANCELLED:
        emit(Event.CALL_CANCELLED, ctx, stage=step.stage, hook=step.name)
        return
    decided = isinstance(error, InvocationError) and (
        isinstance(error, ToolError) or ctx.outcome not in {Outcome.ERROR, Outcome.UNKNOWN}
    )
    event, reason = Event.CALL_REFUSED if decided else Event.CALL_FAILED, None
    if isinstance(error, Denied | RetryLater) and error.args:
        reason = error.args[0]  # what ctx.abort and ctx.retry_after were given for the log
    emit(event, ctx, outcome=ctx.outcome, error=error, stage=step.stage, hook=step.name, reason=reason)


async def _tell(ctx: Any, steps: Any) -> None:
    for kind, call, step in steps:
        ctx.step, known = step, ctx.error
        try:
            answer = call(ctx)
            if kind != SYNC or asyncio.iscoroutine(answer):
                await carry(ctx, answer, RELEASE_LIMIT)
        except BaseException as error:  # noqa: BLE001  (an observer that raises SystemExit is still an observer)
            if isinstance(error, InvocationError) or (isinstance(error, Exception) and error.__cause__ is known):
                ctx._error = error
            else:
                ctx.suppress(error)
        if ctx.error is not known:
            _replace(ctx, known)


def _replace(ctx: Any, known: BaseException) -> None:
    """A hook raised or assigned another error: it takes the place of the known one, which becomes its cause (C18)."""
    if ctx.step.shadow or not isinstance(ctx.error, Exception):
        ctx._error = known
        return
    if ctx.error.__cause__ is None:
        ctx.error.__cause__ = known
    if ctx.scrubber is not None:
        ctx._error = ctx.scrubber.error(ctx.error)
    ctx.outcome = outcome_of(ctx.error, ctx.step)


def contain(ctx: Any, error: BaseException) -> BaseException:
    """The error as the invocation's own: a fired deadline, a real cancellation, or what nothing here may do to its host."""
    if isinstance(error, asyncio.CancelledError):
        if ctx.alarm is not None and ctx.alarm.fired:
            return _overdue(ctx, error) if ctx.alarm.forget() else error
        task, before = asyncio.current_task(), 0 if ctx.alarm is None else ctx.alarm.before
        if ctx.deferred is not None or (task is not None and task.cancelling() > before):
            return error
        return crashed(ctx, error)  # nobody cancelled us: it was raised by itself
    return error if isinstance(error, Exception) else crashed(ctx, error)


def _overdue(ctx: Any, error: BaseException) -> BaseException:
    """The deadline, and nobody else, cancelled the call."""
    ctx.deferred = None
    if ctx.abandoned:
        told: BaseException = OutcomeUnknown(
            f"{ctx.tool_id} was left behind after its deadline; it may still take effect"
        )
    else:
        told = DeadlineExceeded(f"{ctx.tool_id} did not end within its deadline")
    told.__cause__ = error
    return told


def crashed(ctx: Any, error: BaseException) -> BaseException:
    """What becomes of an exception that would stop the host, or pass for a cancellation that nobody sent (I13)."""
    what = type(error).__name__
    told = (
        ToolFailed(f"the tool raised {what}", code="tool_crashed")
        if ctx.step is ctx.plan.running
        else RuntimeError(f"{ctx.step.name} raised {what}")
    )
    told.__cause__ = error
    return told


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
    denied = ctx.outcome is Outcome.DENIED
    if isinstance(error, Denied if denied else InvocationError):
        told: InvocationError = error
    elif not isinstance(error, Exception):
        return error
    elif denied:
        public = error.public if isinstance(error, ToolError) else None
        told = Denied("a policy failed to run", code="policy_error", public=public)
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
    own_fault = getattr(error, "stage", "") == "output"  # the tool's, not the caller's
    issues = () if own_fault else getattr(error, "issues", ())
    status = InvocationError.http_status if own_fault else error.http_status
    return ErrorInfo(error.code, _short(error.public), tuple(issues), error.correlation_id, status)


def _short(text: str) -> str:
    data = text.encode("utf-8", "backslashreplace")
    return text if len(data) <= MAX_PUBLIC_BYTES else data[:MAX_PUBLIC_BYTES].decode("utf-8", "ignore") + "…"
