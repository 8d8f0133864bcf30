"""From a finished context to what callers get: a ``ToolResult`` or an exception."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from callgate.errors import InvocationError
from callgate.hooks.builtin import FROZEN
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.runtime.call.failure import as_invocation_error, error_info
from callgate.runtime.call.invoke import run
from callgate.tools.calls import ErrorInfo, Outcome, ToolResult


def raise_or_keep(ctx: InvokeContext) -> BaseException:
    """What a gate raises: a cancellation as it came, anything else as an ``InvocationError`` (design 4)."""
    error = None if ctx.error is None else as_invocation_error(ctx)
    surfaced = _deferred_first(ctx, error)
    if surfaced is error:
        ctx._error = error
    return surfaced


def surface_original(ctx: InvokeContext) -> BaseException:
    """The error itself, never wrapped (contract C20); a cancellation that arrived meanwhile is not lost."""
    return _deferred_first(ctx, ctx.error)


def _deferred_first(ctx: InvokeContext, error: BaseException | None) -> BaseException:
    """A cancellation that arrived while a step was carried through comes before the *error*, which is its context."""
    cancelled = ctx.deferred
    if cancelled is None or cancelled is error:
        assert error is not None
        return error
    if error is not None:
        cancelled.__context__ = error
    return cancelled


async def run_to_result(ctx: InvokeContext) -> ToolResult:
    """Run an invocation, and make a result of whatever it comes to; only a cancellation is raised."""
    try:
        await run(ctx.plan, ctx)
    except InvocationError:
        pass
    return result_of(ctx)


def result_of(ctx: InvokeContext) -> ToolResult:
    """The result of a finished invocation."""
    call = ctx.tool_call
    error = ctx.error
    if ctx.finished is None:
        ctx.finished = ctx.host.monotonic()
    provenance = {
        "validated": ctx.plan.builtins.arguments is not None and ctx._input_state == FROZEN,
        "no_schema_mode": ctx.plan.builtins.mode,
        "validator": getattr(ctx.plan.builtins.arguments, "id", None),
        "parse_rules": ctx.parse_rules,
        "output_validated": error is None and ctx.validate_response and ctx.plan.builtins.output is not None,
        "hydration": None if ctx.hydration is None else ctx.hydration.provenance,
    }
    return ToolResult(
        call_id=call.id,
        tool=call.tool,
        outcome=Outcome.SUCCESS if error is None else ctx.outcome or Outcome.ERROR,
        output=ctx._output if error is None else None,
        error=None if error is None else error_info(error),
        retry_after=getattr(error, "retry_after", None),
        pending=ctx.pending,
        replayed=ctx.replayed,
        pending_release=ctx.pending_release,
        duration=ctx.duration,
        provenance=provenance,
        trace=None if ctx.trace is None else tuple(ctx.trace),
    )


def cancelled_call(call: Any) -> ToolResult:
    """The result for a call, hydrated or not, whose tool cancelled the very task it ran in."""
    asked = getattr(call, "call", call)
    return ToolResult(asked.id, asked.tool, Outcome.CANCELLED, error=ErrorInfo("cancelled", "The call was cancelled."))


async def typed(plan: Plan, running: Coroutine[Any, Any, Any]) -> Any:
    """The output of a call of a tool object: what the function's annotation says, not its JSON."""
    output = await running
    convert = plan.record.from_json
    return output if convert is None else convert(output)
