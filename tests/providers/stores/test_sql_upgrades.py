"""The schema of the SQL stores: created once, migrated by the first process, without loss of data."""

from __future__ import annotations

import asyncio
import time
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
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.effects import Pin
from callgate.providers.stores.sql import effect_statements as sql_effect_statements
from callgate.providers.stores.sql.database import clock as sql_clock
from callgate.providers.stores.sql.database import database as sql_database
from callgate.providers.stores.sql.database import schema as sql_schema
from callgate.providers.stores.sql.database.database import HEAD
from callgate.providers.stores.sql.database.part import Columns
from callgate.providers.stores.sql.database.schema import SERVES
from callgate.providers.stores.sql.job_statements import COLUMNS as _JOBS
from callgate.providers.stores.sql.store import SqlStore
from callgate.providers.stores.sql.suspensions import SUSPENSION_COLUMNS
from tests.harness import migrated
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
        before.setattr(sql_schema, "_SWEPT", {})  # it names tables of today
        before.setattr(sql_database, "upgrade_schema", upgrade)
        # The clock of a SQLite file has entries in a table of today.
        clocks = (time.time, sql_clock._elapsed, lambda: None)
        before.setattr(sql_clock.FileClock.__init__, "__defaults__", clocks)
        yield


@pytest.fixture(autouse=True)
def _alembic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrate as an application does, without what ``tests/harness/migrated.py`` recorded."""
    monkeypatch.setattr(sql_database, "upgrade_schema", sql_schema.upgrade_schema)


async def insert(store: SqlStore, table: str, columns: Columns[Any], record: Any) -> None:
    """Write a row as the version did whose tables have no namespaces."""
    values = columns.values(record)
    values.pop("alias_of", None)  # revision 0006
    if table != "callgate_waits":
        values.pop("mac", None)  # revision 0007
    await insert_values(store, table, {"version": 1, **values})


async def insert_values(store: SqlStore, table: str, values: dict[str, Any]) -> None:
    """Write a row of tenant t."""
    sql = f"INSERT INTO {table} (tenant, {', '.join(values)}) VALUES ('t', :{', :'.join(values)})"
    await store._database.write(text(sql), values)


async def insert_first(store: SqlStore, entry: CacheEntry, grant: Grant) -> None:
    """Write a cached value, a permit and a consent as the first version did."""
    cached = {**entry._asdict(), "tags": '["t"]', "key": "k", "version": 1}
    await insert_values(store, "callgate_cache", cached)
    await insert_values(store, "callgate_places", {"key": "k", "token": "token", "ends": entry.made_at + 3600.0})
    given = {"person": grant.user, "tool": grant.tool, "scope": grant.scope, "version": 1}
    await insert_values(store, "callgate_consents", {**given, "granted_at": grant.granted_at, "expires_at": None})


@pytest.fixture(params=["sqlite-file", "postgresql"])
def shared_sql(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[tuple[str, str]]:
    """A database without tables."""
    with place(request.param, tmp_path, bare=True) as at:
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
        await insert_first(old, entry, grant)
        await old.quotas.take("t", "k", Limit(5, 86_400.0), cost=2)
        await old.audit.append("t", [row])
        with pytest.raises(StoreError):
            await old.effects.claim("t", effect(now()))
        await old.close()
    stores = [SqlStore(shared_sql[0], now) for _ in range(6)]
    await asyncio.gather(*(store.upgrade() for store in stores))
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
        await insert(old, "callgate_effects", sql_effect_statements.COLUMNS, effect(now()))
        await insert(old, "callgate_waits", SUSPENSION_COLUMNS, waiting)
        await insert_values(
            old, "callgate_pins", {"version": 1, "provider": "p", "tool": "t", "digest": "d", "at": now()}
        )
        await old.audit.append("t", [row])
        with pytest.raises(StoreError):
            await old.jobs.add("t", job(now()))
        await old.close()
    stores = [SqlStore(shared_sql[0], now) for _ in range(6)]
    await asyncio.gather(*(store.upgrade() for store in stores))
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


async def test_a_database_of_revision_6_keeps_its_rows_under_the_new_names(
    shared_sql: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 37, 3: permits and jobs are known by their new names, and the version before does not open the tables."""
    now = Now()
    with at_revision("0006", monkeypatch):
        old = SqlStore(shared_sql[0], now)
        await old.open()
        await insert_values(old, "callgate_places", {"key": "k", "token": "token", "ends": now() + 3600.0})
        values = _JOBS.values(job(now(), max_attempts=7))
        values["most"] = values.pop("max_attempts")
        del values["result_mac"]
        await insert_values(old, "callgate_jobs", {"version": 1, **values})
        await insert(old, "callgate_effects", sql_effect_statements.COLUMNS, effect(now(), alias_of=None))
        await old.close()
    stores = [SqlStore(shared_sql[0], now) for _ in range(4)]
    await asyncio.gather(*(store.upgrade() for store in stores))
    store = stores[0]
    assert await store.semaphores.holders("t", "k") == 1
    assert not await store.semaphores.acquire("t", "k", 1, "another", 1.0)
    assert await store.jobs.get("t", "j") == job(now(), max_attempts=7)
    assert await store.effects.get("t", "k") == effect(now())
    assert await store.semaphores.release("t", "k", "token")
    serves = await store._database.rows(text("SELECT serves FROM callgate_schema"), {})
    assert serves[0][0] == SERVES == "0007", "the version before refuses the tables"
    for each in stores:
        await each.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_an_open_reader_delays_an_upgrade_and_the_upgrade_delays_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Issue 34, 6: all statements on a table queue behind a migration that waits for its lock."""
    monkeypatch.setattr(sql_schema, "_PAUSES", (0.01,) * (500 if ends else 6))  # more than 5: no circuit may open
    monkeypatch.setattr(sql_schema, "LOCK_WAIT_MS", 250)  # longer than what counts as no answer
    with place("postgresql", tmp_path, bare=True) as (address, _):
        with at_revision("0001", monkeypatch):
            old = SqlStore(address)
            await old.open()
        new = SqlStore(address)
        async with old._database.reading() as reader:
            await reader.exec_driver_sql("BEGIN")
            await reader.exec_driver_sql("SELECT count(*) FROM callgate_audit")
            opening = asyncio.ensure_future(new.upgrade())
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
    await store.upgrade()
    await store.close()
    async with gate:
        assert gate.is_open


@pytest.mark.parametrize("migrate", [True, False])
@pytest.mark.parametrize("revision", [f"{number:04}" for number in range(1, int(SERVES))])
async def test_tables_whose_processes_would_fail_are_migrated_on_request_only(
    shared_sql: tuple[str, str], monkeypatch: pytest.MonkeyPatch, revision: str, migrate: bool
) -> None:
    """Issue 34: a new process migrated the tables under running ones of the version before, which then failed."""
    with at_revision(revision, monkeypatch):
        old = SqlStore(shared_sql[0], Now())
        await old.open()
    store = SqlStore(shared_sql[0], migrate=migrate)
    with pytest.raises(StoreError, match="stop them all, and then run `callgate stores upgrade") as refused:
        await store.open()
    assert f"revision {revision}, and its processes cannot use {HEAD}" in str(refused.value)
    await old.audit.append("t", [AuditRow("s", 1, 1.0, {}, "", "h")])  # the old process goes on
    await old.close()
    assert await store.revision() == revision
    await store.upgrade()
    assert await store.revision() == HEAD
    assert [row.number async for row in store.audit.read("t")] == [1]
    await store.close()


async def test_tables_whose_processes_go_on_are_migrated_at_once(
    shared_sql: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, as if the newest revision served the version before."""
    with at_revision("0006", monkeypatch):
        old = SqlStore(shared_sql[0], Now())
        await old.open()
        await old.close()
    monkeypatch.setattr(sql_database, "SERVES", "0006")
    store = SqlStore(shared_sql[0])
    await store.open()
    assert await store.revision() == HEAD
    await store.close()


