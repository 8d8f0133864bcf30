"""The n-th operation fails, or commits and reports failure, for all n; calls are cancelled anywhere: no rule breaks."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from sqlalchemy import event

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.sql.store import SqlStore
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.providers.stores.backends import Backend
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import effect, wait

LIMIT = Limit(4, 3600.0)
PLACES, TTL = 2, 30.0
FAILURES = (InjectedFault, StoreError)


class Broken(AssertionError):
    """A rule is broken."""


class Life:
    """Some calls of one tenant, and what is known of them: what was surely done, and what may have been."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend, self.tenant = backend, f"{backend.tenant}-{name}"
        self.records = backend.kind != "redis"
        self.segment = uuid.uuid4().hex
        self.taken = 0
        self.next = 1

    async def run(self, store: Any) -> None:
        now = self.backend.now()
        for number in range(3):
            token = f"token {number}"
            try:
                self.taken += (await store.quotas.take(self.tenant, "k", LIMIT)).ok
                await store.semaphores.acquire(self.tenant, "k", PLACES, token, TTL)
                await store.cache.put(
                    self.tenant, "k", CacheEntry(b"%d" % number, now, now + 9, now + 9, frozenset("t"))
                )
                await store.consents.grant(self.tenant, Grant("ann", "tool", str(number), now, None))
            except FAILURES:
                pass
            if self.records:
                await self.record(store)
            try:
                await store.semaphores.release(self.tenant, "k", token)
                await store.cache.drop_tags(self.tenant, ["t"])
                await store.quotas.give_back(self.tenant, "k", LIMIT, 0)
            except FAILURES:
                pass

    async def record(self, store: Any) -> None:
        """Two rows in a transaction, with an effect, a wait and a job, again and again until they are in: a writer must."""
        rows = [AuditRow(self.segment, self.next + more, 1.0, {"n": self.next + more}, "", "") for more in (0, 1)]
        for _ in range(5):
            try:
                async with store.transaction() as transaction:
                    for row in rows:
                        await transaction.audit.append(self.tenant, [row])
                    mine, _ = await transaction.effects.claim(self.tenant, effect(1.0, str(self.next)))
                    await transaction.suspensions.put(self.tenant, wait(1.0, str(self.next)))
                    await transaction.jobs.add(self.tenant, job(1.0, f"{self.segment} {self.next}"))
                    assert mine, "a transaction that failed has left its claim"
            except StoreConflict:
                break  # it was written, and only the answer was lost
            except FAILURES:
                continue
            break
        self.next += 2

    async def hold(self) -> None:
        """Check the state afterwards, without faults."""
        store = self.backend.store
        left = (await store.quotas.look(self.tenant, "k", LIMIT)).remaining
        if left > LIMIT.amount - self.taken:
            raise Broken(f"{self.taken} units were given out, and {left} of {LIMIT.amount} are left")
        if (held := await store.semaphores.holders(self.tenant, "k")) > PLACES:
            raise Broken(f"{held} hold places")
        if self.records:
            numbers = [row.number async for row in store.audit.read(self.tenant)]
            if numbers != list(range(1, self.next)):
                raise Broken(f"audit rows {numbers}, to {self.next - 1}")
            recorded = {str(number) for number in numbers if number % 2}
            effects = {effect.key for _, effect in await store.effects.list(self.tenant)}
            waits = {wait.id for wait in await store.suspensions.list(self.tenant)}
            jobs = {job.id.removeprefix(f"{self.segment} ") for _, job in await store.jobs.list(self.tenant)}
            if not effects == waits == jobs == recorded:
                raise Broken(f"effects {effects}, waits {waits} and jobs {jobs} with audit rows {numbers}")
        self.backend.now.move(TTL)
        if await store.semaphores.holders(self.tenant, "k"):
            raise Broken("a place is lost for longer than its time")
        for token in range(PLACES):
            if not await store.semaphores.acquire(self.tenant, "k", PLACES, f"later {token}", TTL):
                raise Broken("a place is lost")
        entry = CacheEntry(b"1", 0.0, self.backend.now() + 9, self.backend.now() + 9, frozenset("t"))
        await store.cache.put(self.tenant, "k", entry)
        if await store.cache.drop_tags(self.tenant, ["t"]) != 1:
            raise Broken("a tag is lost")


def in_turns(whens: Sequence[str], **short: Sequence[str]) -> list[Any]:
    """Each store with each moment; those that *short* does not name for it are a soak."""
    return [
        pytest.param(kind, when, marks=() if when in known else pytest.mark.soak, id=f"{kind}-{when}")
        for kind, known in ((name.replace("_", "-"), known) for name, known in short.items())
        for when in whens
    ]


MOMENTS = ("before", "after")
OPERATIONS = in_turns(
    MOMENTS,
    memory=MOMENTS,
    sqlite_memory=["before"],
    sqlite_file=["after"],
    postgresql=MOMENTS,
    redis=MOMENTS,
)


