"""Failure of an invocation: set the outcome, run ``on_error``, keep the original error."""

from __future__ import annotations

import asyncio
from functools import partial

from callgate.errors import (
    Conflict,
    ControlRespond,
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
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import OnFailure, Section
from callgate.hooks.state.host import CallPlan
from callgate.hooks.state.step import PlanStep, StepCall
from callgate.providers.foreign_errors import is_pressed, understood
from callgate.providers.logs import LogEvent, emit, emit_invalid_output
from callgate.providers.stores.effects import EffectState
from callgate.runtime.pipeline.deadlines import forget_leaked, overran
from callgate.runtime.pipeline.guards import closes, valueless
from callgate.runtime.pipeline.leases import finish_shielded, share
from callgate.tools.calls import ErrorInfo, Outcome
from callgate.tools.record import runs_again

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (Invalid, Outcome.INVALID),
    (Denied, Outcome.DENIED),
    (RetryLater, Outcome.RETRY_LATER),
    (Suspended, Outcome.SUSPENDED),
    (Conflict, Outcome.CONFLICT),
    (InFlight, Outcome.IN_FLIGHT),
    (OutcomeUnknown, Outcome.UNKNOWN),
)

MAY_HAVE_HAPPENED = "It may have taken effect: find out before you repeat it."
"""What a model reads after the failure of an irreversible tool without a key: nothing else stops its repeat."""

MAX_PUBLIC_BYTES = 1536
"""Longer public text is cut, so that a model reads at most 2 KiB of an error, with code, id and issues."""


async def fail(
    plan: CallPlan[InvokeContext], ctx: InvokeContext, error: BaseException, *, body_ended: bool = False
) -> None:
    """Record *error* as ``ctx.error`` with its outcome; run ``on_give_up`` and ``on_error`` under a shield.

    ``body_ended`` means that the body has ended before, so the error says nothing of its effect.

    A suspension is not an error and runs neither stage. The original object is kept, never wrapped.
    """
    error = counted(ctx, error)
    if ctx.run.grouped:
        await forget_leaked(ctx)
    try:
        await _record(plan, ctx, error, body_ended=body_ended)
    except BaseException as broken:
        if broken is error:  # the coroutine is being closed
            raise
        ctx.run.error, ctx.run.outcome = ToolFailed(f"{ctx.tool_id} failed"), Outcome.UNKNOWN
        emit(LogEvent.CALL_FAILED, ctx, outcome=Outcome.UNKNOWN, error=broken, stage=ctx.run.step.stage, hook="fail")


def counted(ctx: InvokeContext, error: BaseException) -> BaseException:
    """Return the error that counts (see ``understood``); note that it left a task group, and log the faults beside it."""
    if type(error) is ControlRespond:  # an answer from a cache is no failure, and nothing hides in it
        return error
    if not issubclass(type(error), BaseExceptionGroup):
        return understood(error)
    from callgate.providers.group_logs import counted_in  # few errors are groups

    ctx.run.grouped = True
    return counted_in(ctx, error)


async def _record(plan: CallPlan[InvokeContext], ctx: InvokeContext, error: BaseException, *, body_ended: bool) -> None:
    failed_at = ctx.run.failed_in = ctx.run.step
    overran(ctx)
    ctx.run.off_fast_path = True
    if isinstance(error, ControlSuspend):
        try:
            await _suspend(ctx, error)
        except InvocationError as refused:
            error = refused
        except Exception as broken:  # noqa: BLE001  (a suspension that was not stored is an error)
            error = NotRecorded(f"{ctx.tool_id}: its suspension could not be stored")
            error.__cause__ = broken
        else:
            return
    elif ctx.run.claim is not None and failed_at is plan.running and not (plan.in_units or body_ended):  # else decided
        ctx.run.claim.failed(error)
    if closes(error, plan.host.under_way.get(ctx)):
        plan.host.under_way.pop(ctx, None)
        raise error  # the coroutine is being closed: awaiting is no longer possible
    ctx.run.error = reported = ctx.run.scrubbed(contain(ctx, error))
    ctx.run.outcome = Outcome.UNKNOWN if ctx.run.body_left else outcome_of(reported, failed_at)
    attempted = ctx.run.tries and failed_at.row.section is Section.EXECUTE
    if (
        plan.repeats and attempted and ctx.run.outcome in {Outcome.ERROR, Outcome.UNKNOWN}
    ):  # on_give_up does not run for a decision
        await _run_error_hooks(ctx, plan.on_give_up)
    await _run_error_hooks(ctx, plan.on_error)
    _log(ctx, failed_at)


