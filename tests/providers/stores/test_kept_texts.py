"""Texts of hooks, such as a cache key: every store refuses the same ones, with the same sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, User
from callgate.errors import Invalid, StoreError
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import CacheEntry, Grant, Limit, Store
from callgate.providers.stores.effects import Pin
from callgate.providers.stores.kept_texts import LONGEST_KEY
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import DURABLE, KINDS, place

FLAWS = {
    "nul": ("a\0b", "has a NUL character"),
    "surrogate": ("a\ud800b", "has half of a surrogate pair"),
    "large": ("é" * LONGEST_KEY, f"has {2 * LONGEST_KEY:,} bytes, more than {LONGEST_KEY:,}"),
}
LIMIT, LATE = Limit(10, 60.0), 1e12
Ask = Callable[[Store, str], Awaitable[Any]]


def entry(*tags: str) -> CacheEntry:
    return CacheEntry(b"1", 0.0, LATE, LATE, frozenset(tags))


def grant(**texts: str) -> Grant:
    return Grant(**({"user": "u", "tool": "t", "scope": "s"} | texts), granted_at=0.0, expires_at=None)


def pin(**texts: str) -> Pin:
    return Pin(**({"provider": "p", "tool": "t", "digest": "d"} | texts), at=0.0)


PARTS: dict[str, Ask] = {
    "cache.get key": lambda store, text: store.cache.get("t", text),
    "cache.put key": lambda store, text: store.cache.put("t", text, entry()),
    "cache.put tag": lambda store, text: store.cache.put("t", "k", entry("good", text)),
    "cache.drop key": lambda store, text: store.cache.drop("t", text),
    "cache.drop_tags tag": lambda store, text: store.cache.drop_tags("t", ["good", text]),
    "quotas.take key": lambda store, text: store.quotas.take("t", text, LIMIT),
    "quotas.give_back key": lambda store, text: store.quotas.give_back("t", text, LIMIT, cost=1),
    "quotas.look key": lambda store, text: store.quotas.look("t", text, LIMIT),
    "semaphores.acquire key": lambda store, text: store.semaphores.acquire("t", text, 1, "one", 9.0),
    "semaphores.acquire token": lambda store, text: store.semaphores.acquire("t", "k", 1, text, 9.0),
    "semaphores.release key": lambda store, text: store.semaphores.release("t", text, "one"),
    "semaphores.release token": lambda store, text: store.semaphores.release("t", "k", text),
    "semaphores.holders key": lambda store, text: store.semaphores.holders("t", text),
    "consents.find scope": lambda store, text: store.consents.find("t", "u", "t", text),
    "consents.find tool": lambda store, text: store.consents.find("t", "u", text, "s"),
    "consents.grant scope": lambda store, text: store.consents.grant("t", grant(scope=text)),
    "consents.grant tool": lambda store, text: store.consents.grant("t", grant(tool=text)),
    "consents.grant user": lambda store, text: store.consents.grant("t", grant(user=text)),
    "consents.revoke scope": lambda store, text: store.consents.revoke("t", "u", scope=text),
    "consents.list user": lambda store, text: store.consents.list("t", text),
}
PINS: dict[str, Ask] = {
    "pins.find tool": lambda store, text: store.pins.find("t", "p", text),
    "pins.find provider": lambda store, text: store.pins.find("t", text, "t"),
    "pins.add tool": lambda store, text: store.pins.add("t", pin(tool=text)),
    "pins.put digest": lambda store, text: store.pins.put("t", pin(digest=text)),
    "pins.put tool": lambda store, text: store.pins.put("t", pin(tool=text)),
    "pins.list provider": lambda store, text: store.pins.list("t", text),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_text_that_a_database_cannot_keep_is_refused_alike_by_every_part_of_every_store(
    kind: str, tmp_path: Path
) -> None:
    """Issue 34, 5: SQLite kept a NUL that PostgreSQL refused, so a change of the store changed what hooks may do."""
    with place(kind, tmp_path) as (address, _):
        store = store_at(address)
        await store.open()
        try:
            for name, ask in (PARTS | (PINS if kind in DURABLE else {})).items():
                for text, flaw in FLAWS.values():
                    with pytest.raises(StoreError) as refused:
                        await ask(store, text)
                    assert str(refused.value) == f"the {name.split()[1]} {flaw}; a database cannot keep it"
                await ask(store, "ü\n\u4e2d" + "x" * (LONGEST_KEY // 4))
        finally:
            await store.close()


@pytest.mark.parametrize("kind", DURABLE)
@pytest.mark.parametrize("flaw", ["nul", "surrogate"])
async def test_the_kind_of_pending_calls_is_a_text_that_every_store_can_keep(
    flaw: str, kind: str, tmp_path: Path
) -> None:
    """The caller is at fault, so the store is not asked."""
    text, why = FLAWS[flaw]
    with place(kind, tmp_path) as (address, _):
        async with Gate([], **gate_options(open=True, store=address, durable=False)) as gate:
            with pytest.raises(Invalid, match=f"the kind {why}; a database cannot keep it"):
                await gate.waits.pending(User("lead", "shop"), kind=text)
            assert await gate.waits.pending(User("lead", "shop"), kind="approval") == []
