"""The gate: tools, hooks and providers of a service. Every call passes through it."""

from __future__ import annotations

import contextlib
import copy
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar, Unpack, overload

from callgate.errors import GateClosed, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.selection import register, register_by_stage
from callgate.providers import logs
from callgate.providers.clock import SystemClock
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.runtime.call import batch
from callgate.runtime.call.calls import (
    Call,
    Callee,
    TraceTo,
    as_call,
    as_calls,
    context_of,
    context_of_none,
    refuse_user,
)
from callgate.runtime.call.invoke import run
from callgate.runtime.call.options import CallOptions, apply_options
from callgate.runtime.call.results import raise_or_keep, run_to_result, typed
from callgate.runtime.call.streams import Event, stream
from callgate.runtime.effects.ledger import Effects
from callgate.runtime.engine import Engine, close_all
from callgate.runtime.faces.bound import Bound, visit
from callgate.runtime.faces.deferred import DeferredCalls
from callgate.runtime.faces.guesses import GATE
from callgate.runtime.faces.keywords import GATE_KEYWORDS, explain_keywords
from callgate.runtime.faces.options import Mode, Options, Sessions
from callgate.runtime.faces.placement import Placement, RunOn
from callgate.runtime.faces.sync import SyncGate
from callgate.runtime.faces.views import Views
from callgate.runtime.jobs.backend import JobBackend
from callgate.runtime.jobs.options import Jobs
from callgate.runtime.lifespan.development import Tracebacks, report
from callgate.runtime.lifespan.lifespan import Lifespan
from callgate.runtime.lifespan.readiness import refuse_unready
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.record_keeping import CallRecords, Suspensions
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.naming import explain_attributes
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

R = TypeVar("R")


