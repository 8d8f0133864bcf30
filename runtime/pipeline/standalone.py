"""Calls without a gate: ``invoke_tool`` runs one through the whole lifecycle, ``hydrate_without_gate`` runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Never

from callgate.errors import RegistrationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import check_by_stage, gather_registrations
from callgate.hooks.state.host import new_instance
from callgate.providers.clock import GateClock
from callgate.providers.guesses import accepted
from callgate.providers.kinds import annotations_of, fault_of_kind
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import EffectRecord
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.options.gate import Effects
from callgate.runtime.pipeline.builtin import BuiltIns
from callgate.runtime.pipeline.calls import context_of, refuse_user
from callgate.runtime.pipeline.compile import compile_plan
from callgate.runtime.pipeline.options import CallOptions, apply_options
from callgate.runtime.pipeline.results import surface_original
from callgate.runtime.pipeline.run import run
from callgate.runtime.pipeline.services import EffectClaims, LeftBehind, Services
from callgate.runtime.pipeline.under_way import UnderWay
from callgate.tools.arguments.hydration import HydrationResult, Repairer, hydrate_and_construct
from callgate.tools.calls import ANONYMOUS, ToolCall, User
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import Effect
from callgate.tools.record import ToolRecord


class _Unshared(ProviderRegistry):
    """The providers of calls without a registry: each call has its own scope."""

    def request(self, session_id: str | None = None, owner: object = None) -> ProviderScope:
        return super().request()


_LINES = {
    "registry": "registry=ProviderRegistry(), or await gate.invoke(tool, arguments) for a gate",
    "resolve": "resolve=lambda cls: cls()",
    "store": "store=SqlStore(address), opened before",
}


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
    idle: float | None = None,
    store: Store | None = None,
    **camel_case: Never,
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
        idle: seconds without progress after which the call is cancelled.
        store: an open store, for effects and for hooks without a store of their own.
        **camel_case: refused with the line to write; the source documents spell the keywords so.

    Raises:
        RegistrationError: the tool, a hook or the store is refused; the message has the line to write.
        Denied, RetryLater, Invalid: as hooks and validation decide. ``Denied`` also ends a call that asks for approval or
            input: nothing could resume it, so it is never suspended.
        TypeError: *tool* or *user* is of the wrong type; the message has the line to write.
        Exception: the error of the tool.
    """
    _refuse_guesses(tool, camel_case)
    refuse_user(user)
    record = as_tool(tool)
    services, plan, ledger = _plan_of(
        record, registry, resolve, {} if global_hooks_by_stage is None else global_hooks_by_stage, store
    )
    options: CallOptions = {"session_id": session_id, "request_id": request_id, "deadline": deadline, "idle": idle}
    if isinstance(raw_input, ToolCall | HydrationResult):
        asked = raw_input.call if isinstance(raw_input, HydrationResult) else raw_input
        if asked.name != record.id:
            raise ValueError(f"this is a call of {asked.name!r}, and the tool is {record.id!r}; give its own tool")
        ctx = context_of(plan, asked, raw_input, user, options)
    else:
        ctx = InvokeContext(plan, raw_input, user, services.monotonic())
        apply_options(ctx, options)
    if ledger is None or ledger.memory is not None:
        return await run(ctx.run.plan, ctx)
    return await _renewing(ledger, run(ctx.run.plan, ctx))