def test_without_migration_a_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'typo.db'}", migrate=False)
    with pytest.raises(StoreError, match=r"no tables in .*typo\.db; check the address"):
        asyncio.run(store.open())
    assert list(tmp_path.iterdir()) == []


MADE = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master",
    "postgresql": "SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
    " UNION SELECT table_name, column_name, concat_ws(' ', data_type, collation_name, is_nullable, column_default)"
    " FROM information_schema.columns WHERE table_schema = current_schema()"
    " UNION SELECT 'trigger', tgname, pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger, pg_class"
    " WHERE pg_class.oid = tgrelid AND relnamespace = current_schema()::regnamespace AND NOT tgisinternal"
    " UNION SELECT 'function', proname, prosrc FROM pg_proc WHERE pronamespace = current_schema()::regnamespace",
}


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_a_replayed_migration_makes_the_tables_of_alembic(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests replay what alembic did in the first of their databases."""
    found: list[list[tuple[str, ...]]] = []
    for upgrade in (sql_schema.upgrade_schema, migrated.upgrade, migrated.upgrade):  # the last one is a replay
        monkeypatch.setattr(sql_database, "upgrade_schema", upgrade)
        folder = tmp_path / str(len(found))
        folder.mkdir()
        with place(kind, folder, bare=True) as (address, _):
            store = SqlStore(address)
            await store.open()
            schema = address.rpartition("%3D")[2]
            rows = await store._database.rows(text(MADE[kind.partition("-")[0]]), {})
            found.append(sorted(tuple(str(part).replace(schema, "") for part in row) for row in rows))
            assert await store._database.revision() == HEAD
            await store.close()
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 40
