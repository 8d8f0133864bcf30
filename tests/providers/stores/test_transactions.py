"""Effects, suspended calls, jobs and audit rows in one transaction: all of it or nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest
from sqlalchemy import event, text

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.effects import EffectState, SuspensionState
from callgate.providers.stores.sql.store import SqlStore
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.providers.stores.backends import Backend, made
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import COMMITTED, NO_EFFECT, RUNNING, UNKNOWN, effect, wait


class Torn(AssertionError):
    """A part of a transaction was kept, and another was not."""


class Resume:
    """A call that waited for a person and is resumed by a worker: its wait is used, its effect claimed, both recorded."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.store, self.tenant = backend, backend.store, f"{backend.tenant}-{uuid.uuid4().hex[:6]}"
        self.old, self.segment = wait(backend.now()), uuid.uuid4().hex
        self.used = replace(self.old, number=2, state=SuspensionState.USED)
        self.dead = effect(backend.now(), "dead", lease=-1.0)
        self.job = job(backend.now(), f"{self.tenant}-job", run_at=1e12)

    async def suspend(self) -> None:
        await self.store.suspensions.put(self.tenant, self.old)
        await self.store.effects.claim(self.tenant, self.dead)

    async def run(self, store: Any) -> None:
        async with store.transaction() as within:
            assert await within.suspensions.replace(self.tenant, self.used)
            mine, found = await within.effects.claim(self.tenant, effect(self.backend.now()))
            assert mine
            mine, taken = await within.effects.claim(self.tenant, effect(self.backend.now(), "dead"), retry=True)
            assert mine
            assert await within.effects.settle(self.tenant, "dead", taken.token, NO_EFFECT, at=1.0)
            await within.audit.append(self.tenant, [AuditRow(self.segment, 1, 1.0, {}, "", "")])
            assert await within.effects.get(self.tenant, "k") == found, "seen inside"
            assert await within.suspensions.get(self.tenant, "w") == self.used
            await within.suspensions.put(self.tenant, replace(self.old, id="next"))
            assert await within.jobs.add(self.tenant, self.job) == self.job

    async def kept(self) -> bool:
        """Return True if it was written; read without faults."""
        seen = [
            await self.store.suspensions.get(self.tenant, "w"),
            await self.store.effects.get(self.tenant, "k"),
            await self.store.effects.get(self.tenant, "dead"),
            [row.number async for row in self.store.audit.read(self.tenant)],
            await self.store.suspensions.get(self.tenant, "next"),
            await self.store.jobs.get(self.tenant, self.job.id),
        ]
        if seen == [self.old, None, self.dead, [], None, None]:
            return False
        over = replace(effect(self.backend.now(), "dead"), token=2, state=NO_EFFECT, ended_at=1.0)
        if seen == [self.used, effect(self.backend.now()), over, [1], replace(self.old, id="next"), self.job]:
            return True
        raise Torn(f"{seen}")


async def test_a_resumed_call_is_written_with_its_effect_and_its_record_together(durable: Backend) -> None:
    """Contract I16."""
    resume = Resume(durable)
    await resume.suspend()
    await resume.run(durable.store)
    assert await resume.kept()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whichever_operation_of_a_transaction_fails_all_of_it_is_kept_or_nothing(
    durable: Backend, when: Literal["before", "after"]
) -> None:
    """Contract I16, I20."""
    names: list[str] = []
    for n in range(1, 100):
        resume = Resume(durable)
        await resume.suspend()
        faulty = FaultyStore(durable.store, n, when=when)
        with pytest.raises(InjectedFault):
            await resume.run(faulty)
        assert faults_of(faulty).injected == [n]
        names = [*names, faults_of(faulty).log[n - 1]]
        lost = (when, names[-1]) == ("after", "transaction.exit")
        assert await resume.kept() is lost, names[-1]
        if names[-1] == "transaction.exit":
            break
    assert names == [
        "transaction.enter",
        "transaction.suspensions.replace",
        "transaction.effects.claim",
        "transaction.effects.claim",
        "transaction.effects.settle",
        "transaction.audit.append",
        "transaction.effects.get",
        "transaction.suspensions.get",
        "transaction.suspensions.put",
        "transaction.jobs.add",
        "transaction.exit",
    ]


@pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file", "postgresql"], indirect=True)
@pytest.mark.parametrize("when", ["before_cursor_execute", "after_cursor_execute"])
async def test_whichever_statement_of_a_transaction_fails_all_of_it_is_kept_or_nothing(
    durable: Backend, when: str
) -> None:
    """Contract I16, I20."""
    assert isinstance(durable.store, SqlStore)
    done, at, said = 0, 0, list[str]()

    def strike(_: Any, __: Any, statement: str, *more: Any) -> None:
        nonlocal done
        done += 1
        if done == at:
            said.append(statement)
            raise InjectedFault

    engine = durable.store._database.engines.calls.sync_engine
    event.listen(engine, when, strike)
    try:
        for n in range(1, 100):
            resume = Resume(durable)
            at = 0
            await resume.suspend()
            done, at = 0, n
            try:
                await resume.run(durable.store)
            except (InjectedFault, StoreError):
                at = 0
                committed = (when, said[-1]) == ("after_cursor_execute", "COMMIT")
                assert await resume.kept() is committed, said
            else:
                break
    finally:
        event.remove(engine, when, strike)
    assert len(said) == done, "each statement was struck once"
    assert len(said) >= 10


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_transaction_that_fails_leaves_no_trace_of_any_change(
    durable: Backend, error: type[BaseException]
) -> None:
    """Contract I16. Of every state, by every method."""
    effects, tenant, now = durable.store.effects, durable.tenant, durable.now()
    for state in EffectState:
        await effects.claim(tenant, effect(now, state, owner=tenant, lease=-1.0))
        if state is not RUNNING:
            assert await effects.settle(tenant, state, 1, state, at=now - 1.0, receipt=b"1", note="n")
    await durable.store.suspensions.put(tenant, wait(now))
    before = [list(await effects.list(tenant)), list(await durable.store.suspensions.list(tenant))]
    with pytest.raises(error):
        async with durable.store.transaction() as within:
            assert await within.effects.renew(tenant, now + 9.0) == 2
            for state in EffectState:
                await within.effects.claim(tenant, effect(now, state), retry=True)
                await within.effects.settle(tenant, state, 2, COMMITTED, at=now, of=list(EffectState))
            await within.effects.claim(tenant, effect(now, "new"))
            await within.effects.expire(now + 100.0)
            await within.effects.prune(now + 200.0)
            await within.suspensions.replace(tenant, replace(wait(now), number=2, state=SuspensionState.DENIED))
            await within.suspensions.prune(now + 1.0)
            await within.suspensions.put(tenant, wait(now, "another"))
            assert list(await within.effects.list(tenant)) != before[0]
            assert list(await within.suspensions.list(tenant)) != before[1]
            assert list(await within.suspensions.due(now + 60.0))
            raise error
    assert [list(await effects.list(tenant)), list(await durable.store.suspensions.list(tenant))] == before
    assert await durable.store.suspensions.get(tenant, "another") is None


async def test_of_many_transactions_that_resume_one_call_one_does(durable: Backend) -> None:
    """Contract I5, I16. Those who come too late find it used, or their claim taken: never both are theirs."""
    others = [durable.store]
    if durable.kind in {"sqlite-file", "postgresql"}:
        other = made(durable.kind, durable.address, durable.prefix, durable.now)
        await other.open()
        others.append(other)
    old = wait(durable.now())
    await durable.store.suspensions.put(durable.tenant, old)
    won: list[int] = []

    async def resume(who: int) -> None:
        store = others[who % len(others)]
        async with store.transaction() as within:
            if not await within.suspensions.replace(durable.tenant, replace(old, number=2, state=SuspensionState.USED)):
                return
            mine, _ = await within.effects.claim(durable.tenant, effect(durable.now(), request_id=str(who)))
            assert mine
            won.append(who)

    try:
        await asyncio.gather(*(resume(who) for who in range(20)))
    finally:
        for store in others[1:]:
            await store.close()
    assert len(won) == 1
    found = await durable.store.effects.get(durable.tenant, "k")
    assert found is not None
    assert found.request_id == str(won[0])


