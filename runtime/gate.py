"""The gate: tools, hooks and providers of a service. Every call passes through it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Mapping
from typing import Any, Self, TypeVar, Unpack, overload

from callgate.errors import Invalid, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.selection import Registration, register, register_by_stage
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
    known_options,
    nearest_call,
    refusal_of,
    refuse_user,
)
from callgate.runtime.call.invoke import run
from callgate.runtime.call.options import CallOptions, apply_options
from callgate.runtime.call.results import failing, raise_or_keep, run_to_result, typed
from callgate.runtime.call.streams import Event, stream
from callgate.runtime.effects.ledger import Effects
from callgate.runtime.engine import Engine, close_all
from callgate.runtime.faces.bound import Bound, visit
from callgate.runtime.faces.changes import Changes
from callgate.runtime.faces.deferred import DeferredCalls
from callgate.runtime.faces.guesses import GATE
from callgate.runtime.faces.keywords import GATE_KEYWORDS, explain_keywords
from callgate.runtime.faces.options import Mode, Options, Sessions
from callgate.runtime.faces.placement import Placement, RunOn
from callgate.runtime.faces.sync import SyncGate
from callgate.runtime.faces.views import Views
from callgate.runtime.jobs.backend import JobBackend
from callgate.runtime.jobs.options import Jobs
from callgate.runtime.lifespan.lifespan import Lifespan
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.record_keeping import CallRecords, Suspensions
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.naming import explain_attributes
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

R = TypeVar("R")


@explain_attributes(GATE)
class Gate(Views, Changes, DeferredCalls):
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
        tools: Iterable[object] = (),
        hooks: Iterable[object] = (),
        *,
        mode: Mode = "production",
        allow_unguarded: bool = False,
        container: object = None,
        provide: Mapping[Any, object] | None = None,
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
        self.limits, self.lazy, self._options = options.limits, options.lazy, options
        self.registry = ToolRegistry()
        self.providers = ProviderRegistry(
            container, now=clock.monotonic, session_ttl=sessions.ttl, max_sessions=sessions.maximum
        )
        self._sync = SyncGate(self, options.drain)
        self.providers.provide(provide or {})
        self._engine = Engine(
            self.providers,
            raise_or_keep,
            resolve=options.resolve,
            clock=clock,
            limits=options.limits,
            validator=options.validator,
            store=store_at(store, clock.time, migrate=options.migrate),
            namespace=options.namespace,
            on_repair=options.on_repair,
            no_schema_policy=options.no_schema_policy,
            formats=options.formats,
            closing=options.closing,
            hard_deadline=options.hard_deadline,
        )
        self._now = self._engine.monotonic
        self._lifespan = Lifespan(self._engine, self.providers, options.drain)
        self._plans = Plans(self._engine, self.registry, deadline=deadline)
        self._records = CallRecords(
            self._engine, self._plans, effects, signing_keys, suspensions or Suspensions(), options.namespace
        )
        self._jobs = self._make_jobs(self._records, jobs if isinstance(jobs, Jobs) else Jobs(engine=jobs))
        self._lifespan.background.tasks += self._records.tasks
        self._engine.development = mode == "development"
        self._plans.start(_registered(hooks))
        for tool in tools:
            self.add(tool)
        if not self.lazy:
            self._plans.compile_all()

    async def open(self) -> Self:
        """Open the gate: run the factories, compile the remaining plans, and accept calls.

        Raises:
            RegistrationError: the gate is already open, or production mode lacks settings; the message lists them.
        """
        await self._lifespan.open(self._prepare, self._jobs, self._unwatch)
        logs.log_opened(len(self.registry.list()), len(self._plans.current.shared))
        return self

    def _prepare(self) -> None:
        """Check that the gate may open, before anything is started."""
        if not self.lazy:
            self._plans.compile_all()
        self._check(self._plans.policy())
        if self.mode == "development":
            from callgate.runtime.lifespan.development import report  # a production service needs none

            report(self.registry.list(), self._plans)
        self._records.ledger.begin()
        self._plans.check = self._check

    def _unwatch(self) -> None:
        """Accept changes unchecked: the next opening checks them."""
        self._plans.check = None

    async def close(self) -> None:
        """Close the gate: drain, then end sessions and close the instances of factories.

        No new call begins. Calls, streams, conversations, jobs and session blocks under way have the seconds of
        ``Options.drain`` to end; then they are cancelled. What they call until then still runs.

        Raises:
            GateClosed: the gate was opened in another event loop, or before a fork.
        """
        if self.is_open:
            await self._lifespan.close(self._jobs, self._unwatch)
            logs.emit(logs.LogEvent.GATE_CLOSED, left_behind=len(self._engine.left_behind))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def session(
        self, session_id: str | None = None, *, user: User = ANONYMOUS
    ) -> contextlib.AbstractAsyncContextManager[Bound]:
        """Open a session for the ``async with`` block: its calls share the instances of the session scope.

        Without an id the session gets a random one. It ends with the last block that entered it; running calls finish.

        Raises:
            Denied: the session belongs to another user.
            TypeError: *user* is not a ``User``.
        """
        return visit(self, session_id or secrets.token_urlsafe(18), user)

    def under_way(self) -> contextlib.AbstractContextManager[None]:
        """Count a ``with`` block as a call under way: ``close`` waits for it, and the block may call on until then."""
        return self._engine.under_way.block()

    async def end_session(self, session_id: str) -> None:
        """End a session: close its instances, now or when its last call has ended."""
        await close_all(self.providers.sessions.end(session_id))

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
        """Run a tool and return its output. Await what this returns; errors are raised then, and not before.

        Args:
            tool: the tool, for a typed output; or its name, or a ``ToolCall`` without further arguments.
            arguments: a JSON object, or the text of one.
            user: the principal of the call.
            options: see ``CallOptions``.

        Raises:
            Denied, Invalid, RetryLater, Suspended, ToolFailed, DeadlineExceeded: the call ended without an output.
            UnknownTool: the gate has no such tool.
            GateClosed: the gate is not open, or not in this event loop and process.
            TypeError: *tool* or *user* is of the wrong type; the message has the line to write.
        """
        try:
            plan = self._plans.current.live.get(tool)
        except TypeError:  # not hashable, such as a ToolCall
            plan = None
        if plan is None or (user.__class__ is not User and not isinstance(user, User)):
            return self._invoke_first(tool, arguments, user, options)
        ctx = InvokeContext(plan, arguments, user, self._now())
        if options or plan.limit is not None:
            try:
                apply_options(ctx, options)
            except (TypeError, Invalid) as error:
                return failing(error)
        if plan.typed and tool.__class__ is not str:
            return typed(plan, run(plan, ctx))
        return run(plan, ctx)

    def _invoke_first(
        self, tool: object, arguments: object, user: User, options: CallOptions
    ) -> Coroutine[Any, Any, object]:
        """Do what ``invoke`` does for a ``ToolCall``, a mistake, and the first call of a tool."""
        try:
            call = as_call(self.registry, tool, arguments)
            if call is not tool and isinstance(call, ToolCall) and isinstance(tool, Hashable):
                self._plans.remember(tool, call.name)
            ctx = self._context(call, user, False, options)
        except UnknownTool as error:
            ctx = self._refused(tool, arguments, user, error, options)
        except Exception as error:  # noqa: BLE001  (raised when the caller awaits)
            return failing(error)
        running = run(ctx.run.plan, ctx)
        return typed(ctx.run.plan, running) if ctx.run.plan.typed and not isinstance(tool, str | ToolCall) else running

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
            GateClosed: the gate is not open, or not in this event loop and process.
            CancelledError: the caller was cancelled. Every other mistake or failure is in the result.
        """
        call: Any = tool
        try:
            if tool.__class__ is not ToolCall or arguments is not None:
                call = as_call(self.registry, tool, arguments)
            ctx = self._context(call, user, trace, options)
        except Exception as error:  # noqa: BLE001  (it becomes the result)
            ctx = self._refused(tool, arguments, user, error, options)
        return await run_to_result(ctx)

    async def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, Any]],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ToolResult]:
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
            GateClosed: as for ``call``.
            TypeError: *calls* or *user* is of the wrong type; the message has the line to write.
            UnknownTool: the gate does not have a tool object.
        """
        refuse_user(user)
        made = as_calls(self.registry, calls)
        with self.under_way():
            return await batch.call_many(Placement(self, run_on), made, user, at_once, options, trace=trace)

    def stream(
        self, tool: Callee, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run one call and yield its progress, partial outputs (shaped like the whole) and, last, its result.

        The arguments are those of ``call``. Errors are raised at the first event, and not before.

        Raises:
            GateClosed, TypeError, UnknownTool: as for ``call_many``.
        """
        return stream(self, tool, arguments, user, options)

    def _context(self, call: Call, user: User, trace: bool | TraceTo, options: CallOptions) -> InvokeContext:
        refuse_user(user)
        asked = call.call if isinstance(call, HydrationResult) else call
        try:
            name = asked.name if isinstance(asked.name, str) else ""  # a name of another type is unknown
            plan = self._plans.of(name, trace=bool(trace))
        except UnknownTool as error:
            ctx = context_of_none(self._plans.of_none(), asked, user, error, options)
        else:
            ctx = context_of(plan, asked, call, user, options)
        if trace:
            ctx.run.trace = [] if trace is True else trace(ctx)
        return ctx

    def _refused(self, tool: Any, arguments: Any, user: Any, error: Exception, options: CallOptions) -> InvokeContext:
        """Return the context of a call that cannot begin: hooks record it, and it ends with an error."""
        by = user if isinstance(user, User) else ANONYMOUS
        call, known = nearest_call(tool, arguments), known_options(options)
        return context_of_none(self._plans.of_none(), call, by, refusal_of(error), known)


def _registered(hooks: Iterable[object]) -> list[Registration]:
    """Register the hooks of a gate; a mapping holds hooks by stage."""
    found: list[Registration] = []
    for hook in hooks:
        found += register_by_stage(hook, "gate") if isinstance(hook, Mapping) else [register(hook, "gate")]
    return found
