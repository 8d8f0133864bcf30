"""Conversion of a caller's arguments to a tool call, and of a tool call to its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias

from callgate.errors import InvocationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.runtime.call.options import CallOptions, apply_options
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall, User
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

Call: TypeAlias = ToolCall | HydrationResult
"""One call, from a model or from ``hydrate``."""
Callee: TypeAlias = Call | str | ToolRecord | type[Any] | Callable[..., Any]
"""The first argument of each method: a call, or a tool or its name."""

TraceTo: TypeAlias = Callable[[InvokeContext], list[Any]]
"""Returns the list that a traced call writes its rows to."""

_CALLS = (ToolCall, HydrationResult)


def as_call(registry: ToolRegistry, tool: Any, arguments: Any = None) -> Call:
    """Return the call for a tool or its name with arguments, or for a call.

    Raises:
        TypeError: *tool* is of another type, or is a call and *arguments* are given, too.
        UnknownTool: *registry* does not have this tool object.
    """
    if isinstance(tool, _CALLS):
        if arguments is not None:
            raise TypeError(
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


def as_calls(registry: ToolRegistry, calls: Iterable[Any]) -> list[Call]:
    """Return the calls for a list of calls and of pairs of a tool and its arguments.

    Raises:
        TypeError: an element is neither, or *calls* is one call.
        UnknownTool: *registry* does not have a tool object.
    """
    if isinstance(calls, (*_CALLS, str, dict)):
        raise TypeError("call_many takes several calls: gate.call_many([call, ...]), or gate.call(call) for one")
    return [as_call(registry, *_pair(one)) for one in calls]


def _pair(one: Any) -> tuple[Any, Any]:
    if isinstance(one, _CALLS):
        return one, None
    if isinstance(one, tuple) and len(one) == 2:  # pyright: ignore[reportUnknownArgumentType]
        return one
    raise TypeError(
        f"call_many takes calls and pairs, not {one!r:.80}; write ToolCall(name=..., arguments={{...}}) or "
        '("name", {...})'
    )


def _refuse_call(tool: Any) -> NoReturn:
    raise TypeError(
        f'a call takes a tool, its name, or a ToolCall, not {tool!r:.80}; write gate.call("name", {{...}}) or '
        "gate.call(ToolCall(name=..., arguments={...}))"
    )


def refuse_user(user: Any, name: str = "user") -> None:
    """Refuse a user of another type than ``User``.

    Raises:
        TypeError: *user* is not a ``User``; the message has the line to write.
    """
    if not isinstance(user, User):
        raise TypeError(f'{name} takes a User, not {type(user).__name__}; write {name}=User("ann")')


def context_of(plan: Plan, asked: ToolCall, given: Call, user: User, options: CallOptions) -> InvokeContext:
    """Make the context of a call. Arguments that ``hydrate`` signed or refused are not parsed again."""
    ctx = InvokeContext(plan, asked.arguments, user, plan.now())
    apply_options(ctx, options)
    ctx.run.tool_call = asked
    hydrated = given if isinstance(given, HydrationResult) else None
    if hydrated is not None and not (
        hydrated.success and not hydrated.vouched_for(plan.definition, plan.builtins.arguments)
    ):
        ctx.run.hydration = ctx.run.input = hydrated
    elif asked.truncated:
        ctx.run.input = asked  # not text: the fast path must not take it
    return ctx


def context_of_none(
    plan: Plan, asked: ToolCall, user: User, error: InvocationError, options: CallOptions
) -> InvokeContext:
    """Make the context of a call of an unknown tool: it fails with *error*, so that hooks record it."""
    ctx = InvokeContext(plan, asked.arguments, user, plan.now())
    apply_options(ctx, {**options, "deadline": None})
    ctx.run.step, ctx.run.tool_call, ctx.run.unknown = plan.start, asked, error
    return ctx
