"""Concurrent commands to Redis share batches, and each caller gets its own response or error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.exceptions import RedisClusterException

from callgate.errors import StoreError
from callgate.providers.stores.base import Limit
from callgate.providers.stores.redis import batches as redis_batches
from callgate.providers.stores.redis.batches import BATCH, RedisBatches
from callgate.providers.stores.redis.scripts import script
from callgate.providers.stores.redis.store import RedisStore
from tests.harness.tcp_way import way_to
from tests.providers.stores.backends import REDIS, keyspace

COUNT = script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@pytest.fixture
async def store() -> AsyncGenerator[RedisStore, None]:
    with keyspace() as prefix:
        made = RedisStore(REDIS, prefix=prefix, pool_size=4)
        await made.open()
        yield made
        await made.close()


async def together(store: RedisStore, callers: int) -> list[Any]:
    """Results of callers of one turn: counts of their own, and a wrong type for each third."""
    connection = store._connection

    async def one(n: int) -> Any:
        key = connection.key("t", "count", str(n))
        await connection.run("SET", key, "text" if n % 3 == 0 else n)
        if n % 2:
            return await connection.script(COUNT, [key], 1_000)
        return await connection.run("INCRBY", key, 1_000)

    return await asyncio.gather(*(one(n) for n in range(callers)), return_exceptions=True)


def own(results: list[Any]) -> bool:
    return all(isinstance(found, StoreError) if n % 3 == 0 else found == n + 1_000 for n, found in enumerate(results))


@pytest.mark.parametrize("callers", [1, 2, BATCH, 3 * BATCH, 100 * BATCH])
async def test_each_caller_gets_its_own_response_or_error(store: RedisStore, callers: int) -> None:
    """Issue 16: an error in the midst of a batch is that of its caller alone. Redis has lost all scripts."""
    with redis.Redis.from_url(REDIS) as server:
        server.script_flush()
    assert own(await together(store, callers))


async def test_responses_that_are_mixed_up_are_seen(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: batches that give their responses in another order."""

    def settle(entry: Any, response: Any) -> None:
        entries = entry.batch.entries
        entries[-1 - entries.index(entry)].done.set_result(response)

    monkeypatch.setattr(redis_batches._Entry, "settle", settle)
    monkeypatch.setattr(redis_batches._Entry, "fail", settle)
    assert not own(await together(store, BATCH))


async def test_concurrent_commands_share_an_exchange(store: RedisStore) -> None:
    """Issue 16: ``shared=None`` is the state before."""

    async def exchanges() -> list[int]:
        sizes = list[int]()
        exchange = RedisBatches._exchange

        async def counted(self: RedisBatches, entries: Any, batch: Any = None) -> None:
            sizes.append(len(entries))
            await exchange(self, entries, batch)

        await together(store, BATCH)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RedisBatches, "_exchange", counted)
            await asyncio.gather(*(store.consents.find("t", "ann", str(n), "") for n in range(BATCH)))
        return sizes

    assert await exchanges() == [BATCH]
    store._connection.shared = None
    assert await exchanges() == []


async def test_an_argument_that_cannot_be_sent_fails_its_caller_alone(store: RedisStore) -> None:
    connection = store._connection
    await together(store, BATCH)  # later commands are batched
    key = connection.key("t", "count", "k")
    results = await asyncio.gather(
        *(connection.run("SET", key, value) for value in ("a", None, "b", "\ud800", "c")), return_exceptions=True
    )
    assert [isinstance(found, Exception) for found in results] == [False, True, False, True, False]


