"""Promises of the SQL stores only: the schema, the pragmas, rows that cannot be changed."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, exc, inspect, text
from sqlalchemy.exc import DBAPIError

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.effects import EffectState, Pin, SuspensionState
from callgate.providers.stores.jobs import JobState
from callgate.providers.stores.sql.database.connections import sql_errors
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Backend
from tests.providers.stores.job_rows import DONE, QUEUED, RUNNING, job, kept
from tests.providers.stores.ledger import COMMITTED, FOREVER, effect, empty, wait

SQL = pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file", "postgresql"], indirect=True)
# Segments have many tenants, and so have their heads, checkpoints and cursors; the last is alembic's table.
TENANTLESS = {"callgate_anchors", "callgate_audit_checkpoints", "callgate_audit_cursors", "callgate_schema"}


def database(backend: Backend) -> Database:
    assert isinstance(backend.store, SqlStore)
    return backend.store._database


@SQL
async def test_the_tenant_is_part_of_every_key_and_index(durable: Backend) -> None:
    def keys(connection: Any) -> dict[str, list[list[str]]]:
        look = inspect(connection)
        return {
            table: [look.get_pk_constraint(table)["constrained_columns"]]
            + [index["column_names"] for index in look.get_indexes(table) if not index.get("duplicates_constraint")]
            for table in look.get_table_names()
        }

    async with database(durable).engines.calls.connect() as connection:
        found = await connection.run_sync(keys)
    assert len(found) == 15
    lacking = {table: columns for table, all_of in found.items() for columns in all_of if "tenant" not in columns}
    assert set(lacking) == TENANTLESS


@SQL
async def test_audit_rows_are_neither_changed_nor_removed_by_any_statement(durable: Backend) -> None:
    row = AuditRow(durable.tenant, 1, 1.0, {}, "", "hash")
    await durable.store.audit.append(durable.tenant, [row])
    await durable.store.audit.anchor(durable.tenant, 1, "hash", 1.0)
    statements = [
        "UPDATE callgate_audit SET hash = 'other'",
        "DELETE FROM callgate_audit",
        "DELETE FROM callgate_anchors",
    ]
    if durable.kind == "postgresql":
        statements.append("TRUNCATE callgate_audit")
    for statement in statements:
        with pytest.raises(StoreError) as refused:
            await database(durable).write(text(statement), {})
        assert isinstance(refused.value.__cause__, DBAPIError)
        assert "audit rows are never changed" in str(refused.value.__cause__)
    assert [each async for each in durable.store.audit.read(durable.tenant)] == [row]


@pytest.mark.parametrize("durable", ["sqlite-file"], indirect=True)
async def test_sqlite_writes_ahead_and_syncs_what_is_audited(durable: Backend) -> None:
    expected = {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 15000, "foreign_keys": 1}  # FULL
    async with database(durable).engines.calls.connect() as connection:
        found = {name: (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in expected}
    assert found == expected
    own = database(durable).engines.connect_lite(durable=False)
    assert own.execute("PRAGMA synchronous").fetchone() == (1,)  # NORMAL: rate limits, permits and the cache
    own.close()


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_postgresql_waits_for_the_disk(durable: Backend) -> None:
    engines = database(durable).engines
    for engine in (engines.calls, engines.upkeep):
        async with engine.connect() as connection:
            assert (await connection.exec_driver_sql("SHOW synchronous_commit")).scalar() == "on"


@pytest.mark.parametrize(("more", "expected"), [("", 30_000), ("tcp_user_timeout=5000", 5_000)])
@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_a_server_that_vanishes_without_a_word_is_given_up_by_the_system(
    durable: Backend, more: str, expected: int
) -> None:
    """As the address says, or after half a minute; an engine for jobs that connects likewise has it from there."""
    address = database(durable).url.update_query_string(more, append=True).render_as_string(hide_password=False)
    other = Database(address)
    await other.open()
    try:
        async with other.engines.calls.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it; elsewhere libpq passes over it
                with socket.socket(fileno=os.dup(driver.fileno())) as found:
                    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected
                    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert driver.info.get_parameters()["tcp_user_timeout"] == str(expected)
    finally:
        await other.close()


@pytest.mark.parametrize("durable", ["sqlite-file", "postgresql"], indirect=True)
async def test_effects_waits_pins_and_jobs_are_written_by_connections_that_wait_for_the_disk(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract I3. All connections of the pools do; see the tests of their settings."""
    ran = statements_of(durable)
    wrote = list[str]()
    note_batches(monkeypatch, wrote)

    def written() -> Counter[str]:
        found = Counter(wrote) + Counter(statement.split()[0] for statement in ran)
        wrote.clear()
        ran.clear()
        del found["SELECT"]
        return found

    store, now = durable.store, durable.now()
    await store.effects.claim("", effect(now))
    await store.effects.claim("", effect(now))
    await store.effects.renew("o", now)
    await store.effects.claim("", effect(now))
    await store.effects.expire(now)
    await store.effects.settle("", "k", 2, COMMITTED, at=now, of=[EffectState.UNKNOWN])
    await store.effects.prune(FOREVER)
    await store.suspensions.put("", wait(now))
    await store.suspensions.replace("", replace(wait(now), number=2, state=SuspensionState.USED))
    await store.suspensions.prune(FOREVER)
    await store.pins.add("", Pin("p", "t", "d", now))
    await store.pins.put("", Pin("p", "t", "d", now))
    assert written() == {"INSERT": 6, "UPDATE": 5, "DELETE": 2}
    jobs = store.jobs
    for id in ("a", "b"):
        await jobs.add(durable.tenant, job(now, id))
    await jobs.take("o", now, now + 1.0)
    await jobs.take("o", now, now + 1.0, queues=["default"])
    await jobs.take("o", now, now + 1.0, id="a")
    await jobs.put_back(durable.tenant, "a", 1, run_at=now, reason=None)
    await jobs.cancel(durable.tenant, "a", now)
    await jobs.renew(["o"], now)
    await jobs.mark_sent(["b"], now)
    await jobs.end(durable.tenant, "b", 1, DONE, at=now, result=None, reason=None)
    await jobs.prune(FOREVER)
    await jobs.count()
    await jobs.list(None)
    await jobs.unsent(now, now)
    assert written() == {"INSERT": 2, "UPDATE": 8, "DELETE": 1}


