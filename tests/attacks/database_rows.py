"""The rows that an actor who writes the database may change: how each kind is written, read, replaced and stored."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import text

from callgate.errors import StoreError
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import CacheEntry, Grant, Store
from callgate.providers.stores.effects import EffectState, Pin, SuspensionState
from callgate.providers.stores.jobs import FINAL_STATES, JobState
from callgate.providers.stores.redis.store import RedisStore
from callgate.providers.stores.signed_rows import UNREADABLE
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.jobs.records import find_job
from callgate.runtime.jobs.records import signed as signed_job
from callgate.runtime.suspensions.resumption import is_whole, signed
from tests.providers.stores.backends import Backend
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import effect, wait

KEY, OTHER = SigningKeys(["the key of the service"]), SigningKeys(["a key of the attacker"])


@dataclass
class World:
    """A store with signatures by some keys, or without; its clock, and the tenant of this case."""

    store: Store
    keys: SigningKeys | None
    backend: Backend
    tenant: str


Verb = Callable[[World, str], Awaitable[Any]]


@dataclass(frozen=True)
class Kind:
    """One kind of rows. ``write`` writes the first version, ``replace`` ends its validity, ``read`` returns what is accepted.

    ``key`` is the column of the key, ``mac`` that of the signature. ``change`` is a column with its new value.
    """

    table: str
    key: str
    mac: str
    change: tuple[str, Any]
    write: Verb
    replace: Verb
    read: Verb


async def write_effect(world: World, key: str) -> None:
    """Run an effect that fails without an effect."""
    effects, now = world.store.effects, world.backend.now()
    await effects.claim(world.tenant, effect(now, key))
    await effects.settle(world.tenant, key, 1, EffectState.NO_EFFECT, at=now)


async def replace_effect(world: World, key: str) -> None:
    """Run the effect again, with success: its key is not free any more."""
    effects, now = world.store.effects, world.backend.now()
    mine, found = await effects.claim(world.tenant, effect(now, key, request_id="second"))
    assert mine
    assert await effects.settle(world.tenant, key, found.token, EffectState.COMMITTED, at=now, receipt=b"1")


async def read_effect(world: World, key: str) -> Any:
    """Return what the ledger answers."""
    return await world.store.effects.get(world.tenant, key)


async def write_job(world: World, key: str) -> None:
    """Run a job to its end."""
    jobs, now = world.store.jobs, world.backend.now()
    await jobs.add(world.tenant, signed_job(world.keys or KEY, world.tenant, job(now, key)))
    assert await jobs.take("o", now, now + 9.0, id=key)
    assert await jobs.record_progress(world.tenant, key, 1, b"[1,2,null]")
    assert await jobs.end(world.tenant, key, 1, JobState.DONE, at=now, result=b'{"a":1}', reason=None)


async def replace_job(world: World, key: str) -> None:
    """Submit another job under the id."""
    new = job(world.backend.now(), key, token=2)
    assert await world.store.jobs.replace(world.tenant, signed_job(world.keys or KEY, world.tenant, new))


async def read_job(world: World, key: str) -> Any:
    """Return the job that has ended, as it is shown to the user that its row names."""
    found = await world.store.jobs.get(world.tenant, key)
    if found is None or found.state not in FINAL_STATES or world.keys is None:
        return None if found is None or found.state not in FINAL_STATES else found
    return await find_job(world.store.jobs, KEY, world.tenant, key, found.user)


async def write_cancelled(world: World, key: str) -> None:
    """Cancel a job before it runs."""
    await world.store.jobs.add(world.tenant, signed_job(world.keys or KEY, world.tenant, job(world.backend.now(), key)))
    assert await world.store.jobs.cancel(world.tenant, key, world.backend.now()) is JobState.CANCELLED


async def replace_cancelled(world: World, key: str) -> None:
    """Submit another job under the id."""
    new = job(world.backend.now(), key, token=1)
    assert await world.store.jobs.replace(world.tenant, signed_job(world.keys or KEY, world.tenant, new))


async def write_put_back(world: World, key: str) -> None:
    """Put a job back for a later attempt."""
    jobs, now = world.store.jobs, world.backend.now()
    await jobs.add(world.tenant, signed_job(world.keys or KEY, world.tenant, job(now, key)))
    assert await jobs.take("o", now, now + 9.0, id=key)
    assert await jobs.record_progress(world.tenant, key, 1, b"[1,2,null]")
    assert await jobs.put_back(world.tenant, key, 1, run_at=now + 1e6, reason="no answer")


async def read_put_back(world: World, key: str) -> Any:
    """Return the job that has not ended, as it is shown to the user that its row names."""
    found = await world.store.jobs.get(world.tenant, key)
    if found is None or found.state in FINAL_STATES or world.keys is None:
        return found
    if found.reason == UNREADABLE or found.progress is None:  # the changed text is not shown
        return None
    return await find_job(world.store.jobs, KEY, world.tenant, key, found.user)


async def write_cached(world: World, key: str) -> None:
    """Store a value."""
    now = world.backend.now()
    await world.store.cache.put(world.tenant, key, CacheEntry(b"1", now, now + 60, now + 90, frozenset("t")))


async def replace_cached(world: World, key: str) -> None:
    """Drop the value."""
    assert await world.store.cache.drop_tags(world.tenant, ["t"])


async def read_cached(world: World, key: str) -> Any:
    """Return the cached value."""
    return await world.store.cache.get(world.tenant, key)


async def write_consent(world: World, key: str) -> None:
    """Give a consent."""
    await world.store.consents.grant(world.tenant, Grant(key, "mail", "read", world.backend.now(), None))


async def replace_consent(world: World, key: str) -> None:
    """Revoke the consent."""
    assert await world.store.consents.revoke(world.tenant, key)


async def read_consent(world: World, key: str) -> Any:
    """Return the consent to any scope."""
    consents = world.store.consents
    return await consents.find(world.tenant, key, "mail", "read") or await consents.find(
        world.tenant, key, "mail", "send"
    )


async def write_pin(world: World, key: str) -> None:
    """Approve a definition."""
    await world.store.pins.add(world.tenant, Pin("crm", key, "first", world.backend.now()))


async def replace_pin(world: World, key: str) -> None:
    """Approve a newer definition."""
    await world.store.pins.put(world.tenant, Pin("crm", key, "second", world.backend.now()))


async def read_pin(world: World, key: str) -> Any:
    """Return the pin."""
    return await world.store.pins.find(world.tenant, "crm", key)


async def write_suspension(world: World, key: str) -> None:
    """Suspend a call."""
    record = wait(world.backend.now(), key)
    await world.store.suspensions.put(world.tenant, signed(world.keys or KEY, world.tenant, record))


async def replace_suspension(world: World, key: str) -> None:
    """Deny the call."""
    found = await world.store.suspensions.get(world.tenant, key)
    assert found is not None
    denied = replace(found, number=2, state=SuspensionState.DENIED)
    assert await world.store.suspensions.replace(world.tenant, signed(KEY, world.tenant, denied))


async def read_suspension(world: World, key: str) -> Any:
    """Return the call if its signature is checked and valid."""
    found = await world.store.suspensions.get(world.tenant, key)
    return None if found is None or (world.keys is not None and not is_whole(KEY, world.tenant, found)) else found


KINDS = {
    "effect": Kind("effects", "key", "mac", ("user", "eve"), write_effect, replace_effect, read_effect),
    "job": Kind("jobs", "id", "result_mac", ("result", b'{"a":2}'), write_job, replace_job, read_job),
    "cancelled": Kind("jobs", "id", "result_mac", ("ended_at", 1.0), write_cancelled, replace_cancelled, read_job),
    "cached": Kind("cache", "key", "mac", ("value", b"2"), write_cached, replace_cached, read_cached),
    "consent": Kind("consents", "person", "mac", ("scope", "send"), write_consent, replace_consent, read_consent),
    "pin": Kind("pins", "tool", "mac", ("digest", "evil"), write_pin, replace_pin, read_pin),
    "suspension": Kind("waits", "id", "mac", ("tool", "evil"), write_suspension, replace_suspension, read_suspension),
}


COLUMNS = {**KINDS, "put back": replace(KINDS["job"], write=write_put_back, read=read_put_back)}
"""The kinds whose rows are changed column by column."""

UNSIGNED = {
    ("*", "free_at"): "the database computes it from columns of the row",
    ("effects", "token"): "it grows with each claim; a changed one refuses the worker that has the claim",
    ("effects", "lease_until"): "it ends a claim early or late; then the effect is unknown, or waits",
    ("jobs", "run_at"): "it delays a job or hastens it",
    ("jobs", "attempts"): "it ends a job early or late",
    ("jobs", "owner"): "it keeps a lease from being renewed",
    ("jobs", "lease_until"): "it ends a lease early or late",
    ("jobs", "sent_at"): "it sends a message to an engine early or late",
    ("jobs", "stop"): "it cancels a job",
    ("jobs", "token"): "it refuses the worker that has the job",  # that of a job that has ended is signed
}
"""Columns of signed tables that no MAC covers, and why: their change only refuses, delays or ends what is under way."""

REMOVABLE = {("jobs", "progress"), ("jobs", "reason")}
"""Texts about what is under way, which may be deleted: then they are not shown."""


class Rows:
    """The rows of one kind, as an actor without a key reads and writes them."""

    def __init__(self, kind: Kind, world: World) -> None:
        self._kind, self._world = kind, world
        self._table = f"callgate_{kind.table}"

    async def run(self, statement: str, **values: Any) -> list[Mapping[str, Any]]:
        """Run a statement."""
        store = self._world.store
        assert isinstance(store, SqlStore)
        async with store._database.writing() as connection:
            done = await connection.execute(text(statement), values)
            return [dict(row) for row in done.mappings()] if done.returns_rows else []

    async def take(self, key: str) -> Any:
        """Read a row as it is stored."""
        where = f"tenant = :tenant AND {self._kind.key} = :key"
        rows = await self.run(f"SELECT * FROM {self._table} WHERE {where}", tenant=self._world.tenant, key=key)
        return {name: value for name, value in rows[0].items() if name != "free_at"}  # a generated column

    async def put(self, row: Any, **changed: Any) -> None:
        """Write a row in the place of the one with its key, with some columns changed."""
        await self.run(
            f"DELETE FROM {self._table} WHERE tenant = :tenant AND {self._kind.key} = :key",
            tenant=row["tenant"],
            key=row[self._kind.key],
        )
        row = {**row, **changed}
        columns = ", ".join(row)
        await self.run(f"INSERT INTO {self._table} ({columns}) VALUES (:{', :'.join(row)})", **row)

    async def change(self, key: str) -> None:
        """Change the content of a row."""
        column, value = self._kind.change
        await self.put(await self.take(key), **{"person" if column == "user" else column: value})

    async def unsign(self, key: str) -> None:
        """Remove the signature of a row."""
        await self.put(await self.take(key), **{self._kind.mac: "" if self._kind.table == "waits" else None})

    async def copy(self, key: str, to: str) -> None:
        """Move a row to another key."""
        await self.put(await self.take(key), **{self._kind.key: to})

    async def move(self, key: str, tenant: str) -> None:
        """Move a row to another tenant."""
        await self.put(await self.take(key), tenant=tenant)


class RedisRows(Rows):
    """The same in Redis: a hash for a cached value, and a hash of consents for a user."""

    async def command(self, *parts: Any) -> Any:
        """Run a command."""
        store = self._world.store
        assert isinstance(store, RedisStore)
        return await store._connection.run(*parts)

    def _name(self, key: str, tenant: str | None = None) -> Any:
        store: Any = self._world.store
        part = store.cache if self._kind.table == "cache" else store.consents
        return part._key(self._world.tenant if tenant is None else tenant, key)

    async def take(self, key: str) -> Any:
        """Read the fields of a hash."""
        return key, dict(await self.command("HGETALL", self._name(key)))

    async def write(self, name: Any, fields: Mapping[bytes, bytes]) -> None:
        """Write the fields of a hash."""
        await self.command("DEL", name)
        await self.command("HSET", name, *(part for field in fields.items() for part in field))

    async def put(self, row: Any, **changed: Any) -> None:
        """Write a row in its place."""
        await self.write(self._name(row[0]), row[1])

    async def change(self, key: str) -> None:
        """Change the value, or add a scope to which nobody agreed."""
        _, fields = await self.take(key)
        if b"value" in fields:
            fields[b"value"] = b"2"
        else:
            found = json.loads(fields.popitem()[1])
            fields = {b'["mail", "send"]': json.dumps({**found, "scope": "send"}).encode()}
        await self.write(self._name(key), fields)

    async def unsign(self, key: str) -> None:
        """Remove the signature."""
        _, fields = await self.take(key)
        for field, value in fields.items():
            if value.startswith(b"{"):
                found = json.loads(value)
                del found["mac"]
                fields[field] = json.dumps(found).encode()
        await self.write(self._name(key), fields)

    async def copy(self, key: str, to: str) -> None:
        """Copy a row to another key."""
        await self.write(self._name(to), (await self.take(key))[1])

    async def move(self, key: str, tenant: str) -> None:
        """Copy a row to another tenant."""
        await self.write(self._name(key, tenant), (await self.take(key))[1])


async def accepted(kind: Kind, world: World, key: str) -> bool:
    """Return True if a process takes the row for its own."""
    try:
        return await kind.read(world, key) is not None
    except StoreError:
        return False