async def used_after_cancellations(store: RedisStore) -> int:
    """Take 10 units for each of ``BATCH`` callers; then ``BATCH`` take one, as many return one, and half are cancelled."""
    limit = Limit(1_000, 1e6)
    await asyncio.gather(*(store.quotas.take("t", "k", limit, 10) for _ in range(BATCH)))
    with redis.Redis.from_url(REDIS) as server:
        server.script_flush()
    taking = [asyncio.create_task(store.quotas.take("t", "k", limit)) for _ in range(BATCH)]
    giving = [asyncio.create_task(store.quotas.give_back("t", "k", limit)) for _ in range(BATCH)]
    await asyncio.sleep(0)  # all of them wait for their batches
    for task in (*taking[::2], *giving[::2]):
        task.cancel()
    results = await asyncio.gather(*taking, *giving, return_exceptions=True)
    assert sum(isinstance(found, asyncio.CancelledError) for found in results) == BATCH
    shared = store._connection.shared
    assert shared is not None
    await shared.close()
    return limit.amount - (await store.quotas.look("t", "k", limit)).remaining


async def test_a_cancelled_caller_neither_loses_nor_doubles_its_command(store: RedisStore) -> None:
    """Issue 16: what waits is withdrawn if it takes something, and sent if it gives something back."""
    assert await used_after_cancellations(store) == 10 * BATCH + BATCH // 2 - BATCH


@pytest.mark.parametrize("withdraw", [True, False])
async def test_commands_that_are_all_or_never_withdrawn_are_seen(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, withdraw: bool
) -> None:
    """The control: units that are lost with their callers, or taken for callers that have left."""
    send = RedisBatches.send

    async def sabotaged(self: RedisBatches, command: Any, *, text: str | None = None, **_: Any) -> Any:
        return await send(self, command, text=text, withdraw=withdraw)

    monkeypatch.setattr(RedisBatches, "send", sabotaged)
    assert await used_after_cancellations(store) != 10 * BATCH + BATCH // 2 - BATCH


async def test_a_cut_connection_fails_every_caller_of_its_batch_with_an_error_of_its_own() -> None:
    """Issue 16: and the next commands use another connection."""
    with keyspace() as prefix, way_to(REDIS) as (way, through):
        store = RedisStore(through, prefix=prefix)
        await store.open()
        try:
            assert own(await together(store, BATCH))
            way.silence()
            waiting = [asyncio.create_task(store._connection.run("PING")) for _ in range(BATCH)]
            await asyncio.sleep(0.1)
            way.cut()
            way.let_through()
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(error, StoreError) for error in errors)
            assert len({id(error) for error in errors}) == BATCH
            assert own(await together(store, BATCH))
        finally:
            way.let_through()
            await store.close()


async def test_a_batch_that_every_caller_has_left_keeps_no_connection() -> None:
    """Issue 16: a silent server holds neither connections nor later callers."""
    with keyspace() as prefix, way_to(REDIS) as (way, through):
        store = RedisStore(through, prefix=prefix, pool_size=1)
        await store.open()
        try:
            assert own(await together(store, BATCH))
            way.silence()
            waiting = [asyncio.create_task(store._connection.run("PING")) for _ in range(BATCH)]
            await asyncio.sleep(0.1)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            way.cut()
            way.let_through()
            async with asyncio.timeout(2.0):
                assert own(await together(store, BATCH))
        finally:
            way.let_through()
            await store.close()


