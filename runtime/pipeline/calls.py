"""Conversion of a caller's arguments to a tool call, and of a tool call to its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn, TypeAlias

from callgate.errors import CallgateError, Invalid, InvocationError, RegistrationError, ToolFailed
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.state.facts import TraceRow
from callgate.providers.ids import is_id
from callgate.runtime.pipeline.compile import plan_with_approval
from callgate.runtime.pipeline.options import BadCall, CallOptions, apply_options, checked_id
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall, User
from callgate.tools.declaring.declare import as_tool
from callgate.tools.execution import TaskIds
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.values import thaw

Call: TypeAlias = ToolCall | HydrationResult
"""One call, from a model or from ``hydrate``."""
Callee: TypeAlias = Call | str | ToolRecord | type | Callable[..., object]
"""The first argument of each method: a call, or a tool or its name."""

TraceTo: TypeAlias = Callable[[InvokeContext], list[TraceRow]]
"""Returns the list that a traced call writes its rows to."""

_CALLS = (ToolCall, HydrationResult)


def as_call(registry: ToolRegistry, tool: object, arguments: object = None) -> Call:
    """Return the call for a tool or its name with arguments, or for a call.

    Raises:
        TypeError: *tool* is of another type, or is a call and *arguments* are given, too.
        UnknownTool: *registry* does not have this tool object.
    """
    if isinstance(tool, _CALLS):
        if arguments is not None:
            raise BadCall(
                "a ToolCall has its own arguments; write gate.call(call), or gate.call(call.name, arguments) to "
                "replace them"
            )
        return tool
    if isinstance(tool, str):
        return ToolCall(name=tool, arguments=arguments)
    try:
        name = registry.id_of(tool)
    except TypeError:
        _refuse_call(tool)
    return ToolCall(name=name, arguments=arguments)


def as_calls(registry: ToolRegistry, calls: Iterable[object]) -> list[Call]:
    """Return the calls for a list of calls and of pairs of a tool and its arguments.

    Raises:
        TypeError: an element is neither, or *calls* is one call.
        UnknownTool: *registry* does not have a tool object.
    """
    if isinstance(calls, (*_CALLS, str, dict)):
        raise TypeError("call_many takes several calls: gate.call_many([call, ...]), or gate.call(call) for one")
    return [as_call(registry, *_pair(one)) for one in calls]


def _pair(one: object) -> tuple[object, object]:
    if isinstance(one, _CALLS):
        return one, None
    if isinstance(one, tuple) and len(one) == 2:  # pyright: ignore[reportUnknownArgumentType]
        return one
    raise TypeError(
        f"call_many takes calls and pairs, not {one!r:.80}; write ToolCall(name=..., arguments={{...}}) or "
        '("name", {...})'
    )


def _refuse_call(tool: object) -> NoReturn:
    raise BadCall(
        f'a call takes a tool, its name, or a ToolCall, not {type(tool).__name__}; write gate.call("name", {{...}}) or '
        "gate.call(ToolCall(name=..., arguments={...}))"
    )


def nearest_call(tool: object, arguments: object) -> ToolCall:
    """Return the call that a refused request comes nearest to, for its result and its record."""
    if isinstance(tool, _CALLS):
        return tool.call if isinstance(tool, HydrationResult) else tool
    try:
        name = tool if isinstance(tool, str) else as_tool(tool).id
    except (TypeError, CallgateError):
        name = ""
    return ToolCall(name=name, arguments=arguments)


def known_options(options: CallOptions) -> CallOptions:
    """Return the options that a call which cannot begin keeps: its ids."""
    known: CallOptions = {}
    if (request_id := options.get("request_id")) and is_id(request_id):
        known["request_id"] = request_id
    if is_id(session_id := options.get("session_id")):
        known["session_id"] = session_id
    if isinstance(task := options.get("task"), TaskIds):
        known["task"] = task
    return known


def refusal_of(error: Exception) -> InvocationError:
    """Return the error of a call that cannot begin: the caller's mistake, or a plan that is refused."""
    if isinstance(error, InvocationError):
        return error
    if isinstance(error, RegistrationError):
        refused: InvocationError = ToolFailed("the plan of the tool is refused", code=error.code)
    else:
        public = str(error) if isinstance(error, BadCall) else "The call is not valid."
        refused = Invalid(str(error), stage="call", code="bad_call", public=public)
    refused.__cause__ = error
    refused.no_effect = True
    return refused


def refuse_user(user: object, name: str = "user") -> None:
    """Refuse a user of another type than ``User``.

    Raises:
        TypeError: *user* is not a ``User``; the message has the line to write.
    """
    if not isinstance(user, User):
        raise BadCall(f'{name} takes a User, not {type(user).__name__}; write {name}=User("ann")')


def context_of(plan: Plan, asked: ToolCall, given: Call, user: User, options: CallOptions) -> InvokeContext:
    """Make the context of a call. Arguments that ``hydrate`` signed or refused are not parsed again.

    A call whose arguments a repairer wrote gets the plan that asks for approval of them.

    Raises:
        Invalid: an id cannot be stored.
    """
    checked_id("call id", asked.id)
    hydrated = given if isinstance(given, HydrationResult) else None
    if hydrated is not None and hydrated.success and not hydrated.vouched_for(plan.definition, plan.builtins.arguments):
        hydrated = None
    repair = hydrated.token.repair if hydrated is not None and hydrated.success else None
    arguments = asked.arguments
    if repair is not None and hydrated is not None:
        plan, arguments = plan_with_approval(plan, repaired=True, answered=False), thaw(hydrated.arguments)
    ctx = InvokeContext(plan, arguments, user, plan.now())
    apply_options(ctx, options)
    ctx.run.tool_call = asked
    if hydrated is not None:
        ctx.run.hydration = ctx.run.input = hydrated
        if repair is not None:
            ctx.run.repair = repair
    elif asked.truncated:
        ctx.run.input = asked  # not text: the fast path must not take it
    return ctx


def context_of_none(
    plan: Plan, asked: ToolCall, user: User, error: InvocationError, options: CallOptions
) -> InvokeContext:
    """Make the context of a call of an unknown tool: it fails with *error*, so that hooks record it."""
    ctx = InvokeContext(plan, asked.arguments, user, plan.now())
    apply_options(ctx, {**options, "deadline": None, "idle": None})
    ctx.run.step, ctx.run.tool_call, ctx.run.unknown = plan.start, asked, error
    return ctx
