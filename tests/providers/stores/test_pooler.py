"""A store behind PgBouncer: its own settings stay in its transactions, and those of other clients stay out."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate import Gate, ToolCall, User, tool
from callgate.errors import StoreError
from callgate.hooks import Audit, Cache, Concurrency, Quota, verify_audit
from callgate.providers.stores.base import Limit
from callgate.providers.stores.sql.database import engines as sql_engines
from callgate.providers.stores.sql.database.statements import Statement
from callgate.providers.stores.sql.store import SqlStore
from tests.harness.pooler import SERVER_SESSIONS, ask, pgbouncer
from tests.providers.stores.backends import schema

ANN = User("ann", tenant="acme")
CALLS, AT_ONCE = 120, 30
SHOWN = "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout'), current_setting('jit')"


@contextmanager
def pooled(folder: Path, **settings: Any) -> Generator[str]:
    with schema() as address, pgbouncer(folder, address.rpartition("%3D")[2], **settings) as behind:
        yield behind


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    with pooled(tmp_path) as behind:
        yield behind


@tool(effect="idempotent")
async def pay(n: int) -> int:
    """Pay."""
    return n


@tool(effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


async def failures(address: str) -> list[Any]:
    """The results that are none, of effects, reads and jobs, many at a time."""
    hooks = [
        Audit(),
        Cache(60.0),
        Quota("1000/hour"),
        Concurrency(AT_ONCE, queue=AT_ONCE, queue_timeout=30.0, shared=True),
    ]
    async with Gate([pay, look], hooks, store=address, signing_keys=["k" * 32], allow_unguarded=True) as gate:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(n: int) -> Any:
            async with turns:
                if n % 6 == 5:
                    job = await gate.submit(ToolCall(id=str(n), name="pay", arguments={"n": n}), user=ANN)
                    return (await job).output
                return await gate.invoke("look" if n % 3 else "pay", {"n": n}, user=ANN)

        results = await asyncio.gather(*(one(n) for n in range(CALLS)), return_exceptions=True)
        if not (failed := [result for n, result in enumerate(results) if result != n]):
            report = await verify_audit(gate.store.audit)
            assert report.ok
            assert report.rows > CALLS
    return failed


async def test_no_call_fails(address: str) -> None:
    """Issue 16 A4: 188 of 250 calls failed on statements that another session had prepared."""
    assert await failures(address) == []


async def test_calls_that_take_the_pooler_for_a_server_fail(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with prepared statements and settings of sessions."""
    monkeypatch.setattr(sql_engines, "is_pooled", lambda *_: False)
    try:
        failed = await failures(address)
    except StoreError:  # the gate could not even open
        return
    assert any("not_recorded" in repr(error) or "prepared statement" in repr(error.__cause__) for error in failed)


def in_all_sessions(address: str, statement: str) -> list[list[str]]:
    """Run a statement in each session of the server, as another client, and return the rows."""
    held = [psycopg.connect(address, prepare_threshold=None) for _ in range(SERVER_SESSIONS)]
    # An open transaction keeps its session.
    done = [connection.execute(statement.encode()) for connection in held]
    rows = [[str(value) for value in cursor.fetchone() or ()] if cursor.description else [] for cursor in done]
    for connection in held:
        connection.commit()
        connection.close()
    return rows


async def settings_inside(store: SqlStore) -> set[tuple[str, str]]:
    """The settings of commits and of waits, in transactions of a pool and in batches of the ledger."""
    found = set[tuple[str, str]]()
    ledger: Any = store.ledger
    for _ in range(2 * SERVER_SESSIONS):
        async with store.transaction() as transaction:
            cursor = await transaction.driver().execute(SHOWN)
            found.add(("pool", (await cursor.fetchone())[0]))
        async with ledger._batches.begin() as batch:
            ((commits, waits, _),) = await batch.run(Statement("", f"{SHOWN} FROM {{given}}", n="int"), [{"n": 1}])
            await batch.commit(Statement("", ""), [])
            found.add((f"batch, {waits}", commits))
        async with ledger._batches.begin() as batch:
            ((commits, _, _),) = await batch.run_alone(Statement("", f"{SHOWN} FROM {{given}}", n="int"), [{"n": 1}])
            found.add(("alone", commits))
    return found


