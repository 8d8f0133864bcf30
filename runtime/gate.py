"""The gate: tools, hooks and providers put together; every call passes it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

from callgate.errors import GateClosed, RegistrationError, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import register, register_by_stage
from callgate.providers import logs
from callgate.providers.clock import Clock, SystemClock
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.runtime.call import batch
from callgate.runtime.call.calls import context_of, context_of_none
from callgate.runtime.call.invoke import run
from callgate.runtime.call.results import raise_or_keep, run_to_result, typed
from callgate.runtime.call.streams import Event, stream
from callgate.runtime.effects.ledger import EffectOptions
from callgate.runtime.engine import CallOptions, Engine, apply_options, close_all, new_instance
from callgate.runtime.faces.bound import Bound, visit
from callgate.runtime.faces.deferred import Durable
from callgate.runtime.faces.placement import Placed, RunOn
from callgate.runtime.faces.principal import Authenticate
from callgate.runtime.faces.views import Views
from callgate.runtime.jobs.embedded import EmbeddedJobs
from callgate.runtime.jobs.jobs import JobBackend
from callgate.runtime.jobs.running import JobOptions
from callgate.runtime.lifespan.lifespan import Life
from callgate.runtime.plans import Plans
from callgate.runtime.portal import SyncGate
from callgate.runtime.suspensions.record_keeping import Records, RefreshUser
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.schemas.validation import Engine as ValidatorEngine

R = TypeVar("R")


class Gate(Views, Durable):
    """One gate for a service. Make it once, use it inside ``async with``.

    Args:
        tools: what ``@tool`` made, plain functions, decorated classes, ``ToolRecord`` or ``ToolExecutor`` objects.
        hooks: hook objects or classes; they apply to every tool they do not exclude themselves from.
        hooks_by_stage: the explicit form, ``{stage: [hook, ...]}``.
        container: a dependency-injector container, or None.
        provide: ``{token: factory or instance}``; a factory is called once, when the gate opens, unless it is a ``Scoped``.
        session_ttl: seconds after which a session that nobody uses ends; None means never.
        max_sessions: how many sessions there may be; the least recently used ends for a new one.
        deadline: seconds for each call, unless the tool or the call says otherwise; None means no limit.
        open: allow tools that are not ``read`` without any hook that authorises.
        lazy: compile a tool's plan and validators at its first call instead of at start.
        resolve: makes an instance of a hook class, once an invocation.
        limits: bounds on arguments and outputs.
        authenticate: finds the user of a web request, for ``callgate.asgi`` and ``bound``; None from it means nobody.
        store: where hooks, the effect ledger and calls that wait keep what outlives a call, or its address; by default
            in memory.
        signing_keys: secrets that calls which wait are bound with, the newest first; every process that may resume a call
            has to have them.
        durable: False allows tools with an effect although the store forgets what ran when the process ends.
        effects: how the effect ledger is kept; default: ``EffectOptions()``.
        policy_version: what you call your policies; a call that waits is bound to it, and to the hooks that authorise.
        jobs: the engine that moves what is submitted to workers; default: ``EmbeddedJobs()``, this process.
        job_options: how jobs are run; default: ``JobOptions()``.
        refresh_user: who somebody is now, when a call of theirs is resumed; None from it means nobody any more. Default:
            who they were when they called.
        validator: the engine for author-written schemas; default: fastjsonschema where it enforces all, else jsonschema-rs.

    Raises:
        RegistrationError: anything that would run half-configured; the message says what to do.
    """

    def __init__(
        self,
        tools: Iterable[Any] = (),
        hooks: Iterable[Any] = (),
        *,
        hooks_by_stage: Mapping[Any, Sequence[Any]] | None = None,
        container: Any = None,
        provide: Mapping[Any, Any] | None = None,
        session_ttl: float | None = 3600.0,
        max_sessions: int | None = None,
        deadline: float | None = None,
        open: bool = False,
        lazy: bool = False,
        resolve: Callable[[Any], Any] = new_instance,
        limits: Limits = DEFAULT_LIMITS,
        validator: ValidatorEngine | None = None,
        store: Store | str | None = None,
        clock: Clock | None = None,
        authenticate: Authenticate | None = None,
        signing_keys: Iterable[str | bytes] = (),
        durable: bool | None = None,
        effects: EffectOptions | None = None,
        policy_version: str = "",
        jobs: JobBackend | None = None,
        job_options: JobOptions | None = None,
        refresh_user: RefreshUser | None = None,
    ) -> None:
        self.registry = ToolRegistry()
        clock = clock or SystemClock()
        self.providers = ProviderRegistry(
            container, now=clock.monotonic, session_ttl=session_ttl, max_sessions=max_sessions
        )
        self.deadline, self.open, self.lazy, self.durable = deadline, open, lazy, durable
        self.authenticate, self.refresh_user = authenticate, refresh_user
        self._sync = SyncGate(self)
        self._dependency: Callable[[Any], Coroutine[Any, Any, Bound]] | None = None
        self.providers.provide(provide or {})
        self._engine = Engine(
            self.providers,
            raise_or_keep,
            resolve=resolve,
            clock=clock,
            limits=limits,
            validator=validator,
            store=store_at(store, clock.time),
        )
        self._now = self._engine.monotonic
        self._life = Life(self._engine, self.providers)
        self._plans = Plans(self._engine, self.registry, deadline=deadline, lazy=lazy)
        self._records = Records(self._engine, self._plans, effects, signing_keys, policy_version)
        self._jobs = self._make_jobs(self._records, jobs or EmbeddedJobs(), job_options or JobOptions())
        self._life.upkeep.chores += self._records.chores
        self._shared, self._live = self._plans.shared, self._plans.live
        self._shared += [register(hook, "gate") for hook in hooks]
        self._shared += register_by_stage(hooks_by_stage or {}, "gate")
        self._running = False
        for tool in tools:
            self.add(tool)
        self._plans.renew()

    # ------------------------------------------------------------------ putting together

    def add(self, tool: Any, *, replace: bool = False) -> ToolRecord:
        """Register one more tool.

        Raises:
            DefinitionError: duplicate name, or a schema that is refused.
        """
        record = self.registry.add_validated(tool, replace=replace)
        logs.tell_warnings(record.id, record.definition.lints)
        self._plans.forget()
        if self._running and not self.lazy:
            self._plans.of(record.id)
            self._plans.check_hooks()
        return record

    def use(self, hook: Any, *, tools: Any = None, tags: Any = None, tenants: Any = None) -> Callable[[], None]:
        """Register a hook for every tool, or for some; plans are compiled again. Returns what takes it out."""
        made = register(hook, "gate.use", tools=tools, tags=tags, tenants=tenants)
        self._shared.append(made)
        try:
            self._plans.renew()
        except RegistrationError:
            self._shared.remove(made)
            self._plans.forget()
            raise

        def undo() -> None:
            if made in self._shared:
                self._shared.remove(made)
                self._plans.renew()

        return undo

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        """Open: run the factories, compile what is not compiled.

        Raises:
            RegistrationError: a tool that is not ``read`` and nobody who authorises, without ``open=True``.
        """
        if self._running:
            raise RegistrationError("the gate is open already; use one `async with gate` for the life of the service")
        if not self.open:
            self._plans.refuse_unguarded()
        self._records.refuse_forgetting(self.registry.list(), durable=self.durable)
        self._plans.check_hooks()
        self._records.ledger.begin()
        await self._life.begin()
        self._running = True
        try:
            await self._jobs.open()
        except BaseException:
            self._running = False
            await self._life.end()
            raise
        logs.tell_opened(len(self.registry.list()), len(self._shared))
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close: wait, at most ``CLOSE_LIMIT`` seconds, for bodies that were left behind; close sessions, then factories."""
        try:
            await self._jobs.close()  # its jobs are calls of this gate: they end first
        finally:
            self._running = False
            self._live.clear()
            await self._life.end()
        logs.emit(logs.Event.GATE_CLOSED, left_behind=len(self._engine.left_behind))

    def session(
        self, session_id: str | None = None, *, user: User = ANONYMOUS
    ) -> contextlib.AbstractAsyncContextManager[Bound]:
        """One session, from here to the end of the ``async with``: calls in it share what is provided a session.

        Without an id it gets one that nobody can guess. It ends when the last of those who entered it leaves; calls that
        are still under way then finish with what they have.

        Raises:
            Denied: the session belongs to another user.
        """
        return visit(self, session_id or secrets.token_urlsafe(18), user)

    async def end_session(self, session_id: str) -> None:
        """End a session: what was provided for it is closed, now or when the last call in it is over."""
        await close_all(self.providers.sessions.end(session_id))

    def override(self, providers: Mapping[Any, Any]) -> contextlib.AbstractContextManager[None]:
        """For tests: ``with gate.override({Db: fake}):``; instances or factories, in the scopes of those they replace.

        Raises:
            ProviderError: nobody provides the token.
        """
        return self.providers.override(providers)

    @property
    def store(self) -> Store:
        """Where hooks keep what outlives a call, unless they have a store of their own."""
        return self._engine.store

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return self._running

    def sync(self) -> SyncGate:
        """This gate for hosts that are not async: ``with gate.sync() as g``, or ``open()`` and ``close()`` (design 4)."""
        return self._sync

    @property
    def bound(self) -> Callable[[Any], Coroutine[Any, Any, Bound]]:
        """For FastAPI: ``Depends(gate.bound)`` gives the gate of the user whom ``authenticate`` finds.

        Raises:
            RegistrationError: there is no ``authenticate``.
        """
        if self._dependency is None:
            from callgate.runtime.hosts.asgi import user_dependency

            self._dependency = user_dependency(self)
        return self._dependency

    # ------------------------------------------------------------------ calling

    @overload
    def invoke(
        self,
        tool: str | type[Any] | ToolRecord,
        arguments: Any = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, Any]: ...

    @overload
    def invoke(
        self,
        tool: Callable[..., Coroutine[Any, Any, R]],
        arguments: Any = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def invoke(
        self, tool: Callable[..., R], arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, R]: ...

    def invoke(
        self, tool: Any, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]:
        """Run a tool by name, or by its object for a typed result. Await what this returns.

        ``arguments`` is a JSON object or the text of one; see ``CallOptions`` for the rest.

        Raises:
            Denied, Invalid, RetryLater, Suspended, ToolFailed, DeadlineExceeded: how it ended without an output.
            UnknownTool: no such tool.
            GateClosed: not inside ``async with gate``.
        """
        plan = self._live.get(tool)
        if plan is None:
            plan = self._live[tool] = self._open_plan(tool)
        ctx = InvokeContext(plan, arguments, user, self._now())
        if options or plan.limit is not None:
            apply_options(ctx, options)
        if plan.typed and tool.__class__ is not str:
            return typed(plan, run(plan, ctx))
        return run(plan, ctx)

    async def call(
        self,
        call: ToolCall | HydrationResult,
        *,
        user: User = ANONYMOUS,
        trace: bool = False,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """Run one tool call; never raises but for cancellation and a closed gate. Takes what ``hydrate`` returns, too.

        ``trace=True`` keeps one row a step in ``result.trace``. Options are those of ``invoke``.
        """
        ctx = self._context(call, user, trace, options)
        return await run_to_result(ctx)

    def call_many(
        self,
        calls: Iterable[ToolCall | HydrationResult],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, list[ToolResult]]:
        """Run several calls; results in order. Tools with ``parallel=False`` run alone, others up to *at_once* together.

        Calls of tools with ``run_on="worker"`` are submitted as jobs and awaited. *run_on*, if it is given, is where all
        run, or says so of each.
        """
        return batch.call_many(Placed(self, run_on), list(calls), user, at_once, options, trace=trace)

    def stream(
        self, call: ToolCall | HydrationResult, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run one call and yield its progress, partial outputs (shaped like the whole) and, last, its result."""
        return stream(self, call, user, options)

    # ------------------------------------------------------------------ inside

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """Whether ``call_many`` may run this call beside others."""
        asked: Any = call.call if isinstance(call, HydrationResult) else call
        record = self._record_of(asked.tool) if isinstance(asked.tool, str) else None
        return record is None or record.parallel

    def _context(
        self, call: ToolCall | HydrationResult, user: User, trace: bool, options: CallOptions
    ) -> InvokeContext:
        asked = call.call if isinstance(call, HydrationResult) else call
        try:
            name = asked.tool if isinstance(asked.tool, str) else ""  # a name that is no text names nothing
            plan = self._open_plan(name, trace=trace)
        except UnknownTool as error:
            ctx = context_of_none(self._plans.of_none(), asked, user, error, options)
        else:
            ctx = context_of(plan, asked, call, user, options)
        if trace:
            ctx.trace = []
        return ctx

    def _open_plan(self, tool: Any, *, trace: bool = False) -> Plan:
        if not self._running:
            raise GateClosed("the gate is not open; use it inside `async with gate:`")
        return self._plans.of(tool, trace=trace)

    def _record_of(self, name: str) -> ToolRecord | None:
        return self.registry.get(name) if name in self.registry else None


__all__ = ["Gate"]
