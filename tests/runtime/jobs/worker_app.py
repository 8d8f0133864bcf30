"""The application of the worker tests: effects are lines in a file, which nobody takes back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from callgate import Gate, Jobs, tool
from callgate.jobs import EmbeddedJobs

FOLDER = Path(os.environ["CALLGATE_TEST_FOLDER"])


def note(name: str, line: str) -> None:
    """Add a line to a file, in one write."""
    number = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(number, f"{line}\n".encode())
    os.close(number)


@tool(effect="irreversible")
async def pay(who: str) -> str:
    """Pay somebody; take a moment after it."""
    note("effects", who)
    await asyncio.sleep(0.02)
    return f"paid {who}"


@tool(effect="read")
async def hang(n: int) -> int:
    """Say that it has begun, and never end."""
    note("begun", f"{n} {os.getpid()}")
    await asyncio.Event().wait()
    return n


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


def gate(jobs: EmbeddedJobs | None = None) -> Gate:
    """A gate of one process."""
    return Gate(
        [pay, hang, look],
        allow_unguarded=True,
        store=os.environ["CALLGATE_TEST_STORE"],
        signing_keys=["a key of the tests, long enough"],
        jobs=Jobs(engine=jobs, lease=1.0, backoff=0.05),
    )
