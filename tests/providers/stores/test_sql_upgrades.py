"""The schema of the SQL stores: created once, migrated by the first process, without loss of data."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text

from callgate import Gate, Options
from callgate.errors import StoreError
from callgate.providers.stores import sql_database, sql_effects, sql_schema
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.effects import Pin
from callgate.providers.stores.sql import SqlStore
from callgate.providers.stores.sql_database import HEAD
from callgate.providers.stores.sql_part import Columns
from callgate.providers.stores.sql_suspensions import SUSPENSION_COLUMNS
from tests.providers.stores.backends import Now, place
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import effect, wait


@contextmanager
def at_revision(revision: str, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Stores that are opened meanwhile make the tables of an older version."""

    def upgrade(connection: Any) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(sql_database.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    with monkeypatch.context() as before:
        before.setattr(sql_database, "HEAD", revision)
        before.setattr(sql_database, "upgrade_schema", upgrade)
        yield


async def insert(store: SqlStore, table: str, columns: Columns[Any], record: Any) -> None:
    """Write a row as the version did whose tables have no namespaces."""
    values = columns.values(record)
    values.pop("alias_of", None)  # revision 0006
    sql = f"INSERT INTO {table} (tenant, version, {', '.join(values)}) VALUES ('t', 1, :{', :'.join(values)})"
    await store._database.write(text(sql), values)


@pytest.fixture(params=["sqlite-file", "postgresql"])
def shared_sql(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[tuple[str, str]]:
    """A database without tables."""
    with place(request.param, tmp_path) as at:
        yield at


def test_the_newest_revision_is_the_one_that_the_store_asks_for() -> None:
    folder = Path(sql_database.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_current_head() == HEAD


async def test_a_schema_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/store.db")
    await store.open()
    await store._database.write(text("UPDATE callgate_schema SET version_num = '9999', serves = '9998'"), {})
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


async def test_a_database_of_the_first_revision_keeps_its_rows_when_many_bring_it_up_to_date(
    shared_sql: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was there before the ledger is lost."""
    now, row = Now(), AuditRow("segment", 1, 1.0, {"n": 1}, "", "hash")
    entry, grant = CacheEntry(b"1", now(), now() + 9, now() + 9, frozenset("t")), Grant("ann", "tool", "", now(), None)
    with at_revision("0001", monkeypatch):
        old = SqlStore(shared_sql[0], now)
        await old.open()
        assert await old.revision() == "0001"
        await old.cache.put("t", "k", entry)
        await old.quotas.take("t", "k", Limit(5, 86_400.0), cost=2)
        await old.semaphores.acquire("t", "k", 1, "token", 3600.0)
        await old.consents.grant("t", grant)
        await old.audit.append("t", [row])
        with pytest.raises(StoreError):
            await old.effects.claim("t", effect(now()))
        await old.close()
    stores = [SqlStore(shared_sql[0], now) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    told = await asyncio.gather(*(store.effects.claim("t", effect(now())) for store in stores))
    assert sum(mine for mine, _ in told) == 1
    store = stores[0]
    assert await store.revision() == HEAD
    assert await store.cache.get("t", "k") == entry
    assert (await store.quotas.look("t", "k", Limit(5, 86_400.0))).remaining == 3
    assert await store.semaphores.holders("t", "k") == 1
    assert list(await store.consents.list("t", "ann")) == [grant]
    assert [each async for each in store.audit.read("t")] == [row]
    with pytest.raises(StoreError):
        await store._database.write(text("DELETE FROM callgate_audit"), {})
    for each in stores:
        await each.close()


async def test_a_database_without_jobs_keeps_its_rows_when_many_bring_it_up_to_date(
    shared_sql: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract I3, I16. Nothing that was there before the jobs is lost, and concurrent workers take a new job once."""
    now = Now()
    waiting, pin, row = wait(now()), Pin("p", "t", "d", now()), AuditRow("segment", 1, 1.0, {"n": 1}, "", "hash")
    with at_revision("0002", monkeypatch):
        old = SqlStore(shared_sql[0], now)
        await old.open()
        assert await old.revision() == "0002"
        await insert(old, "callgate_effects", sql_effects._COLUMNS, effect(now()))
        await insert(old, "callgate_waits", SUSPENSION_COLUMNS, waiting)
        await old.pins.put("t", pin)
        await old.audit.append("t", [row])
        with pytest.raises(StoreError):
            await old.jobs.add("t", job(now()))
        await old.close()
    stores = [SqlStore(shared_sql[0], now) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    store = stores[0]
    assert await store.revision() == HEAD
    assert await store.effects.get("t", "k") == effect(now())
    assert await store.suspensions.get("t", "w") == waiting
    assert list(await store.pins.list("t", "p")) == [pin]
    assert [each async for each in store.audit.read("t")] == [row]
    await store.jobs.add("t", job(now()))
    taken = await asyncio.gather(*(each.jobs.take("o", now(), now() + 9.0) for each in stores))
    assert sum(each is not None for each in taken) == 1
    for each in stores:
        await each.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_an_open_reader_delays_an_upgrade_and_the_upgrade_delays_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Issue 34, 6: all statements on a table queue behind a migration that waits for its lock."""
    monkeypatch.setattr(sql_schema, "_PAUSES", (0.01,) * (500 if ends else 6))  # more than 5: no circuit may open
    monkeypatch.setattr(sql_schema, "LOCK_WAIT_MS", 250)  # longer than what counts as no answer
    with place("postgresql", tmp_path) as (address, _):
        with at_revision("0001", monkeypatch):
            old = SqlStore(address)
            await old.open()
        new = SqlStore(address)
        async with old._database.reading() as reader:
            await reader.exec_driver_sql("BEGIN")
            await reader.exec_driver_sql("SELECT count(*) FROM callgate_audit")
            opening = asyncio.ensure_future(new.open())
            for number in range(1, 4):
                await asyncio.wait([opening], timeout=0.1)
                async with asyncio.timeout(30):  # without a limit of the wait it would be for ever
                    await old.audit.append("t", [AuditRow("s", number, 1.0, {}, "", f"{number}")])
            if not ends:
                with pytest.raises(StoreError, match="xact_start"):
                    await opening
                assert await old.revision() == "0001"
            assert opening.done() is not ends
            await reader.exec_driver_sql("ROLLBACK")
        if ends:
            await opening
            assert await new.revision() == HEAD
        await new.close()
        await old.close()


async def test_a_newer_schema_that_serves_this_version_is_used_as_it_is(shared_sql: tuple[str, str]) -> None:
    """Issue 16 A7: after a downgrade of the code by one version."""
    store = SqlStore(shared_sql[0])
    await store.open()
    await store._database.write(text(f"UPDATE callgate_schema SET version_num = '9999', serves = '{HEAD}'"), {})
    await store.close()
    await store.open()
    assert (await store.effects.claim("t", effect(store.time())))[0]
    assert await store.revision() == "9999"
    await store.close()


@pytest.mark.parametrize("revision", [None, "0003"])
async def test_without_migration_older_tables_are_refused_with_the_command_to_run(
    shared_sql: tuple[str, str], monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    """Issue 16 A7: ``Options(migrate=False)``."""
    if revision is not None:
        with at_revision(revision, monkeypatch):
            old = SqlStore(shared_sql[0])
            await old.open()
            await old.close()
    gate = Gate(store=shared_sql[0], options=Options(migrate=False))
    with pytest.raises(StoreError, match="callgate stores upgrade") as refused:
        await gate.open()
    assert (revision or "no tables") in str(refused.value)
    store = SqlStore(shared_sql[0])
    assert await store.revision() == revision, "nothing was changed"
    await store.open()
    await store.close()
    async with gate:
        assert gate.is_open


def test_without_migration_a_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'typo.db'}", migrate=False)
    with pytest.raises(StoreError, match=r"no tables in .*typo\.db; check the address"):
        asyncio.run(store.open())
    assert list(tmp_path.iterdir()) == []
