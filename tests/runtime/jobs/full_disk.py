"""A process whose SQLite lies on a small disk that gets full, and has room again: `python -m tests.runtime.jobs.full_disk FOLDER`.

What happened is printed as JSON; ``test_faults_disk`` runs it, and says what is right.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from callgate import Effects, Gate, JobHandle, Jobs, ToolCall, tool
from callgate.errors import StoreError
from callgate.jobs import EmbeddedJobs
from tests.runtime.jobs.engine_app import ANN, KEY, until

ROOM = 300_000
"""Bytes that are left when it gets tight."""
LEASE = 1.0
PAID: Counter[str] = Counter()


@tool(effect="irreversible")
async def pay(who: str) -> str:
    """Pay somebody."""
    PAID[who] += 1
    return f"paid {who}"


async def story(folder: Path) -> dict[str, Any]:
    """Submit until the disk is full, make room, and go on in the same process."""
    told: dict[str, Any] = {"refused": []}
    ballast = folder / "ballast"
    async with Gate(
        [pay],
        allow_unguarded=True,
        store=f"sqlite:///{folder}/store.db",
        signing_keys=[KEY],
        jobs=Jobs(engine=EmbeddedJobs(2), lease=LEASE, backoff=0.02),
        effects=Effects(lease=LEASE),
    ) as gate:
        taken: dict[str, JobHandle] = {}
        backend: Any = gate.jobs.backend

        async def submit(who: str) -> None:
            taken[who] = await gate.submit(ToolCall(id="c1", name="pay", arguments={"who": who}), user=ANN)

        async def worker_has_failed() -> bool:
            return bool(backend._executor.tally.failures)

        await submit("before")
        disk = os.statvfs(folder)
        ballast.write_bytes(bytes(disk.f_bavail * disk.f_bsize - ROOM))
        while len(told["refused"]) < 3:
            try:
                await submit(f"secret-{len(taken)}")
            except StoreError as error:
                told["refused"].append(str(error))
        await until(worker_has_failed)
        ballast.unlink()
        await submit("after")
        results = {who: await job for who, job in taken.items()}
    told["outcomes"] = {who: (result.outcome, result.output) for who, result in results.items()}
    told["paid"] = PAID
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(story(Path(sys.argv[1])))))
