"""The part of a gate for calls that outlive their request: suspended calls, and jobs for workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from callgate.errors import GateClosed, RegistrationError
from callgate.providers.principal import ANONYMOUS, User
from callgate.runtime.call.calls import Callee, as_call, refuse_user
from callgate.runtime.call.options import CallOptions
from callgate.runtime.engine import Engine
from callgate.runtime.jobs.calls import JobCalls
from callgate.runtime.jobs.jobs import JobHandle, JobQueue
from callgate.runtime.jobs.options import Jobs
from callgate.runtime.jobs.resuming import SuspendedJobs
from callgate.runtime.lifespan.background import PRUNE_EVERY, BackgroundTask
from callgate.runtime.lifespan.lifespan import Lifespan
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.record_keeping import CallRecords, current_user, resume
from callgate.runtime.suspensions.resolution import CallOutcome, Resolution, repeat_read, resolve
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.execution import TaskIds
from callgate.tools.registry import ToolRegistry


class SubmitOptions(TypedDict, total=False):
    """The options of a job.

    ``at`` is the earliest time to run, an aware datetime; ``delay`` is the same in seconds from now. ``key`` is the
    idempotency key: a second job with the same key and arguments is the first one, unless that was cancelled, denied, invalid
    or dead without an effect. ``queue`` and ``priority`` (higher first) are for
    workers. ``deadline`` is in seconds from now, and includes the time in the queue. ``task`` is as in ``CallOptions``.
    ``within`` is a transaction of the application, a session or connection of SQLAlchemy on the database of the store: the
    job exists if it commits.
    """

    at: datetime | None
    delay: float | None
    key: str | None
    queue: str
    priority: int
    session_id: str | None
    request_id: str | None
    deadline: float | None
    task: TaskIds | None
    within: Any


class DeferredCalls:
    """Methods of ``Gate`` for suspended calls and jobs."""

    registry: ToolRegistry
    _records: CallRecords
    _jobs: JobQueue
    _lifespan: Lifespan
    _engine: Engine
    _plans: Plans
    is_open: Any

    def _make_jobs(self, records: CallRecords, options: Jobs) -> JobQueue:
        async def refresh(user: User) -> User | None:
            return await current_user(records.refresh_user, user)

        engine = options.engine
        if engine is None:
            from callgate.runtime.jobs.embedded import EmbeddedJobs

            engine = EmbeddedJobs()
        elif isinstance(engine, str):
            from callgate.runtime.jobs.engines import job_engine

            engine = job_engine(engine)
        calls = JobCalls(self, self._plans, refresh)
        suspended = SuspendedJobs(records)
        jobs = JobQueue(lambda: records.store, records.keys, records.ledger.now, calls, options, engine, suspended)
        records.waits.deliver = jobs.deliver
        records.tasks += [
            BackgroundTask("leases of jobs", options.every, jobs.renew, urgent=True),
            BackgroundTask("jobs", options.every, jobs.recover),
            BackgroundTask("old jobs", PRUNE_EVERY, jobs.prune),
        ]
        if options.schedules:
            from callgate.runtime.jobs.schedules import TICK, Scheduler

            jobs.scheduler = Scheduler(jobs, options.schedules)
            records.tasks.append(BackgroundTask("schedules", TICK, jobs.scheduler.tick))
        return jobs

    @property
    def waits(self) -> SuspensionManager:
        """The suspended calls: ``await gate.waits.pending(viewer)``, ``look``, ``withdraw``."""
        return self._records.waits

    def resume(
        self, handle: str, decision: Decision, *, approver: User, trace: bool = False, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, ToolResult]:
        """Decide a suspended call, and run it after the last approval; return its result as ``call`` does.

        The call starts from its first stage, for its own user, and is authorised again. Until the last approval the
        result is ``suspended``. A call that was submitted goes on in a worker: the result is that of its job, or
        ``in_flight`` if it has none within ``deadline`` seconds (default: ``Effects(wait=)``).

        Args:
            handle: the handle of the call, from ``result.pending`` or ``waits``.
            decision: an ``Approve``, ``Deny``, ``Edit`` or ``Respond``.
            approver: the user who decides; your application authenticates them.
            trace: as for ``call``.
            options: see ``CallOptions``.

        Raises:
            NotPending: no call is suspended under the handle, or this approver may not decide it.
            Denied: the approver is the user of the call.
            Stale: this process has another version of the tool or its policies; the call keeps waiting.
            Invalid: the new arguments or the response do not fit their schema.
        """
        return resume(self, self._records, handle, decision, approver, options, trace=trace)

    def resolution(self, handle: str, user: User) -> Coroutine[Any, Any, Resolution | None]:
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

    def repeat_read(self, handle: str, user: User, *, deadline: float | None) -> Coroutine[Any, Any, ToolResult]:
        """Repeat a read that another request approved, with the user's current rights; see ``Resolution.repeat``."""
        return repeat_read(self._records, handle, user, deadline)

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await *close* when the gate closes, before its store; it runs once, even if registered again."""
        self._engine.at_close(close)

    def maintain(self) -> Coroutine[Any, Any, None]:
        """Run every background task once, now: end sessions, renew leases, settle effects, expire suspended calls."""
        return self._lifespan.background.run_all()

    # ------------------------------------------------------------------ jobs

    async def submit(
        self, tool: Callee, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[SubmitOptions]
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
            GateClosed: the gate is not open.
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
        if not made:
            return []
        each: Sequence[str | None] = keys or [None] * len(made)
        return await self._jobs.submit_many(list(zip(made, each, strict=True)), user, **options)

    def _to_submit(self, tool: Callee, arguments: object, user: User) -> ToolCall:
        """Return the call of a job; see ``submit`` for its errors."""
        refuse_user(user)
        call = as_call(self.registry, tool, arguments)
        if not self.is_open:
            raise GateClosed("the gate is not open; use it inside `async with gate:`")
        if self._records.store.durable and not self._records.keys.lasting:
            raise RegistrationError(
                "submit: workers verify the signature of a job; give Gate(signing_keys=[...]) a secret"
            )
        if isinstance(call, HydrationResult):
            if call.success and not call.trusted:
                raise ValueError("a repaired call cannot be a job, which keeps no record of the repair; use gate.call")
            call = call.call
        return call

    def job(self, id: str, *, user: User = ANONYMOUS) -> JobHandle:
        """Return the handle of a job of this user, which any process may have submitted."""
        refuse_user(user)
        return self._jobs.handle(id, user)

    @property
    def jobs(self) -> JobQueue:
        """The job queue, for engines and workers: ``await gate.jobs.run_invocation(id)``."""
        return self._jobs
