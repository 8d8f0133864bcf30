"""Two applications on one store: neither reads, changes, runs nor deletes the records of the other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from callgate.errors import StoreError, StoreUnsupported
from callgate.providers.stores.address import in_namespace
from callgate.providers.stores.base import AuditCheckpoint, AuditRow, CacheEntry, CheckpointKind, Grant, Limit, Store
from callgate.providers.stores.effects import Pin, SuspensionState
from callgate.providers.stores.sql.store import SqlStore
from callgate.testing import FaultyStore
from tests.providers.stores import job_rows, ledger
from tests.providers.stores.backends import KINDS, Backend, opened, place
from tests.providers.stores.ledger import COMMITTED, NO_EFFECT, RUNNING, Grouped, effect, wait

FOREVER = float("inf")


@pytest.fixture(params=KINDS)
async def fresh_anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Backend]:
    """An empty store of this test alone."""
    with place(request.param, tmp_path) as at:
        async with opened(request.param, at) as backend:
            yield backend


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


async def test_the_same_name_is_the_same_store(fresh: Backend) -> None:
    mine, theirs = both(fresh)
    again = in_namespace(fresh.store, "shipping")
    await theirs.effects.claim("t", effect(fresh.now()))
    found = await again.effects.get("t", "k")
    assert found is not None
    assert found.state is RUNNING
    assert in_namespace(mine, "") is mine


# ---------------------------------------------------------------------- every part


class Mixed(AssertionError):
    """A record was seen in another namespace."""


Kept: TypeAlias = tuple[Callable[[Store, float, int], Awaitable[None]], Callable[[Store, float], Awaitable[Any]]]
"""Writes a record of one name in each namespace, with what the record says; and reads what it says, None without one."""
HOUR = Limit(100, 3_600.0)
SAYS = {"": 1, "a": 2, "b": 3}
"""What the records of each namespace say."""


def row_of(segment: str, says: int) -> AuditRow:
    return AuditRow(segment, 1, 1.0, {"says": says}, f"before {says}", f"hash {says}")


async def put_audit(store: Store, now: float, says: int) -> None:
    await store.audit.append("t", [row_of("s", says)])
    await store.audit.anchor("s", 1, f"hash {says}", now)
    await store.audit.checkpoint([AuditCheckpoint(CheckpointKind.VERIFIED, "s", 1, f"hash {says}", now, f"mac {says}")])
    await store.audit.advance(f"cursor {says}", [("s", 0, says)])


async def see_audit(store: Store, _now: float) -> Any:
    every = [*SAYS.values()]
    anchors, cursors = await store.audit.anchors(), await store.audit.cursors()
    rows = [row.body["says"] async for row in store.audit.read(None)]
    of_tenant = [row.body["says"] async for row in store.audit.read("t")]
    async with store.audit.snapshot() as snapshot:
        segments = [one async for one in snapshot.segments(cursor=f"cursor {rows[0] if rows else 0}")]
        seen = [
            [row.body["says"] async for _, row in snapshot.rows("s")],
            [int(hash[5:]) async for _, hash in snapshot.anchors("s")],
            [int(hash[5:]) for _, _, hash, _ in anchors],
            [int(one.hash[5:]) for one in segments],
            [one.exported for one in segments],
            [int(point.mac[4:]) for one in segments for point in one.checkpoints],
            of_tenant,
            [int(name[7:]) for name in cursors],
            [int(hash[5:]) for hash in await snapshot.known_hashes([f"hash {says}" for says in every])],
            [int(hash[7:]) for hash in await snapshot.continued_hashes([f"before {says}" for says in every])],
        ]
    names = {one.name for one in segments} | {row.segment async for row in store.audit.read(None)}
    if any(one != rows for one in seen) or not names <= {"s"}:
        raise Mixed(f"{rows}: {seen}, {names}")
    return rows if len(rows) > 1 else next(iter(rows), None)


async def put_cache(store: Store, now: float, says: int) -> None:
    await store.cache.put("t", "k", CacheEntry(b"%d" % says, now, now + 60.0, now + 60.0, frozenset({"tag"})))


async def see_cache(store: Store, _now: float) -> Any:
    found = await store.cache.get("t", "k")
    return None if found is None else int(found.value)


async def put_quota(store: Store, _now: float, says: int) -> None:
    await store.quotas.take("t", "k", HOUR, cost=says)


async def see_quota(store: Store, _now: float) -> Any:
    return HOUR.amount - 1 - (await store.quotas.look("t", "k", HOUR)).remaining + 1 or None


async def put_permits(store: Store, _now: float, says: int) -> None:
    for number in range(says):
        assert await store.semaphores.acquire("t", "k", says, f"token {number}", 60.0)


async def see_permits(store: Store, _now: float) -> Any:
    return await store.semaphores.holders("t", "k") or None


async def put_consent(store: Store, now: float, says: int) -> None:
    await store.consents.grant("t", Grant("ann", "tool", "scope", now + says, None))


async def see_consent(store: Store, now: float) -> Any:
    found = await store.consents.find("t", "ann", "tool", "scope")
    if [found] != [*await store.consents.list("t", "ann")] and found is not None:
        raise Mixed("find and list differ")
    return None if found is None else int(found.granted_at - now)


async def put_pin(store: Store, now: float, says: int) -> None:
    assert (await store.pins.add("t", Pin("p", "tool", str(says), now))).digest == str(says)
    await store.pins.put("t", Pin("p", "tool", str(says), now))


async def see_pin(store: Store, _now: float) -> Any:
    found = await store.pins.find("t", "p", "tool")
    if [found] != [*await store.pins.list("t", "p")] and found is not None:
        raise Mixed("find and list differ")
    return None if found is None else int(found.digest)


# Ids of these are unique in all namespaces: a gate hashes its namespace into them.


async def put_effect(store: Store, now: float, says: int) -> None:
    assert (await store.effects.claim("t", effect(now, f"k{says}", note=str(says))))[0]


async def see_effect(store: Store, _now: float) -> Any:
    found = [int(one.note or 0) for _, one in await store.effects.list(None)]
    return found if len(found) > 1 else next(iter(found), None)


async def put_suspension(store: Store, now: float, says: int) -> None:
    await store.suspensions.put("t", wait(now, f"w{says}", body=b"%d" % says))


async def see_suspension(store: Store, _now: float) -> Any:
    found = [int(one.body) for one in await store.suspensions.list("t")]
    return found if len(found) > 1 else next(iter(found), None)


async def put_job(store: Store, now: float, says: int) -> None:
    await store.jobs.add("t", job_rows.job(now, f"j{says}", body=b"%d" % says))


async def see_job(store: Store, _now: float) -> Any:
    found = [int(one.body) for _, one in await store.jobs.list(None)]
    return found if len(found) > 1 else next(iter(found), None)


ANYWHERE: dict[str, Kept] = {
    "cache": (put_cache, see_cache),
    "quotas": (put_quota, see_quota),
    "semaphores": (put_permits, see_permits),
    "consents": (put_consent, see_consent),
}
RECORDS: dict[str, Kept] = {
    "audit": (put_audit, see_audit),
    "pins": (put_pin, see_pin),
    "effects": (put_effect, see_effect),
    "suspensions": (put_suspension, see_suspension),
    "jobs": (put_job, see_job),
}
PARTS = {**ANYWHERE, **RECORDS}


async def separate(part: str, fresh: Backend, namespaces: Mapping[str, Store]) -> None:
    """Check that each namespace sees nothing before it writes, and only what it has written after that.

    Raises:
        Mixed: it sees a record of another one.
    """
    put, see = PARTS[part]
    now = fresh.now()
    for name, store in namespaces.items():
        if (found := await see(store, now)) is not None:
            raise Mixed(f"{name!r} sees {found} before it has written")
        await put(store, now, SAYS[name])
    for name, store in namespaces.items():
        if (found := await see(store, now)) != SAYS[name]:
            raise Mixed(f"{name!r} sees {found} in place of {SAYS[name]}")


def test_the_table_names_every_part_of_a_store() -> None:
    parts = {name for name, value in vars(Store).items() if isinstance(value, property)} - {"durable"}
    assert parts == set(PARTS)


def parts_of(backend: Backend) -> list[str]:
    return [*(ANYWHERE if backend.kind == "redis" else PARTS)]


async def test_no_namespace_sees_what_another_keeps(fresh_anywhere: Backend) -> None:
    """Issue 34. Two services on one store; the third one has no namespace, as a service of before."""
    stores = {name: in_namespace(fresh_anywhere.store, name) for name in SAYS}
    for part in parts_of(fresh_anywhere):
        await separate(part, fresh_anywhere, stores)


async def test_a_store_that_drops_the_namespace_is_found_out_in_each_part(fresh_anywhere: Backend) -> None:
    """The control of the test above."""
    stores = dict.fromkeys(SAYS, fresh_anywhere.store)
    for part in parts_of(fresh_anywhere):
        with pytest.raises(Mixed):
            await separate(part, fresh_anywhere, stores)


async def test_a_tenant_cannot_name_itself_into_another_namespace(fresh_anywhere: Backend) -> None:
    """A tenant comes from an identity provider; its name may be anything."""
    mine, theirs = fresh_anywhere.store, in_namespace(fresh_anywhere.store, "a")
    now = fresh_anywhere.now()
    await theirs.consents.grant("t", Grant("ann", "tool", "scope", now, None))
    for name in ("\x1fa\x1ft", "t:a", "a/t", "a\x1ft", "\x1f\x1fa\x1ft", "t%3Aa"):
        assert await mine.consents.find(name, "ann", "tool", "scope") is None
        await mine.consents.grant(name, Grant("ann", "tool", name, now, None))
        assert [one.scope for one in await mine.consents.list(name, "ann")] == [name]
    assert [one.scope for one in await theirs.consents.list("t", "ann")] == ["scope"]


async def test_what_a_service_drops_stays_with_the_other(fresh_anywhere: Backend) -> None:
    stores = [in_namespace(fresh_anywhere.store, name) for name in ("a", "b")]
    now = fresh_anywhere.now()
    for store in stores:
        await put_cache(store, now, 1)
        await put_consent(store, now, 1)
        await put_permits(store, now, 1)
        await put_quota(store, now, 1)
    first, second = stores
    assert await first.cache.drop_tags("t", ["tag"]) == 1
    assert not await first.cache.drop("t", "k")
    assert await first.consents.revoke("t", "ann") == 1
    assert await first.semaphores.release("t", "k", "token 0")
    await first.quotas.give_back("t", "k", HOUR)
    seen = [[await ANYWHERE[part][1](store, now) for part in ANYWHERE] for store in (first, second)]
    assert seen == [[None] * 4, [1] * 4]


async def test_a_store_without_namespaces_refuses_one() -> None:
    class Plain:
        name = "plain"

    plain: Any = Plain()
    assert in_namespace(plain, "") is plain
    with pytest.raises(StoreUnsupported, match="database of its own"):
        in_namespace(plain, "shipping")


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