async def failed_after_a_silent_end(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the network forget all connections, without a word. Return how many calls fail after the first failure."""
    monkeypatch.setattr(redis_batches, "ANSWER_LIMIT", 0.2)
    with keyspace() as prefix, way_to(REDIS) as (way, through):
        store = RedisStore(through, prefix=prefix, pool_size=4)
        await store.open()
        try:
            await together(store, 20 * BATCH)
            way.forsake()
            with pytest.raises(StoreError):
                await store._connection.run("PING")
            return sum(isinstance(one, StoreError) for one in await together(store, 20 * BATCH))
        finally:
            await store.close()


async def test_one_failure_is_enough_to_leave_all_connections_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall had dropped them all, and each of them cost its callers five seconds and an error."""
    thirds = 20 * BATCH // 3 + 1
    assert await failed_after_a_silent_end(monkeypatch) == thirds  # each third has an error of its own


async def test_control_connections_that_are_kept_after_a_failure_fail_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Never(dict[Any, int]):
        def get(self, _: Any, default: Any = None) -> Any:
            return default

    monkeypatch.setattr(redis_batches, "WeakKeyDictionary", Never)
    assert await failed_after_a_silent_end(monkeypatch) > 20 * BATCH // 3 + 1


# ---------------------------------------------------------------------- a server that cannot serve


@asynccontextmanager
async def refusing(error: str) -> AsyncGenerator[str]:
    """The address of a server that greets its clients, and refuses each command of a store with this error."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        while line := await reader.readline():  # of a command: *N, and for each part $length and the part
            parts = [(await reader.readline(), (await reader.readline()).strip())[1] for _ in range(int(line[1:]))]
            greets = parts[0] in {b"PING", b"CLIENT", b"SELECT"}
            writer.write(b"+OK\r\n" if greets else f"-{error}\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving))  # the clients have left


REFUSALS = [
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.",
]


async def taken_after_a_failover(error: str, callers: int) -> list[Any]:
    """Take units in two rounds, after the address has led to another server."""
    server = urlsplit(REDIS)
    with keyspace() as prefix:
        async with refusing(error) as old:
            with way_to(old) as (way, through):
                store = RedisStore(through, prefix=prefix)
                await store.open()

                async def take() -> list[Any]:
                    takes = [store.quotas.take("t", "one", Limit(1_000, 3600.0)) for _ in range(callers)]
                    return await asyncio.gather(*takes, return_exceptions=True)

                try:
                    assert all("redis: " in str(one) for one in await take())  # both lead to the old server
                    way._server = (server.hostname or "127.0.0.1", server.port or 6379)
                    taken = [*await take(), *await take()]
                finally:
                    await store.close()
    return [getattr(one, "remaining", one) for one in taken]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("callers", [1, 3 * BATCH])
async def test_the_first_commands_after_a_failover_reach_the_new_server_once(error: str, callers: int) -> None:
    """Connections stayed with the old server, which refused all writes until the process ended."""
    assert sorted(await taken_after_a_failover(error, callers)) == [*range(1_000 - 2 * callers, 1_000)]


async def test_control_a_connection_that_is_kept_stays_with_the_old_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_batches, "_is_refusal", lambda error: False)
    assert all(isinstance(one, StoreError) for one in await taken_after_a_failover(REFUSALS[0], 1))


def test_an_error_of_a_cluster_is_one_of_the_store() -> None:
    """Its class has no base in common with the other errors of the client."""
    error: Any = RedisClusterException
    with pytest.raises(StoreError, match="not covered"), redis_batches.redis_errors():
        raise error("a slot is not covered")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("BUSY Redis is busy running a script.", "BUSY Redis is busy running a script."),
        ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS Not enough good replicas to write."),
        ("MISCONF Errors writing to the AOF file", "MISCONF Errors writing to the AOF file"),
        ("READONLY You can't write.", "You can't write."),
        ("MASTERDOWN Link with MASTER is down.", "Link with MASTER is down."),
        ("CLUSTERDOWN Hash slot not served", "Hash slot not served"),
        ("MOVED 12182 10.0.0.7:6379", "write RedisStore(url, client=...) with a RedisCluster"),
        ("ERR card-4111 is no integer", "ResponseError"),
        ("WRONGTYPE card-4111", "ResponseError"),
    ],
)
async def test_an_error_names_the_state_of_the_server_and_no_value(error: str, says: str) -> None:
    async with refusing(error) as address:
        store = RedisStore(address)
        await store.open()
        takes = [store.quotas.take("t", "one", Limit(5, 60.0)) for _ in range(3)]
        for one in await asyncio.gather(*takes, return_exceptions=True):
            assert isinstance(one, StoreError)
            assert says in str(one)
            assert "4111" not in str(one)
        await store.close()
