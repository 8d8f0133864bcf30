"""The side of a gate for calls that outlive who asked: they wait for somebody, or run in a worker."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypedDict, Unpack

from callgate.errors import GateClosed, RegistrationError
from callgate.providers.principal import ANONYMOUS, User
from callgate.runtime.engine import CallOptions
from callgate.runtime.jobs.calls import JobCalls
from callgate.runtime.jobs.jobs import JobBackend, JobHandle, Jobs
from callgate.runtime.jobs.running import JobOptions
from callgate.runtime.lifespan.background import Chore
from callgate.runtime.lifespan.lifespan import Life
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.record_keeping import Records, RefreshUser, current_user, resume
from callgate.runtime.suspensions.suspensions import Suspensions
from callgate.tools.calls import ToolCall, ToolResult


class SubmitOptions(TypedDict, total=False):
    """What may be said about a job.

    ``at``: when it may run, a moment or seconds from now. ``key``: submitting again under the same one gives the same
    job, and its effect is recorded under it. ``queue`` and ``priority`` (higher first) are for workers. ``deadline`` is
    in seconds from now, waiting included.
    """

    at: datetime | float | None
    key: str | None
    queue: str
    priority: int
    session_id: str | None
    request_id: str | None
    deadline: float | None


class Durable:
    """See the module."""

    _records: Records
    _jobs: Jobs
    _life: Life
    _plans: Plans
    refresh_user: RefreshUser | None
    is_open: Any

    def _make_jobs(self, records: Records, backend: JobBackend, options: JobOptions) -> Jobs:
        async def refresh(user: User) -> User | None:
            return await current_user(self.refresh_user, user)

        calls = JobCalls(self, self._plans, refresh)
        jobs = Jobs(lambda: records.store, records.keys, records.ledger.now, calls, options, backend)
        records.chores += [
            Chore("leases of jobs", options.every, jobs.renew, urgent=True),
            Chore("jobs", options.every, jobs.keep_up),
        ]
        return jobs

    @property
    def waits(self) -> Suspensions:
        """The calls that wait for somebody: ``await gate.waits.pending(viewer)``, ``look``, ``withdraw``."""
        return self._records.waits

    def resume(
        self, handle: str, decision: Decision, *, approver: User, trace: bool = False, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, ToolResult]:
        """Decide a call that waits (see ``waits``), and run it if that was all it waited for: a result as of ``call``.

        The call starts from the top, for its own user, and is authorised anew. While others have to approve it still
        waits, and so says the result. *approver* is who decides, authenticated by you. See ``callgate.Approve``,
        ``Deny``, ``Edit`` and ``Respond``.

        Raises:
            NotPending: nothing waits under the handle, or not for this person; which, is not said.
            Denied: somebody would approve their own call.
            Stale: the tool or its policies have changed since.
            Invalid: the new arguments, or the answer, do not fit what is asked for.
        """
        return resume(self, self._records, handle, decision, approver, options, trace=trace)

    def maintain(self) -> Coroutine[Any, Any, None]:
        """Do now what the open gate does at times: end sessions, renew and sweep leases, settle, expire what waits."""
        return self._life.upkeep.now()

    # ------------------------------------------------------------------ jobs

    async def submit(self, call: ToolCall, *, user: User = ANONYMOUS, **options: Unpack[SubmitOptions]) -> JobHandle:
        """Have a worker run a call: it is written down, and runs even if this process ends. Await the handle for its result.

        Raises:
            UnknownTool: there is no such tool.
            DefinitionError: its arguments are no JSON.
            RegistrationError: a durable store, and no signing keys that its workers could have, too.
            GateClosed: not inside ``async with gate``.
        """
        if not self.is_open:
            raise GateClosed("the gate is not open; use it inside `async with gate:`")
        if self._records.store.durable and not self._records.keys.lasting:
            raise RegistrationError("submit: no worker could trust the job; give Gate(signing_keys=[...]) a secret")
        return await self._jobs.submit(call, user, **options)

    def job(self, id: str, *, user: User = ANONYMOUS) -> JobHandle:
        """The handle of a job that was submitted before, perhaps by another process; only of the same user's."""
        return self._jobs.handle(id, user)

    @property
    def jobs(self) -> Jobs:
        """For engines and workers: ``await gate.jobs.run_invocation(id)``."""
        return self._jobs
