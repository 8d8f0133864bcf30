"""Sessions of PostgreSQL that are of no further use, and transactions that the server ends: none of them costs a call."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import QueuePool, text

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit
from callgate.providers.stores.group_commit import RolledBack
from callgate.providers.stores.sql.database import states as sql_states
from callgate.providers.stores.sql.database.connections import postgres_error
from callgate.providers.stores.sql.database.states import SessionLost, is_session_lost, retried, wrote_nothing
from callgate.providers.stores.sql.ledger import SqlLedgerWriter
from callgate.providers.stores.sql.store import SqlStore
from tests.harness.tcp_way import way_to
from tests.providers.stores.backends import POSTGRES
from tests.providers.stores.ledger import effect

VALUE = "card-4111"
Write = Callable[[SqlStore, str], Awaitable[Any]]


class Server:
    """A database of this test alone, whose settings and connections it may change."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection, self.name = connection, name
        self.address = urlsplit(POSTGRES)._replace(path=f"/{name}").geturl()

    def set(self, setting: str, value: str | None) -> None:
        """Change a setting for the sessions that are opened from now on."""
        change = f"RESET {setting}" if value is None else f"SET {setting} = '{value}'"
        self._connection.execute(f"ALTER DATABASE {self.name} {change}".encode())

    def end_sessions(self) -> int:
        """End all sessions, as a restart does, and wait until they are gone."""
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        return len(self._connection.execute(query, [self.name]).fetchall())


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    name = f"callgate_test_{uuid.uuid4().hex[:12]}"
    try:
        connection = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        pytest.skip(f"NO POSTGRESQL at {POSTGRES} (set CALLGATE_TEST_POSTGRES): {error}")
    with connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield Server(connection, name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@asynccontextmanager
async def opened(server: Server, address: str | None = None) -> AsyncGenerator[SqlStore]:
    store = SqlStore(address or server.address, pool_size=2)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def claimed(store: SqlStore, name: str) -> Any:
    return effect(store._database.now(), name)


def writer(store: SqlStore) -> SqlLedgerWriter:
    assert store.ledger is not None
    return store.ledger


async def in_transaction(store: SqlStore, name: str) -> None:
    async with store.transaction() as within:
        await within.effects.claim("t", claimed(store, name))


async def put(store: SqlStore, name: str) -> None:
    now = store._database.now()
    await store.cache.put("t", name, CacheEntry(b"1", now, now + 60, now + 60, frozenset({"a"})))


WRITES: dict[str, Write] = {
    "a statement": lambda store, name: store.consents.grant("t", Grant("u", name, "s", 1.0, None)),
    "a statement with rows": lambda store, name: store.consents.revoke("t", "u"),
    "a transaction": in_transaction,
    "a transaction of a part": lambda store, name: store.audit.append("t", [AuditRow(name, 1, 1.0, {}, "", "hash")]),
    "a batch of one": lambda store, name: writer(store).claim("t", claimed(store, name), (), retry=False),
    "a shared request": lambda store, name: store.quotas.take("t", name, Limit(5, 60.0)),
    "a shared request of two rows": put,
    "maintenance": lambda store, name: store.effects.prune(1.0, 10),
}


async def all_writes(store: SqlStore, first: int = 0) -> dict[str, BaseException]:
    """Write in each way, one after another. Return what failed."""
    failed, name, ways = dict[str, BaseException](), uuid.uuid4().hex, list(WRITES.items())
    for way, write in ways[first:] + ways[:first]:
        try:
            await write(store, f"{name} {way}")
        except StoreError as error:
            failed[way] = error
    return failed


async def fill(store: SqlStore) -> None:
    """Open all connections of the pools."""
    engines = store._database.engines
    for engine in (engines.calls, engines.upkeep):
        assert isinstance(engine.pool, QueuePool)
        held = [await engine.connect() for _ in range(engine.pool.size())]
        for one in held:
            await one.close()


# ---------------------------------------------------------------------- a server that is read-only, or restarts


@pytest.mark.parametrize("reported", [True, False], ids=["the server reports it", "an old server does not"])
async def test_connections_of_a_read_only_phase_write_when_it_is_over(
    server: Server, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 2: they failed for ever, while a new process could write."""
    if not reported:
        for user in ("database.connections", "batches"):
            monkeypatch.setattr(f"callgate.providers.stores.sql.{user}.is_read_only", lambda connection: False)
    async with opened(server) as store:
        await fill(store)
        server.set("default_transaction_read_only", "on")
        server.end_sessions()
        try:
            await fill(store)
            failed = await all_writes(store)
            assert failed.keys() == WRITES.keys()
            assert {getattr(error, "sqlstate", None) for error in failed.values()} == {"25006"}
            assert await store.consents.list("t", "nobody") == []  # reads go on
            await fill(store)
        finally:
            server.set("default_transaction_read_only", None)
        failed = await all_writes(store)
        # The body of a caller's transaction cannot run again; its connection is dropped, and the next one writes.
        assert failed.keys() <= (set() if reported else {"a transaction"})
        assert await all_writes(store) == {}


async def test_the_first_write_after_a_restart_succeeds(server: Server) -> None:
    """Issue 34, 2. Each way of writing is once the first on its pool."""
    async with opened(server) as store:
        for first in range(4):
            await fill(store)
            assert server.end_sessions() > 0
            assert await all_writes(store, first) == {}
        assert server.end_sessions() > 0
        assert await store.consents.list("t", "nobody") == []


async def test_a_session_whose_end_is_not_seen_is_replaced_when_it_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a session between the look at the connection and the statement."""
    for user in ("database.engines", "batches"):
        monkeypatch.setattr(f"callgate.providers.stores.sql.{user}.is_cut", lambda connection: connection.closed)
    async with opened(server) as store:
        await all_writes(store)
        assert server.end_sessions() > 0
        assert await all_writes(store) == {}


async def test_the_first_write_after_a_fail_over_succeeds(server: Server) -> None:
    """The same without a word of the server: the network has reset all connections."""
    with way_to(server.address) as (way, through):
        async with opened(server, through) as store:
            await fill(store)
            await all_writes(store)
            way.cut()
            way.let_through()
            await asyncio.sleep(0.01)
            assert await all_writes(store) == {}


async def test_a_session_that_ends_within_a_transaction_runs_it_again_on_another(server: Server) -> None:
    async with opened(server) as store:
        ran = list[int]()

        async def work(connection: Any) -> None:
            ran.append((await connection.execute(text("SELECT pg_backend_pid()"))).scalar())
            if len(ran) == 1:
                server.end_sessions()
            await connection.execute(text("SELECT 1"))

        await store._database.transact(work)
        assert len(set(ran)) == len(ran) == 2


@pytest.mark.parametrize(
    ("code", "sent", "alone", "nothing"),
    [
        ("25006", True, False, True),
        ("57P01", True, True, True),
        ("57P01", True, False, False),  # the COMMIT may have come before
        ("57P02", True, True, False),
        ("08006", True, True, False),  # a pooler says so when its server vanishes
        (None, True, True, False),
        ("57P01", False, False, True),
        (None, False, False, True),
    ],
)
def test_a_write_runs_again_only_if_nothing_can_have_been_written(
    code: str | None, sent: bool, alone: bool, nothing: bool
) -> None:
    assert wrote_nothing(code, sent=sent, alone=alone) is nothing


@pytest.mark.parametrize(
    "code", ["25006", "25P03", "25P04", "57P01", "57P02", "57P03", "57P04", "57P05", "08000", "08003", "08006", "08P01"]
)
def test_sessions_that_are_lost_have_these_codes(code: str) -> None:
    assert is_session_lost(StoreError("x", sqlstate=code))
    assert not any(is_session_lost(StoreError("x", sqlstate=each)) for each in ("23505", "40001", "55P03", None))


# ---------------------------------------------------------------------- transactions that the server ends


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_a_stricter_default_isolation_fails_no_call(server: Server, level: str) -> None:
    """Issue 34, 2: 17 % of calls failed."""
    server.set("default_transaction_isolation", level)
    try:
        async with opened(server) as one, opened(server) as other:
            work: list[Awaitable[Any]] = []
            for number in range(60):
                store, name = (one, other)[number % 2], f"{level} {number // 6}"
                work += [
                    store.quotas.take("t", level, Limit(1_000, 60.0)),
                    store.semaphores.acquire("t", level, 1_000, f"{number}", 60.0),
                    writer(store).claim("t", claimed(store, name), (), retry=False),
                    store.effects.claim("t", claimed(store, name)),
                    put(store, name),
                ]
            assert [
                one for one in await asyncio.gather(*work, return_exceptions=True) if isinstance(one, Exception)
            ] == []
    finally:
        server.set("default_transaction_isolation", None)


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.parametrize("times", [4, 5])
async def test_each_transaction_runs_again_and_boundedly_when_the_server_ends_it(
    server: Server, code: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger ends the first transactions on each table; a sequence counts, since no rollback takes it back."""
    monkeypatch.setattr(sql_states, "_PAUSE", 0.0005)
    tables = ("effects", "audit", "cache", "quotas", "consents")
    async with opened(server) as store:
        await store._database.write(text("CREATE SEQUENCE IF NOT EXISTS ended"), {})
        await store._database.write(
            text(
                "CREATE OR REPLACE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF nextval('ended') <= {times} THEN RAISE EXCEPTION '{VALUE}' USING ERRCODE = '{code}'; END IF; "
                "RETURN NULL; END $$"
            ),
            {},
        )
        for table in tables:
            await store._database.write(
                text(f"CREATE TRIGGER ends BEFORE INSERT ON callgate_{table} EXECUTE FUNCTION ends()"), {}
            )
        failed = dict[str, StoreError]()
        ways = [way for way in WRITES if way not in {"a statement with rows", "a transaction", "maintenance"}]
        try:
            for way in ways:
                await store._database.write(text("ALTER SEQUENCE ended RESTART"), {})
                try:
                    await WRITES[way](store, f"{code} {times} {way}")
                except StoreError as error:
                    failed[way] = error
        finally:
            for table in tables:
                await store._database.write(text(f"DROP TRIGGER ends ON callgate_{table}"), {})
        assert sorted(failed) == ([] if times == 4 else sorted(ways))
        assert {one.sqlstate for one in failed.values()} <= {code}
        assert VALUE not in "".join(map(str, failed.values()))


async def test_a_batch_that_is_ended_again_and_again_is_rolled_back() -> None:
    ran = 0

    async def ended() -> None:
        nonlocal ran
        ran += 1
        raise RolledBack(StoreError("ended", sqlstate="40001"))

    with pytest.raises(RolledBack):
        await retried(ended)
    assert ran == 5


async def test_a_lost_session_costs_one_attempt() -> None:
    ran = 0

    async def lost() -> None:
        nonlocal ran
        ran += 1
        raise SessionLost("gone")

    with pytest.raises(SessionLost):
        await retried(lost)
    assert ran == 2


# ---------------------------------------------------------------------- what errors say


@pytest.mark.parametrize(
    ("sql", "code", "says"),
    [
        ("SELECT * FROM nothing_here", "42P01", 'relation "nothing_here" does not exist'),
        ("SELECT CAST(:value AS integer)", "22P02", ""),  # the server quotes the value
        ("SELECT repeat(:value, 3)::varchar(3)::integer", "22P02", ""),
        ("DO $$ BEGIN RAISE EXCEPTION 'card-4111' USING ERRCODE = '55000'; END $$", "55000", ""),
        ("INSERT INTO held VALUES (:value)", "23505", "a row with that key exists already"),
        ("INSERT INTO held VALUES (NULL)", "23502", 'null value in column "id"'),
        ("SET TRANSACTION READ ONLY; CREATE TABLE more (id text)", "25006", "cannot execute CREATE TABLE"),
        ("SELECT 1 FROM", "42601", "syntax error at end of input"),
    ],
)
async def test_errors_carry_the_code_and_message_of_the_server_and_no_value(
    server: Server, sql: str, code: str, says: str
) -> None:
    """Issue 34, 2. In a statement, in a transaction and in a batch; the same in each."""
    address = server.address.replace("://", "://root:secret-word@") if "@" not in server.address else server.address
    async with opened(server, address) as store:
        database = store._database
        await database.write(text("CREATE TABLE IF NOT EXISTS held (id text PRIMARY KEY)"), {})
        await database.write(text("INSERT INTO held VALUES (:value) ON CONFLICT DO NOTHING"), {"value": VALUE})
        values = {"value": VALUE} if ":value" in sql else {}
        with pytest.raises(StoreError) as refused:
            if ";" in sql and not sql.startswith("DO"):
                async with database.writing() as connection:
                    for statement in sql.split("; "):
                        await connection.execute(text(statement), values)
            else:
                await database.write(text(sql), values)
        error = refused.value
        alike = postgres_error(error.__cause__.orig)  # type: ignore[union-attr]  # what a batch raises
        for one in (error, alike, pickle.loads(pickle.dumps(error))):
            assert one.sqlstate == code
            assert f"SQLSTATE {code}" in str(one)
            assert says in str(one)
            assert not {VALUE, "secret-word"} & set(str(one).replace('"', " ").split())
            assert isinstance(one, StoreConflict) is code.startswith("23")


async def test_callers_of_a_batch_get_the_code(server: Server) -> None:
    async with opened(server) as store:
        bad = replace(claimed(store, "bad"), tool="x\udc00")
        with pytest.raises(StoreError) as unwritten:
            await writer(store).claim("t", bad, (), retry=False)
        assert unwritten.value.sqlstate is None
        await store._database.write(text("ALTER TABLE callgate_effects RENAME TO moved"), {})
        try:
            told = await asyncio.gather(
                *(writer(store).claim("t", claimed(store, f"moved {n}"), (), retry=False) for n in range(3)),
                return_exceptions=True,
            )
        finally:
            await store._database.write(text("ALTER TABLE moved RENAME TO callgate_effects"), {})
        assert [getattr(one, "sqlstate", None) for one in told] == ["42P01"] * 3
