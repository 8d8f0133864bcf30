"""The outcome of a call, for the user who made it: by a handle, or by an idempotency key."""

from __future__ import annotations

from callgate.errors import NotPending
from callgate.hooks.facts import Suspension
from callgate.providers.principal import User
from callgate.providers.stores.effects import OPEN_STATES, EffectState
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from callgate.runtime.effects.keys import given_key, shared_by_tenants
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.jobs.records import job_id_of
from callgate.runtime.suspensions.keyed import chain_of, is_open, suspensions_in
from callgate.runtime.suspensions.record_keeping import CallRecords
from callgate.runtime.suspensions.resolution import CallOutcome, CallState, find_suspended, recorded_result, resolve
from callgate.runtime.suspensions.resumption import SuspendedCall, handle_of
from callgate.tools.calls import Outcome, ToolResult

_WORKING = CallOutcome(CallState.WORKING)


async def outcome_of_call(records: CallRecords, jobs: JobQueue, id: str, user: User, tool: str | None) -> CallOutcome:
    """See ``Gate.outcome``."""
    store, tenant = records.store, user.tenant or ""
    job = await store.jobs.get(tenant, id if tool is None else job_id_of(user, tool, id, jobs.keys.namespace))
    if job is not None and job.user == user.id:
        return _of_job(jobs, tenant, job)
    return await (_of_handle(records, jobs, id, user) if tool is None else _of_key(records, jobs, id, user, tool))


def _of_job(jobs: JobQueue, tenant: str, job: Job) -> CallOutcome:
    if job.state in FINAL_STATES:
        return _ended(jobs.result_of(tenant, job))
    if job.state is JobState.INPUT_REQUIRED:
        return CallOutcome(CallState.INPUT_REQUIRED, pending=jobs.result_of(tenant, job).pending)
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
    job = None if bound.job is None else await records.store.jobs.get(user.tenant or "", bound.job)
    if job is not None:
        return _of_job(jobs, user.tenant or "", job)
    if is_open(wait, records.waits.now()):
        return CallOutcome(CallState.INPUT_REQUIRED, pending=_pending(bound, wait.kind, handle))
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
    async for _, wait in suspensions_in(records.store.suspensions, records.keys, tenant, chain):
        last = last if wait is None else wait.id
    if last is not None:
        return await _of_handle(records, jobs, handle_of(records.keys, tenant, last), user)
    if effect is None:
        raise NotPending("no call of this user has this key")
    return _ended(recorded_result(effect, effect.call_id or "", tool))


def _pending(bound: SuspendedCall, kind: str, handle: str) -> Suspension:
    return Suspension(
        kind, bound.prompt, bound.schema, None, handle, rules=bound.rules, place=bound.place, name=bound.name
    )


def _ended(result: ToolResult) -> CallOutcome:
    states = {Outcome.SUCCESS: CallState.COMPLETED, Outcome.CANCELLED: CallState.CANCELLED}
    return CallOutcome(states.get(result.outcome, CallState.FAILED), result)
