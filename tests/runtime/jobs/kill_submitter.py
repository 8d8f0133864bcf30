"""Who submits in the kill runs: ``python -m tests.runtime.jobs.kill_submitter KEYS``, killed and started again.

With a second argument it does not end by itself: whoever started it is going to kill it.

Each line of the file KEYS is a key: the name of a tool, a dash, a number. What is going to be submitted is written to the
file ``intents`` before it is, and what is when ``submit`` came back. Whoever is started again submits everything that
did not come back, and some of what did: under its key it is the same job.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from callgate import Gate, ToolCall
from callgate.errors import StoreError
from tests.runtime.effects.kill_worker import Log
from tests.runtime.jobs import kill_app

AT_ONCE = 4
PAUSE = 0.1
AGAIN = 20
"""One in so many of those that came back is submitted once more."""


def open_keys(keys: list[str], intents: Path) -> list[str]:
    """What is to be submitted yet, in order, after what is submitted again."""
    written = intents.read_text().splitlines() if intents.exists() else []
    came_back = {said["submitted"] for said in map(json.loads, written) if "submitted" in said}
    return [key for key in keys if key in came_back][::AGAIN] + [key for key in keys if key not in came_back]


async def submit(gate: Gate, keys: list[str], log: Log) -> None:
    """Submit until nothing is left."""
    while keys:
        key = keys.pop(0)
        log.add(intends=key)
        call = ToolCall(id=key, name=key.partition("-")[0], arguments={"key": key})
        try:
            job = await gate.submit(call, user=kill_app.ANN, key=key)
        except StoreError:  # as a client does: the database may be too busy
            keys.insert(0, key)
            await asyncio.sleep(PAUSE)
        else:
            log.add(submitted=key, id=job.id)


async def main(keys: list[str], log: Log) -> None:
    """Submit these."""
    place = kill_app.here()
    async with kill_app.gate(place, kill_app.engine(place)) as gate:
        await asyncio.gather(*(submit(gate, keys, log) for _ in range(AT_ONCE)))
        if len(sys.argv) > 2:
            await asyncio.Event().wait()


if __name__ == "__main__":
    intents = kill_app.here().path("intents")
    asyncio.run(main(open_keys(Path(sys.argv[1]).read_text().split(), intents), Log(str(intents))))
