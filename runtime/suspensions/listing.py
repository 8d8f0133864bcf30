"""The list of suspended calls for an approver, in pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from callgate.errors import NotPending
from callgate.providers.principal import User
from callgate.providers.stores.effects import SuspensionPosition, SuspensionRecord, SuspensionStore
from callgate.runtime.suspensions.decisions import RULES, may_decide, parts_for
from callgate.runtime.suspensions.keyed import is_open
from callgate.runtime.suspensions.resumption import SuspendedCall

PAGE = 200
"""Rows that one statement reads."""


async def list_pending(
    store: SuspensionStore,
    opened: Callable[[SuspensionRecord], SuspendedCall | None],
    viewer: User,
    kind: str | None,
    now: float,
    place: SuspensionPosition | None,
) -> AsyncGenerator[tuple[SuspensionRecord, SuspendedCall]]:
    """List the calls of the viewer's tenant that the viewer may decide, oldest first, after a place."""
    parts = parts_for(viewer)
    while True:
        rows = await store.list(
            viewer.tenant or "",
            user=viewer.id,
            limit=PAGE,
            after=place,
            kind=kind,
            valid_at=now,
            having=parts,
            behind=RULES,
        )
        for wait in rows:
            bound = opened(wait)
            if bound is None or bound.decided or not is_open(wait, now):
                continue
            if may_decide(bound, viewer, now - wait.made_at):
                yield wait, bound
        if len(rows) < PAGE:
            return
        place = rows[-1].made_at, rows[-1].id
        await asyncio.sleep(0)  # a store in memory never waits, and other tasks would


async def position(store: SuspensionStore, tenant: str, id: str) -> SuspensionPosition:
    """Return the place of a call in the list.

    Raises:
        NotPending: the call was deleted.
    """
    wait = await store.get(tenant, id)
    if wait is None:
        raise NotPending("the call of this handle was deleted; begin with the first page")
    return wait.made_at, wait.id
