"""Shared parts of the ledger tests: effects, suspensions, an empty ledger, and a model of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import OPEN_STATES, EffectRecord, EffectState, SuspensionRecord, SuspensionState
from callgate.providers.stores.ledger_writes import Settlement
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Backend

CLAIMED, RUNNING, COMMITTED, NO_EFFECT, UNKNOWN = EffectState
FOREVER = float("inf")


class Grouped:
    """The ledger of a SQL store whose claims and outcomes go through its group commit."""

    def __init__(self, store: SqlStore) -> None:
        assert store.ledger is not None
        self._effects, self._writer = store.effects, store.ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._effects, name)

    async def claim(self, tenant: str, new: EffectRecord, *, retry: bool = False) -> tuple[bool, EffectRecord]:
        """See ``EffectStore``."""
        return await self._writer.claim(tenant, new, (), retry=retry)

    async def settle(self, tenant: str, key: str, token: int, state: EffectState, **facts: Any) -> bool:
        """See ``EffectStore``. Notes are those of operators."""
        if facts.get("note") is not None:
            return await self._effects.settle(tenant, key, token, state, **facts)
        facts.pop("note", None)
        return await self._writer.settle(tenant, Settlement(key, token, state, **facts), ())


def effect(now: float, key: str = "k", lease: float = 10.0, **more: Any) -> EffectRecord:
    """An effect that begins now, leased for so many seconds."""
    facts: dict[str, Any] = {
        "tool": "refund",
        "version": "v1",
        "user": "ann",
        "input_hash": "h",
        "request_id": "r",
        "owner": "o",
    }
    facts |= {"key": key, "lease_until": now + lease, "began_at": now}
    return EffectRecord(**facts | more)


def wait(now: float, id: str = "w", lasts: float | None = 60.0, **more: Any) -> SuspensionRecord:
    """A suspended call that begins to wait now."""
    until = None if lasts is None else now + lasts
    facts: dict[str, Any] = {"kind": "approval", "tool": "refund", "user": "ann", "body": b"{}", "mac": "m"}
    return SuspensionRecord(id=id, made_at=now, expires_at=until, **facts | more)


async def empty(store: Store) -> None:
    """Forget what other tests have left: some questions are asked of all tenants."""
    await store.effects.expire(1e12)
    for tenant, found in await store.effects.list(None, states=[UNKNOWN], limit=100_000):
        await store.effects.settle(tenant, found.key, found.token, NO_EFFECT, at=0.0, of=[UNKNOWN])
    await store.effects.prune(FOREVER)
    for tenant, waiting in await store.suspensions.due(FOREVER, limit=100_000):
        await store.suspensions.replace(tenant, replace(waiting, number=waiting.number + 1, state=SuspensionState.VOID))
    await store.suspensions.prune(FOREVER)


async def kept(
    backend: Backend, state: EffectState, *, key: str = "k", lease: float = 10.0, **end: Any
) -> EffectRecord:
    """An effect in the ledger that began now, in that state."""
    first = CLAIMED if state is CLAIMED else RUNNING
    mine, found = await backend.store.effects.claim(
        backend.tenant, effect(backend.now(), key, lease, state=first, owner=end.pop("owner", "o"))
    )
    assert mine
    if state is not first:
        facts: dict[str, Any] = {"at": backend.now(), **end}
        assert await backend.store.effects.settle(backend.tenant, key, found.token, state, **facts)
    return await found_in(backend, key)


async def found_in(backend: Backend, key: str = "k") -> EffectRecord:
    found = await backend.store.effects.get(backend.tenant, key)
    assert found is not None
    return found


class Model:
    """A model of ``EffectStore`` over a dict."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], EffectRecord] = {}

    def claim(self, tenant: str, new: EffectRecord, *, retry: bool) -> tuple[bool, EffectRecord]:
        old, now = self.rows.get((tenant, new.key)), new.began_at
        if old is None:
            self.rows[tenant, new.key] = new
            return True, new
        lapsed = old.lease_until <= now
        may_repeat = retry and old.input_hash == new.input_hash
        free = {
            NO_EFFECT: True,
            CLAIMED: lapsed,
            COMMITTED: old.expires_at is not None and old.expires_at <= now,
            UNKNOWN: may_repeat,
            RUNNING: may_repeat and lapsed,
        }
        if free[old.state]:
            self.rows[tenant, new.key] = replace(new, token=old.token + 1)
        elif old.state is RUNNING and lapsed:
            self.rows[tenant, new.key] = replace(old, state=UNKNOWN, token=old.token + 1, ended_at=now)
        return free[old.state], self.rows[tenant, new.key]

    def settle(
        self, tenant: str, key: str, token: int, state: EffectState, of: Collection[EffectState], **end: Any
    ) -> bool:
        old = self.rows.get((tenant, key))
        if old is None or old.token != token or old.state not in of:
            return False
        at = None if state in OPEN_STATES else end.pop("at")
        end.pop("at", None)
        self.rows[tenant, key] = replace(old, state=state, ended_at=at, **end)
        return True

    def change(self, chosen: Collection[tuple[str, str]], **values: Any) -> int:
        for place in chosen:
            self.rows[place] = replace(self.rows[place], **values)
        return len(chosen)

    def renew(self, owner: str, until: float) -> int:
        held = [at for at, row in self.rows.items() if row.owner == owner and row.state in OPEN_STATES]
        return self.change(held, lease_until=until)

    def expire(self, now: float) -> int:
        late = [(at, row) for at, row in self.rows.items() if row.state in OPEN_STATES and row.lease_until <= now]
        for at, row in late:
            state = UNKNOWN if row.state is RUNNING else NO_EFFECT
            self.rows[at] = replace(row, state=state, token=row.token + 1, ended_at=now)
        return len(late)

    def prune(self, before: float) -> int:
        over = {COMMITTED, NO_EFFECT}
        old = [at for at, row in self.rows.items() if row.state in over and (row.ended_at or 0.0) < before]
        for at in old:
            del self.rows[at]
        return len(old)

    def list(self, tenant: str | None) -> list[tuple[str, EffectRecord]]:
        chosen = [(at[0], row) for at, row in self.rows.items() if tenant in {None, at[0]}]
        return sorted(chosen, key=lambda each: (-each[1].began_at, each[0], each[1].key))
