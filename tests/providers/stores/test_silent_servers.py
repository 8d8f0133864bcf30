"""A server that takes bytes and answers none: calls end at their deadline, and the cache is passed by.

Real time, since drivers wait for sockets: limits are tiny, and upper bounds generous.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from callgate import Gate, Hook, User, tool
from callgate.errors import InvocationError, StoreError
from callgate.hooks import Audit, Cache, Concurrency, Consent, Quota
from callgate.providers.stores import server_answers
from callgate.providers.stores.base import Grant, Limit
from callgate.providers.stores.redis.store import RedisStore
from callgate.providers.stores.server_answers import BREAKER, answer_within
from callgate.providers.stores.sql.database import engines as sql_engines
from callgate.providers.stores.sql.database.database import _MIGRATING
from callgate.providers.stores.sql.store import SqlStore
from callgate.stores import store_at
from tests.harness.tcp_way import Way, way_to
from tests.providers.stores.backends import POSTGRES, place

ANN = User("ann", tenant="acme")
DEADLINE = 0.3
BOUND = DEADLINE + 1.5
"""A deadline, the grace of the releases, and room for a busy machine; far less than the timeouts of the drivers."""
SHARED_HOOKS: dict[str, Callable[[], Hook]] = {
    "quota": lambda: Quota("1000/hour"),
    "concurrency": lambda: Concurrency(5, shared=True),
    "cache": lambda: Cache(60.0, store_timeout=0.25),
    "consent": lambda: Consent({"look": ["all"]}),
}
RAN = list[int]()


@tool(effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


@tool(effect="irreversible")
async def pay(n: int) -> int:
    """Pay."""
    RAN.append(n)
    return n


@contextmanager
def distant(kind: str, folder: Path) -> Generator[tuple[Way, Any]]:
    with place(kind, folder) as (address, prefix), way_to(address) as (way, through):
        store = RedisStore(through, prefix=prefix) if kind == "redis" else store_at(through)
        try:
            yield way, store
        finally:
            way.let_through()


async def timed(gate: Gate, name: str, n: int, deadline: float | None) -> tuple[Any, float]:
    began = time.perf_counter()
    try:
        result = await gate.invoke(name, {"n": n}, user=ANN, deadline=deadline)
    except InvocationError as error:
        result = error
    return result, time.perf_counter() - began


def silence(way: Way, when: str) -> None:
    """Connections that are open get no more answers; "new": those that are opened are silent, too, and no other is left."""
    if when == "new":
        way.cut()
        way.let_through()
    way.silence()


@pytest.mark.parametrize("when", ["open", "new"])
@pytest.mark.parametrize("kind", ["redis", "postgresql"])
@pytest.mark.parametrize("hook", SHARED_HOOKS)
async def test_calls_end_at_their_deadline(hook: str, kind: str, when: str, tmp_path: Path) -> None:
    """Issue 16 A6: a call with 2 s took 9.0 s with a shared concurrency limit, 3.0 with a quota, 4.0 on PostgreSQL."""
    with distant(kind, tmp_path) as (way, store):
        async with Gate([look], [SHARED_HOOKS[hook]()], store=store, mode="development") as gate:
            await timed(gate, "look", 1, None)
            silence(way, when)
            deadline = 2 * DEADLINE if hook == "cache" else DEADLINE
            result, seconds = await timed(gate, "look", 2, deadline)
            way.let_through()
    assert seconds < BOUND
    assert result == 2 if hook == "cache" else isinstance(result, InvocationError)


@pytest.mark.parametrize("when", ["open", "new"])
async def test_effects_fail_closed_at_their_deadline(when: str, tmp_path: Path) -> None:
    """Issue 16 A6: a claim that was cut counts as not recorded, and the tool does not run."""
    RAN.clear()
    with distant("postgresql", tmp_path) as (way, store):
        async with Gate([pay], [Audit()], store=store, mode="development") as gate:
            assert (await timed(gate, "pay", 1, None))[0] == 1
            silence(way, when)
            result, seconds = await timed(gate, "pay", 2, DEADLINE)
            way.let_through()
    assert isinstance(result, InvocationError)
    assert seconds < BOUND
    assert RAN == [1]


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
async def test_a_call_without_a_deadline_waits_briefly_for_the_cache(kind: str, tmp_path: Path) -> None:
    """Issue 16 A6: it took 10 s."""
    with distant(kind, tmp_path) as (way, store):
        async with Gate([look], [Cache(60.0, store_timeout=0.25)], store=store, mode="development") as gate:
            await timed(gate, "look", 1, None)
            way.silence()
            result, seconds = await timed(gate, "look", 2, None)
            way.let_through()
    assert result == 2
    assert seconds < BOUND


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
async def test_a_silent_server_is_asked_no_more_until_a_probe_is_answered(kind: str, tmp_path: Path) -> None:
    """Issue 16 A6: a breaker on each store."""
    with distant(kind, tmp_path) as (way, store):
        await store.open()
        try:

            async def take(within: float) -> str:
                try:
                    with answer_within(within):
                        taken = await store.quotas.take("t", "k", Limit(100, 60.0))
                except StoreError as error:
                    return str(error)
                return str(taken.ok)

            answers: Any = store._connection._answers if kind == "redis" else store._database._answers
            assert await take(5.0) == "True"
            way.silence()
            for _ in range(BREAKER.failures):
                assert "no answer within" in await take(0.22)
            pieces = way.pieces
            assert "times in a row" in await take(5.0)
            assert way.pieces == pieces
            way.cut()
            way.let_through()
            assert "times in a row" in await take(5.0), "the probe is not due"
            answers._circuits.known[answers.backend].open_until = 0.0  # the time has passed
            assert await take(5.0) == "True"
            assert not answers._circuits.known
            for _ in range(BREAKER.failures):
                await answered(answers, fails=True)
            assert "times in a row" in await take(5.0)
            await store.close()
            await store.open()  # a store that is opened asks its server
            assert await take(5.0) == "True"
        finally:
            way.let_through()
            await store.close()


async def test_an_answer_keeps_the_circuit_closed(tmp_path: Path) -> None:
    """Issue 16 A6: failures between answers, as of a locked row, are no outage."""
    answers = server_answers.ServerAnswers("redis")
    for _ in range(3 * BREAKER.failures):
        await answered(answers, fails=True)
        await answered(answers, fails=False)
    for _ in range(BREAKER.failures):
        await answered(answers, fails=True)
    with pytest.raises(StoreError, match="times in a row"):
        await answered(answers, fails=False)


async def answered(answers: server_answers.ServerAnswers, *, fails: bool) -> None:
    """A request that took no time, and is taken for one that took long."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_answers, "SILENCE", 0.0)
            async with answers.awaited():
                if fails:
                    raise StoreError("redis: silence")
    except StoreError as error:
        if "times in a row" in str(error):
            raise


