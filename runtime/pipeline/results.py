"""Conversion of a finished context to a ``ToolResult`` or an exception."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from callgate.errors import InvocationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import FROZEN
from callgate.hooks.state.host import CallPlan
from callgate.runtime.pipeline.failure import MAY_HAVE_HAPPENED, as_invocation_error, error_info
from callgate.runtime.pipeline.run import run
from callgate.tools.calls import ErrorInfo, Outcome, ToolResult


def raise_or_keep(ctx: InvokeContext) -> BaseException:
    """Return the error that a gate raises: a cancellation unchanged, any other error as an ``InvocationError``."""
    error = None if ctx.run.error is None else as_invocation_error(ctx)
    surfaced = _deferred_first(ctx, error)
    if surfaced is error:
        ctx.run.error = error
    return surfaced


def surface_original(ctx: InvokeContext) -> BaseException:
    """Return the original error, never wrapped; a deferred cancellation takes precedence."""
    return _deferred_first(ctx, ctx.run.error)


def _deferred_first(ctx: InvokeContext, error: BaseException | None) -> BaseException:
    """Return the cancellation that arrived during a shielded step, with *error* as its context; else *error*."""
    cancelled = ctx.run.deferred
    if isinstance(error, InvocationError):
        error.pending_release = ctx.run.pending_release
    if cancelled is None or cancelled is error:
        assert error is not None
        return error
    if error is not None:
        cancelled.__context__ = error
    return cancelled


async def run_to_result(ctx: InvokeContext) -> ToolResult:
    """Run an invocation and return its result for every outcome; only a cancellation is raised."""
    try:
        await run(ctx.run.plan, ctx)
    except InvocationError:
        pass
    return result_of(ctx)


def result_of(ctx: InvokeContext) -> ToolResult:
    """Return the result of a finished invocation."""
    call, error = ctx.run.tool_call, ctx.run.error  # the view of a call would copy its arguments
    if ctx.run.finished is None:
        ctx.run.finished = ctx.run.plan.host.monotonic()
    ran: Any = None
    if ctx.run.input_log is not None or ctx.run.repair is not None or ctx.run.resumed is not None:
        from callgate.runtime.pipeline.changed_arguments import ran_with  # few calls need it

        ran = ran_with(ctx)
    unvalidated = ctx.run.plan.builtins.unvalidated
    provenance = {
        "validated": ctx.run.plan.builtins.arguments is not None and ctx.run.input_state == FROZEN,
        "no_schema_mode": None if unvalidated is None else unvalidated.mode_of(ctx.run.no_schema),
        "validator": getattr(ctx.run.plan.builtins.arguments, "id", None),
        "parse_rules": ctx.run.parse_rules,
        "output_validated": error is None and ctx.run.validate_response and ctx.run.plan.builtins.output is not None,
        "hydration": None if ctx.run.hydration is None else ctx.run.hydration.provenance,
        "repair": ctx.run.repair,
    }
    return ToolResult(
        call_id=f"call_{ctx.run.known_request_id}" if call is None else call.id,
        tool=ctx.run.plan.tool_id if call is None else call.name,
        outcome=Outcome.SUCCESS if error is None else ctx.run.outcome or Outcome.ERROR,
        output=ctx.run.output if error is None else None,
        error=None if error is None else error_info(error),
        retry_after=getattr(error, "retry_after", None),
        pending=ctx.run.pending,
        replayed=ctx.run.replayed,
        pending_release=ctx.run.pending_release,
        duration=ctx.duration,
        ran_with=ran,
        provenance=provenance,
        trace=None if ctx.run.trace is None else tuple(ctx.run.trace),
    )


def cancelled_call(call: Any, *, begun: bool = False) -> ToolResult:
    """Return the result of a call, hydrated or not, that was cancelled, such as by its tool once it had *begun*."""
    asked, text = getattr(call, "call", call), "The call was cancelled."
    if begun:
        text = f"{text} {MAY_HAVE_HAPPENED}"
    return ToolResult(asked.id, asked.name, Outcome.CANCELLED, error=ErrorInfo("cancelled", text))


async def typed(plan: CallPlan[InvokeContext], running: Coroutine[object, None, object]) -> object:
    """Return the output of a call of a tool object as the type of the function's annotation, instead of JSON."""
    output = await running
    convert = plan.record.from_json
    return output if convert is None else convert(output)


async def failing(error: Exception) -> object:
    """Raise an error when awaited."""
    raise error
