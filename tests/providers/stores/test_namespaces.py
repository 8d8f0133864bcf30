"""Two applications on one store: neither reads, changes, runs nor deletes the records of the other."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from callgate.errors import StoreError, StoreUnsupported
from callgate.providers.stores.address import in_namespace
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import SuspensionState
from callgate.providers.stores.redis import RedisStore
from callgate.providers.stores.sql import SqlStore
from callgate.testing import FaultyStore
from tests.providers.stores import job_rows, ledger
from tests.providers.stores.backends import Backend
from tests.providers.stores.ledger import COMMITTED, NO_EFFECT, RUNNING, Grouped, effect, wait

FOREVER = float("inf")


def both(fresh: Backend) -> tuple[Store, Store]:
    """The store for two applications. The first has no namespace, as a service of before."""
    return fresh.store, in_namespace(fresh.store, "shipping")


def ledgers(store: Store) -> list[Any]:
    """The faces of a ledger: its methods, and those whose changes are committed in groups."""
    grouped = [Grouped(store)] if isinstance(store, SqlStore) and store.ledger is not None else []
    return [store.effects, *grouped]


async def test_effects_of_another_application_are_out_of_reach(fresh: Backend) -> None:
    mine, theirs = both(fresh)
    now = fresh.now()
    for number, part in enumerate(ledgers(theirs)):
        key = f"k{number}"
        assert (await part.claim("t", effect(now, key, lease=1.0)))[0]
        for other in ledgers(mine):
            assert not await other.settle("t", key, 1, COMMITTED, at=now)
        assert await mine.effects.get("t", key) is None
        assert await part.settle("t", key, 1, COMMITTED, at=now - 9.0, receipt=b"1")
    assert (await theirs.effects.claim("t", effect(now, "open", lease=1.0)))[0]
    assert list(await mine.effects.list(None)) == []
    assert list(await mine.effects.list("t", tool="refund")) == []
    assert await mine.effects.renew("o", now + 99.0) == 0
    assert await mine.effects.expire(now + 50.0) == 0
    assert await mine.effects.prune(FOREVER) == 0
    control = await theirs.effects.renew("o", now + 99.0), await theirs.effects.expire(now + 100.0)
    assert (control, await theirs.effects.prune(FOREVER)) == ((1, 1), len(ledgers(theirs)))


async def test_a_key_of_another_application_is_never_taken_over(fresh: Backend) -> None:
    """A gate has its namespace in each key; whoever writes keys by hand gets an error, or two effects."""
    mine, theirs = both(fresh)
    await theirs.effects.claim("t", effect(fresh.now(), "k"))
    await theirs.effects.settle("t", "k", 1, NO_EFFECT, at=fresh.now())
    before = await theirs.effects.get("t", "k")
    for part in ledgers(mine):
        with contextlib.suppress(StoreError):
            await part.claim("t", effect(fresh.now(), "k", request_id="mine"), retry=True)
    assert await theirs.effects.get("t", "k") == before
    assert (await theirs.effects.claim("t", effect(fresh.now(), "k")))[0], "the control: its own may take it"


async def test_suspended_calls_of_another_application_are_out_of_reach(fresh: Backend) -> None:
    mine, theirs = both(fresh)
    one = wait(fresh.now(), "w", lasts=1.0)
    await theirs.suspensions.put("t", one)
    used = replace(one, number=2, state=SuspensionState.USED)
    assert await mine.suspensions.get("t", "w") is None
    assert not await mine.suspensions.replace("t", used)
    assert list(await mine.suspensions.list("t")) == []
    assert list(await mine.suspensions.due(FOREVER)) == []
    assert list(await theirs.suspensions.due(FOREVER)) == [("t", one)]
    async with theirs.transaction() as within:
        assert await within.suspensions.replace("t", used)
    assert (await mine.suspensions.prune(FOREVER), await theirs.suspensions.prune(FOREVER)) == (0, 1)


async def test_a_worker_takes_only_jobs_of_its_application(fresh: Backend) -> None:
    """Issue 16 A9."""
    mine, theirs = both(fresh)
    now = fresh.now()
    async with theirs.transaction() as within:
        await within.jobs.add("t", job_rows.job(now))
    for queues in ((), ("default",)):
        assert await mine.jobs.take("me", now, now + 9.0, queues=queues) is None
        assert not await mine.jobs.has_open(queues)
        assert await theirs.jobs.has_open(queues)
    assert await mine.jobs.take("me", now, now + 9.0, id="j") is None
    assert await mine.jobs.get("t", "j") is None
    assert list(await mine.jobs.unsent(now, now)) == list(await mine.jobs.list(None)) == []
    assert sum((await mine.jobs.count()).values()) == 0
    assert await mine.jobs.cancel("t", "j", now) is None
    assert await theirs.jobs.take("they", now, now + 9.0) is not None
    assert await theirs.jobs.cancel("t", "j", now) is job_rows.RUNNING
    assert (list(await mine.jobs.stopped(["they"])), list(await theirs.jobs.stopped(["they"]))) == ([], ["they"])
    assert (list(await mine.jobs.renew(["they"], now + 9.0)), await theirs.jobs.renew(["they"], now + 9.0)) == (
        [],
        ["j"],
    )
    ending: dict[str, Any] = {"at": now, "result": None, "reason": None}
    assert not await mine.jobs.end("t", "j", 1, job_rows.DONE, **ending)
    assert await theirs.jobs.end("t", "j", 1, job_rows.DONE, **ending)
    assert (await mine.jobs.prune(FOREVER), await theirs.jobs.prune(FOREVER)) == (0, 1)


async def test_other_parts_are_shared_and_the_same_name_is_the_same_store(fresh: Backend) -> None:
    mine, theirs = both(fresh)
    again = in_namespace(fresh.store, "shipping")
    await theirs.effects.claim("t", effect(fresh.now()))
    found = await again.effects.get("t", "k")
    assert found is not None
    assert found.state is RUNNING
    assert theirs.audit is mine.audit
    assert theirs.cache is mine.cache
    assert in_namespace(mine, "") is mine


async def test_a_store_without_namespaces_refuses_one() -> None:
    class Plain:
        name = "plain"

    plain: Any = Plain()
    assert in_namespace(plain, "") is plain
    with pytest.raises(StoreUnsupported, match="database of its own"):
        in_namespace(plain, "shipping")
    redis = RedisStore("redis://localhost")
    assert in_namespace(redis, "shipping") is redis, "it keeps none of these records"


@pytest.mark.parametrize("part", ["effects", "suspensions", "jobs"])
async def test_old_rows_are_deleted_in_batches(fresh: Backend, part: str) -> None:
    """Issue 16 A8: no statement is longer than its batch."""
    store, now = fresh.store, fresh.now()
    for number in range(5):
        if part == "effects":
            await store.effects.claim("t", effect(now, f"k{number}"))
            await store.effects.settle("t", f"k{number}", 1, COMMITTED, at=now)
        elif part == "suspensions":
            await store.suspensions.put("t", wait(now, f"w{number}"))
            used = replace(wait(now, f"w{number}"), number=2, state=SuspensionState.USED)
            assert await store.suspensions.replace("t", used)
        else:
            await job_rows.kept(fresh, job_rows.DONE, f"j{number}")
    prune = getattr(store, part).prune
    assert [await prune(now + 1.0, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_the_ledger_of_another_application_survives_an_emptying(fresh: Backend) -> None:
    mine, theirs = both(fresh)
    await theirs.effects.claim("t", effect(fresh.now()))
    await ledger.empty(mine)
    assert len(await theirs.effects.list(None)) == 1
    await ledger.empty(theirs)
    assert len(await theirs.effects.list(None)) == 0


async def test_a_faulty_store_has_namespaces(fresh: Backend) -> None:
    assert in_namespace(FaultyStore(fresh.store), "shipping").name == fresh.store.name
