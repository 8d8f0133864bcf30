"""``invoke_tool``: the orchestrator by itself, as the documents describe it (contract 83). A gate calls the same ``run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import Scope
from callgate.runtime.call.invoke import run
from callgate.runtime.call.results import surface_original
from callgate.runtime.engine import Engine, apply_options, new_instance
from callgate.tools.calls import ANONYMOUS, User
from callgate.tools.declaring.declare import as_tool


class _Unshared(ProviderRegistry):
    """The registry of calls that were given none: they share no session."""

    def request(self, session_id: str | None = None, owner: Any = None) -> Scope:
        return super().request()


async def invoke_tool(
    tool: Any,
    raw_input: Any = None,
    *,
    user: User = ANONYMOUS,
    session_id: str | None = None,
    request_id: str | None = None,
    registry: ProviderRegistry | None = None,
    resolve: Callable[[Any], Any] = new_instance,
    global_hooks_by_stage: Mapping[Any, Sequence[Any]] | None = None,
    deadline: float | None = None,
) -> Any:
    """One call through the whole lifecycle, without a gate (contract 83): the output, or the original error raised.

    Bare ``invoke_tool`` is open: what is not authorised by a hook is allowed. ``registry`` holds providers,
    ``resolve`` makes an instance of a hook class, ``deadline`` is in seconds. The plan is kept and used again for the
    same tool and hooks.

    Raises:
        RegistrationError: the tool or a hook is refused.
        Denied, RetryLater, Suspended, Invalid: as hooks and validation decide.
        Exception: whatever the tool raised.
    """
    record = as_tool(tool)
    hooks = {str(stage): tuple(hooks) for stage, hooks in (global_hooks_by_stage or {}).items()}
    key = (
        None if registry is None else id(registry),
        resolve,
        tuple((stage, tuple(map(id, listed))) for stage, listed in hooks.items()),
    )
    plans = record.plans
    known = plans.get(key)
    if known is None:
        engine = Engine(registry if registry is not None else _Unshared(), surface_original, resolve=resolve)
        engine.plan_for = lambda other: engine.compile(as_tool(other), (), hooks)
        if len(plans) >= 64:
            plans.clear()
        known = plans[key] = (engine, engine.compile(record, (), hooks))
    engine, plan = known
    ctx = InvokeContext(plan, raw_input, user, engine.monotonic())
    apply_options(ctx, {"session_id": session_id, "request_id": request_id, "deadline": deadline})
    return await run(plan, ctx)
