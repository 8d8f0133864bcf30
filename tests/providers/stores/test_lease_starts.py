"""A lease begins when it is written, and not when it begins to wait for a connection or for other changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.providers.stores.effects import Alias
from callgate.providers.stores.sql import job_batches as sql_job_batches
from callgate.providers.stores.sql.database import database as sql_database
from callgate.providers.stores.sql.ledger import Change
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Backend, opened, place
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import effect

LEASE, WAIT = 10.0, 7.0
Lease = Callable[[Backend, SqlStore], Awaitable[float | None]]
"""Takes a lease. Returns the time at which it ends."""


async def claim(backend: Backend, store: SqlStore, alias: Alias | None = None) -> float | None:
    mine, found = await store.ledger.claim("t", effect(backend.now(), lease=LEASE), (), retry=False, alias=alias)
    assert mine
    assert await store.effects.get("t", "k") == found, "the caller knows the lease that is written"
    return found.lease_until


async def claim_both(backend: Backend, store: SqlStore) -> float | None:
    """The same, with the key of the caller."""
    return await claim(backend, store, Alias("other", "given"))


async def take_by_id(backend: Backend, store: SqlStore) -> float | None:
    now = backend.now()
    taken = await store.jobs.take("o", now, now + LEASE, id="j")
    return None if taken is None else taken[1].lease_until


async def take_next(backend: Backend, store: SqlStore) -> float | None:
    now = backend.now()
    taken = await store.jobs.take("o", now, now + LEASE)
    return None if taken is None else taken[1].lease_until


async def permit(backend: Backend, store: SqlStore) -> float | None:
    began = backend.now()
    assert await store.semaphores.acquire("t", "k", 1, "token", LEASE)
    backend.now.time = began + WAIT + LEASE - 0.5
    held = await store.semaphores.holders("t", "k")
    return began + WAIT + LEASE if held else began + LEASE


LEASES = [claim, claim_both, take_by_id, take_next, permit]


async def lease_that_waits(kind: str, folder: Path, lease: Lease) -> float | None:
    """Take a lease while others have all connections for ``WAIT`` seconds. Return how long it lasts from then on."""
    with place(kind, folder) as where:
        async with opened(kind, where) as backend:
            store: Any = backend.store
            now = backend.now()
            for id in ("held", "j"):
                await store.jobs.add("t", job(now, id, priority=int(id == "held")))
            ready, done = asyncio.Barrier(2), asyncio.Event()

            async def hold(number: int) -> None:
                async with store.transaction() as within:
                    if number == 0:
                        await within.effects.claim("t", effect(now, "held"))
                        await within.jobs.take("x", now, now + LEASE, id="held")
                    await ready.wait()
                    await done.wait()

            tasks = list[asyncio.Task[Any]]()
            for number in range(1 if store._database.lite else store._database.pool_size):
                tasks.append(asyncio.create_task(hold(number)))
                await ready.wait()
            # What comes first in each queue waits for a locked row, and what follows waits for that.
            tasks.append(asyncio.create_task(store.ledger.claim("t", effect(now, "held"), (), retry=False)))
            tasks.append(asyncio.create_task(store.jobs.take("o", now, now + LEASE, id="held")))
            for _ in range(3):
                await asyncio.sleep(0)
            taken = asyncio.ensure_future(lease(backend, store))
            for _ in range(3):
                await asyncio.sleep(0)
            backend.now.move(WAIT)
            done.set()
            ends = await taken
            await asyncio.gather(*tasks)
            return None if ends is None else ends - now - WAIT


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("kind", ["sqlite-file", "sqlite-memory", "postgresql"])
async def test_a_lease_begins_when_it_is_written(kind: str, lease: Lease, tmp_path: Path) -> None:
    """Issue 34, 2: a claim that had waited for seconds was over before its tool had begun."""
    assert await lease_that_waits(kind, tmp_path, lease) == LEASE


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
@pytest.mark.parametrize("lease", LEASES[:-1])
async def test_a_lease_that_begins_too_early_is_found_out(
    kind: str, lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the leases as their callers gave them."""
    monkeypatch.setattr(Change, "begin_lease", lambda change, now: None)
    for module in (sql_database, sql_job_batches):
        monkeypatch.setattr(module, "leased", lambda values, waited: values)
    assert await lease_that_waits(kind, tmp_path, lease) == LEASE - WAIT