async def test_durable_transactions_are_durable_whatever_a_session_was_left_with(address: str) -> None:
    """Issue 16 A4: 199 of 1,200 durable transactions were committed with ``synchronous_commit=off``."""
    store = SqlStore(address)
    await store.open()
    try:
        await asyncio.to_thread(in_all_sessions, address, "SET synchronous_commit = off")
        assert ask(address, SHOWN)[0] == "off", "the control: a setting of one client is that of the next one"
        assert await settings_inside(store) == {("pool", "on"), ("batch, 200ms", "on"), ("alone", "on")}
    finally:
        await store.close()


async def test_the_store_leaves_nothing_in_a_session(address: str) -> None:
    """Issue 16 A4."""
    before = ask(address, SHOWN)
    store = SqlStore(address)
    await store.open()
    try:
        limit = Limit(100, 60.0)
        await asyncio.gather(*(store.quotas.take("t", str(n), limit) for n in range(40)))
        assert await store.semaphores.acquire("t", "k", 1, "token", 30.0)
        await settings_inside(store)
        # In a thread: a client that waits for a session must not keep the store from returning it.
        assert await asyncio.to_thread(in_all_sessions, address, SHOWN) == [before] * SERVER_SESSIONS
    finally:
        await store.close()


async def test_writes_of_the_cache_still_wait_for_no_disk(address: str) -> None:
    """Issue 16 A4: as on a direct connection."""
    store = SqlStore(address)
    await store.open()
    asked = Statement("", f"{SHOWN} FROM {{given}}", number="int")
    shown = list[Any]()

    def see(rows: list[list[Any]]) -> list[Any]:
        shown.extend(rows[0])
        return []

    try:
        batches: Any = store._shared._batches
        async with batches.begin() as batch:
            await batch.exchange([(asked, [{"number": 1}])], see, writes=True)
    finally:
        await store.close()
    assert shown[0][0] == "off"


async def test_a_pooler_without_transactions_is_refused_at_opening(tmp_path: Path) -> None:
    """Issue 16 A4."""
    with pooled(tmp_path, mode="statement") as behind, pytest.raises(StoreError, match="set pool_mode = transaction"):
        await SqlStore(behind).open()


@pytest.mark.parametrize("ignores", ["", "options"], ids=["refused by the pooler", "ignored by the pooler"])
async def test_options_that_a_pooler_drops_are_refused_at_opening(tmp_path: Path, ignores: str) -> None:
    """Issue 16 A4: a search path that is ignored would put the tables elsewhere."""
    with pooled(tmp_path, ignores=ignores) as behind, pytest.raises(StoreError, match="ALTER ROLE"):
        await SqlStore(f"{behind}?options=-csearch_path%3Dother").open()


async def test_parameters_of_the_address_reach_every_connection(tmp_path: Path) -> None:
    """Issue 16 A4: pools, renewals and the ledger alike."""
    with schema() as direct:
        store = SqlStore(f"{direct}&application_name=named&connect_timeout=3&sslmode=prefer", pool_size=2)
        await store.open()
        try:
            engines = store._database.engines
            async with (
                engines.calls.connect() as one,
                engines.upkeep.connect() as two,
            ):
                ledger, settings = await engines.connect_driver(1_000)
                for given in (one, two):
                    raw = await given.get_raw_connection()
                    assert raw.driver_connection is not None
                    assert raw.driver_connection.info.get_parameters()["connect_timeout"] == "3"
                    assert (await given.exec_driver_sql("SHOW application_name")).scalar() == "named"
                assert await (await ledger.execute("SHOW application_name")).fetchone() == ("named",)
                assert await (await ledger.execute("SHOW lock_timeout")).fetchone() == ("1s",)
                assert settings == ()
                await ledger.close()
        finally:
            await store.close()