async def a_transaction(store: SqlStore) -> None:
    async with store.transaction() as within:
        await within.jobs.get("t", "j")


async def a_reading(store: SqlStore) -> None:
    async with store._database.reading("BEGIN") as connection:
        await connection.execute(text("SELECT 1"))


POOLED: dict[str, Callable[[SqlStore], Awaitable[object]]] = {
    "a read": lambda store: store.consents.find("t", "u", "look", ""),
    "a write": lambda store: store.consents.grant("t", Grant("u", "look", "s", 1.0, None)),
    "a transaction": a_transaction,
    "a transaction that reads": a_reading,
    "figures": lambda store: store.figures(),
    "maintenance": lambda store: store.effects.prune(1.0, 10),
}


@pytest.mark.parametrize("way", POOLED)
async def test_a_server_that_keeps_its_connections_and_does_not_answer_holds_no_caller(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a deadline each of them waited for ever: the kernel of a stuck server answers the probes of TCP."""
    with distant("postgresql", tmp_path) as (network, store):
        await store.open()
        try:
            await POOLED[way](store)
            monkeypatch.setattr(sql_engines, "ANSWER_LIMIT", 0.2)
            network.silence()
            with pytest.raises(StoreError, match="no answer within 0 seconds"):
                async with asyncio.timeout(5.0):
                    await POOLED[way](store)
            network.let_through()
            await POOLED[way](store)
        finally:
            network.let_through()
            await store.close()


async def test_control_a_statement_without_a_limit_waits(tmp_path: Path) -> None:
    with distant("postgresql", tmp_path) as (network, store):
        await store.open()
        network.silence()
        waiting = asyncio.create_task(store.ping())
        assert not (await asyncio.wait({waiting}, timeout=0.5))[0]
        network.let_through()
        await waiting
        await store.close()


@pytest.mark.parametrize("asks", [True, False], ids=["", "control"])
@pytest.mark.parametrize("limit", ["deadline", "statement"])
async def test_a_statement_that_is_given_up_leaves_no_session_of_the_server(
    limit: str, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a table held one more session for each attempt, until the server had none left for any application."""
    if not asks:
        monkeypatch.setattr("psycopg.capabilities.has_cancel_safe", lambda: False)
    with place("postgresql", tmp_path) as (address, _):
        store = SqlStore(address)
        await store.open()
        if limit == "statement":
            monkeypatch.setattr(sql_engines, "ANSWER_LIMIT", 0.1)
        async with await psycopg.AsyncConnection.connect(address) as other:
            await other.execute("LOCK TABLE callgate_pins")
            for _ in range(3):
                with pytest.raises(StoreError, match="no answer"), answer_within(None if limit == "statement" else 0.1):
                    await store.pins.list("t", "p")
            await asyncio.sleep(0.05)
            waiting = await other.execute(
                "SELECT count(*) FROM pg_locks WHERE relation = 'callgate_pins'::regclass AND NOT granted"
            )
            assert await waiting.fetchone() == ((0 if asks else 3),)
        await store.close()


async def test_a_migration_takes_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it waits for the migration of another process; the next statement of its connection is limited again."""
    with distant("postgresql", tmp_path) as (network, store):
        await store.open()
        monkeypatch.setattr(sql_engines, "ANSWER_LIMIT", 0.2)
        async with await psycopg.AsyncConnection.connect(POSTGRES) as other:
            await other.execute(f"SELECT pg_advisory_xact_lock({_MIGRATING})".encode())
            migration = asyncio.create_task(store._database._upgrade(150))
            assert not (await asyncio.wait({migration}, timeout=0.5))[0]
            await other.rollback()
            await migration
        network.silence()
        with pytest.raises(StoreError, match="no answer within"):
            await store.ping()
        network.let_through()
        await store.close()
