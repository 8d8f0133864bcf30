"""The outcome of a call, for the user who made it: by a handle, or by an idempotency key."""

from __future__ import annotations

from callgate.errors import NotPending
from callgate.providers.principal import User
from callgate.providers.stores.effects import OPEN_STATES, EffectState
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from callgate.runtime.effects.idempotency_keys import given_key, shared_by_tenants
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.jobs.records import find_job, job_id_of
from callgate.runtime.suspensions.decisions import suspension_of
from callgate.runtime.suspensions.keyed import chain_of, is_open, suspensions_in
from callgate.runtime.suspensions.record_keeping import CallRecords
from callgate.runtime.suspensions.resolution import CallOutcome, CallState, find_suspended, recorded_result, resolve
from callgate.runtime.suspensions.resumption import handle_of, is_whole
from callgate.tools.calls import Outcome, ToolResult

_WORKING = CallOutcome(CallState.WORKING)


async def outcome_of_call(records: CallRecords, jobs: JobQueue, id: str, user: User, tool: str | None) -> CallOutcome:
    """See ``Gate.outcome``."""
    tenant = user.tenant or ""
    sought = id if tool is None else job_id_of(user, tool, id, jobs.keys.namespace)
    job = await find_job(records.reach_store().jobs, records.keys, tenant, sought, user.id)
    if job is not None:
        return await _of_job(records, jobs, user, job)
    return await (_of_handle(records, jobs, id, user) if tool is None else _of_key(records, jobs, id, user, tool))


async def _of_job(records: CallRecords, jobs: JobQueue, user: User, job: Job) -> CallOutcome:
    tenant = user.tenant or ""
    if job.state in FINAL_STATES:
        return _ended(jobs.result_of(tenant, job))
    if job.state is JobState.INPUT_REQUIRED:
        pending = jobs.result_of(tenant, job).pending
        if pending is not None and pending.questions is not None:  # some of them may have an answer by now
            found = await find_suspended(records.waits, pending.handle, user)
            pending = pending if found is None else suspension_of(found[1], pending.kind, pending.handle)
        return CallOutcome(CallState.INPUT_REQUIRED, pending=pending)
    return _WORKING


async def _of_handle(records: CallRecords, jobs: JobQueue, handle: str, user: User) -> CallOutcome:
    """Return the outcome of a suspended call.

    Raises:
        NotPending: no call of this user has the handle.
    """
    found = await find_suspended(records.waits, handle, user)
    if found is None:
        raise NotPending("no call of this user has this handle")
    wait, bound = found
    if bound.job is None:
        job = None
    else:
        job = await find_job(records.reach_store().jobs, records.keys, user.tenant or "", bound.job, user.id)
    if job is not None:
        return await _of_job(records, jobs, user, job)
    if is_open(wait, records.waits.now()):
        state = CallState.WORKING if bound.decided else CallState.INPUT_REQUIRED
        return CallOutcome(state, pending=suspension_of(bound, wait.kind, handle))
    resolution = await resolve(records, handle, user)
    if resolution is None:
        return _WORKING
    if resolution.handle is not None:
        return await _of_handle(records, jobs, resolution.handle, user)
    return CallOutcome(CallState.COMPLETED) if resolution.result is None else _ended(resolution.result)


async def _of_key(records: CallRecords, jobs: JobQueue, key: str, user: User, tool: str) -> CallOutcome:
    """Return the outcome of the calls of a tool with a key.

    Raises:
        NotPending: no call of this user has the key.
    """
    tenant = user.tenant or ""
    shared = tool in records.plans.registry and shared_by_tenants(records.plans.of(tool).record)
    row = given_key(user, tool, key, jobs.keys.namespace)
    effect = await records.ledger.effects.get("" if shared else tenant, row)
    if effect is not None and effect.state in OPEN_STATES:
        return _WORKING
    if effect is not None and effect.state is not EffectState.NO_EFFECT:
        return _ended(recorded_result(effect, "" if effect.call_id is None else effect.call_id, tool))
    last = None
    chain = chain_of(user, tool, key, jobs.keys.namespace)
    async for _, wait in suspensions_in(records.reach_store().suspensions, records.keys, tenant, chain):
        if wait is not None and is_whole(records.keys, tenant, wait):  # the id of a forged row gets no handle
            last = wait.id
    if last is not None:
        return await _of_handle(records, jobs, handle_of(records.keys, tenant, last), user)
    if effect is None:
        raise NotPending("no call of this user has this key")
    return _ended(recorded_result(effect, effect.call_id or "", tool))


def _ended(result: ToolResult) -> CallOutcome:
    states = {Outcome.SUCCESS: CallState.COMPLETED, Outcome.CANCELLED: CallState.CANCELLED}
    return CallOutcome(states.get(result.outcome, CallState.FAILED), result)
