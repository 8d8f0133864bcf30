"""Every store behind one face, on a clock that stands still: what the tests of the stores run on."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from callgate.errors import StoreError
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.redis.client import RedisConnection
from callgate.providers.stores.redis.scripts import RedisScript
from callgate.providers.stores.redis.scripts import script as lua
from callgate.providers.stores.redis.store import RedisStore
from tests.harness import migrated

POSTGRES = os.environ.get("CALLGATE_TEST_POSTGRES", "postgresql://127.0.0.1:5432/test")
REDIS = os.environ.get("CALLGATE_TEST_REDIS", "redis://127.0.0.1:6379/0")

KINDS = ("memory", "sqlite-memory", "sqlite-file", "postgresql", "redis")
DURABLE = ("memory", "sqlite-memory", "sqlite-file", "postgresql")
SHARED = ("sqlite-file", "postgresql", "redis")


class Now:
    """A clock that moves only in ``move``; it begins in the present, since Redis expires keys by its own clock."""

    def __init__(self) -> None:
        self.time = float(int(time.time()))

    def __call__(self) -> float:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class Backend:
    """A store that is open, and what belongs to this test alone."""

    kind: str
    store: Store
    now: Now
    tenant: str
    address: str
    prefix: str


class OnOurClock(RedisConnection):
    """Redis's scripts, with our clock in the place of its own."""

    def __init__(self, *args: Any, now: Now) -> None:
        super().__init__(*args)
        self._now = now

    async def script(self, script: RedisScript, keys: Sequence[bytes], *arguments: Any, withdraw: bool = False) -> Any:
        seconds, rest = divmod(self._now(), 1)
        told = f"{{'{int(seconds)}', '{round(rest * 1e6)}'}}"
        ours = lua(script.text.replace("redis.call('TIME')", told))
        return await super().script(ours, keys, *arguments, withdraw=withdraw)


def on_our_clock(store: RedisStore, now: Now) -> RedisStore:
    """The same store, but its quotas and places go by *now*."""
    given = store._connection
    ours = OnOurClock(given._url, given.prefix, given._pool_size, now=now)
    for holder in (store, store.cache, store.quotas, store.semaphores, store.consents):
        holder._connection = ours
    return store


def server() -> psycopg.Connection[Any]:
    """A connection to PostgreSQL; the test is skipped loudly where there is none."""
    try:
        return psycopg.connect(POSTGRES, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        pytest.skip(f"NO POSTGRESQL at {POSTGRES} (set CALLGATE_TEST_POSTGRES): {error}")


@contextmanager
def schema() -> Generator[str]:
    """The address of PostgreSQL with a schema of its own, without tables, which goes afterwards."""
    name = f"callgate_test_{uuid.uuid4().hex[:12]}"
    with server() as owner:
        owner.execute(f'CREATE SCHEMA "{name}"'.encode())
        try:
            yield f"{POSTGRES}?options=-csearch_path%3D{name}"
        finally:
            owner.execute(f'DROP SCHEMA "{name}" CASCADE'.encode())


_KEPT = ExitStack()
_FREE: list[str] = []
"""Schemas with our tables and no rows: making one takes a third of a second."""
_EMPTY = """DO $$ DECLARE tab regclass; filled boolean; BEGIN
  FOR tab IN SELECT oid FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname <> 'callgate_schema' LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', tab) INTO filled;
    IF filled THEN
      EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', tab);
      EXECUTE format('DELETE FROM %s', tab);
    END IF;
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = tab AND NOT tgisinternal AND tgenabled = 'D') THEN
      EXECUTE format('ALTER TABLE %s ENABLE TRIGGER USER', tab);
    END IF;
  END LOOP; END $$"""


def emptied(address: str) -> bool:
    """Delete the rows of a schema of PostgreSQL. Return False if it does not have our tables alone."""
    with psycopg.connect(address, autocommit=True) as owner:
        if not migrated.MADE or migrated.made_in(lambda sql: owner.execute(sql.encode())) != migrated.MADE:
            return False
        owner.execute(_EMPTY)
    return True


@contextmanager
def tables() -> Generator[str]:
    """A schema that may be one that an earlier test has used; it then has our tables, without rows."""
    address = _FREE.pop() if _FREE else _KEPT.enter_context(schema())
    yield address
    if emptied(address):
        _FREE.append(address)


def drop_schemas() -> None:
    """Drop the schemas of this process."""
    _FREE.clear()
    _KEPT.close()


@contextmanager
def keyspace() -> Generator[str]:
    """A prefix of keys in Redis that belongs to us, and goes afterwards; skipped loudly where there is none."""
    server = redis.Redis.from_url(REDIS)
    try:
        server.ping()
    except redis.ConnectionError as error:
        pytest.skip(f"NO REDIS at {REDIS} (set CALLGATE_TEST_REDIS): {error}")
    prefix = f"callgate-test-{uuid.uuid4().hex[:12]}"
    try:
        yield prefix
    finally:
        keys = list(server.scan_iter(match=f"{prefix}:*", count=1000))
        if keys:
            server.delete(*keys)
        server.close()


@contextmanager
def place(kind: str, folder: Path, *, bare: bool = False) -> Generator[tuple[str, str]]:
    """An address of that kind, and a prefix for keys; *bare*: never with tables."""
    if kind == "postgresql":
        with schema() if bare else tables() as address:
            yield address, ""
    elif kind == "redis":
        with keyspace() as prefix:
            yield REDIS, prefix
    else:
        yield (
            {"memory": "memory://", "sqlite-memory": "sqlite://", "sqlite-file": f"sqlite:///{folder}/store.db"}[kind],
            "",
        )


def made(kind: str, address: str, prefix: str, now: Any) -> Store:
    """A store, not open yet."""
    return RedisStore(address, now, prefix=prefix) if kind == "redis" else store_at(address, now)


@asynccontextmanager
async def opened(kind: str, at: tuple[str, str]) -> AsyncGenerator[Backend, None]:
    """A store at a place, on a clock of ours."""
    now = Now()
    store = made(kind, *at, now)
    if isinstance(store, RedisStore):
        store = on_our_clock(store, now)
    await store.open()
    try:
        yield Backend(kind, store, now, f"tenant-{uuid.uuid4().hex[:8]}", *at)
    finally:
        await store.close()


__all__ = [
    "DURABLE",
    "KINDS",
    "POSTGRES",
    "REDIS",
    "SHARED",
    "Backend",
    "Now",
    "StoreError",
    "emptied",
    "keyspace",
    "made",
    "on_our_clock",
    "opened",
    "place",
    "schema",
]
