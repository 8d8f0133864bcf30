"""The gate: tools, hooks and providers of a service. Every call passes through it."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from callgate.errors import HookError
from callgate.hooks.linter import AT_REGISTRATION
from callgate.hooks.selection import Registration, register, register_by_stage
from callgate.providers import logs
from callgate.providers.clock import GateClock, SystemClock
from callgate.providers.guesses import Explained, explain_attributes, explain_camel_case, without_guesses
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.address import in_namespace, store_at
from callgate.providers.stores.base import Store
from callgate.runtime.effects.steps import LedgerClaims
from callgate.runtime.gate.bound import Bound, visit
from callgate.runtime.gate.hydration import GRACE, HydrationAttempts
from callgate.runtime.gate.invoker import Invoker
from callgate.runtime.gate.mistakes import GATE, explain_arguments_of_gate
from callgate.runtime.gate.sync import SyncGate
from callgate.runtime.jobs.assembly import make_queue
from callgate.runtime.lifespan.background import BackgroundTask, close_left_hooks
from callgate.runtime.lifespan.lifespan import Lifespan
from callgate.runtime.lifespan.readiness import refuse_unready
from callgate.runtime.options.gate import Effects, Mode, Options, Sessions, Suspensions
from callgate.runtime.options.job_engine import JobBackend
from callgate.runtime.options.jobs import Jobs
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.policy import Policy
from callgate.runtime.pipeline.results import raise_or_keep
from callgate.runtime.pipeline.services import LeftBehind, Services
from callgate.runtime.pipeline.under_way import UnderWay
from callgate.runtime.suspensions.record_keeping import CallRecords
from callgate.tools.calls import ANONYMOUS, User
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Source(Protocol[M_co]):
    """A remote source of tools, for ``Gate.mount``."""

    async def mount_on(self, gate: object, /) -> M_co:
        """Add the tools to *gate*, and keep them up to date until it closes."""
        ...


@explain_camel_case
@explain_attributes(GATE)
class Gate(Invoker, metaclass=Explained):
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
        signing_keys: secrets that sign suspended calls, jobs, effects, cached values and audit rows in a store; newest
            first, the same in all processes. Rows from before the keys are refused until ``callgate stores sign`` signs
            them; keep an old key in the list for as long as rows with its signature are kept.
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

    @explain_arguments_of_gate
    def __init__(
        self,
        tools: Iterable[object] = (),
        hooks: Iterable[object] = (),
        *,
        mode: Mode = "production",
        allow_unguarded: bool = False,
        container: object = None,
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
        sessions, options = sessions or Sessions(), options or Options()
        clock = options.clock or SystemClock()
        self.mode: Mode = mode
        self.allow_unguarded, self.deadline = allow_unguarded, deadline
        self._sync = SyncGate(self, options.drain)
        providers = ProviderRegistry(container, now=clock.monotonic, **sessions.limits())
        providers.provide(provide or {})
        kept = in_namespace(store_at(store, clock.time, migrate=options.migrate), options.namespace)
        time = GateClock(clock, kept)
        # The plans are made from the services, so the records look a plan up when they need it.
        records = CallRecords(
            kept,
            time,
            lambda: plans,
            effects or Effects(),
            signing_keys,
            suspensions or Suspensions(),
            options.namespace,
        )
        services = _services_of(providers, time, records, options, development=mode == "development")
        records.refuse_foreign = services.under_way.refuse_foreign
        plans: Plans = Plans(services, ToolRegistry(), limits=(deadline, options.idle))
        queue = make_queue(services.under_way, records, jobs if isinstance(jobs, Jobs) else Jobs(engine=jobs))
        lifespan = Lifespan(services, providers, options.drain, records.ledger)
        super().__init__(services, plans, providers, options, records, queue, lifespan)
        lifespan.background.tasks += [
            *records.tasks,
            BackgroundTask("hydration attempts", GRACE / 2, partial(self._attempts.flush, GRACE)),
            BackgroundTask("hooks that left", GRACE / 2, partial(close_left_hooks, services, plans)),
        ]
        plans.start(_registered(hooks))
        for tool in tools:
            self.add(tool)
        if not self.lazy:
            plans.compile_all()

    def __dir__(self) -> list[str]:
        return without_guesses(type(self), super().__dir__())

    async def open(self) -> Self:
        """Open the gate: run the factories, compile the remaining plans, and accept calls.

        Raises:
            RegistrationError: the gate is already open, or production mode lacks settings; the message lists them.
        """
        await self._lifespan.open(self._prepare, self._jobs, self._unwatch)
        logs.emit(logs.LogEvent.GATE_OPENED, tools=len(self.registry.list()), hooks=len(self._plans.current.shared))
        return self

    def _prepare(self) -> None:
        """Check that the gate may open, before anything is started."""
        self._plans.refresh()
        if not self.lazy:
            self._plans.compile_all()
        self._check(self._plans.policy())
        self._report_findings()
        self._records.ledger.begin()
        self._plans.check = self._check

    def _unwatch(self) -> None:
        """Accept changes unchecked: the next opening checks them. Attempts whose calls never ran are noted."""
        self._plans.check = None
        self._attempts.flush()

    async def close(self) -> None:
        """Close the gate: drain, then end sessions and close the instances of factories.

        No new call begins. Calls, streams, conversations, jobs and session blocks under way have the seconds of
        ``Options.drain`` to end; then they are cancelled. What they call until then still runs.

        Raises:
            GateClosed: the gate was opened in another event loop, or before a fork.
        """
        if self._lifespan.is_open:
            await self._lifespan.close(self._jobs, self._unwatch)
            logs.emit(logs.LogEvent.GATE_CLOSED, left_behind=len(self._services.left_behind.tasks))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def session(self, session_id: str | None = None, *, user: User = ANONYMOUS) -> AbstractAsyncContextManager[Bound]:
        """Open a session for the ``async with`` block: its calls share the instances of the session scope.

        Without an id the session gets a random one. It ends with the last block that entered it; running calls finish.

        Raises:
            Denied: the session belongs to another user.
            TypeError: *user* is not a ``User``.
        """
        return visit(self, session_id or secrets.token_urlsafe(18), user)

    def _check(self, after: Policy, before: Policy | None = None) -> None:
        """Refuse a policy that the gate does not open with, and a change to it while the gate is open."""
        self._check_ready(after if before is None else after.since(before), is_open=before is not None)
        try:
            after.check_hooks(before)
        except HookError as error:
            if not self._options.dynamic_tools:
                raise
            if before is None:
                logs.log_warnings("*", [f"{error}; it may come later, because of Options(dynamic_tools=True)"])

    def _check_ready(self, policy: Policy, *, is_open: bool = True) -> None:
        if self.mode == "production":
            refuse_unready(policy, self._records, allow_unguarded=self.allow_unguarded, is_open=is_open)

    def _report_findings(self) -> None:
        """Log the findings of a gate that opens; in development mode, print them with the plans.

        A lazy gate does so in development mode only: its plans are compiled at their first calls.
        """
        is_development = self.mode == "development"
        if not is_development and (self.lazy or not logs.is_logged(logs.LogEvent.LINT_FOUND)):
            return
        findings = self.lint()
        for one in findings:
            if one.rule not in AT_REGISTRATION:
                logs.emit(logs.LogEvent.LINT_FOUND, tool=one.tool, rule=one.rule, hook=one.hook, advice=one.advice)
        if is_development:
            from callgate.runtime.lifespan.development import report  # a production service needs none

            report((self._plans.of(record.id) for record in self.registry.list()), findings)

    def at_close(self, close: Callable[[], Awaitable[None]]) -> Callable[[], object]:
        """Await *close* once when the gate closes, before its store. Return the function that ends this."""
        return self._services.at_close(close)

    def maintain(self) -> Coroutine[object, None, None]:
        """Run every background task once, now: end sessions, renew leases, settle effects, expire suspended calls."""
        return self._lifespan.maintain()

    def sync(self) -> SyncGate:
        """Return this gate for synchronous hosts: ``with gate.sync() as g``, or ``open()`` and ``close()``."""
        return self._sync

    async def mount(self, source: Source[M]) -> M:
        """Add the tools of a remote server, such as ``callgate.mcp.McpServer``, and follow its changes.

        The gate closes the connection when it closes. Return what is mounted: names, refusals, changed definitions.

        Raises:
            RegistrationError: the server cannot be reached, or its list of tools breaks a limit.
        """
        if not hasattr(source, "mount_on"):
            kind = type(source).__name__
            raise TypeError(
                f"mount takes a source of tools, not {kind}; write await gate.mount(McpServer(name=..., url=...))"
            )
        return await source.mount_on(self)

    def with_tools(self, tools: Iterable[ToolRecord]) -> Self:
        """Return a gate that also has *tools*; this one does not change.

        Both share hooks, stores and sessions, and later changes of this gate count for both. A tool whose name is
        taken is left out. Nested calls do not see the new tools.

        Raises:
            RegistrationError: the gate would not open with the tools, such as without a hook that authorises them.
        """
        records = self._records.with_plans(lambda: plans)
        services = replace(
            self._services, gate=self._services.origin, plan_of=records.plan_of, suspensions=records.waits
        )
        plans: Plans = self._plans.with_tools(services, tools, self._check_ready)
        made = copy.copy(self)
        Invoker.__init__(made, services, plans, self.providers, self._options, records, self._jobs, self._lifespan)
        made._attempts = HydrationAttempts(services, plans, self._options, self._attempts.waiting)
        return made


def _registered(hooks: Iterable[object]) -> list[Registration]:
    """Register the hooks of a gate; a mapping holds hooks by stage."""
    made = (register_by_stage(one, "gate") if isinstance(one, Mapping) else [register(one, "gate")] for one in hooks)
    return [one for registrations in made for one in registrations]


def _services_of(
    providers: ProviderRegistry,
    clock: GateClock,
    records: CallRecords,
    options: Options,
    *,
    development: bool,
) -> Services:
    """Return the services of a gate."""
    return Services(
        registry=providers,
        store=records.gate_store,
        clock=clock,
        monotonic=clock.monotonic,
        plan_of=records.plan_of,
        effects=LedgerClaims(records.ledger),
        suspensions=records.waits,
        audit_keys=records.audit_keys,
        surface=raise_or_keep,
        under_way=UnderWay(),
        left_behind=LeftBehind(providers.sessions),
        closing=options.closing,
        around_threads=options.around_threads,
        hard_deadline=options.hard_deadline,
        development=development,
        on_repair=options.on_repair,
        resolve=options.resolve,
        limits=options.limits,
        validator=options.validator,
        no_schema_policy=options.no_schema_policy,
        formats=options.formats,
        namespace=options.namespace,
    )
