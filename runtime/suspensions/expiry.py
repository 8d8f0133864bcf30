"""The expiry of suspended calls that are overdue, many of them in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from callgate.errors import StoreError
from callgate.providers.logs import LogEvent, emit
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.jobs import JobState
from callgate.providers.stores.sql.database.states import in_transaction
from callgate.runtime.suspensions.resumption import is_whole, job_of, signed

DUE = 200
"""Rows that one transaction ends."""

Deliver: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Hands a job to the job engine, by tenant and id."""
_Row: TypeAlias = tuple[str, SuspensionRecord]


class _Ended(NamedTuple):
    """The rows that a transaction has ended, and the jobs that it has queued."""

    rows: list[_Row]
    jobs: list[tuple[str, str]]


async def expire_overdue(store: Store, keys: SigningKeys, now: Callable[[], float], deliver: Deliver | None) -> int:
    """Expire all overdue suspended calls; return their number.

    A row that cannot be changed keeps no other row from ending. Its error is raised at the end.

    Raises:
        StoreError: the store failed, or could not change a row.
    """
    number, before, failed = 0, -1, list[StoreError]()

    async def end(find: Callable[[Transaction], Awaitable[Sequence[_Row]]]) -> None:
        nonlocal number
        ended = await in_transaction(store, lambda written: _expire(written, keys, now(), find))
        number += len(ended.rows)
        for _, wait in ended.rows:
            emit(LogEvent.SUSPENSION_EXPIRED, tool=wait.tool, kind=wait.kind)
        if deliver is not None:
            for tenant, job in ended.jobs:
                await deliver(tenant, job)

    while number > before and not failed:  # nothing more ends where other processes expire the same rows
        before = number
        try:
            await end(lambda written: written.suspensions.due(now(), DUE))
        except StoreError:
            for row in await store.suspensions.due(now(), DUE):
                try:
                    await end(lambda _, row=row: _only(row))  # type: ignore[misc]
                except StoreError as error:
                    failed.append(error)
    if failed:
        raise failed[0]
    return number


async def _only(row: _Row) -> Sequence[_Row]:
    return [row]


async def _expire(
    written: Transaction,
    keys: SigningKeys,
    now: float,
    find: Callable[[Transaction], Awaitable[Sequence[_Row]]],
) -> _Ended:
    """End rows, and queue their jobs."""
    rows, ended = await find(written), list[_Row]()
    for tenant, wait in rows:
        over = replace(wait, state=SuspensionState.EXPIRED, number=wait.number + 1)
        if is_whole(keys, tenant, wait):  # a damaged row keeps its invalid signature
            over = signed(keys, tenant, over)
        if await written.suspensions.replace(tenant, over):
            ended.append((tenant, wait))
    # In one order in all processes: two that lock the same jobs must not wait for each other.
    jobs = sorted({(tenant, job) for tenant, wait in ended if (job := job_of(wait)) is not None})
    queued = [(tenant, job) for tenant, job in jobs if await written.jobs.wake(tenant, job, now) is JobState.QUEUED]
    return _Ended(ended, queued)