def note_batches(monkeypatch: pytest.MonkeyPatch, ran: list[str]) -> None:
    """Record the first words of the changes that group commit makes, on connections that wait for the disk."""
    execute: Any = psycopg.AsyncConnection.execute

    async def noted(connection: Any, query: Any, *given: Any, **more: Any) -> Any:
        if isinstance(query, str) and (word := query.split()[0]) in {"INSERT", "UPDATE", "DELETE"}:
            setting = await (await execute(connection, "SHOW synchronous_commit")).fetchone()
            assert setting == ("on",)
            ran.append(word)
        return await execute(connection, query, *given, **more)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", noted)


def statements_of(durable: Backend) -> list[str]:
    """Record the statements that run from now on."""
    ran: list[str] = []
    engines = database(durable).engines
    for engine in {engines.calls, engines.upkeep}:
        event.listen(engine.sync_engine, "before_cursor_execute", lambda c, k, statement, *more: ran.append(statement))
    return ran


@SQL
async def test_a_claim_and_an_end_are_one_statement_each(durable: Backend) -> None:
    ran = statements_of(durable)
    effects, tenant, now = durable.store.effects, durable.tenant, durable.now()
    assert (await effects.claim(tenant, effect(now)))[0]
    assert await effects.settle(tenant, "k", 1, EffectState.NO_EFFECT, at=now)
    assert (await effects.claim(tenant, effect(now)))[0]
    assert [statement.split()[0] for statement in ran] == ["INSERT", "UPDATE", "INSERT"]