async def _suspend(ctx: InvokeContext, request: ControlSuspend) -> None:
    """Suspend the call; the suspension is stored before the caller receives it.

    Raises:
        InvocationError: the call may not be suspended, or the suspension could not be stored.
    """
    pending, step, waits = request.pending, ctx.run.step, ctx.run.plan.host.suspensions
    if waits is None:  # nothing could resume the call
        raise Denied(
            f"{ctx.tool_id} asks for {pending.kind}, and a call without a gate cannot wait for it. Call the tool through "
            "a gate with a store: Gate([the_tool], store=...).call(...)",
            code="approval_required" if pending.kind == "approval" else "no_gate",
            no_effect=True,
        )
    ctx.run.pending = pending = await finish_shielded(ctx, waits.keep(ctx, pending), partial(share, ctx))
    ctx.run.error, ctx.run.outcome = Suspended(pending), Outcome.SUSPENDED
    emit(LogEvent.CALL_SUSPENDED, ctx, stage=step.stage, hook=step.name, kind=pending.kind)


def _log(ctx: InvokeContext, step: PlanStep) -> None:
    """Log the outcome after the hooks have run: a refusal, a cancellation, or a failure."""
    error = ctx.run.error
    if ctx.run.outcome is Outcome.CANCELLED:
        emit(LogEvent.CALL_CANCELLED, ctx, stage=step.stage, hook=step.name)
        return
    decided = isinstance(error, InvocationError) and (
        isinstance(error, ToolError) or ctx.run.outcome not in {Outcome.ERROR, Outcome.UNKNOWN}
    )
    if type(error) is Invalid and error.stage == "output":
        emit_invalid_output(ctx, str(error), stage=step.stage, hook=step.name)
    event = LogEvent.CALL_REFUSED if decided else LogEvent.CALL_FAILED
    if error is not None and type(error).__name__ == "SynchronousOnlyOperation":
        from callgate.runtime.pipeline.thread_settings import explain_sync_only  # only with Django

        explain_sync_only(error, f"{step.name} of {ctx.tool_id}")
    reason = error.args[0] if isinstance(error, Denied | RetryLater) and error.args else None  # as ctx.abort gives it
    emit(event, ctx, outcome=ctx.run.outcome, error=error, stage=step.stage, hook=step.name, reason=reason)


async def _run_error_hooks(ctx: InvokeContext, steps: tuple[StepCall, ...]) -> None:
    for _, call, step in steps:
        ctx.run.step, known = step, ctx.run.error
        try:
            if (answer := call(ctx)) is not None:
                await finish_shielded(ctx, valueless(step, answer), partial(share, ctx))
        except BaseException as raised:  # noqa: BLE001  (even SystemExit from an observer is suppressed)
            error = understood(raised)
            if isinstance(error, InvocationError) or (isinstance(error, Exception) and error.__cause__ is known):
                ctx.run.error = error
            else:
                ctx.suppress(error)
        if known is not None and ctx.run.error is not known:
            _replace(ctx, known)


def _replace(ctx: InvokeContext, known: BaseException) -> None:
    """Replace the known error by an error of a hook; the known error becomes its cause."""
    if ctx.run.step.shadow or not isinstance(ctx.run.error, Exception):
        ctx.run.error = known
        return
    if ctx.run.error.__cause__ is None:
        ctx.run.error.__cause__ = known
    ctx.run.error = ctx.run.scrubbed(ctx.run.error)
    ctx.run.outcome = outcome_of(ctx.run.error, ctx.run.step)


def contain(ctx: InvokeContext, error: BaseException) -> BaseException:
    """Return the error to report: an expired deadline, a real cancellation, or the replacement of a crash."""
    if isinstance(error, asyncio.CancelledError):
        if ctx.run.alarm is not None and ctx.run.alarm.fired:
            second = ctx.run.alarm.came_second(error)
            return _overdue(ctx, error) if ctx.run.alarm.forget() and not second else error
        task, before = asyncio.current_task(), 0 if ctx.run.alarm is None else ctx.run.alarm.before
        if ctx.run.deferred is not None or (task is not None and task.cancelling() > before):
            return error
        return crashed(ctx, error)  # the task was not cancelled: the tool or hook raised it
    return error if isinstance(error, Exception) else crashed(ctx, error)


def ignored_deadline(ctx: InvokeContext) -> BaseException:
    """Return the error of a call that suppressed the cancellation of its deadline and returned later."""
    ctx.run.step = ctx.run.plan.running
    return _out_of_time(ctx, "suppressed the cancellation of its deadline and ended later")


