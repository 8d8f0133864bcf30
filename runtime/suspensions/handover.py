"""Decisions that one process records and another process runs: ``gate.resume(here=False)`` and ``gate.proceed``."""

from __future__ import annotations

import asyncio

from callgate.errors import NotPending, Stale, UnknownTool
from callgate.providers.principal import User
from callgate.runtime.pipeline.calls import refuse_user
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.suspensions.keyed import is_open
from callgate.runtime.suspensions.reads import is_kept
from callgate.runtime.suspensions.record_keeping import (
    CallRecords,
    RunningGate,
    check_run,
    in_flight,
    of_worker,
    run_decided,
    still_waits,
)
from callgate.runtime.suspensions.resolution import find_suspended, repeat_read, resolve
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall
from callgate.tools.calls import ToolResult

FIRST_LOOK, LAST_LOOK = 0.02, 1.0
"""Seconds between two looks at a call that another process runs."""


async def proceed(
    gate: RunningGate, records: CallRecords, handle: str, user: User, options: CallOptions, *, trace: bool
) -> ToolResult:
    """See ``Gate.proceed``."""
    refuse_user(user)
    check_run(gate, "proceed", options)
    waits, tenant = records.waits, user.tenant or ""
    while True:
        found = await find_suspended(waits, handle, user)
        if found is None:
            raise NotPending("no call of this user has this handle")
        wait, bound = found
        if not is_open(wait, waits.now()):
            return await _outcome(gate, records, handle, bound, user, options, trace=trace)
        if not bound.decided:
            return still_waits(bound, wait.kind, handle)
        if bound.job is not None:
            return await of_worker(gate, records, bound, options.get("deadline"))
        _check_version(records, bound)
        result = await run_decided(records, bound, Resumed(waits.keys, tenant, wait, bound), options, trace=trace)
        if result is not None:
            return result


def _check_version(records: CallRecords, bound: SuspendedCall) -> None:
    """Refuse to run a call for which this process does not fit; the decision stays recorded for another process.

    Raises:
        Stale: this process has no such tool, or another version of it or of its policies.
    """
    try:
        plan = records.plans.of(bound.tool)
    except UnknownTool:
        plan = None
    if plan is None or not records.waits.is_bound_to(plan, bound):
        raise Stale(f"{bound.tool} or its policies are not those that it was decided with")


async def _outcome(
    gate: RunningGate,
    records: CallRecords,
    handle: str,
    bound: SuspendedCall,
    user: User,
    options: CallOptions,
    *,
    trace: bool,
) -> ToolResult:
    """Return how a call ended; wait while another process runs it, and run a read again whose result was too large."""
    limit, pause = options.get("deadline"), FIRST_LOOK
    try:
        async with asyncio.timeout(records.options.wait if limit is None else limit):
            while True:
                found = await resolve(records, handle, user)
                if found is not None and found.result is not None:
                    return found.result
                if found is None or found.decided:
                    now = await find_suspended(records.waits, handle, user)
                    if now is not None and is_open(now[0], records.waits.now()):
                        break  # its run was put off
                if found is not None and (found.handle is not None or await _is_over(records, handle, user)):
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LAST_LOOK)
    except TimeoutError:
        return in_flight(bound, "another process runs the call, or ended while it ran the call")
    if found is None or found.decided:
        return await proceed(gate, records, handle, user, options, trace=trace)
    if found.handle is not None:  # it has run, and waits for another decision
        return await proceed(gate, records, found.handle, user, options, trace=trace)
    return await repeat_read(records, handle, user, limit)


async def _is_over(records: CallRecords, handle: str, user: User) -> bool:
    """Return whether a read that another process began has ended."""
    found = await find_suspended(records.waits, handle, user)
    return found is not None and await is_kept(records.waits, user.tenant or "", found[0])
