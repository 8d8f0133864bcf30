"""Several processes on one store: they open it at once, and hold one limit together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.jobs import JobState
from tests.providers.stores.backends import SHARED, made, opened, place

WORKER = """
import asyncio, importlib, json, os, sys, time
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import AuditRow, Limit
from callgate.providers.stores.effects import EffectRecord, EffectState
from callgate.providers.stores.jobs import Job, JobState
from callgate.providers.stores.redis.store import RedisStore

kind, address, prefix, names, task = sys.argv[1:]
store = RedisStore(address, prefix=prefix) if kind == "redis" else store_at(address, time.time)
needed = [] if kind == "redis" else ["aiosqlite", "alembic.command", "alembic.config", "psycopg", "sqlalchemy.ext.asyncio"]
for name in needed:
    importlib.import_module(name)  # once for all, or they would spend their time on it
children = {}
for who in names.split():
    if (child := os.fork()) == 0:
        break
    children[child] = who
else:
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))

async def take(amount, each):
    return sum([(await store.quotas.take("t", "k", Limit(amount, 86400.0))).ok for _ in range(each)])

async def claim(key):
    now = time.time()
    mine, found = await store.effects.claim("t", EffectRecord(key, "tool", "v", "ann", "h", "r", who, now + 600, now))
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
        await store.semaphores.acquire("t", "place", 2, who, 60.0)
        print("holds", flush=True)
        await asyncio.sleep(600)
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
    os.write(1, json.dumps([who, sum(got), max(held, default=0), rows, ran, ended]).encode() + b"\\n")

asyncio.run(main())
"""


def start(kind: str, at: tuple[str, str], *who: int, task: str = "work") -> subprocess.Popen[str]:
    """A process that forks one for each of them, and ends when they have."""
    names = " ".join(f"process-{number}" for number in who)
    command = [sys.executable, "-W", "error", "-c", WORKER, kind, *at, names, task]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("kind", SHARED)
async def test_four_processes_that_open_a_new_store_at_once_hold_one_limit(kind: str, tmp_path: Path) -> None:
    """I4, I11, I20. 1,000 attempts at 500 units; at most 2 of 4 hold a place; no audit row is lost; each key and job runs once."""
    with place(kind, tmp_path) as at:
        workers = start(kind, at, *range(4))
        printed = workers.communicate(timeout=300)[0]
        assert workers.returncode == 0
        by_name: dict[str, list[Any]] = {name: rest for name, *rest in map(json.loads, printed.splitlines())}
        said = [by_name[f"process-{who}"] for who in range(4)]
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
    """I11. A real death; its minute passes on a clock of ours."""
    with place(kind, tmp_path) as at:
        worker = start(kind, at, 1, task="die")
        assert worker.stdout is not None
        assert worker.stdout.readline() == "holds\n"
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        async with opened(kind, at) as backend:
            backend.now.time = time.time()
            assert await backend.store.semaphores.holders("t", "place") == 1
            backend.now.move(60.0)
            assert await backend.store.semaphores.holders("t", "place") == 0, "longer than it was given"
            assert await backend.store.semaphores.acquire("t", "place", 2, "next", 1.0)
