"""The engine: the state that one gate, or one bare ``invoke_tool``, shares among its invocations."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from callgate.errors import ProviderError, StoreUnsupported
from callgate.hooks.builtin import BuiltIns
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import OnRepair
from callgate.hooks.guards import constructor_parameters, marked_parameters, traced
from callgate.hooks.host import SuspendedCalls
from callgate.hooks.plan import Body, Claiming, Execution, Plan
from callgate.hooks.selection import Registration, gather_registrations
from callgate.hooks.stages import STAGES, Section
from callgate.hooks.unvalidated import NoSchemaPolicy
from callgate.providers.clock import Clock, SystemClock
from callgate.providers.exits import Exit
from callgate.providers.logs import LogEvent, emit
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.address import in_namespace
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory import MemoryStore
from callgate.runtime.call.around import wrap_attempt
from callgate.runtime.call.bodies import arguments_of, direct_call, make_body, runs_in_place, supplied_call
from callgate.runtime.call.closing import close, end_scope
from callgate.runtime.call.injection import Supply
from callgate.runtime.call.invoke import attempt
from callgate.runtime.call.leases import RELEASE_LIMIT, Carried, enter_lease, taken_off
from callgate.runtime.call.partials import shaped
from callgate.runtime.call.under_way import UnderWay
from callgate.tools.declaring.component import attached_validator
from callgate.tools.definition import Effect
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.validation import Engine as ValidatorEngine
from callgate.tools.schemas.validation import Formats, Validator, compile_schema

MAX_DEPTH = 8
"""Maximum depth of nested calls (``ctx.call`` inside ``ctx.call``)."""

CLOSING = 10.0
"""The default of ``Options.closing``, in seconds."""


def new_instance(cls: type) -> object:
    """The default ``resolve``: make a hook class without arguments."""
    return cls()


class Engine:
    """Compiles plans, and provides contexts with the services of a running gate (the ``Host`` of ``hooks/host.py``)."""

    def __init__(
        self,
        registry: ProviderRegistry,
        surface: Callable[[InvokeContext], BaseException],
        *,
        resolve: Callable[[type], object] = new_instance,
        clock: Clock | None = None,
        limits: Limits = DEFAULT_LIMITS,
        validator: ValidatorEngine | None = None,
        plan_for: Callable[[Any], Plan] | None = None,
        store: Store | None = None,
        on_repair: OnRepair = "approve",
        no_schema_policy: NoSchemaPolicy | None = None,
        formats: Formats | None = None,
        closing: float = CLOSING,
        hard_deadline: bool = False,
        namespace: str = "",
    ) -> None:
        system_time = clock is None or isinstance(clock, SystemClock)
        clock = clock or SystemClock()
        self.registry = registry
        self.surface = surface
        self.resolve = resolve
        self.limits = limits
        self.validator = validator
        self.on_repair: OnRepair = on_repair
        self.no_schema_policy = no_schema_policy
        self.formats: Formats | None = formats
        self.plan_for = plan_for
        self.closing = closing
        self.hard_deadline = hard_deadline
        self.monotonic = clock.monotonic
        self.wall_offset = clock.time() - clock.monotonic()
        self._namespace = namespace
        self.store: Store = in_namespace(store if store is not None else MemoryStore(clock.time), namespace)
        self.has_time_of_store = system_time and hasattr(self.store, "synchronise")
        self.claim: Claiming | None = None  # the step that claims an effect; set with a ledger
        self.waits: SuspendedCalls[InvokeContext] | None = None
        self.under_way = UnderWay()
        self.development = False
        self.nested_effects: dict[str, set[str]] = {}
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.left_behind: set[asyncio.Task[Any]] = set()
        registry.sessions.on_end = self._close_later

    def now(self) -> float:
        """Return the time since the epoch, in seconds."""
        return self.monotonic() + self.wall_offset

    def own_store(self, store: Store) -> Store:
        """See ``Host``. A store that is in a namespace stays in it, so that services can share it on purpose."""
        bound: str = getattr(store, "namespace", "")
        if not self._namespace or bound:
            return store
        try:
            return in_namespace(store, self._namespace)
        except StoreUnsupported:  # of another package; its documentation says what it shares
            return store

    async def synchronise(self) -> None:
        """Set the time by the store, if it has one and the application gave no clock.

        Processes that share a store then agree about leases, whatever the clocks of their machines say.

        Raises:
            StoreError: the store did not answer.
        """
        store: Any = self.store
        if self.has_time_of_store:
            await store.synchronise()
            self.wall_offset = store.time() - self.monotonic()

    # ------------------------------------------------------------------ compiling

    def compile(
        self,
        record: ToolRecord,
        shared: Sequence[Registration] = (),
        by_stage: Mapping[Any, Sequence[object]] | None = None,
        *,
        trace: bool = False,
        deadline: float | None = None,
        builtins: BuiltIns | None = None,
    ) -> Plan:
        """Compile the plan of one tool; *deadline* is in seconds, for a tool that declares none.

        *builtins* are those of an earlier plan of the tool: its schemas are not compiled again.

        Raises:
            RegistrationError: no engine enforces a schema, a hook lacks its stage, or a provider is missing.
        """
        definition = record.definition
        registrations = gather_registrations(definition, record, shared, by_stage)
        attached = attached_validator(record.component)
        if builtins is None or (attached is not None and builtins.arguments is not attached):
            builtins = self._builtins_of(record, attached)
        plan = Plan(
            record,
            registrations,
            builtins,
            self.resolve,
            self,
            surface=self.surface,
            supplies=lambda plan: self.supplies(record, plan.registrations),
            execution=execution_of,
            limit=deadline,
            straight=direct_call(record, hard=self._is_hard(record)),
            merges=runs_in_place(record, hard=self._is_hard(record)),
            trace=trace,
            claim=None if definition.effect is Effect.READ else self.claim,
        )
        emit(LogEvent.PLAN_COMPILED, tool=record.id, hooks=[one.name for one in registrations])
        return plan

    def _is_hard(self, record: ToolRecord) -> bool:
        """Return True if a body may be abandoned at its deadline: as the tool says, else as the gate does."""
        return self.hard_deadline if record.hard_deadline is None else record.hard_deadline

    def _builtins_of(self, record: ToolRecord, attached: Any) -> BuiltIns:
        """Make the built-in steps of a tool, and compile its schemas."""
        arguments = attached
        if arguments is None:
            arguments = self._validator(record.schema_of("parameters"), record)
        output = self._validator(record.schema_of("output"), record)
        return BuiltIns(
            record, arguments, output, self.limits, refuses=self.waits is None, no_schema=self.no_schema_policy
        )

    def supplies(self, record: ToolRecord, registrations: Sequence[Registration]) -> dict[Any, Supply]:
        """Return the providers of the marked parameters of a tool and its hooks, by function or class.

        Raises:
            ProviderError: a parameter has no provider.
        """
        bound = self.bound_by(registrations)
        found: dict[Any, Supply] = {}
        if record.injected:
            found[record] = Supply(self.registry, record.injected, bound, f"tool {record.id!r}")
        for one in registrations:
            found |= self.supplies_of_hook(one, bound)
        return found

    def supplies_of_hook(self, one: Registration, bound: frozenset[object]) -> dict[Any, Supply]:
        """Return the providers of a hook's marked parameters, where hooks bind the keys *bound*; raise as ``supplies``."""
        wanted: list[tuple[Any, str, Any]] = []
        within: set[Any] = set()  # the functions that run in an execution
        if one.is_class and self.resolve is new_instance:
            wanted.append((one.hook, f"hook {one.name}", constructor_parameters(one.hook)))
        for stage in one.all_stages():
            method = getattr(one.hook, stage.value)
            function = getattr(method, "__func__", method)
            wanted.append((function, f"hook {one.name}.{stage}", marked_parameters(one, stage)))
            if STAGES[stage].section is Section.EXECUTE:
                within.add(function)
        found = {key: Supply(self.registry, marked, bound, owner) for key, owner, marked in wanted if marked}
        for key, owner, _ in wanted:
            if key in found and found[key].in_unit and key not in within:
                raise ProviderError(
                    f"{owner} takes a provider of the scope 'execution'; only the tool, around_execute, will_execute and "
                    "did_execute are in an execution: use a provider of the scope 'request'"
                )
        return found

    def bound_by(self, registrations: Iterable[Registration]) -> frozenset[object]:
        """Return the keys of the providers that hooks bind."""
        key_of = self.registry.recipes.key_of
        enforced = [one for one in registrations if not one.is_shadow]
        return frozenset(key_of(token) for one in enforced for token in one.option("binds", ()))

    def _validator(self, schema: Mapping[str, object] | None, record: ToolRecord) -> Validator | None:
        if schema is None:
            return None
        formats = self.formats if record.formats is None else record.formats
        return compile_schema(schema, trusted=record.trusted, engine=self.validator, formats=formats)

    # ------------------------------------------------------------------ services for contexts

    def nested(self, ctx: InvokeContext, tool: object, arguments: object, attempt: int) -> Coroutine[Any, Any, Any]:
        """See ``InvokeContext.call``."""
        from callgate.runtime.call.nesting import nested_call  # few tools call others

        return nested_call(ctx, tool, arguments, attempt, self.plan_for, MAX_DEPTH)

    async def lease(self, ctx: InvokeContext, manager: AbstractAsyncContextManager[object]) -> Any:
        """See ``InvokeContext.lease``."""
        return await enter_lease(ctx, manager)

    async def send(self, ctx: InvokeContext, partial: object) -> None:
        """Shape part of an output like the whole output, and pass it to the stream; one part at a time, in order."""
        events = ctx.run.events
        assert events is not None
        async with events.in_order:
            await events.partial(ctx, await shaped(ctx, partial))

    async def drain(self, seconds: float) -> None:
        """Wait at most so many seconds for abandoned bodies and ended sessions, so that their leases are released."""
        if self.left_behind:
            await asyncio.wait(self.left_behind, timeout=seconds)

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register a coroutine function for the closing of the gate, before its store; it runs only once."""
        if close not in self.closers:
            self.closers.append(close)

    def abandon(self, ctx: InvokeContext, body: asyncio.Future[Any]) -> None:
        """Keep the leases and the request scope of an abandoned body or hook until it ends, and all that was abandoned."""
        run = ctx.run
        run.body_left = run.body_left or run.step is run.plan.running
        if run.left is not None:
            run.left.append(body)
            return
        run.left = left = [body]
        ctx.run.request_scope().holds += 1
        held, ctx.run.leases = ctx.run.leases, None
        unit, ctx.run.unit = ctx.run.unit, None
        ctx.run.abandoned = True
        ctx.run.pending_release = bool(held or unit or ctx.run.request_scope().exits)
        emit(LogEvent.CALL_ABANDONED, ctx, holds=len(taken_off(held)))

        async def see_off() -> None:
            try:
                while running := [one for one in left if not one.done()]:
                    await asyncio.wait(running)
            finally:  # the loop may end first: no task waits for the body any longer
                ctx.run.left = None
                for one in left:
                    if one.done() and not one.cancelled():
                        one.exception()
                if unit is not None:
                    from callgate.runtime.call.units import leave_abandoned  # few gates have units of work

                    await leave_abandoned(ctx, unit)
                ctx.run.special = True
                ctx.run.closes_at = asyncio.get_running_loop().time() + self.closing
                if (closing := close(ctx, taken_off(held))) is not None:
                    await closing
                await end_scope(ctx)
                ctx.run.pending_release = False
                emit(LogEvent.CALL_SETTLED, ctx)

        self._in_background(see_off())

    def _close_later(self, session_id: str, reason: str, exits: list[Exit]) -> None:
        emit(LogEvent.SESSION_ENDED, session_id=session_id, reason=reason)
        if exits:
            self._in_background(close_all(exits))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        # asyncio: the work outlives the call that leaves it, which an anyio task group would hold
        task = asyncio.ensure_future(work)
        self.left_behind.add(task)
        task.add_done_callback(self.left_behind.discard)


def execution_of(plan: Plan) -> Execution:
    """Return the inner part of a plan: body, attempt inside its middleware, conversion of arguments."""
    body = make_body(plan)
    if plan.trace:
        body = traced(plan.running, body)
    execute: Body = functools.partial(attempt, plan)
    if plan.around or plan.in_units:
        execute = wrap_attempt(plan, execute)
    elif plan.merged and plan.straight is None:
        execute = supplied_call(plan)
    return Execution(body, execute, arguments_of(plan))


async def close_all(exits: Sequence[Exit]) -> None:
    """Close a session's instances, each under a shield; log failures, and raise a cancellation after the last one."""
    held: BaseException | None = None
    for one in exits:
        carried = Carried(one.leave(), limit=RELEASE_LIMIT)
        try:
            await carried.run()
        except BaseException as error:  # noqa: BLE001  (the others are closed, too)
            emit(LogEvent.PROVIDER_FAILED, provider=one.recipe.name, phase="close", error=error)
        held = carried.held or held
    if held is not None:
        raise held
