"""Results of approved reads, kept for their requester: a read has no receipt in the ledger, and one approval runs it once.

The row of a suspension that was used does not change any more. So the result is a record of its own beside it, and so is
the mark of a requester who runs the read again because the result was too large to keep.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from callgate.errors import StoreConflict
from callgate.hooks.plan import Plan
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.runtime.pipeline.approval import PLACE
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json
from callgate.runtime.suspensions.resumption import SuspendedCall, is_whole, signed
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.calls import Outcome, ToolResult
from callgate.tools.definition import Effect
from callgate.tools.values import dump, hash_of

MAX_RESULT = 262_144
"""Maximum size of a result that is kept, in characters of JSON. The requester may run a larger read once more."""
RESULT, REPEAT, PUT_OFF = "read result", "read repeat", "read put off"
"""The kinds of the records beside a suspension. They never wait."""
NOTE_LIMIT = 5.0
"""Seconds for what is noted after a call has ended."""
T = TypeVar("T")
_OPEN = frozenset({Outcome.SUSPENDED, Outcome.IN_FLIGHT, Outcome.CANCELLED})


async def note_in_time(work: Awaitable[T]) -> T | None:
    """Write what is noted after a call has ended, and return the answer of the store.

    A store that fails or hangs is logged, with None as the answer: the caller gets the result of the call.
    """
    try:
        async with asyncio.timeout(NOTE_LIMIT):
            return await work
    except Exception as error:  # noqa: BLE001  (a store of another package may raise anything)
        emit(LogEvent.PROVIDER_FAILED, provider="suspensions", phase="keep", error=error)
        return None


def has_no_receipt(plan: Plan, bound: SuspendedCall) -> bool:
    """Return True for a call whose result the ledger does not have: a read, or a call that an approver has answered."""
    return plan.definition.effect is Effect.READ or PLACE in bound.answers


async def keep_result(
    waits: SuspensionManager, tenant: str, wait: SuspensionRecord, plan: Plan, bound: SuspendedCall, result: ToolResult
) -> None:
    """Keep the result of a call that was approved. A store that fails or hangs leaves it out: the call has run."""
    if bound.job is not None or result.outcome in _OPEN or not has_no_receipt(plan, bound):
        return
    text = json.dumps(result_as_json(result), separators=(",", ":"))
    if len(text) > MAX_RESULT:
        text = "{}"  # the read has ended
    await note_in_time(_put(waits, tenant, wait, RESULT, text.encode()))


async def kept_result(waits: SuspensionManager, tenant: str, wait: SuspensionRecord) -> ToolResult | None:
    """Return the result that was kept for the requester; None without one."""
    found = await waits.store().suspensions.get(tenant, _id(wait, RESULT))
    if found is None or not is_whole(waits.keys, tenant, found) or not (kept := json.loads(found.body)):
        return None
    return replace(result_from_json(kept), replayed=True)


async def is_kept(waits: SuspensionManager, tenant: str, wait: SuspensionRecord) -> bool:
    """Return whether a call has ended, also if its result was too large to keep."""
    return await waits.store().suspensions.get(tenant, _id(wait, RESULT)) is not None


async def begin_repeat(waits: SuspensionManager, tenant: str, wait: SuspensionRecord) -> int | None:
    """Use the approval up for another run by the requester. Return its number, or None if that was done before.

    A run that was put off does not count.
    """
    number = 0
    while not await _put(waits, tenant, wait, _numbered(REPEAT, number), dump({})):
        if await waits.store().suspensions.get(tenant, _id(wait, _numbered(PUT_OFF, number))) is None:
            return None
        number += 1
    return number


async def end_put_off(waits: SuspensionManager, tenant: str, wait: SuspensionRecord, number: int) -> None:
    """Note that another run by the requester was put off, so that it may be tried again. A store that fails is logged."""
    await note_in_time(_put(waits, tenant, wait, _numbered(PUT_OFF, number), dump({})))


def _numbered(kind: str, number: int) -> str:
    return f"{kind} {number}" if number else kind


async def _put(waits: SuspensionManager, tenant: str, wait: SuspensionRecord, kind: str, body: bytes) -> bool:
    row = replace(
        wait,
        id=_id(wait, kind),
        kind=kind,
        tool="",
        body=body,
        state=SuspensionState.VOID,
        number=1,
        made_at=waits.now(),
    )
    try:
        await waits.store().suspensions.put(tenant, signed(waits.keys, tenant, row))
    except StoreConflict:
        return False
    return True


def _id(wait: SuspensionRecord, kind: str) -> str:
    return hash_of([kind, wait.id])[:32]
