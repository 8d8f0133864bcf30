"""The job queue of a gate: its engine, its background tasks, the calls that become jobs, and callers that wait for them."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress

from callgate.errors import GateClosed, RegistrationError
from callgate.providers.principal import User
from callgate.runtime.jobs.calls import Callers, JobCalls
from callgate.runtime.jobs.jobs import JobHandle, JobQueue
from callgate.runtime.jobs.resuming import SuspendedJobs
from callgate.runtime.lifespan.background import PRUNE_EVERY, BackgroundTask
from callgate.runtime.options.jobs import Jobs
from callgate.runtime.pipeline.calls import Callee, as_call, refuse_user
from callgate.runtime.pipeline.shield import RELEASE_LIMIT, Shielded
from callgate.runtime.pipeline.under_way import UnderWay
from callgate.runtime.suspensions.record_keeping import CallRecords, current_user
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall


def make_queue(under_way: UnderWay, records: CallRecords, options: Jobs) -> JobQueue:
    """Make the job queue of a gate, and add its background tasks to those of its records."""

    async def refresh(user: User) -> User | None:
        return await current_user(records.refresh_user, user)

    engine = options.engine
    if engine is None:
        from callgate.runtime.jobs.embedded import EmbeddedJobs

        engine = EmbeddedJobs()
    elif isinstance(engine, str):
        from callgate.runtime.jobs.engines import job_engine

        engine = job_engine(engine)
    calls = JobCalls(under_way, records.plans, refresh)
    jobs = JobQueue(
        records.reach_store, records.keys, records.ledger.now, calls, options, engine, SuspendedJobs(records)
    )
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


def call_to_submit(records: CallRecords, under_way: UnderWay, tool: Callee, arguments: object, user: User) -> ToolCall:
    """Return the call of a job; see ``Gate.submit`` for its errors."""
    refuse_user(user)
    call = as_call(records.plans.registry, tool, arguments)
    under_way.refuse_foreign()
    if under_way.loop is None:
        raise GateClosed("the gate is not open; use it inside `async with gate:`")
    if records.store.durable and not records.keys.lasting:
        raise RegistrationError("submit: workers verify the signature of a job; give Gate(signing_keys=[...]) a secret")
    if not isinstance(call, HydrationResult):
        return call
    if call.success and not call.trusted:
        raise ValueError("a repaired call cannot be a job, which keeps no record of the repair; use gate.call")
    return call.call


async def submit_or_cancel(submission: Coroutine[object, None, JobHandle], callers: Callers) -> JobHandle:
    """Await a submission and return its job, for one of its *callers*.

    The caller may be cancelled while the store writes the job: without its handle, the job would run all the same.

    Raises:
        CancelledError: the caller was cancelled; see ``cancel_whole``.
    """
    step = Shielded(submission, grace=RELEASE_LIMIT)
    try:
        job = await step.run()
    except Exception:
        if step.deferred is not None:
            raise step.deferred from None
        raise
    callers.owned, callers.kept = callers.owned or job.added, callers.kept - 1
    if step.deferred is not None:
        await cancel_whole(job, callers)
        raise step.deferred
    return job


async def cancel_whole(job: JobHandle, callers: Callers) -> None:
    """Cancel a job for a caller that was cancelled itself, unless others want it; if the store fails, the job runs."""
    if not callers.may_cancel:
        return
    with suppress(Exception):  # a store of another package may raise anything
        await Shielded(job.cancel(), limit=RELEASE_LIMIT).run()
