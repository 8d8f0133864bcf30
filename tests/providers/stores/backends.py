"""Every store behind one face, on a clock that stands still: what the tests of the stores run on."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from callgate.errors import StoreError
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.redis import RedisStore
from callgate.providers.stores.redis_client import RedisConnection
from callgate.providers.stores.redis_scripts import RedisScript
from callgate.providers.stores.redis_scripts import script as lua

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


@contextmanager
def schema() -> Generator[str]:
    """The address of PostgreSQL with a schema of its own, which goes afterwards; skipped loudly where there is none."""
    name = f"callgate_test_{uuid.uuid4().hex[:12]}"
    try:
        server = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        pytest.skip(f"NO POSTGRESQL at {POSTGRES} (set CALLGATE_TEST_POSTGRES): {error}")
    with server:
        server.execute(f'CREATE SCHEMA "{name}"'.encode())
        try:
            yield f"{POSTGRES}?options=-csearch_path%3D{name}"
        finally:
            server.execute(f'DROP SCHEMA "{name}" CASCADE'.encode())


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
def place(kind: str, folder: Path) -> Generator[tuple[str, str]]:
    """An address of that kind, and a prefix for keys."""
    if kind == "postgresql":
        with schema() as address:
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
    "keyspace",
    "made",
    "on_our_clock",
    "opened",
    "place",
    "schema",
]
