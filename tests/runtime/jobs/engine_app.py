"""The application of the engine tests, in the tests' own process and in workers: effects are lines in a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from callgate import Effects, Gate, Jobs, ToolContext, User, tool
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from tests.harness.gate_options import gate_options

ANN = User("ann", "acme")
KEY = "a key of the tests, long enough"
LEASE = 2.0
"""Seconds: what a dead worker was running is delivered again after these."""


def folder() -> Path:
    return Path(os.environ["CALLGATE_TEST_FOLDER"])


def note(line: str) -> int:
    """Add a line to the file of effects, in one write; how many there are of it."""
    path = folder() / "effects"
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(number, f"{line}\n".encode())
    os.close(number)
    return effects().count(line)


def effects() -> list[str]:
    path = folder() / "effects"
    return path.read_text().splitlines() if path.exists() else []


def ran_in(who: str) -> int:
    """The process that was last paying somebody."""
    return int((folder() / who).read_text())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return once it holds; the tests' own limits say how long that may take."""
    while not await holds():  # noqa: ASYNC110  (another process, or the engine, makes it so)
        await asyncio.sleep(0.02)


async def pay_and_hang(who: str) -> str:
    """Pay somebody; never end, the first time."""
    (folder() / who).write_text(str(os.getpid()))
    if note(who) == 1:
        await asyncio.Event().wait()
    return f"paid {who}"


@tool(effect="irreversible")
async def pay(who: str) -> str:
    """Pay somebody."""
    note(who)
    return f"paid {who}"


class Held:
    """What ``hold`` tells and waits for, in the tests' own process."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()


HELD = Held()


@tool(effect="irreversible")
async def hold(who: str) -> str:
    """Pay somebody, and end when a test says so."""
    note(who)
    HELD.begun.set()
    await HELD.end.wait()
    return who


@tool(effect="read")
async def hold_unclaimed(who: str) -> str:
    """The control: the same without a claim. Only the first does not end at once."""
    if note(who) == 1:
        HELD.begun.set()
        await HELD.end.wait()
    return who


@tool(effect="irreversible")
async def claimed(who: str) -> str:
    """Pay under a claim in the ledger."""
    return await pay_and_hang(who)


@tool(effect="read")
async def unclaimed(who: str) -> str:
    """The control: the same without a claim."""
    return await pay_and_hang(who)


@tool(effect="read")
async def busy(n: int, who: str, ctx: ToolContext) -> int:
    """Be busy the first *n* times."""
    times = note(who)
    if times <= n:
        ctx.retry_after(20, "busy")
    return times


@tool(effect="read")
async def outlast(who: str) -> str:
    """Take longer than the time limit of Celery: begin before a task that it stops, and end after that."""
    note(f"{who} began")

    async def is_stopped() -> bool:
        return f"{who} stopped" in effects()

    await until(is_stopped)
    return who


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


def gate(jobs: Any, **options: Any) -> Gate:
    """A gate of one process."""
    options = {
        "store": os.environ.get("CALLGATE_TEST_STORE"),
        "job_options": Jobs(lease=LEASE, backoff=0.02),
        "effects": Effects(lease=LEASE),
        **options,
    }
    return Gate(
        [pay, hold, hold_unclaimed, claimed, unclaimed, busy, outlast, look],
        allow_unguarded=True,
        signing_keys=[KEY],
        **gate_options(jobs=jobs, **options),
    )


def procrastinate(**options: Any) -> ProcrastinateJobs:
    """The engine, with the queues of the test."""
    return ProcrastinateJobs(queues=os.environ["CALLGATE_TEST_QUEUES"].split(), poll=0.1, **options)


def with_procrastinate() -> Gate:
    """For ``callgate worker``."""
    return gate(procrastinate())


def celery_app(broker: str, prefix: str) -> Any:
    """An application whose keys and queues are no other test's."""
    from celery import Celery

    made = Celery("callgate tests", broker=broker, set_as_current=False)
    made.conf.update(
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        task_default_queue=f"{prefix}.unused",
    )
    if broker.startswith("redis"):
        made.conf.broker_transport_options = {"global_keyprefix": f"{prefix}:"}
    return made
