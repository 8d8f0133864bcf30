"""The engine: what one gate, or one bare ``invoke_tool``, shares among its invocations."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypedDict

from callgate.errors import Denied, InvocationError
from callgate.hooks.builtin import BuiltIns
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import constructor_parameters, marked_parameters, traced
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, gather_registrations
from callgate.providers.clock import Clock, SystemClock
from callgate.providers.logs import Event, emit
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import Exit
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory import MemoryStore
from callgate.runtime.call.around import wrap_attempt
from callgate.runtime.call.bodies import arguments_of, direct_call, make_body, runs_in_place, supplied_call
from callgate.runtime.call.injection import Supply
from callgate.runtime.call.invoke import attempt, close, end_scope, run, walk
from callgate.runtime.call.leases import INSIDE, RELEASE_LIMIT, Carried, enter_lease, set_mark, taken_off, taking
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.effects.steps import effect_step
from callgate.tools.declaring.component import attached_validator
from callgate.tools.definition import Effect
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.naming import did_you_mean
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.validation import Engine as ValidatorEngine
from callgate.tools.schemas.validation import compile_schema

MAX_DEPTH = 8
"""How deep nested calls may go (``ctx.call`` inside ``ctx.call``)."""

CLOSE_LIMIT = 10.0
"""Seconds that a closing gate waits for bodies that outlived their deadline."""


def new_instance(cls: type) -> Any:
    """The default ``resolve``: a hook class is made without arguments."""
    return cls()


class Engine:
    """Compiles plans and lends contexts what needs a running gate (the ``Host`` of ``hooks/context.py``)."""

    def __init__(
        self,
        registry: ProviderRegistry,
        surface: Callable[[Any], BaseException],
        *,
        resolve: Callable[[Any], Any] = new_instance,
        clock: Clock | None = None,
        limits: Limits = DEFAULT_LIMITS,
        validator: ValidatorEngine | None = None,
        plan_for: Callable[[Any], Plan] | None = None,
        store: Store | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.registry = registry
        self.surface = surface
        self.resolve = resolve
        self.limits = limits
        self.validator = validator
        self.plan_for = plan_for
        self.monotonic = clock.monotonic
        self.wall_offset = clock.time() - clock.monotonic()
        self.store: Store = store if store is not None else MemoryStore(clock.time)
        self.ledger = ledger
        self.waits: Any = None
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.left_behind: set[asyncio.Task[Any]] = set()
        registry.sessions.on_end = self._close_later

    # ------------------------------------------------------------------ compiling

    def compile(
        self,
        record: ToolRecord,
        shared: Sequence[Registration] = (),
        by_stage: Mapping[Any, Sequence[Any]] | None = None,
        *,
        trace: bool = False,
    ) -> Plan:
        """The plan of one tool.

        Raises:
            RegistrationError: a schema no engine enforces, a hook at a stage it lacks, a missing provider.
        """
        definition = record.definition
        registrations = gather_registrations(definition, record, shared, by_stage)
        arguments = attached_validator(record.component)
        output = None
        if arguments is None and definition.parameters is not None:
            arguments = compile_schema(definition.parameters, trusted=record.trusted, engine=self.validator)
        if definition.output_schema is not None:
            output = compile_schema(definition.output_schema, trusted=record.trusted, engine=self.validator)
        builtins = BuiltIns(record, arguments, output, self.limits, refuses=self.waits is None)
        plan = Plan(
            record,
            registrations,
            builtins,
            self.resolve,
            take=taking,
            straight=direct_call(record),
            merges=runs_in_place(record),
            trace=trace,
            intent=None
            if definition.effect is Effect.READ or self.ledger is None
            else functools.partial(effect_step, self.ledger),
        )
        self._supply(plan)
        plan.host, plan.now, plan.surface = self, self.monotonic, self.surface
        plan.ended = self.registry.ended
        plan.body, plan.prepare, plan.typed = make_body(plan), arguments_of(plan), record.from_json is not None
        if trace:
            plan.body = traced(plan.running, plan.body)
        plan.execute = functools.partial(attempt, plan)
        if plan.around:
            plan.execute = wrap_attempt(plan, plan.execute)
        elif plan.merged and plan.straight is None:
            plan.execute = supplied_call(plan)
        emit(Event.PLAN_COMPILED, tool=record.id, hooks=[one.name for one in registrations])
        return plan

    def _supply(self, plan: Plan) -> None:
        """Find what marked parameters get, and that all of it is there."""
        recipes = self.registry.recipes
        bound = frozenset(recipes.key_of(token) for one in plan.registrations for token in one.option("binds", ()))
        wanted = [(plan.record, f"tool {plan.record.id!r}", plan.record.injected)]
        for one in plan.registrations:
            if one.is_class and self.resolve is new_instance:
                wanted.append((one.hook, f"hook {one.name}", constructor_parameters(one.hook)))
            for stage in one.all_stages():
                method = getattr(one.hook, stage.value)
                function = getattr(method, "__func__", method)
                wanted.append((function, f"hook {one.name}.{stage}", marked_parameters(one, stage)))
        for key, owner, injected in wanted:
            if injected:
                plan.supplies[key] = Supply(self.registry, injected, bound, owner)

    # ------------------------------------------------------------------ what contexts ask for

    async def nested(self, ctx: InvokeContext, tool: Any, arguments: Any) -> Any:
        """A call made by a tool: same user, session, request providers and deadline."""
        if ctx.depth >= MAX_DEPTH:
            raise Denied(f"calls nest deeper than {MAX_DEPTH}", code="too_deep")
        if self.plan_for is None:
            raise Denied("nested calls need a gate", code="no_gate")
        plan = self.plan_for(tool)
        inner = InvokeContext(plan, arguments, ctx.user, self.monotonic())
        inner.session_id = ctx.session_id
        inner.depth = ctx.depth + 1
        ctx.nested += 1
        inner.outer, inner.nth = ctx, ctx.nested
        inner._scope, inner._ends_scope, inner._request_id = ctx.scope, False, ctx._request_id
        inner.events, inner.deadline_at, inner.scrubber = ctx.events, ctx.deadline_at, ctx.scrubber
        if plan.record.deadline is not None:
            own = inner.started + plan.record.deadline
            inner.deadline_at = own if inner.deadline_at is None else min(own, inner.deadline_at)
            inner.special = True
        mark = INSIDE.get()
        try:
            return await run(plan, inner)
        except InvocationError as error:
            error.no_effect = False  # what the inner call did not do says nothing of the outer one
            raise
        finally:
            set_mark(mark)  # the outer call's steps go on

    async def lease(self, ctx: InvokeContext, manager: AbstractAsyncContextManager[Any]) -> Any:
        """See ``InvokeContext.lease``."""
        return await enter_lease(ctx, manager)

    async def send(self, ctx: InvokeContext, partial: Any) -> None:
        """Shape part of an output as the whole would be, and hand it to the stream."""
        plan, kept = ctx.plan, (ctx._output, ctx.step)
        ctx._output = partial
        try:
            await walk(ctx, plan.partial_shaping)
            plan.builtins.limit_output(ctx)
            await ctx.events.partial(ctx, ctx._output)
        finally:
            ctx._output, ctx.step = kept

    async def drain(self) -> None:
        """Wait for bodies that were left behind, so that what they hold is given back."""
        if self.left_behind:
            await asyncio.wait(self.left_behind, timeout=CLOSE_LIMIT)

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something awaited as the gate closes, before its store does; once, however often it is asked for."""
        if close not in self.closers:
            self.closers.append(close)

    def abandon(self, ctx: InvokeContext, body: asyncio.Future[Any]) -> None:
        """Keep the leases and the request scope of a body that was left behind until it really ends."""
        ctx.scope.holds += 1
        held, ctx.leases = ctx.leases, None
        ctx.abandoned = True
        ctx.pending_release = bool(held or ctx.scope.exits)
        emit(Event.CALL_ABANDONED, ctx, holds=len(taken_off(held)))

        async def see_off() -> None:
            try:
                await asyncio.wait([body])
            finally:  # cancelled itself as the loop ends: nobody will wait for the body any longer
                if body.done() and not body.cancelled():
                    body.exception()
                await close(ctx, taken_off(held))
                await end_scope(ctx)
                ctx.pending_release = False
                emit(Event.CALL_SETTLED, ctx)

        self._in_background(see_off())

    def _close_later(self, session_id: str, reason: str, exits: list[Exit]) -> None:
        emit(Event.SESSION_ENDED, session_id=session_id, reason=reason)
        if exits:
            self._in_background(close_all(exits))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.left_behind.add(task)
        task.add_done_callback(self.left_behind.discard)


