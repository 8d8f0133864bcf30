"""Rows of suspended calls that are stored together, and the limit of those of one user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from callgate.errors import NotPending, RetryLater, StoreConflict
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.turns import KeyedTurns

RETRY_AFTER = 60_000
"""Milliseconds after which a refused caller may try again: a decision or an expiry makes room."""
NEAR = 1_000
"""From half of a limit on, and from so many below it, the processes of a store take turns. Below, a turn costs nothing."""


class LimitedWaits(Protocol):
    """The part of the suspended calls of a gate that has the limit."""

    store: Callable[[], Store]
    max_per_user: int | None
    turns: KeyedTurns


async def count_in_turn(
    within: Transaction, tenant: str, user: str, limit: int, adds: int, count: Callable[[], Awaitable[int]]
) -> int:
    """Return how many a user has, with *count*, before a transaction *adds* some.

    Once they come near the limit, other processes that add some for the same user wait until the transaction ends.
    """
    found = await count()
    turn_of = getattr(within, "turn_of", None)  # stores of other packages may have none
    if found + adds > min(limit // 2, limit - NEAR) and turn_of is not None and await turn_of(tenant, user):
        found = await count()
    return found


async def put_in_turn(
    store: Store,
    turns: KeyedTurns,
    tenant: str,
    user: str,
    rows: Sequence[SuspensionRecord],
    limit: int,
    kind: str | None = None,
) -> bool:
    """Store the rows of a user, unless there are *limit* already, and return whether they were stored.

    Rows of one user take turns, in this process and in others, or those that come at the same time would all find room.

    Args:
        store: the store of the gate.
        turns: the turns of this process.
        tenant: the tenant of the rows.
        user: the user of the rows.
        rows: the rows to store.
        limit: the number of waiting rows that the user may have.
        kind: the kind of rows that count; None for those of suspended calls.

    Raises:
        StoreConflict: a row exists.
        StoreError: the store failed.
    """
    from callgate.providers.stores.sql.database.states import in_transaction

    async def put(within: Transaction) -> bool:
        stored = within.suspensions
        found = await count_in_turn(
            within, tenant, user, limit, 1, lambda: stored.count(tenant, user, limit, kind=kind)
        )
        if found >= limit:
            return False
        for row in rows:
            await stored.put(tenant, row)
        return True

    async with turns.of((tenant, user)):
        return await in_transaction(store, put)


async def put_together(
    store: Store, tenant: str, rows: Sequence[SuspensionRecord], replaced: SuspensionRecord | None
) -> None:
    """Store the rows of a suspended call; one transaction also writes the next version of another row, *replaced*.

    Raises:
        NotPending: another process has used up that row.
        StoreConflict: a row exists, or another process has replaced that row.
        StoreError: the store failed.
    """
    if replaced is None and len(rows) <= 1:
        for wait in rows:
            await store.suspensions.put(tenant, wait)
        return
    from callgate.providers.stores.sql.database.states import in_transaction

    async def put(written: Transaction) -> None:
        if replaced is not None and not await written.suspensions.replace(tenant, replaced):
            used = replaced.state is SuspensionState.USED
            raise (NotPending if used else StoreConflict)("another process replaced its record meanwhile")
        for wait in rows:
            await written.suspensions.put(tenant, wait)

    await in_transaction(store, put)


async def put_in_limit(waits: LimitedWaits, tenant: str, user: str, rows: Sequence[SuspensionRecord]) -> None:
    """Store the rows of another suspended call of a user, unless the user has as many as one may have.

    Raises:
        RetryLater: the limit is reached.
        StoreConflict: a row exists.
        StoreError: the store failed.
    """
    limit = waits.max_per_user
    assert limit is not None
    if not await put_in_turn(waits.store(), waits.turns, tenant, user, rows, limit):
        raise RetryLater(
            RETRY_AFTER,
            f"{limit} calls of the user wait already; see Suspensions(max_per_user=...)",
            public="Too many of your calls wait for an answer. Answer some of them first.",
            no_effect=True,
        )
