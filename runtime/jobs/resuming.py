"""Jobs whose calls wait for a decision: a worker goes on with them, and their end ends the suspension.

The result of such a job names its suspension. Its signature covers the id of the job, so no other job can use it.
"""

from __future__ import annotations

from typing import TypeAlias

from callgate.errors import InvocationError, NotPending, Stale
from callgate.hooks.context import InvokeContext
from callgate.providers.principal import User
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.jobs import Job
from callgate.runtime.jobs.records import suspension_in
from callgate.runtime.suspensions.record_keeping import CallRecords
from callgate.runtime.suspensions.resolution import end_without_run
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall, context_of_resumed

NextStep: TypeAlias = InvokeContext | InvocationError | None
"""The call that goes on; or the error that ends it; or None while it waits for a decision."""


class SuspendedJobs:
    """The suspensions of the jobs of one gate."""

    def __init__(self, records: CallRecords) -> None:
        self._records = records

    async def next_step(self, tenant: str, job: Job, user: User) -> NextStep:
        """Return how the call of a job goes on after its suspension.

        An approval that an earlier worker has used up counts again: the ledger knows whether the effect took place.

        Raises:
            Stale: this process has other policies for the tool; a worker with the same ones goes on.
        """
        records, waits = self._records, self._records.waits
        while True:
            wait, bound = await self._find(tenant, job)
            if wait is None or bound is None:
                return Stale("the suspension of this job is gone or was changed")
            if (error := end_without_run(wait, bound, waits.now())) is not None:
                return error
            if wait.state is SuspensionState.WAITING and not bound.decided:
                return None
            plan = records.plans.of(bound.tool)
            if not waits.is_bound_to(plan, bound):
                raise Stale(f"{bound.tool} or its policies are not those that it was asked for with")
            resumed = Resumed(waits.keys, tenant, wait, bound)
            ctx = context_of_resumed(plan, bound, resumed)
            ctx.run.user = user
            if wait.state is SuspensionState.USED or await waits.use(plan, resumed):
                return ctx

    async def is_decided(self, within: Transaction, tenant: str, id: str) -> bool:
        """Return whether a suspended job can go on: its suspension is decided, has ended or is gone."""
        wait = await within.suspensions.get(tenant, id)
        bound = None if wait is None else self._records.waits.opened(tenant, wait)
        return wait is None or bound is None or bound.decided or wait.state is not SuspensionState.WAITING

    async def void(self, within: Transaction, tenant: str, job: Job) -> None:
        """End the suspension of a job that ends, unless it has ended."""
        while True:
            wait, bound = await self._find(tenant, job, within)
            if wait is None or bound is None or wait.state is not SuspensionState.WAITING:
                return
            ended = Resumed(self._records.waits.keys, tenant, wait, bound).used(SuspensionState.DENIED)
            if await within.suspensions.replace(tenant, ended):
                return

    async def _find(
        self, tenant: str, job: Job, within: Transaction | None = None
    ) -> tuple[SuspensionRecord | None, SuspendedCall | None]:
        """Return the suspension of a job, if it is intact and of this job."""
        id, store = suspension_in(job.result), (within or self._records.store).suspensions
        wait = None if id is None else await store.get(tenant, id)
        bound = None if wait is None else self._records.waits.opened(tenant, wait)
        return (None, None) if bound is None or bound.job != job.id else (wait, bound)


def lost_its_row(ctx: InvokeContext) -> bool:
    """Return whether a resumed call did not run, because another decision has replaced its suspension."""
    return isinstance(ctx.run.error, NotPending) and ctx.run.failed_in is not ctx.run.plan.running