async def close_all(exits: Sequence[Exit]) -> None:
    """Close what a session's providers made, each carried through; a failure is logged, a cancellation comes after."""
    held: BaseException | None = None
    for one in exits:
        carried = Carried(one.leave(), limit=RELEASE_LIMIT)
        try:
            await carried.run()
        except BaseException as error:  # noqa: BLE001  (the others are closed all the same)
            emit(Event.PROVIDER_FAILED, provider=one.recipe.name, phase="close", error=error)
        held = carried.held or held
    if held is not None:
        raise held


class CallOptions(TypedDict, total=False):
    """What may be said about one call.

    ``deadline`` is in seconds and wins over the tool's and the gate's; ``request_id`` is also the correlation id;
    ``events`` is where progress and partial outputs go (``gate.stream`` sets it).
    """

    session_id: str | None
    request_id: str | None
    deadline: float | None
    idempotency_key: str | None
    events: Any


def apply_options(ctx: InvokeContext, options: CallOptions) -> None:
    """Put the options of a call, and its deadline, into its context.

    Raises:
        TypeError: there is no such option.
    """
    for name, value in options.items():
        if name not in CallOptions.__annotations__:
            raise TypeError(f"a call has no option {name!r}{did_you_mean(name, CallOptions.__annotations__)}")
        if value is not None and name != "deadline":
            setattr(ctx, "_request_id" if name == "request_id" else name, value)
    limit = options.get("deadline")
    limit = ctx.plan.limit if limit is None else limit
    if limit is not None:
        ctx.deadline_at, ctx.special = ctx.started + limit, True