def _refuse_guesses(tool: object, camel_case: Mapping[str, object]) -> None:
    if camel_case or isinstance(tool, dict):
        given = {**(tool if isinstance(tool, dict) else {"tool": tool}), **camel_case}
        line = ", ".join(f"{name}=..." for name in accepted(invoke_tool, given))
        raise TypeError(f"invoke_tool takes keywords in snake case; write invoke_tool({line})")
    if isinstance(tool, str | ToolCall | HydrationResult):
        raise TypeError(
            "invoke_tool finds no tool by its name; write invoke_tool(the_tool, call), or use a gate: "
            "Gate([the_tool]).invoke(call)"
        )


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
    _, plan, _ = _plan_of(record, None, new_instance, {}, None, runs=False)
    hydrator = plan.builtins.hydrator(record, lazy=False, gated=False)
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
    store: Store | None,
    *,
    runs: bool = True,
) -> tuple[Services, Plan, Ledger | None]:
    """Return the plan of a tool with these hooks, its services and its ledger; all are kept with the tool."""
    try:
        hooks = {str(stage): tuple(hooks) for stage, hooks in hooks_by_stage.items()}
        own = _identity(record.hooks_by_stage)
    except (AttributeError, TypeError):
        check_by_stage(hooks_by_stage)
        check_by_stage(record.hooks_by_stage)
        raise
    key = (
        None if registry is None else id(registry),
        resolve,
        _identity(hooks),
        own,
        runs if store is None else id(store),
    )
    plans = record.plans
    known: tuple[Services, Plan, Ledger | None] | None = plans.get(key)
    if known is None:
        if isinstance(store, str):
            raise TypeError(
                "invoke_tool takes an open store, not its address; write store = store_at(address), await store.open(), "
                "then invoke_tool(..., store=store)"
            )
        for name, value in (("registry", registry), ("resolve", resolve), ("store", store)):
            if (fault := fault_of_kind(value, annotations_of(invoke_tool)[name])) is not None:
                raise TypeError(f"invoke_tool: {name} {fault}; write {_LINES[name]}")
        services, ledger = _services_for(
            registry if registry is not None else _Unshared(), resolve, store, lambda tool: compiled(as_tool(tool))
        )

        def compiled(other: ToolRecord) -> Plan:
            if runs and ledger is None:
                _refuse_promise(other)
            registrations = gather_registrations(other.definition, other, (), hooks)
            return compile_plan(other, registrations, services, builtins=BuiltIns.of(other, services))

        made = compiled(record)
        if len(plans) >= 64:
            plans.clear()
        known = plans[key] = (services, made, ledger)
    return known


def _services_for(
    registry: ProviderRegistry,
    resolve: Callable[[object], object],
    store: Store | None,
    plan_of: Callable[[object], Plan],
) -> tuple[Services, Ledger | None]:
    """Make the services of calls without a gate, and their ledger of effects, if they have a store."""
    kept: Store = MemoryStore() if store is None else store
    clock = GateClock(None, kept)
    ledger, claims = (None, None) if store is None else _ledger_in(store, clock)
    services = Services(
        registry=registry,
        store=kept,
        clock=clock,
        monotonic=clock.monotonic,
        plan_of=plan_of,
        effects=claims,
        surface=surface_original,
        under_way=UnderWay(),
        left_behind=LeftBehind(registry.sessions),
        resolve=resolve,
    )
    return services, ledger


def _refuse_promise(record: ToolRecord) -> None:
    """Refuse a tool whose repeats must not run again: without a ledger no repeat is recognised."""
    if record.definition.effect is not Effect.READ and (record.definition.key or record.dedupe is not None):
        raise RegistrationError(
            f"tool {record.id!r} promises that a repeat does not run again, and a bare invoke_tool keeps no ledger of "
            f"effects; write invoke_tool({record.id}, arguments, store=store) with an open store, or use a gate: "
            f"Gate([{record.id}], store=...)"
        )


def _ledger_in(store: Store, clock: GateClock) -> tuple[Ledger, EffectClaims]:
    """Return the ledger of effects in a store, and what plans need of it.

    Raises:
        RegistrationError: the store keeps no effects.
    """
    from callgate.runtime.effects.reconciling import reconcile
    from callgate.runtime.effects.steps import LedgerClaims

    async def ask(tenant: str, effect: EffectRecord, hooks: Sequence[object]) -> EffectRecord:
        return await reconcile(ledger.effects, ledger.now, tenant, effect, hooks)

    now: Callable[[], float] = getattr(store, "time", clock.now)  # processes that share it agree about leases
    ledger = Ledger(store, now, Effects(), ask)
    if ledger.store is not store:
        raise RegistrationError(
            f"the store {store.name!r} keeps no effects; write invoke_tool(..., store=SqlStore(address)), opened before"
        )
    return ledger, LedgerClaims(ledger)


async def _renewing(ledger: Ledger, running: Coroutine[object, None, object]) -> object:
    """Run a call, and renew the lease of its effect meanwhile."""
    from callgate.runtime.lifespan.background import BackgroundTask, BackgroundTasks

    background = BackgroundTasks()
    background.tasks.append(BackgroundTask("leases of effects", ledger.options.every, ledger.renew, urgent=True))
    background.start()
    try:
        return await running
    finally:
        await background.stop()
