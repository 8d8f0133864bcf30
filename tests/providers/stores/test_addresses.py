"""From an address to a store; nothing of an address is shown but what may be."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from callgate.errors import StoreError
from callgate.providers.stores import redis_client, sql_database
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Limit
from callgate.providers.stores.memory import MemoryStore
from callgate.providers.stores.redis import RedisStore
from callgate.providers.stores.sql import SqlStore

SECRET = "s3cret-canary"


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        (None, MemoryStore, "memory"),
        ("memory://", MemoryStore, "memory"),
        ("sqlite:///file.db", SqlStore, "sqlite"),
        ("sqlite://", SqlStore, "sqlite"),
        ("sqlite+aiosqlite:///file.db", SqlStore, "sqlite"),
        ("postgresql://ann@host/db", SqlStore, "postgresql"),
        ("postgresql+psycopg://ann@host/db", SqlStore, "postgresql"),
        ("redis://host", RedisStore, "redis"),
        ("rediss://host:6380/2", RedisStore, "redis"),
    ],
)
def test_an_address_names_a_store(address: str | None, kind: type, name: str) -> None:
    store = store_at(address, time.time)
    assert isinstance(store, kind)
    assert store.name == name


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert store_at(store, time.time) is store


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://ann:{SECRET}@host/db",
        f"{SECRET}",
        f"/path/{SECRET}",
        f"://{SECRET}",
        f"{SECRET} {SECRET}://",
        f"postgresql+asyncpg://ann:{SECRET}@host/db",
        f"postgresql://ann:{SECRET}@host:{SECRET}/db",
        f"redis://ann:x@host:{SECRET}/0",
        f"redis+{SECRET}://host",
        "",
    ],
)
def test_an_address_of_no_store_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(StoreError) as refused:
        store_at(address, time.time)
    said = "".join(traceback.format_exception(refused.value))
    assert SECRET not in said
    assert "://" in str(refused.value) or "URL" in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/db?connect_timeout=1",
        f"postgresql://127.0.0.1:1/db?password={SECRET}",
        f"redis://ann:{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={SECRET}",
    ],
)
async def test_a_password_is_in_no_error_and_no_repr(address: str) -> None:
    store: Any = store_at(address, time.time)
    assert SECRET not in repr(store)
    with pytest.raises(StoreError) as refused:
        await store.open()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


async def test_a_folder_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open database file"):
        await store_at(f"sqlite:///{tmp_path}/nowhere/store.db", time.time).open()


@pytest.mark.parametrize(
    ("module", "address", "extra"),
    [(sql_database, "sqlite://", "sql"), (redis_client, "redis://host", "redis")],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: Any, address: str, extra: str) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(StoreError) as refused:
        store_at(address, time.time)
    assert f'pip install "callgate[{extra}]"' in str(refused.value)


async def test_memory_needs_no_opening() -> None:
    assert (await store_at("memory://", time.time).quotas.take("", "k", Limit(1, 60.0))).ok