async def test_what_a_transaction_claims_is_nobody_elses_and_free_when_it_fails(durable: Backend) -> None:
    """Contract I4."""
    store, tenant, now = durable.store, durable.tenant, durable.now()
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        async with store.transaction() as within:
            assert (await within.effects.claim(tenant, effect(now, request_id="first")))[0]
            inside.set()
            await go_on.wait()
            raise ZeroDivisionError

    first = asyncio.create_task(fail())
    await inside.wait()
    second = asyncio.create_task(store.effects.claim(tenant, effect(now, request_id="second")))
    if durable.kind == "memory":  # memory raises at once
        assert not (await second)[0]
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        await first
    if durable.kind != "memory":
        assert (await second)[0], "it has waited, and the key is free"
    else:
        assert (await store.effects.claim(tenant, effect(now)))[0]


async def test_in_memory_a_transaction_that_fails_takes_back_no_change_that_another_made_since() -> None:
    """Contract I4."""
    store = made("memory", "memory://", "", time.time)
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as within:
            await within.effects.claim("t", effect(1.0, lease=1.0))
            await within.effects.claim("t", effect(1.0, "mine", lease=1.0))
            await store.effects.expire(2.0)
            assert (await store.effects.claim("t", effect(3.0, request_id="another"), retry=True))[0]
            _ = 1 / 0
    found = await store.effects.get("t", "k")
    assert found == replace(effect(3.0, request_id="another"), token=3)
    left = await store.effects.get("t", "mine")
    assert left is not None
    assert left.state is UNKNOWN, "no process may run it by mistake"


async def test_a_conflict_within_a_transaction_ends_only_what_ran_into_it(durable: Backend) -> None:
    store, tenant = durable.store, durable.tenant
    await store.suspensions.put(tenant, wait(durable.now()))
    async with store.transaction() as within:
        with pytest.raises(StoreConflict):
            await within.suspensions.put(tenant, wait(durable.now()))
        assert (await within.effects.claim(tenant, effect(durable.now())))[0]
    assert await store.effects.get(tenant, "k") is not None


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_a_transaction_that_postgresql_has_given_up_does_not_end_as_if_it_were_kept(durable: Backend) -> None:
    """Contract I3. After a failed statement its COMMIT rolls back and reports no error."""
    store, tenant = durable.store, durable.tenant
    with pytest.raises(StoreError, match="so it was rolled back"):
        async with store.transaction() as within:
            assert (await within.effects.claim(tenant, effect(durable.now())))[0]
            with pytest.raises(StoreError):
                await within.effects.claim(tenant, effect(durable.now(), "other", token=2**70))
    assert await store.effects.get(tenant, "k") is None
    assert isinstance(store, SqlStore)
    async with store._database.writing() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1, "the connection is well"


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_what_ended_a_transaction_is_told_also_when_its_connection_was_cut(durable: Backend) -> None:
    """Contract I20. There is nothing left to roll back on, and the next transaction has a connection that works."""
    store, tenant = durable.store, durable.tenant
    assert isinstance(store, SqlStore)
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as within:
            assert (await within.effects.claim(tenant, effect(durable.now())))[0]
            cut = {"id": within.driver().info.backend_pid}
            async with store._database.engines.calls.connect() as other:
                await other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), cut)
            _ = 1 / 0
    async with store.transaction() as within:
        assert (await within.effects.claim(tenant, effect(durable.now())))[0]


async def test_a_transaction_of_single_writes_is_found_out(durable: Backend) -> None:
    """The control: each write is kept by itself."""

    class Single:
        @asynccontextmanager
        async def transaction(self) -> AsyncGenerator[Any, None]:
            yield durable.store

    torn = 0
    for n in range(2, 10):
        resume = Resume(durable)
        await resume.suspend()
        with pytest.raises(InjectedFault):
            await resume.run(FaultyStore(Single(), n))
        try:
            assert not await resume.kept()
        except Torn:
            torn += 1
    assert torn == 7, "all but the first write"
