"""The list of suspended calls for an approver, in pages."""

from __future__ import annotations

import asyncio

from callgate.errors import NotPending
from callgate.providers.principal import User
from callgate.providers.stores.effects import SuspensionPosition
from callgate.runtime.suspensions.decisions import RULES, may_decide, parts_for
from callgate.runtime.suspensions.keyed import is_open
from callgate.runtime.suspensions.resumption import id_in
from callgate.runtime.suspensions.suspensions import Pending, SuspensionManager

PAGE = 200
"""Rows that one statement reads."""


async def list_pending(
    manager: SuspensionManager, viewer: User, kind: str | None, limit: int, after: str | None
) -> list[Pending]:
    """See ``SuspensionManager.pending``."""
    tenant, now, found = viewer.tenant or "", manager.now(), list[Pending]()
    store, parts = manager.store().suspensions, parts_for(viewer)
    place = None if after is None else await _position(manager, tenant, after)
    while True:
        rows = await store.list(
            tenant, user=viewer.id, limit=PAGE, after=place, kind=kind, valid_at=now, having=parts, behind=RULES
        )
        for wait in rows:
            bound = manager.opened(tenant, wait)
            if bound is None or bound.decided or not is_open(wait, now):
                continue
            if may_decide(bound, viewer, now - wait.made_at):
                found.append(manager.shown(tenant, wait, bound, now))
                if len(found) >= limit:
                    return found
        if len(rows) < PAGE:
            return found
        place = rows[-1].made_at, rows[-1].id
        await asyncio.sleep(0)  # a store in memory never waits, and other tasks would


async def _position(manager: SuspensionManager, tenant: str, handle: str) -> SuspensionPosition:
    wait = await manager.store().suspensions.get(tenant, id_in(manager.keys, tenant, handle))
    if wait is None:
        raise NotPending("the call of this handle was deleted; begin with the first page")
    return wait.made_at, wait.id