@explain_attributes(GATE)
class Gate(Views, DeferredCalls):
    """The gate of a service. Make it once; use it inside ``async with``, or between ``open()`` and ``close()``.

    Args:
        tools: results of ``@tool``, plain functions, decorated classes, ``ToolRecord`` or ``ToolExecutor`` objects.
        hooks: hook objects or classes, for all tools; a mapping ``{stage: [hook, ...]}`` among them is for its stages.
        mode: ``"production"`` refuses to open half-configured. ``"development"`` opens in memory and unguarded,
            and prints tracebacks, plans and lint findings on stderr.
        allow_unguarded: allow tools that are not ``read`` without any hook that authorises.
        container: a dependency-injector container.
        provide: ``{token: factory or instance}``; a factory runs once, as the gate opens, unless it is a ``Scoped``.
        store: the store of hooks, effects, suspended calls and jobs, or its address; default: in memory.
        signing_keys: secrets that sign suspended calls and jobs, newest first, the same in every process.
        deadline: seconds for each call, unless the tool or the call sets its own; None means no limit.
        sessions: see ``Sessions``.
        effects: see ``Effects``.
        suspensions: see ``Suspensions``.
        options: see ``Options``.
        jobs: an object of ``Jobs``; or only the job engine, or its name. Default: ``EmbeddedJobs()``, in this process.

    Raises:
        RegistrationError: a tool, a hook or a setting is refused; the message states the fix.
        TypeError: a keyword is unknown; the message names the one to write.
    """

    @explain_keywords(GATE_KEYWORDS)
    def __init__(
        self,
        tools: Iterable[Any] = (),
        hooks: Iterable[Any] = (),
        *,
        mode: Mode = "production",
        allow_unguarded: bool = False,
        container: Any = None,
        provide: Mapping[Any, Any] | None = None,
        store: Store | str | None = None,
        signing_keys: Iterable[str | bytes] = (),
        deadline: float | None = None,
        sessions: Sessions | None = None,
        effects: Effects | None = None,
        suspensions: Suspensions | None = None,
        jobs: Jobs | JobBackend | str | None = None,
        options: Options | None = None,
    ) -> None:
        if mode not in ("production", "development"):
            raise ValueError(f'mode is {mode!r}; write Gate(mode="production") or Gate(mode="development")')
        sessions, effects, options = sessions or Sessions(), effects or Effects(), options or Options()
        clock = options.clock or SystemClock()
        self.mode, self.allow_unguarded, self.deadline = mode, allow_unguarded, deadline
        self.limits, self.lazy = options.limits, options.lazy
        self.registry = ToolRegistry()
        self.providers = ProviderRegistry(
            container, now=clock.monotonic, session_ttl=sessions.ttl, max_sessions=sessions.maximum
        )
        self._sync = SyncGate(self)
        self.providers.provide(provide or {})
        self._engine = Engine(
            self.providers,
            raise_or_keep,
            resolve=options.resolve,
            clock=clock,
            limits=options.limits,
            validator=options.validator,
            store=store_at(store, clock.time),
        )
        self._now = self._engine.monotonic
        self._lifespan = Lifespan(self._engine, self.providers)
        self._plans = Plans(self._engine, self.registry, deadline=deadline, lazy=options.lazy)
        self._records = CallRecords(self._engine, self._plans, effects, signing_keys, suspensions or Suspensions())
        self._jobs = self._make_jobs(self._records, jobs if isinstance(jobs, Jobs) else Jobs(engine=jobs))
        self._lifespan.background.tasks += self._records.tasks
        self._shared, self._live = self._plans.shared, self._plans.live
        for hook in hooks:
            self._shared += register_by_stage(hook, "gate") if isinstance(hook, Mapping) else [register(hook, "gate")]
        if mode == "development":
            self._shared.append(register(Tracebacks(), "development mode"))
        for tool in tools:
            self.add(tool)
        self._plans.renew()

    def add(self, tool: Any, *, replace: bool = False) -> ToolRecord:
        """Register one more tool.

        Raises:
            DefinitionError: the name is a duplicate, or the schema is refused.
        """
        record = self.registry.add_validated(tool, replace=replace)
        logs.log_warnings(record.id, record.definition.lints)
        self._plans.forget()
        if self.is_open and not self.lazy:
            self._plans.of(record.id)
            self._plans.check_hooks()
        return record

    def use(self, hook: Any, *, tools: Any = None, tags: Any = None, tenants: Any = None) -> Callable[[], None]:
        """Register a hook for all tools or some, and compile the plans again; return a function that removes it."""
        return self._plans.use(register(hook, "gate.use", tools=tools, tags=tags, tenants=tenants))

    def with_tools(self, tools: Iterable[ToolRecord]) -> Gate:
        """Return a gate that also has *tools*; this one does not change.

        Both share hooks, stores and sessions. A tool whose name is taken is left out. Nested calls do not see the new
        tools.
        """
        made, made._engine, made.registry = copy.copy(self), copy.copy(self._engine), ToolRegistry()
        for record in (*self.registry.list(), *(one for one in tools if one.id not in self.registry)):
            made.registry.add_inline(record)
        made._plans = self._plans.with_tools(made._engine, made.registry)
        made._shared, made._live = made._plans.shared, made._plans.live
        made._records = self._records.with_plans(made._engine, made._plans)
        return made

    async def open(self) -> Self:
        """Open the gate: run the factories, compile the remaining plans, and accept calls.

        Raises:
            RegistrationError: the gate is already open, or production mode lacks settings; the message lists them.
        """
        await self._lifespan.open(self._prepare, self._jobs)
        logs.log_opened(len(self.registry.list()), len(self._shared))
        return self

    def _prepare(self) -> None:
        """Check that the gate may open, before anything is started."""
        if self.mode == "production":
            refuse_unready(self._plans, self._records, self.registry, allow_unguarded=self.allow_unguarded)
        self._plans.check_hooks()
        if self.mode == "development":
            report(self.registry.list(), self._plans)
        self._records.ledger.begin()

    async def close(self) -> None:
        """Close the gate: end jobs, then sessions, then close instances of factories. A closed gate stays closed."""
        if self.is_open:
            await self._lifespan.close(self._jobs, self._live.clear)
            logs.emit(logs.LogEvent.GATE_CLOSED, left_behind=len(self._engine.left_behind))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def session(
        self, session_id: str | None = None, *, user: User = ANONYMOUS
    ) -> contextlib.AbstractAsyncContextManager[Bound]:
        """Open a session for the ``async with`` block: its calls share the instances of the session scope.

        Without an id the session gets a random one. It ends with the last block that entered it; calls under way finish
        with the instances that they have.

        Raises:
            Denied: the session belongs to another user.
            TypeError: *user* is not a ``User``.
        """
        refuse_user(user)
        return visit(self, session_id or secrets.token_urlsafe(18), user)

    async def end_session(self, session_id: str) -> None:
        """End a session: close its instances, now or when its last call has ended."""
        await close_all(self.providers.sessions.end(session_id))

    def override(self, providers: Mapping[Any, Any]) -> contextlib.AbstractContextManager[None]:
        """Replace providers in tests: ``with gate.override({Db: fake}):``. Scopes stay those of the replaced providers.

        Raises:
            ProviderError: no provider has the token.
        """
        return self.providers.override(providers)

    @property
    def store(self) -> Store:
        """The store of hooks that have no store of their own."""
        return self._engine.store

    @property
    def is_open(self) -> bool:
        """True while the gate accepts calls."""
        return self._lifespan.is_open

    def sync(self) -> SyncGate:
        """Return this gate for synchronous hosts: ``with gate.sync() as g``, or ``open()`` and ``close()``."""
        return self._sync

    @overload
    def invoke(
        self,
        tool: str | type[Any] | ToolRecord | Call,
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
        """Run a tool and return its output. Await what this returns.

        Args:
            tool: the tool, for a typed output; or its name, or a ``ToolCall`` without further arguments.
            arguments: a JSON object, or the text of one.
            user: the principal of the call.
            options: see ``CallOptions``.

        Raises:
            Denied, Invalid, RetryLater, Suspended, ToolFailed, DeadlineExceeded: the call ended without an output.
            UnknownTool: the gate has no such tool.
            GateClosed: the gate is not open.
            TypeError: *tool* or *user* is of the wrong type; the message has the line to write.
        """
        if user.__class__ is not User:
            refuse_user(user)
        try:
            plan = self._live.get(tool)
        except TypeError:  # not hashable, such as a ToolCall
            plan = None
        if plan is None:
            call = as_call(self.registry, tool, arguments)
            if call is tool or isinstance(call, HydrationResult):
                ctx = self._context(call, user, False, options)
                return run(ctx.run.plan, ctx)
            plan = self._live[tool] = self._open_plan(call.name)
        ctx = InvokeContext(plan, arguments, user, self._now())
        if options or plan.limit is not None:
            apply_options(ctx, options)
        if plan.typed and tool.__class__ is not str:
            return typed(plan, run(plan, ctx))
        return run(plan, ctx)

    async def call(
        self,
        tool: Callee,
        arguments: Any = None,
        *,
        user: User = ANONYMOUS,
        trace: bool | TraceTo = False,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """Run one call and return its result, also for a call that fails.

        Args:
            tool: a ``ToolCall``, a result of ``hydrate``, or a tool or its name with *arguments*.
            arguments: a JSON object, or the text of one.
            user: the principal of the call.
            trace: keep one row for each step in ``result.trace``, or in the list that a function returns.
            options: see ``CallOptions``.

        Raises:
            GateClosed: the gate is not open.
            TypeError: *tool* or *user* is of the wrong type; the message has the line to write.
            UnknownTool: the gate does not have this tool object. An unknown name returns a result.
        """
        call: Any = tool
        if tool.__class__ is not ToolCall or arguments is not None:
            call = as_call(self.registry, tool, arguments)
        ctx = self._context(call, user, trace, options)
        return await run_to_result(ctx)

    def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, Any]],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, list[ToolResult]]:
        """Run several calls; the results have their order.

        Args:
            calls: a ``ToolCall``, a result of ``hydrate``, or a pair ``(tool, arguments)``, for each call.
            user: the principal of the calls.
            at_once: maximum number of concurrent calls. A tool with ``parallel=False`` runs alone.
            trace: as for ``call``.
            run_on: ``"caller"`` or ``"worker"`` for all calls, or a function that returns it for each. Default: as
                each tool declares. Calls on a worker are submitted as jobs and awaited.
            options: see ``CallOptions``.

        Raises:
            GateClosed, TypeError, UnknownTool: as for ``call``.
        """
        refuse_user(user)
        made = as_calls(self.registry, calls)
        return batch.call_many(Placement(self, run_on), made, user, at_once, options, trace=trace)

    def stream(
        self, tool: Callee, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run one call and yield its progress, partial outputs (shaped like the whole) and, last, its result.

        The arguments are those of ``call``.

        Raises:
            GateClosed, TypeError, UnknownTool: as for ``call``.
        """
        refuse_user(user)
        return stream(self, as_call(self.registry, tool, arguments), user, options)

    def runs_in_parallel(self, call: Call) -> bool:
        """Return True if ``call_many`` may run this call concurrently with others."""
        name: Any = call.call.name if isinstance(call, HydrationResult) else call.name
        return not isinstance(name, str) or name not in self.registry or self.registry.get(name).parallel

    def _context(self, call: Call, user: User, trace: bool | TraceTo, options: CallOptions) -> InvokeContext:
        if user.__class__ is not User:
            refuse_user(user)
        asked = call.call if isinstance(call, HydrationResult) else call
        try:
            name = asked.name if isinstance(asked.name, str) else ""  # a name of another type is unknown
            plan = self._open_plan(name, trace=bool(trace))
        except UnknownTool as error:
            ctx = context_of_none(self._plans.of_none(), asked, user, error, options)
        else:
            ctx = context_of(plan, asked, call, user, options)
        if trace:
            ctx.run.trace = [] if trace is True else trace(ctx)
        return ctx

    def _open_plan(self, tool: Any, *, trace: bool = False) -> Plan:
        if not self.is_open:
            raise GateClosed("the gate is not open; use it inside `async with gate:`")
        return self._plans.of(tool, trace=trace)
