"""The calls of a gate: those that run at once, those that wait for a decision, and those that a worker runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Unpack, overload

from callgate.errors import Invalid, InvocationError, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.providers.registry import ProviderRegistry
from callgate.runtime.gate.catalogue import Catalogue
from callgate.runtime.gate.placement import Placement, RunOn
from callgate.runtime.jobs.assembly import call_to_submit
from callgate.runtime.jobs.jobs import JobHandle, JobQueue
from callgate.runtime.lifespan.lifespan import Lifespan
from callgate.runtime.options.gate import Options
from callgate.runtime.options.jobs import SubmitOptions
from callgate.runtime.pipeline import batch
from callgate.runtime.pipeline.calls import Call, Callee, TraceTo, as_call, as_calls, context_of_none, refuse_user
from callgate.runtime.pipeline.contexts import context_for, context_of_mistake
from callgate.runtime.pipeline.options import CallOptions, apply_options
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.results import failing, run_to_result, typed
from callgate.runtime.pipeline.run import run
from callgate.runtime.pipeline.services import Services
from callgate.runtime.pipeline.streams import Event, Events, run_streamed
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.record_keeping import CallRecords, resume
from callgate.runtime.suspensions.resolution import CallOutcome, Resolution, repeat_read, resolve
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.naming import explain_arguments
from callgate.tools.record import ToolRecord

R = TypeVar("R")


class Invoker(Catalogue):
    """Invokes the tools of a catalogue, at once or later, and keeps the records that outlive a call."""

    def __init__(
        self,
        services: Services,
        plans: Plans,
        providers: ProviderRegistry,
        options: Options,
        records: CallRecords,
        jobs: JobQueue,
        lifespan: Lifespan,
    ) -> None:
        super().__init__(services, plans, providers, options)
        self._records, self._jobs, self._lifespan = records, jobs, lifespan
        self._now = services.monotonic

    @property
    def is_open(self) -> bool:
        """True while the gate accepts calls."""
        return self._lifespan.is_open

    def under_way(self) -> AbstractContextManager[None]:
        """Count a ``with`` block as a call under way: ``close`` waits for it, and the block may call on until then."""
        return self._services.under_way.block()

    async def end_session(self, session_id: str) -> None:
        """End a session: close its instances, now or when its last call has ended."""
        await self._lifespan.end_session(session_id)

    @overload
    def invoke(
        self,
        tool: str | type[object] | ToolRecord | Call,
        arguments: object = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> Coroutine[object, None, Any]: ...

    @overload
    def invoke(
        self,
        tool: Callable[..., Coroutine[object, None, R]],
        arguments: object = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> Coroutine[object, None, R]: ...

    @overload
    def invoke(
        self, tool: Callable[..., R], arguments: object = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, R]: ...

    def invoke(
        self, tool: Any, arguments: object = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, Any]:
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
        if options or plan.timed:
            try:
                apply_options(ctx, options)
            except (TypeError, Invalid) as error:
                return failing(error)
        if plan.typed and tool.__class__ is not str:
            return typed(plan, run(plan, ctx))
        return run(plan, ctx)

    def _invoke_first(
        self, tool: object, arguments: object, user: User, options: CallOptions
    ) -> Coroutine[object, None, object]:
        """Do what ``invoke`` does for a ``ToolCall``, a mistake, and the first call of a tool."""
        try:
            call = as_call(self.registry, tool, arguments)
            self._attempts.begun(call)
            if call is not tool and isinstance(call, ToolCall) and isinstance(tool, Hashable):
                self._plans.remember(tool, call.name)
            ctx = context_for(self._plans, call, user, False, options)
        except UnknownTool as error:
            ctx = context_of_mistake(self._plans, tool, arguments, user, error, options)
        except Exception as error:  # noqa: BLE001  (raised when the caller awaits)
            return failing(error)
        running = run(ctx.run.plan, ctx)
        return typed(ctx.run.plan, running) if ctx.run.plan.typed and not isinstance(tool, str | ToolCall) else running

    async def call(
        self,
        tool: Callee,
        arguments: object = None,
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
                self._attempts.begun(call)
            ctx = context_for(self._plans, call, user, trace, options)
        except Exception as error:  # noqa: BLE001  (it becomes the result)
            ctx = context_of_mistake(self._plans, tool, arguments, user, error, options)
        return await run_to_result(ctx)

    async def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, object]],
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
        self, tool: Callee, arguments: object = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run one call and yield its progress, partial outputs (shaped like the whole) and, last, its result.

        The arguments are those of ``call``. Errors are raised at the first event, and not before.

        Raises:
            GateClosed, TypeError, UnknownTool: as for ``call_many``.
        """

        def begin(events: Events) -> Coroutine[object, None, ToolResult]:
            refuse_user(user)
            return self.call(as_call(self.registry, tool, arguments), user=user, **(options | {"events": events}))

        return run_streamed(begin)

    async def refuse(
        self, call: ToolCall, error: InvocationError, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """End a call with *error* before anything runs; hooks that observe errors or write records see it."""
        return await run_to_result(context_of_none(self._plans.of_none(), call, user, error, options))

    async def record_elsewhere(
        self, call: ToolCall, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """Record a call that ran elsewhere, such as at the model's provider; no tool and no policy runs."""
        unknown = UnknownTool(f"{call.name!r:.80} ran elsewhere")
        return await run_to_result(context_of_none(self._plans.of_elsewhere(), call, user, unknown, options))

    # ------------------------------------------------------------------ calls that wait for a decision

    @property
    def waits(self) -> SuspensionManager:
        """The suspended calls: ``await gate.waits.pending(viewer)``, ``look``, ``withdraw``."""
        return self._records.waits

    @explain_arguments("await gate.resume(result.pending.handle, Approve(), approver=user)")
    def resume(
        self,
        handle: str,
        decision: Decision,
        *,
        approver: User,
        here: bool = True,
        trace: bool = False,
        **options: Unpack[CallOptions],
    ) -> Coroutine[object, None, ToolResult]:
        """Decide a suspended call, and run it after the last approval; return its result as ``call`` does.

        The call starts from its first stage, for its own user, and is authorised again. Until the last approval the
        result is ``suspended``. A call that was submitted goes on in a worker: the result is that of its job, or
        ``in_flight`` if it has none within ``deadline`` seconds (default: ``Effects(wait=)``).

        Args:
            handle: the handle of the call, from ``result.pending`` or ``waits``.
            decision: an ``Approve``, ``Deny``, ``Edit`` or ``Respond``.
            approver: the user who decides; your application authenticates them.
            here: False records the last decision, too, and runs nothing. The result is then ``in_flight``, and
                ``proceed`` runs the call.
            trace: as for ``call``.
            options: see ``CallOptions``.

        Raises:
            NotPending: no call is suspended under the handle, or this approver may not decide it.
            Denied: the approver is the user of the call.
            Stale: this process has another version of the tool or its policies; the call keeps waiting.
            Invalid: the new arguments or the response do not fit their schema.
        """
        return resume(self, self._records, handle, decision, approver, options, trace=trace, here=here)

    def proceed(
        self, handle: str, *, user: User, trace: bool = False, **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, ToolResult]:
        """Run a suspended call of *user* that ``resume(here=False)`` has decided; return its result as ``call`` does.

        The call runs once: a second process waits for the outcome, and gets it. A call that is not decided stays
        ``suspended``. A call that was denied, or did not run before the suspension expired, is ``denied``.

        Args:
            handle: the handle of the call, from ``result.pending``.
            user: the user who made the call.
            trace: as for ``call``.
            options: see ``CallOptions``. Without ``deadline``, the wait for another process is that of ``Effects(wait=)``.

        Raises:
            NotPending: no call of this user has the handle.
            Stale: this process has another version of the tool or its policies; the decision stays recorded.
        """
        from callgate.runtime.suspensions.handover import proceed  # few calls wait

        return proceed(self, self._records, handle, user, options, trace=trace)

    def proceed_stream(self, handle: str, *, user: User, **options: Unpack[CallOptions]) -> AsyncGenerator[Event, None]:
        """Do what ``proceed`` does, and yield the events of the call as ``stream`` does; the errors are raised at the first."""
        return run_streamed(lambda events: self.proceed(handle, user=user, **(options | {"events": events})))

    def resolution(self, handle: str, user: User) -> Coroutine[object, None, Resolution | None]:
        """Return the outcome of a suspended call of *user* that another request or process decided; run nothing.

        None while the call is suspended under *handle*, or runs.
        """
        return resolve(self._records, handle, user)

    async def outcome(self, call: JobHandle | str, *, user: User = ANONYMOUS, tool: str | None = None) -> CallOutcome:
        """Return the state of a call of *user*, its result once it has ended, and what it waits for before that.

        Any process with the same store may ask. No tool runs.

        Args:
            call: the handle or id of a job, the handle of a suspended call, or an idempotency key.
            user: the user who made the call.
            tool: the name of the tool; it is needed, and only allowed, with an idempotency key.

        Raises:
            NotPending: no call of this user has the handle or the key.
            Invalid: the key is not a text of 1 to 255 characters.
        """
        from callgate.runtime.jobs.outcomes import outcome_of_call

        refuse_user(user)
        id = call.id if isinstance(call, JobHandle) else call
        return await outcome_of_call(self._records, self._jobs, id, user, tool)

    def repeat_read(self, handle: str, user: User, *, deadline: float | None) -> Coroutine[object, None, ToolResult]:
        """Repeat a read that another request approved, with the user's current rights; see ``Resolution.repeat``."""
        return repeat_read(self._records, handle, user, deadline)

    # ------------------------------------------------------------------ calls that a worker runs

    async def submit(
        self, tool: Callee, arguments: object = None, *, user: User = ANONYMOUS, **options: Unpack[SubmitOptions]
    ) -> JobHandle:
        """Submit a call as a job, which a worker runs even if this process ends. Await the handle for its result.

        Args:
            tool: as for ``call``.
            arguments: as for ``call``; JSON values only.
            user: the principal of the call.
            options: see ``SubmitOptions``.

        Raises:
            UnknownTool: the gate has no such tool.
            Conflict: the job of this key has other arguments.
            DefinitionError: the arguments are not JSON.
            RegistrationError: the store is durable, and there are no signing keys for the workers.
            GateClosed: the gate is not open, or not in this event loop and process.
            TypeError: *tool* or *user* is of the wrong type; the message has the line to write.
            ValueError: a repairer wrote the arguments of the call.
        """
        return await self._jobs.submit(self._to_submit(tool, arguments, user), user, **options)

    async def submit_many(
        self,
        calls: Iterable[Callee],
        *,
        user: User = ANONYMOUS,
        keys: Sequence[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[JobHandle]:
        """Submit many calls in one transaction: all of them, or none. Return a handle for each, in order.

        Args:
            calls: tool calls, or what ``call`` takes without arguments.
            user: the principal of the calls.
            keys: the idempotency key of each call.
            options: see ``SubmitOptions``, for all calls; without ``key``.

        Raises:
            TypeError: there is not one key for each call, or ``key`` is given.
            Exception: the errors of ``submit``.
        """
        made = [self._to_submit(one, None, user) for one in calls]
        if "key" in options or (keys is not None and (isinstance(keys, str) or len(keys) != len(made))):
            raise TypeError("submit_many takes keys=[...], one key for each call, in place of key=")
        each: Sequence[str | None] = keys or [None] * len(made)
        return await self._jobs.submit_many(list(zip(made, each, strict=True)), user, **options)

    def _to_submit(self, tool: Callee, arguments: object, user: User) -> ToolCall:
        call = call_to_submit(self._records, self._services.under_way, tool, arguments, user)
        self._attempts.begun(tool)
        return call

    def job(self, id: str, *, user: User = ANONYMOUS) -> JobHandle:
        """Return the handle of a job of this user, which any process may have submitted."""
        refuse_user(user)
        return self._jobs.handle(id, user)

    @property
    def jobs(self) -> JobQueue:
        """The job queue, for engines and workers: ``await gate.jobs.run_invocation(id)``."""
        return self._jobs
