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
from callgate.providers.stores.jobs import JobState
from tests.providers.stores.backends import SHARED, made, place

WORKER = """
import asyncio, json, sys, time
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import AuditRow, Limit
from callgate.providers.stores.effects import Effect, EffectState
from callgate.providers.stores.jobs import Job, JobState
from callgate.providers.stores.redis import RedisStore

kind, address, prefix, who, task = sys.argv[1:]
store = RedisStore(address, prefix=prefix) if kind == "redis" else store_at(address, time.time)

async def take(amount, each):
    return sum([(await store.quotas.take("t", "k", Limit(amount, 86400.0))).ok for _ in range(each)])

async def claim(key):
    now = time.time()
    mine, found = await store.effects.claim("t", Effect(key, "tool", "v", "ann", "h", "r", who, now + 600, now))
    return mine and await store.effects.settle("t", key, found.token, EffectState.COMMITTED, at=now, note=who)

async def work():
    ended = []
    for number in range(40):
        await store.jobs.add("t", Job(f"j{number}", "tool", "ann", b"{}", "mac", 1.0, 1.0))
    while (taken := await store.jobs.take(who, time.time(), time.time() + 600)) is not None:
        tenant, job = taken
        if await store.jobs.end(tenant, job.id, job.token, JobState.DONE, at=1.0, result=b"1", reason=who):
            ended.append(job.id)
    return ended

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
    rows, ran, ended = 0, [], []
    if kind != "redis":
        done = await asyncio.gather(*(claim(f"k{number}") for number in range(40)))
        ran = [f"k{number}" for number in range(40) if done[number]]
        ended = await work()
        for number in range(1, 21):
            await store.audit.append("t", [AuditRow(who, number, time.time(), {"n": number}, "", "")])
            rows += 1
    await store.close()
    print(json.dumps([sum(got), max(held, default=0), rows, ran, ended]), flush=True)

asyncio.run(main())
"""


def start(kind: str, at: tuple[str, str], who: int, task: str = "work") -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WORKER, kind, *at, f"process-{who}", task]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", SHARED)
async def test_four_processes_that_open_a_new_store_at_once_hold_one_limit(kind: str, tmp_path: Path) -> None:
    """I4, I11, I20. 1,000 attempts at 500 units; at most 2 of 4 hold a place; no audit row is lost; each key and job runs once."""
    with place(kind, tmp_path) as at:
        workers = [start(kind, at, who) for who in range(4)]
        printed = [worker.communicate(timeout=90)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * 4
        said: list[list[Any]] = [json.loads(text) for text in printed]
        assert sum(taken for taken, *_ in said) == 500
        assert max(held for _, held, *_ in said) <= 2
        if kind != "redis":
            store = made(kind, *at, time.time)
            await store.open()
            rows: list[AuditRow] = [row async for row in store.audit.read("t")]
            effects = {row.key: row for _, row in await store.effects.list("t")}
            jobs = [row for _, row in await store.jobs.list("t")]
            await store.close()
            numbers = {who: [row.number for row in rows if row.segment == f"process-{who}"] for who in range(4)}
            assert all(sorted(found) == list(range(1, 21)) for found in numbers.values())
            ran = {key: f"process-{who}" for who in range(4) for key in said[who][3]}
            assert sum(len(keys) for *_, keys in said) == len(ran) == 40
            assert {key: (row.owner, row.note, row.token) for key, row in effects.items()} == {
                key: (who, who, 1) for key, who in ran.items()
            }
            ended = {id: f"process-{who}" for who in range(4) for id in said[who][4]}
            assert sum(len(ids) for *_, ids in said) == len(ended) == 40
            assert {row.id: (row.owner, row.reason) for row in jobs} == {id: (who, who) for id, who in ended.items()}
            assert {(row.state, row.token, row.attempts) for row in jobs} == {(JobState.DONE, 1, 1)}


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