@pytest.mark.parametrize(("backend", "when"), OPERATIONS, indirect=["backend"])
async def test_whichever_operation_fails_no_rule_breaks(backend: Backend, when: Literal["before", "after"]) -> None:
    """I20."""
    life = Life(backend, f"{when}-none")
    counting = faults_of(faulty := FaultyStore(backend.store, when=when))
    await life.run(faulty)
    await life.hold()
    assert counting.calls > 15
    for n in range(1, counting.calls + 1):
        life = Life(backend, f"{when}-{n}")
        faulty = FaultyStore(backend.store, n, when=when)
        await life.run(faulty)
        assert faults_of(faulty).injected == [n]
        await life.hold()


async def test_faults_strike_the_parts_of_a_store_and_those_of_its_transactions(durable: Backend) -> None:
    """Counted all together, in the order of what is awaited; what is no part is handed on as it is."""
    store, tenant = FaultyStore(durable.store), durable.tenant
    await store.effects.claim(tenant, effect(1.0))
    await store.suspensions.put(tenant, wait(1.0))
    await store.pins.list(tenant, "p")
    await store.jobs.add(tenant, job(1.0, tenant))
    async with store.transaction() as within:
        await within.effects.get(tenant, "k")
        await within.suspensions.get(tenant, "w")
        await within.jobs.get(tenant, tenant)
        _ = [row async for row in within.audit.read(tenant)]
    parts = ["effects.claim", "suspensions.put", "pins.list", "jobs.add"]
    inside = ["enter", "effects.get", "suspensions.get", "jobs.get", "audit.read", "exit"]
    assert faults_of(store).log == [*parts, *(f"transaction.{name}" for name in inside)]
    assert (store.name, store.durable) == (durable.store.name, durable.store.durable)
    assert type(store.name) is str
    assert isinstance(store.effects, type(durable.store.effects))
    failing = FaultyStore(durable.store, [1, 2, 3, 4])
    for work in (
        lambda: failing.effects.claim(tenant, effect(1.0, "other")),
        lambda: failing.suspensions.get(tenant, "w"),
        lambda: failing.pins.find(tenant, "p", "t"),
        lambda: failing.jobs.add(tenant, job(1.0, f"{tenant} other")),
    ):
        with pytest.raises(InjectedFault):
            await work()
    assert await durable.store.effects.get(tenant, "other") is None
    assert len(await durable.store.jobs.list(tenant)) == 1


STATEMENTS = in_turns(
    ("before_cursor_execute", "after_cursor_execute"),
    sqlite_memory=[],
    sqlite_file=["before_cursor_execute"],
    postgresql=["after_cursor_execute"],
)


@pytest.mark.parametrize(("durable", "when"), STATEMENTS, indirect=["durable"])
async def test_whichever_statement_fails_no_rule_breaks(durable: Backend, when: str) -> None:
    """I20, between the statements of one operation: what was begun is rolled back, or was committed."""
    assert isinstance(durable.store, SqlStore)
    database = durable.store._database
    done, at = 0, 0

    def strike(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == at:
            raise InjectedFault

    event.listen(database.engines.calls.sync_engine, when, strike)
    await Life(durable, f"{when}-none").run(durable.store)
    statements = done
    assert statements > 20
    for n in range(1, statements + 1):
        life = Life(durable, f"{when}-{n}")
        done, at = 0, n
        await life.run(durable.store)
        at = 0
        await life.hold()


async def test_a_store_that_loses_a_row_is_found_out(durable: Backend) -> None:
    """The control: an append that reports success and does nothing."""

    class Loses:
        def __init__(self, store: Any) -> None:
            self.store, self.calls = store, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        def transaction(self) -> Any:
            self.calls += 1
            other = f"{durable.tenant}-elsewhere"
            return Aside(self.store.transaction(), other) if self.calls == 2 else self.store.transaction()

    class Aside:
        def __init__(self, manager: Any, tenant: str) -> None:
            self.manager, self.tenant = manager, tenant

        async def __aenter__(self) -> Any:
            self.within = await self.manager.__aenter__()
            return self

        async def __aexit__(self, *error: object) -> Any:
            return await self.manager.__aexit__(*error)

        def __getattr__(self, name: str) -> Any:
            return self if name == "audit" else getattr(self.within, name)

        async def append(self, tenant: str, rows: Any) -> None:
            pass

    life = Life(durable, "loses")
    await life.run(Loses(durable.store))
    with pytest.raises(Broken, match="audit rows"):
        await life.hold()


@pytest.mark.parametrize("seed", range(3))
async def test_calls_that_are_cancelled_anywhere_break_no_rule(backend: Backend, seed: int) -> None:
    """I11. Real time: drivers wait for threads and sockets."""
    chance = random.Random(seed)
    lives = [Life(backend, f"cancel-{seed}-{number}") for number in range(12)]
    tasks = [asyncio.create_task(life.run(backend.store)) for life in lives]
    for task in chance.sample(tasks, 9):
        await asyncio.sleep(chance.random() * 0.004)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for life in lives:
        if life.records:
            numbers = [row.number async for row in backend.store.audit.read(life.tenant)]
            assert numbers in (list(range(1, life.next)), list(range(1, life.next + 2))), "whole transactions"
            life.next = len(numbers) + 1
        await life.hold()