def _overdue(ctx: InvokeContext, error: BaseException) -> BaseException:
    """Return the error of a call that only its deadline cancelled."""
    ctx.run.deferred = None
    if ctx.run.body_left:
        reported: BaseException = OutcomeUnknown(
            f"{ctx.tool_id} was abandoned after its deadline; it may still take effect"
        )
    else:
        reported = _out_of_time(ctx, "did not end within its deadline")
    reported.__cause__ = error
    return reported


def _out_of_time(ctx: InvokeContext, deed: str) -> DeadlineExceeded:
    alarm, idle = ctx.run.alarm, ctx.run.idle
    if alarm is None or idle is None or not alarm.was_idle:
        return DeadlineExceeded(f"{ctx.tool_id} {deed}")
    return DeadlineExceeded(
        f"{ctx.tool_id} reported no progress for {idle.seconds:g} s; call ctx.progress more often, or raise idle=",
        public="The call made no progress for too long.",
        code="idle_timeout",
    )


def crashed(ctx: InvokeContext, error: BaseException) -> BaseException:
    """Convert an exception that would stop the host, or a ``CancelledError`` without a cancellation."""
    if is_pressed(error):
        ctx.run.defer(error)
    what = type(error).__name__
    reported = (
        ToolFailed(f"the tool raised {what}", code="tool_crashed")
        if ctx.run.step is ctx.run.plan.running
        else RuntimeError(f"{ctx.run.step.name} raised {what}")
    )
    reported.__cause__ = error
    return reported


def outcome_of(error: BaseException, step: PlanStep) -> Outcome:
    """Return the outcome of an error, given the step that raised it."""
    if isinstance(error, asyncio.CancelledError):
        return Outcome.CANCELLED
    if isinstance(error, Invalid) and error.stage == "output":
        return Outcome.ERROR
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            return outcome
    denies = step.row.on_failure is OnFailure.DENY and step.row.section is Section.BEFORE
    return Outcome.DENIED if denies else Outcome.ERROR


def as_invocation_error(ctx: InvokeContext) -> BaseException:
    """Return the ``InvocationError`` that ``gate.invoke`` raises: with a correlation id, and the original as cause."""
    error = ctx.run.error
    assert error is not None
    denied = ctx.run.outcome is Outcome.DENIED
    if isinstance(error, Denied if denied else InvocationError):
        reported: InvocationError = error
    elif not isinstance(error, Exception):
        return error
    elif denied:
        public = error.public if isinstance(error, ToolError) else None
        reported = Denied("a policy failed to run", code="policy_error", public=public)
        reported.__cause__ = error
    else:
        reported = ToolFailed(
            f"{ctx.tool_id} failed",
            code="hook_failed" if _is_of_hook(ctx.run.failed_in or ctx.run.step) else "tool_failed",
        )
        reported.__cause__ = error
    reported.correlation_id = ctx.request_id
    if (
        runs_again(ctx.run.plan.record)
        and not reported.public.endswith(MAY_HAVE_HAPPENED)
        and _may_have_happened(ctx, reported)
    ):
        reported.public = f"{_short(reported.public)} {MAY_HAVE_HAPPENED}"
    return reported


def _may_have_happened(ctx: InvokeContext, error: BaseException) -> bool:
    """Return True if a failed call may have had its effect, and neither its text nor the ledger tells a repeat so."""
    claim = ctx.run.claim
    if claim is None or isinstance(error, ToolError | OutcomeUnknown):
        return False
    return claim.outcome(ctx.run) is not EffectState.NO_EFFECT


def _is_of_hook(step: PlanStep) -> bool:
    """Return False for the tool's body and its unit of work."""
    return step.hook is not None or step.row.section is not Section.EXECUTE


def error_info(error: BaseException) -> ErrorInfo:
    """Return the description of an error that may go to a model; it contains no values."""
    if not isinstance(error, InvocationError):
        return ErrorInfo("error", InvocationError.default_public)
    own_fault = getattr(error, "stage", "") == "output"  # the fault of the tool, not of the caller
    issues = () if own_fault else getattr(error, "issues", ())
    status = InvocationError.http_status if own_fault else error.http_status
    return ErrorInfo(error.code, _short(error.public), tuple(issues), error.correlation_id, status)


def _short(text: str) -> str:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_PUBLIC_BYTES:
        return text
    end = f" {MAY_HAVE_HAPPENED}" if text.endswith(MAY_HAVE_HAPPENED) else ""
    return data[: MAX_PUBLIC_BYTES - len(end)].decode("utf-8", "ignore").removesuffix(end) + "…" + end