@SQL
async def test_whatever_a_worker_does_with_a_job_is_one_statement(
    queue: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = statements_of(queue)
    note_batches(monkeypatch, ran)
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    await jobs.add(tenant, job(now))
    for id, queues in (("j", []), (None, ["default"]), (None, [])):
        assert await jobs.take("o", now, now, id=id, queues=queues) is not None, "the lease is over at once"
    assert await jobs.renew(["o"], now) == ["j"]
    assert await jobs.put_back(tenant, "j", 3, run_at=now, reason=None)
    assert await jobs.take("o", now, now) is not None
    assert await jobs.end(tenant, "j", 4, DONE, at=now, result=None, reason=None)
    assert await jobs.cancel(tenant, "j", now) is DONE
    assert [statement.split()[0] for statement in ran] == ["INSERT", *["UPDATE"] * 8]


async def test_each_store_in_memory_is_alone() -> None:
    one, other = SqlStore("sqlite://"), SqlStore("sqlite:///:memory:")
    for store in (one, other):
        await store.open()
    assert (await one.quotas.take("", "k", Limit(1, 86_400.0))).ok
    assert (await other.quotas.take("", "k", Limit(1, 86_400.0))).ok
    for store in (one, other):
        await store.close()


@SQL
async def test_rows_of_another_version_are_not_read(durable: Backend) -> None:
    store, now = durable.store, durable.now()
    await store.cache.put(durable.tenant, "k", CacheEntry(b"1", now, now + 9, now + 9))
    await store.consents.grant(durable.tenant, Grant("ann", "tool", "", now, None))
    for table in ("callgate_cache", "callgate_consents"):
        await database(durable).write(text(f"UPDATE {table} SET version = 2"), {})
    assert await store.cache.get(durable.tenant, "k") is None
    assert await store.consents.find(durable.tenant, "ann", "tool", "") is None
    assert list(await store.consents.list(durable.tenant, "ann")) == []


@SQL
async def test_an_effect_of_another_version_is_neither_run_nor_changed(durable: Backend) -> None:
    """Contract I4. What it says is not known; a second run could be the consequence."""
    store, tenant, now = durable.store, durable.tenant, durable.now()
    await empty(store)
    await store.effects.claim(tenant, effect(now, lease=-1.0))
    await store.suspensions.put(tenant, wait(now))
    await store.pins.put(tenant, Pin("p", "t", "d", now))
    for table in ("callgate_effects", "callgate_waits", "callgate_pins"):
        await database(durable).write(text(f"UPDATE {table} SET version = 2"), {})
    for refused in (
        lambda: store.effects.claim(tenant, effect(now), retry=True),
        lambda: store.effects.get(tenant, "k"),
        lambda: store.suspensions.get(tenant, "w"),
        lambda: store.pins.find(tenant, "p", "t"),
        lambda: store.pins.add(tenant, Pin("p", "t", "d", now)),
        lambda: store.pins.list(tenant, "p"),
    ):
        with pytest.raises(StoreError, match="another version"):
            await refused()
    with pytest.raises(StoreConflict):
        await store.suspensions.put(tenant, wait(now))
    assert not await store.effects.settle(tenant, "k", 1, COMMITTED, at=now)
    assert not await store.suspensions.replace(tenant, replace(wait(now), number=2, state=SuspensionState.USED))
    assert await store.effects.renew("o", FOREVER) == await store.effects.expire(now) == 0
    assert await store.effects.prune(FOREVER) == await store.suspensions.prune(FOREVER) == 0
    found = [
        await store.effects.list(tenant),
        await store.suspensions.list(tenant),
        await store.suspensions.due(FOREVER),
    ]
    assert [len(each) for each in found] == [0, 0, 0]
    for table in ("callgate_effects", "callgate_waits", "callgate_pins"):
        await database(durable).write(text(f"DELETE FROM {table} WHERE version = 2"), {})


@SQL
async def test_a_job_of_another_version_is_neither_run_nor_changed(queue: Backend) -> None:
    """Contract I3, I4. What it says is not known."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state in (QUEUED, RUNNING, DONE):
        await kept(queue, state, state, lease=0.0)
    await database(queue).write(text("UPDATE callgate_jobs SET version = 2"), {})
    with pytest.raises(StoreError, match="another version"):
        await jobs.get(tenant, QUEUED)
    with pytest.raises(StoreError, match="another version"):
        await jobs.add(tenant, job(now, QUEUED))
    for id, queues in ((QUEUED, []), (RUNNING, []), (None, ["default"]), (None, [])):
        assert await jobs.take("o", FOREVER, FOREVER, id=id, queues=queues) is None
    assert not await jobs.end(tenant, RUNNING, 1, DONE, at=now, result=None, reason=None)
    assert not await jobs.put_back(tenant, RUNNING, 1, run_at=now, reason=None)
    assert await jobs.cancel(tenant, QUEUED, now) is None
    await jobs.mark_sent([QUEUED], now)
    assert [await jobs.renew(["o"], now), await jobs.unsent(now, FOREVER), await jobs.list(None)] == [[], [], []]
    assert await jobs.prune(FOREVER) == sum((await jobs.count()).values()) == 0
    gone = "DELETE FROM callgate_jobs WHERE version = 2 AND token < 2 AND sent_at IS NULL"
    assert await database(queue).write(text(gone), {}) == 3


@SQL
async def test_what_is_in_the_ledger_is_never_swept(durable: Backend) -> None:
    """Contract I3, I16. Nothing of it goes unless it is pruned."""
    store, tenant, now = durable.store, durable.tenant, durable.now()
    for number, state in enumerate(EffectState):
        await store.effects.claim(tenant, effect(now, state, state=EffectState.CLAIMED))
        await store.effects.settle(tenant, state, 1, state, at=now, expires_at=now)
        await store.suspensions.put(tenant, wait(now, str(number), lasts=0.0, state=list(SuspensionState)[number]))
    for number, state_of_job in enumerate(JobState):
        await kept(durable, state_of_job, f"{tenant} {number}")
    await store.pins.put(tenant, Pin("p", "t", "d", now))
    durable.now.move(1e9)
    await database(durable).sweep()
    assert len(await store.effects.list(tenant)) == len(EffectState)
    assert [len(await store.suspensions.list(tenant, state=state)) for state in SuspensionState] == [1] * len(
        SuspensionState
    )
    assert len(await store.pins.list(tenant, "p")) == 1
    assert [len(await store.jobs.list(tenant, state=state)) for state in JobState] == [1] * len(JobState)


@SQL
async def test_what_is_over_is_swept_and_what_is_not_stays(durable: Backend) -> None:
    store, now, tenant = durable.store, durable.now(), durable.tenant

    async def fill(key: str) -> None:
        await store.quotas.take(tenant, key, Limit(1, 60.0))
        await store.semaphores.acquire(tenant, key, 1, "t", 60.0)
        await store.cache.put(tenant, key, CacheEntry(b"1", now, now, durable.now() + 60, frozenset("t")))
        await store.consents.grant(tenant, Grant("ann", key, "", now, durable.now() + 60))

    async def left() -> list[int]:
        tables = ("quotas", "permits", "cache", "cache_tags", "consents")
        count = "SELECT count(*) FROM callgate_{} WHERE tenant = :tenant"
        return [(await database(durable).rows(text(count.format(name)), {"tenant": tenant}))[0][0] for name in tables]

    await fill("old")
    durable.now.move(300.0)
    await fill("new")
    assert await left() == [2] * 5
    await database(durable).sweep()
    assert await left() == [1] * 5


@pytest.mark.parametrize(
    ("kind", "backend", "shown"),
    [
        (exc.ProgrammingError, "postgresql", True),
        (exc.DatabaseError, "sqlite", True),
        (exc.DatabaseError, "postgresql", False),
        (exc.DataError, "postgresql", False),
        (exc.InternalError, "postgresql", False),
    ],
)
def test_advice_is_given_only_for_errors_that_quote_no_value(
    kind: type[exc.DBAPIError], backend: str, shown: bool
) -> None:
    """A value may hold the text that the advice is for."""
    text = 'invalid input: "permission denied for 4111"'
    with pytest.raises(StoreError) as refused, sql_errors(backend):
        raise kind("SELECT 1", {}, Exception(text))
    assert ("4111" in str(refused.value), "; grant" in str(refused.value)) == (shown, shown)
