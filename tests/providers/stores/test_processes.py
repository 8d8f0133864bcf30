"""Several processes on one store: they open it at once, and hold one limit together."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from callgate.providers.stores.base import AuditRow
from tests.providers.stores.backends import SHARED, made, place

WORKER = """
import asyncio, json, sys, time
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import AuditRow, Limit
from callgate.providers.stores.redis import RedisStore

kind, address, prefix, who, task = sys.argv[1:]
store = RedisStore(address, prefix=prefix) if kind == "redis" else store_at(address, time.time)

async def take(amount, each):
    return sum([(await store.quotas.take("t", "k", Limit(amount, 86400.0))).ok for _ in range(each)])

async def main():
    await store.open()
    if task == "die":
        await store.semaphores.acquire("t", "place", 2, who, 1.0)
        print("holds", flush=True)
        await asyncio.sleep(60)
    got = await asyncio.gather(*(take(500, 50) for _ in range(5)))
    held = []
    for number in range(20):
        if await store.semaphores.acquire("t", "place", 2, who, 60.0):
            held.append(await store.semaphores.holders("t", "place"))
            await store.semaphores.release("t", "place", who)
    rows = 0
    if kind != "redis":
        for number in range(1, 21):
            await store.audit.append("t", [AuditRow(who, number, time.time(), {"n": number}, "", "")])
            rows += 1
    await store.close()
    print(json.dumps([sum(got), max(held, default=0), rows]), flush=True)

asyncio.run(main())
"""


def start(kind: str, at: tuple[str, str], who: int, task: str = "work") -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WORKER, kind, *at, f"process-{who}", task]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", SHARED)
async def test_four_processes_that_open_a_new_store_at_once_hold_one_limit(kind: str, tmp_path: Path) -> None:
    """I11, I20. 1,000 attempts at 500 units; at most 2 of 4 hold a place; no audit row is lost."""
    with place(kind, tmp_path) as at:
        workers = [start(kind, at, who) for who in range(4)]
        printed = [worker.communicate(timeout=90)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * 4
        said: list[list[Any]] = [json.loads(text) for text in printed]
        assert sum(taken for taken, _, _ in said) == 500
        assert max(held for _, held, _ in said) <= 2
        if kind != "redis":
            store = made(kind, *at, time.time)
            await store.open()
            rows: list[AuditRow] = [row async for row in store.audit.read("t")]
            await store.close()
            numbers = {who: [row.number for row in rows if row.segment == f"process-{who}"] for who in range(4)}
            assert all(sorted(found) == list(range(1, 21)) for found in numbers.values())


@pytest.mark.parametrize("kind", SHARED)
async def test_the_place_of_a_process_that_is_killed_is_free_after_its_time(kind: str, tmp_path: Path) -> None:
    """I11. Real time: one second to live."""
    with place(kind, tmp_path) as at:
        worker = start(kind, at, 1, "die")
        assert worker.stdout is not None
        assert worker.stdout.readline() == "holds\n"
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        store = made(kind, *at, time.time)
        await store.open()
        killed = time.monotonic()
        while await store.semaphores.holders("t", "place"):
            assert time.monotonic() - killed < 1.5, "longer than it was given"
        assert await store.semaphores.acquire("t", "place", 2, "next", 1.0)
        await store.close()
