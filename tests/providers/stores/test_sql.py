"""What only the SQL stores promise: the schema, the pragmas, rows that cannot be changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from callgate.errors import StoreError
from callgate.providers.stores import sql_database
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.sql import SqlStore
from callgate.providers.stores.sql_database import HEAD, Database
from tests.providers.stores.backends import Backend

SQL = pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file", "postgresql"], indirect=True)
TENANTLESS = {"callgate_anchors", "callgate_schema"}  # heads of segments, which have many tenants; alembic's table


def database(backend: Backend) -> Database:
    assert isinstance(backend.store, SqlStore)
    return backend.store._database


def test_the_newest_revision_is_the_one_that_the_store_asks_for() -> None:
    folder = Path(sql_database.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_current_head() == HEAD


@SQL
async def test_the_tenant_is_part_of_every_key_and_index(durable: Backend) -> None:
    def keys(connection: Any) -> dict[str, list[list[str]]]:
        look = inspect(connection)
        return {
            table: [look.get_pk_constraint(table)["constrained_columns"]]
            + [index["column_names"] for index in look.get_indexes(table) if not index.get("duplicates_constraint")]
            for table in look.get_table_names()
        }

    async with database(durable).reading() as connection:
        found = await connection.run_sync(keys)
    assert len(found) == 8
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
            await database(durable).write(text(statement), {}, durable=True)
        assert isinstance(refused.value.__cause__, DBAPIError)
        assert "audit rows are never changed" in str(refused.value.__cause__)
    assert [each async for each in durable.store.audit.read(durable.tenant)] == [row]


@pytest.mark.parametrize("durable", ["sqlite-file"], indirect=True)
async def test_sqlite_writes_ahead_and_syncs_what_is_audited(durable: Backend) -> None:
    async def pragma(name: str, *, ledger: bool) -> Any:
        async with database(durable).reading(durable=ledger) as connection:
            return (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()

    for ledger, synchronous in ((True, 2), (False, 1)):  # FULL, NORMAL
        assert await pragma("journal_mode", ledger=ledger) == "wal"
        assert await pragma("synchronous", ledger=ledger) == synchronous
        assert await pragma("busy_timeout", ledger=ledger) == 15000
        assert await pragma("foreign_keys", ledger=ledger) == 1


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_postgresql_waits_for_the_disk_where_it_is_asked_to(durable: Backend) -> None:
    for ledger, expected in ((True, "on"), (False, "off")):
        async with database(durable).reading(durable=ledger) as connection:
            assert (await connection.exec_driver_sql("SHOW synchronous_commit")).scalar() == expected


async def test_a_schema_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/store.db")
    await store.open()
    await store._database.write(text("UPDATE callgate_schema SET version_num = '9999'"), {})
    await store.close()
    with pytest.raises(StoreError, match="newer"):
        await store.open()
    with pytest.raises(StoreError, match="not open"):
        await store.quotas.look("", "k", Limit(1, 1.0))


async def test_many_stores_open_one_file_at_once(tmp_path: Path) -> None:
    stores = [SqlStore(f"sqlite:///{tmp_path}/store.db") for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    taken = [await store.quotas.take("", "k", Limit(4, 86_400.0)) for store in stores]
    assert sum(each.ok for each in taken) == 4
    for store in stores:
        await store.close()


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
async def test_what_is_over_is_swept_and_what_is_not_stays(durable: Backend) -> None:
    store, now, tenant = durable.store, durable.now(), durable.tenant

    async def fill(key: str) -> None:
        await store.quotas.take(tenant, key, Limit(1, 60.0))
        await store.semaphores.acquire(tenant, key, 1, "t", 60.0)
        await store.cache.put(tenant, key, CacheEntry(b"1", now, now, durable.now() + 60, frozenset("t")))
        await store.consents.grant(tenant, Grant("ann", key, "", now, durable.now() + 60))

    async def left() -> list[int]:
        tables = ("quotas", "places", "cache", "cache_tags", "consents")
        count = "SELECT count(*) FROM callgate_{} WHERE tenant = :tenant"
        return [(await database(durable).rows(text(count.format(name)), {"tenant": tenant}))[0][0] for name in tables]

    await fill("old")
    durable.now.move(300.0)
    await fill("new")
    assert await left() == [2] * 5
    await database(durable).sweep()
    assert await left() == [1] * 5
