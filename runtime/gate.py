"""The gate: tools, hooks and providers put together; every call passes it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

from callgate.errors import GateClosed, InvocationError, RegistrationError, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.linter import Finding, lint
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, register, register_by_stage
from callgate.hooks.stages import Stage
from callgate.providers.clock import Clock
from callgate.providers.registry import ProviderRegistry
from callgate.runtime import batch
from callgate.runtime.adapters import codec
from callgate.runtime.engine import CallOptions, Engine, apply_options, new_instance
from callgate.runtime.explain import Explanation, explain
from callgate.runtime.factories import Factories
from callgate.runtime.failure import error_info
from callgate.runtime.invoke import run
from callgate.runtime.results import raise_or_keep, result_of, unknown_tool
from callgate.runtime.streams import Event, stream
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.declare import FunctionTool
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.hydration import HydrationResult, Repairer, hydrate
from callgate.tools.parsing import DEFAULT_LIMITS, Limits
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.validation import Engine as ValidatorEngine

R = TypeVar("R")


class Gate:
    """One gate for a service. Make it once, use it inside ``async with``.

    Args:
        tools: what ``@tool`` made, plain functions, decorated classes, ``ToolRecord`` or ``ToolExecutor`` objects.
        hooks: hook objects or classes; they apply to every tool they do not exclude themselves from.
        hooks_by_stage: the explicit form, ``{stage: [hook, ...]}``.
        container: a dependency-injector container, or None.
        provide: ``{token: factory or instance}``; a factory is called once, when the gate opens.
        deadline: seconds for each call, unless the tool or the call says otherwise; None means no limit.
        open: allow tools that are not ``read`` without any hook that authorises.
        lazy: compile a tool's plan and validators at its first call instead of at start.
        resolve: makes an instance of a hook class, once an invocation.
        limits: bounds on arguments and outputs.
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
        deadline: float | None = None,
        open: bool = False,
        lazy: bool = False,
        resolve: Callable[[Any], Any] = new_instance,
        limits: Limits = DEFAULT_LIMITS,
        validator: ValidatorEngine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.registry = ToolRegistry()
        self.providers = ProviderRegistry(container)
        self.deadline = deadline
        self.open = open
        self.lazy = lazy
        self._factories = Factories(provide or {}, self.providers)
        self._engine = Engine(
            self.providers,
            raise_or_keep,
            resolve=resolve,
            clock=clock,
            limits=limits,
            validator=validator,
            plan_for=self._plan_for,
        )
        self._now = self._engine.monotonic
        self._shared: list[Registration] = [register(hook, "gate") for hook in hooks]
        self._shared += register_by_stage(hooks_by_stage or {}, "gate")
        self._plans: dict[str, Plan] = {}
        self._live: dict[Any, Plan] = {}  # by name and by tool object; empty while the gate is closed
        self._traced: dict[str, Plan] = {}
        self._running = False
        for tool in tools:
            self.add(tool)
        if not lazy:
            self._compile_all()

    # ------------------------------------------------------------------ putting together

    def add(self, tool: Any, *, replace: bool = False) -> ToolRecord:
        """Register one more tool.

        Raises:
            DefinitionError: duplicate name, or a schema that is refused.
        """
        record = self.registry.add_validated(tool, replace=replace)
        self._forget_plans()
        if self._running and not self.lazy:
            self._plans[record.id] = self._compile(record)
        return record

    def use(self, hook: Any, *, tools: Any = None, tags: Any = None, tenants: Any = None) -> Callable[[], None]:
        """Register a hook for every tool, or for some; plans are compiled again. Returns what takes it out."""
        made = register(hook, "gate.use", tools=tools, tags=tags, tenants=tenants)
        self._shared.append(made)
        try:
            self._recompile()
        except RegistrationError:
            self._shared.remove(made)
            self._forget_plans()
            raise

        def undo() -> None:
            if made in self._shared:
                self._shared.remove(made)
                self._recompile()

        return undo

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """What a model may be told: definitions, or the request part of a wire such as ``"openai_chat"``."""
        visible = [record.definition for record in self.registry.list() if _may_see(record.definition, user)]
        return visible if wire is None else codec(wire).translate(visible).request

    def explain(self, tool: Any, *, user: User | None = None) -> Explanation:
        """The plan of a tool, and why each hook is in or out; ``print`` it."""
        return explain(self._plan_for(tool), user)

    def lint(self) -> list[Finding]:
        """What looks wrong in the plans of all tools."""
        return [finding for record in self.registry.list() for finding in lint(self._plan_for(record.id))]

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        """Open: run the factories, compile what is not compiled.

        Raises:
            RegistrationError: a tool that is not ``read`` and nobody who authorises, without ``open=True``.
        """
        if self._running:
            raise RegistrationError("the gate is open already; use one `async with gate` for the life of the service")
        self._refuse_unguarded()
        await self._factories.open()
        self._running = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close: wait, at most ``CLOSE_LIMIT`` seconds, for bodies that were left behind; then close the factories."""
        self._running = False
        self._live.clear()
        await self._engine.drain()
        await self._factories.close()

    # ------------------------------------------------------------------ calling

    @overload
    def invoke(
        self,
        tool: FunctionTool[Any, Coroutine[Any, Any, R]],
        arguments: Any = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def invoke(
        self, tool: FunctionTool[Any, R], arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def invoke(
        self, tool: Any, arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]: ...

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
            plan = self._live[tool] = self._plan_for(tool, running=True)
        ctx = InvokeContext(plan, arguments, user, self._now())
        if options or plan.limit is not None:
            apply_options(ctx, options)
        if plan.typed and tool.__class__ is not str:
            return _typed(plan, ctx)
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
        if isinstance(ctx, ToolResult):
            return ctx
        try:
            await run(ctx.plan, ctx)
        except InvocationError:
            pass
        return result_of(ctx)

    def call_many(
        self,
        calls: Iterable[ToolCall | HydrationResult],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, list[ToolResult]]:
        """Run several calls; results in order. Tools with ``parallel=False`` run alone, others up to *at_once* together."""
        return batch.call_many(self, list(calls), user, at_once, options)

    def stream(
        self, call: ToolCall | HydrationResult, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run one call and yield its progress, partial outputs (shaped like the whole) and, last, its result."""
        return stream(self, call, user, options)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """Parse and validate one call; runs nothing. Give the result to ``call``, which does not do it again.

        *repair* is asked at most once for other arguments; what it makes is recorded and never trusted (contract 49).
        """
        return hydrate(
            call,
            self._record_of,
            self._validator_of,
            wire=wire,
            limits=self._engine.limits,
            repair=repair,
            lazy=self.lazy,
        )

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """``hydrate`` for every call of an answer, in order; none is dropped (contract C10a)."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]

    # ------------------------------------------------------------------ inside

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """Whether ``call_many`` may run this call beside others."""
        asked: Any = call.call if isinstance(call, HydrationResult) else call
        record = self._record_of(asked.tool) if isinstance(asked.tool, str) else None
        return record is None or record.parallel

    def _context(
        self, call: ToolCall | HydrationResult, user: User, trace: bool, options: CallOptions
    ) -> InvokeContext | ToolResult:
        hydrated = call if isinstance(call, HydrationResult) else None
        asked = call.call if isinstance(call, HydrationResult) else call
        try:
            name = asked.tool if isinstance(asked.tool, str) else ""  # a name that is no text names nothing
            plan = self._plan_for(name, running=True, trace=trace)
        except UnknownTool as error:
            error.correlation_id = options.get("request_id") or secrets.token_hex(16)
            return unknown_tool(asked, error_info(error))
        ctx = InvokeContext(plan, asked.arguments, user, self._now())
        apply_options(ctx, options)
        ctx._call = asked
        if trace:
            ctx.trace = []
        if hydrated is not None and not (
            hydrated.success and not hydrated.vouched_for(plan.definition, plan.builtins.arguments)
        ):
            ctx.hydration = ctx._input = hydrated  # vouched for, or failed: either way it is not read again
        elif asked.truncated:
            ctx._input = asked  # no text: the short way must not take it
        return ctx

    def _plan_for(self, tool: Any, *, running: bool = False, trace: bool = False) -> Plan:
        if running and not self._running:
            raise GateClosed("the gate is not open; use it inside `async with gate:`")
        name = tool if isinstance(tool, str) else self.registry.id_of(tool)
        if trace:
            if name not in self._traced:
                self._traced[name] = self._compile(self.registry.get(name), trace=True)
            return self._traced[name]
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plans[name] = self._compile(self.registry.get(name))
        return plan

    def _compile(self, record: ToolRecord, *, trace: bool = False) -> Plan:
        plan = self._engine.compile(record, self._shared, trace=trace)
        plan.limit = record.deadline if record.deadline is not None else self.deadline
        return plan

    def _compile_all(self) -> None:
        for record in self.registry.list():
            self._plan_for(record.id)

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._live.clear()
        self._traced.clear()

    def _recompile(self) -> None:
        self._forget_plans()
        if not self.lazy:
            self._compile_all()

    def _record_of(self, name: str) -> ToolRecord | None:
        return self.registry.get(name) if name in self.registry else None

    def _validator_of(self, name: str) -> Any:
        return self._plan_for(name).builtins.arguments

    def _refuse_unguarded(self) -> None:
        if self.open:
            return
        authorising = {Stage.WILL_AUTHORIZE, Stage.WILL_AUTHORIZE_INPUT}
        for record in self.registry.list():
            if record.definition.effect is Effect.READ:
                continue
            plan = self._plan_for(record.id)
            if not any(step.stage in authorising for _, _, step in plan.before):
                raise RegistrationError(
                    f"tool {record.id!r} may change the world (effect {record.definition.effect or 'undeclared'}) and no hook "
                    'authorises it; add a hook with will_authorize, declare effect="read", or say Gate(open=True)'
                )


async def _typed(plan: Plan, ctx: InvokeContext) -> Any:
    convert = plan.record.from_json
    output = await run(plan, ctx)
    return output if convert is None else convert(output)


def _may_see(definition: ToolDefinition, user: User) -> bool:
    roles = frozenset(definition.allowed_roles)
    return not roles or bool(roles & frozenset(user.roles))


__all__ = ["Gate"]
