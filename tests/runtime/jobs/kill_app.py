"""The application of the kill runs: what its bodies do is lines in a file, which nobody takes back."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from callgate import Effects, Gate, Hook, Jobs, ToolContext, User, tool
from callgate.hooks import Concurrency, Quota
from callgate.providers.stores.base import Limit
from callgate.providers.stores.redis.store import RedisStore
from callgate.runtime.hosts.celery import CeleryJobs
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.jobs.embedded import EmbeddedJobs
from tests.providers.stores.backends import REDIS
from tests.runtime.effects.kill_worker import Log, without_claim
from tests.runtime.jobs.engine_app import celery_app

ANN = User("ann", "acme")
LEASE = 3.0
"""Seconds: the redelivery time."""
PLACES = {"look": 3, "pay": 8}
"""Bodies of a tool at a time, in all workers together."""
RATION = Limit(5, 1.0)
"""Bodies of ``ask``, in all workers together."""

EFFECTFUL = ("pay", "hold_pay")
"""The tools that have an effect; a key begins with the name of its tool."""
NAME = "CALLGATE_KILL_PLACE"


@dataclass(frozen=True)
class Place:
    """Where a run takes place, as its processes are told. ``counts`` begins the keys of quotas in Redis, if they are there.

    ``sabotaged``: workers claim nothing and keep no limit, and every body is one that waits to be released.
    """

    engine: str
    store: str
    folder: str
    counts: str = ""
    broker: str = ""
    prefix: str = ""
    sabotaged: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """What the processes of the run have in their environment beside the usual."""
        return {NAME: json.dumps(asdict(self))}

    def path(self, name: str) -> Path:
        """A file of the run."""
        return Path(self.folder) / name


def here() -> Place:
    """Where this process was told to be."""
    return Place(**json.loads(os.environ[NAME]))


# ---------------------------------------------------------------------- what is called


@cache
def bodies() -> Log:
    """Where bodies write."""
    return Log(str(here().path("bodies")))


async def act(ctx: ToolContext, key: str, *, held: bool = False) -> str:
    """What a body does: it begins, has its effect if it has one, and ends; each is a line."""
    context: Any = ctx
    log, run, came = bodies(), secrets.token_hex(8), context._ctx.started_at.timestamp()
    who = {"pid": os.getpid(), "parent": os.getppid()}
    log.add(begun=key, tool=ctx.tool.name, run=run, came=came, clock=time.time(), at=time.monotonic(), **who)
    await asyncio.sleep(random.random() * 0.02)  # as long as services take
    if key.startswith(EFFECTFUL):
        log.add(effect=key, run=run)
        await asyncio.sleep(random.random())  # long enough to be killed in
    while (held or here().sabotaged) and not here().path("released").exists():  # noqa: ASYNC110  (another process makes it)
        await asyncio.sleep(0.02)
    await asyncio.sleep(random.random() * 0.02)
    log.add(ended=run, at=time.monotonic())
    return f"done {key}"


@tool(effect="read")
async def look(key: str, ctx: ToolContext) -> str:
    """Look something up."""
    return await act(ctx, key)


@tool(effect="read")
async def ask(key: str, ctx: ToolContext) -> str:
    """Ask somebody who does not like to be asked often."""
    return await act(ctx, key)


@tool(effect="irreversible")
async def pay(key: str, ctx: ToolContext) -> str:
    """Pay somebody."""
    return await act(ctx, key)


@tool(effect="read")
async def hold(key: str, ctx: ToolContext) -> str:
    """Look something up, until it is released."""
    return await act(ctx, key, held=True)


@tool(effect="irreversible")
async def hold_pay(key: str, ctx: ToolContext) -> str:
    """Pay somebody, and be busy with it until it is released."""
    return await act(ctx, key, held=True)


# ---------------------------------------------------------------------- who runs it


def limits(place: Place) -> list[Hook]:
    """Limits that all processes share: by the store of the gate, quotas by Redis where there is one."""
    counted = None
    if place.counts:
        from redis.asyncio import Redis

        counted = RedisStore(REDIS, prefix=place.counts, client=Redis.from_url(REDIS))  # connects when it is used
    return [
        *(
            Concurrency(places, shared=True, queue=1_000, queue_timeout=60.0, ttl=LEASE, tools=[name])
            for name, places in PLACES.items()
        ),
        Quota(RATION, by="tool", store=counted, tools=["ask"]),
    ]


def gate(place: Place, jobs: Any) -> Gate:
    """A gate of one process."""
    return Gate(
        [look, ask, pay, hold, hold_pay],
        [] if place.sabotaged else limits(place),
        allow_unguarded=True,
        store=place.store,
        signing_keys=["a key of the tests, long enough"],
        jobs=Jobs(engine=jobs, lease=LEASE, backoff=0.5),
        effects=Effects(lease=LEASE),
    )


def engine(place: Place, app: Any = None) -> Any:
    """The engine of a process that only submits, and of workers."""
    if place.engine == "procrastinate":
        return ProcrastinateJobs(poll=0.2)
    if place.engine == "celery":
        return CeleryJobs(app or celery_app(place.broker, place.prefix), queue_prefix=f"{place.prefix}.")
    return EmbeddedJobs(0)


def sabotage() -> None:
    """Claim nothing in this process."""
    runtime: Any = importlib.import_module("callgate.runtime.effects.steps")
    runtime.LedgerClaims.of_tool = without_claim


def for_worker() -> Gate:
    """For ``callgate worker``."""
    logging.basicConfig(level=logging.WARNING)
    place = here()
    if place.sabotaged:
        sabotage()
    return gate(place, engine(place))
