"""Calls without a gate: ``invoke_tool`` runs one through the whole lifecycle, ``hydrate_without_gate`` runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.runtime.call.calls import context_of, refuse_user
from callgate.runtime.call.invoke import run
from callgate.runtime.call.options import CallOptions, apply_options
from callgate.runtime.call.results import surface_original
from callgate.runtime.engine import Engine, new_instance
from callgate.tools.arguments.hydration import HydrationResult, Repairer, hydrate_and_construct
from callgate.tools.calls import ANONYMOUS, ToolCall, User
from callgate.tools.declaring.declare import as_tool
from callgate.tools.record import ToolRecord


class _Unshared(ProviderRegistry):
    """The providers of calls without a registry: each call has its own scope."""

    def request(self, session_id: str | None = None, owner: Any = None) -> ProviderScope:
        return super().request()


async def invoke_tool(
    tool: object,
    raw_input: object = None,
    *,
    user: User = ANONYMOUS,
    session_id: str | None = None,
    request_id: str | None = None,
    registry: ProviderRegistry | None = None,
    resolve: Callable[[Any], object] = new_instance,
    global_hooks_by_stage: Mapping[Any, Sequence[object]] | None = None,
    deadline: float | None = None,
) -> object:
    """Run one call through the whole lifecycle, without a gate; return the output or raise the original error.

    A bare ``invoke_tool`` runs without a permit: a call that no hook refuses is allowed. The plan is kept for the next
    call of the same tool with the same hooks.

    Args:
        tool: the tool itself; without a registry, a name does not work.
        raw_input: the arguments, as an object or JSON text; or a ``ToolCall``, or a result of ``hydrate``.
        user: the principal of the call.
        session_id: the session whose providers the call uses.
        request_id: the id of the request, for logs and records.
        registry: the providers.
        resolve: makes an instance of a hook class.
        global_hooks_by_stage: hooks besides the tool's own, ``{stage: [hook, ...]}``.
        deadline: seconds until the call is cancelled.

    Raises:
        RegistrationError: the tool or a hook is refused.
        Denied, RetryLater, Invalid: as hooks and validation decide. ``Denied`` also ends a call that asks for approval or
            input: nothing could resume it, so it is never suspended.
        TypeError: *tool* or *user* is of the wrong type; the message has the line to write.
        Exception: the error of the tool.
    """
    refuse_user(user)
    if isinstance(tool, str | ToolCall | HydrationResult):
        raise TypeError(
            "invoke_tool finds no tool by its name; write invoke_tool(the_tool, call), or use a gate: "
            "Gate([the_tool]).invoke(call)"
        )
    record = as_tool(tool)
    engine, plan = _plan_of(record, registry, resolve, global_hooks_by_stage or {})
    options: CallOptions = {"session_id": session_id, "request_id": request_id, "deadline": deadline}
    if isinstance(raw_input, ToolCall | HydrationResult):
        asked = raw_input.call if isinstance(raw_input, HydrationResult) else raw_input
        if asked.name != record.id:
            raise ValueError(f"this is a call of {asked.name!r}, and the tool is {record.id!r}; give its own tool")
        ctx = context_of(plan, asked, raw_input, user, options)
        return await run(ctx.run.plan, ctx)
    ctx = InvokeContext(plan, raw_input, user, engine.monotonic())
    apply_options(ctx, options)
    return await run(plan, ctx)


async def hydrate_without_gate(
    tool: object, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None
) -> HydrationResult:
    """Parse and validate one call without a gate, and make the instance of a class tool as ``result.tool``.

    **No policy authorises this**: the constructor runs with the model's arguments. ``run`` is not called. The instance is
    None for a function, for a class whose constructor takes more than the arguments, where a person has to approve
    first, and after a repair. ``gate.hydrate`` makes no instance, and ``gate.call`` makes one after authorisation.

    Args:
        tool: the tool itself.
        call: the call as the model sent it.
        wire: the name of the provider's format, for provenance.
        repair: a plain or async function that makes new arguments after a failed parse or validation, at most once.

    Raises:
        RegistrationError: the tool is refused.
        ValueError: the call is one of another tool.
    """
    record = as_tool(tool)
    if call.name != record.id:
        raise ValueError(f"this is a call of {call.name!r}, and the tool is {record.id!r}; give its own tool")
    _, plan = _plan_of(record, None, new_instance, {})
    hydrator = plan.builtins.hydrator(record, lazy=False)
    found = hydrator.hydrate(call, wire)
    if repair is not None:
        found = await hydrator.repair(found, repair)
    return hydrate_and_construct(hydrator, found)


def _identity(hooks: Mapping[Any, Sequence[object]]) -> tuple[object, ...]:
    """Return what differs when a hook was added or removed."""
    return tuple((stage, *map(id, listed)) for stage, listed in hooks.items()) if hooks else ()


def _plan_of(
    record: ToolRecord,
    registry: ProviderRegistry | None,
    resolve: Callable[[Any], object],
    hooks_by_stage: Mapping[Any, Sequence[object]],
) -> tuple[Engine, Plan]:
    """Return the plan of a tool with these hooks, and its engine; both are kept with the tool."""
    hooks = {str(stage): tuple(hooks) for stage, hooks in hooks_by_stage.items()}
    key = (None if registry is None else id(registry), resolve, _identity(hooks), _identity(record.hooks_by_stage))
    plans = record.plans
    known: tuple[Engine, Plan] | None = plans.get(key)
    if known is None:
        engine = Engine(registry if registry is not None else _Unshared(), surface_original, resolve=resolve)
        engine.plan_for = lambda other: engine.compile(as_tool(other), (), hooks)
        if len(plans) >= 64:
            plans.clear()
        known = plans[key] = (engine, engine.compile(record, (), hooks))
    return known
