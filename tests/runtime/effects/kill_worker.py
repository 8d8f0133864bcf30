"""A process that forks workers which are killed: each opens a gate on one database and calls tools as long as it lives.

The one that forks imports everything first, so that no worker pays for it, and opens nothing. It is told what to do in
lines of JSON, see ``nursery``. A worker's effects are lines in a file, appended in one write each: what is there has
taken place. What it asks for, and what it is told, stands in a journal of the same kind.

``CALLGATE_KILL_SABOTAGE=no-claim`` takes the claim out of every plan: for the control.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from callgate import Approve, Deny, Effects, Gate, ToolCall, ToolContext, ToolError, User, tool
from callgate.errors import NotPending
from callgate.hooks import Audit
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import SYNC, plan_step
from tests.harness.gate_options import gate_options
from tests.runtime.effects.kill_points import FatalStore, Fate

OPTIONS = Effects(lease=30.0, wait=0.1)
"""No worker that lives outlasts its lease, however busy the machine is: leases pass when the clock is put forward."""
KEYS = ["a signing key for tests"]
TENANTS = ("north", "south")
LATER = {
    "aiosqlite",
    "alembic.command",
    "alembic.config",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.ext.asyncio",
}
"""What a store imports when it is opened."""


class Ahead:
    """The time of day, so many seconds ahead; ``stopped`` is a time at which it stands."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.stopped: float | None = None

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self.ahead if self.stopped is None else self.stopped

    monotonic = time


@dataclass(frozen=True)
class Task:
    """What a worker is to do: ``again`` are the calls that nobody was answered, ``first`` the first that is new.

    ``point`` is where it is to die, and the how-manieth time it comes there; ``ahead`` is the state of its clock.
    """

    address: str
    effects: str
    journal: str
    seed: int
    again: list[int]
    first: int
    point: tuple[str, int] | None = None
    ahead: float = 0.0


class Job(NamedTuple):
    """A call: by its number everybody knows what it is."""

    number: int
    tool: str
    how: str
    tenant: str

    @property
    def key(self) -> str | None:
        """Its idempotency key. Some that wait for approval have none: each approval is a call of its own then."""
        return None if self.tool == "refund" and self.number % 3 == 0 else f"order {self.number}"


def job_of(number: int) -> Job:
    """What the call of a number is."""
    chance = random.Random(number)
    name = chance.choices(["pay", "put", "refund"], [6, 2, 3])[0]
    how = chance.choices(["returns", "tells", "breaks", "declines"], [7, 1, 1, 1])[0]
    return Job(number, name, how, chance.choice(TENANTS))


class Log:
    """A file to which lines are appended, each in one write: a kill loses none, and halves none."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, **facts: Any) -> None:
        """One line."""
        os.write(self._file, json.dumps(facts).encode() + b"\n")


# ---------------------------------------------------------------------- what is called


def tools(log: Log, fate: Fate) -> list[Any]:
    """The tools; what they do is a line in the log."""

    async def take_effect(ctx: ToolContext, tool_name: str, order: str, how: str) -> str:
        await asyncio.sleep(random.random() * 0.004)  # as long as services take
        if how == "declines":
            raise ToolError("There is nothing to do.", no_effect=True)
        view: Any = ctx
        run = view._ctx.run
        claim, resumed, output = run.claim, run.resumed, os.urandom(8).hex()
        fate.passes("in a body before its effect")
        log.add(
            order=f"{ctx.tenant}/{order}",
            tool=tool_name,
            key=None if claim is None else claim.effect.key,
            token=ctx.fencing_token,
            request=ctx.request_id,
            wait=None if resumed is None else resumed.id,
            output=output,
        )
        fate.passes("in a body after its effect")
        await asyncio.sleep(random.random() * 0.004)
        if how == "tells":
            raise ToolError("It was done, and something is wrong with it.")
        if how == "breaks":
            raise ValueError("nobody knows")
        return output

    @tool(effect="irreversible")
    async def pay(order: str, how: str, ctx: ToolContext) -> str:
        """Pay an order."""
        return await take_effect(ctx, "pay", order, how)

    @tool(effect="idempotent")
    async def put(order: str, how: str, ctx: ToolContext) -> str:
        """Put an order somewhere; may be done twice."""
        return await take_effect(ctx, "put", order, how)

    @tool(effect="irreversible", requires_approval=True)
    async def refund(order: str, how: str, ctx: ToolContext) -> str:
        """Give money back for an order."""
        return await take_effect(ctx, "refund", order, how)

    return [pay, put, refund]


# ---------------------------------------------------------------------- calling


def without_claim(*_: Any) -> Any:
    """A step in the place of the claim that claims nothing, and a lookup that finds nothing."""

    class Nothing:
        step = plan_step(Stage.AROUND_EXECUTE, "intent")

        async def look(self, _: Any) -> None: ...

    return (SYNC, lambda _: None, Nothing.step), Nothing()


class Crew:
    """Calls and decisions on a gate, by several at once, and a journal of them."""

    def __init__(self, gate: Gate, journal: Log, task: Task) -> None:
        self.gate, self.journal = gate, journal
        self._queue = list(task.again)
        self._next = self._first = task.first
        self._chance = random.Random(task.seed)

    async def work(self) -> None:
        """Call, for ever: first what was not answered, then what is new, some of it again and again."""
        while True:
            if not self._queue:
                self._queue += [self._next] * self._chance.choice([1, 1, 2, 3])
                self._next += 1
                if self._first and self._chance.random() < 0.2:
                    self._queue.append(self._chance.randrange(self._first))
            number = self._queue.pop(0)
            if not await self.call(job_of(number)):
                self._queue.append(number)
            if self._chance.random() < 0.05:
                await self.call(job_of(number), other=True)

    async def call(self, job: Job, *, other: bool = False) -> bool:
        """One call, or one with its key and *other* arguments; whether it was answered."""
        asked = {"ask": job.number, "other": other}
        self.journal.add(**asked)
        arguments = {"order": job.key or "", "how": "returns otherwise" if other else job.how}
        result = await self.gate.call(
            ToolCall(id="c1", name=job.tool, arguments=arguments),
            user=User("ann", tenant=job.tenant),
            idempotency_key=job.key,
        )
        self.journal.add(answer=asked, **answer_of(result))
        return result.outcome != "in_flight"

    async def decide(self) -> None:
        """Decide what waits, for ever."""
        while True:
            if not await self.decide_some(4, declines=True):
                await asyncio.sleep(0.01)

    async def decide_some(self, most: int, *, declines: bool) -> int:
        """Decide some of what waits now in each tenant, some of it twice at once; how many there were."""
        found = 0
        for tenant in TENANTS:
            boss = User("bob", tenant=tenant)
            waiting = await self.gate.waits.pending(boss)
            found += len(waiting)
            for handle in self._chance.sample([one.handle for one in waiting], min(most, len(waiting))):
                decision = Deny() if declines and self._chance.random() < 0.15 else Approve()
                at_once = self._chance.choice([1, 1, 2])
                await asyncio.gather(*(self._decide(handle, decision, boss) for _ in range(at_once)))
        return found

    async def _decide(self, handle: str, decision: Any, boss: User) -> None:
        try:
            result = await self.gate.resume(handle, decision, approver=boss)
            self.journal.add(decided=handle.partition(".")[0], **answer_of(result))
            if result.outcome in {"unknown", "conflict"}:  # it would go on waiting, for nothing
                await self.gate.resume(handle, Deny(), approver=boss)
        except NotPending:
            pass  # somebody else was quicker


def answer_of(result: Any) -> dict[str, Any]:
    """What a caller was told."""
    code = None if result.error is None else result.error.code
    return {"outcome": str(result.outcome), "code": code, "output": result.output, "replayed": result.replayed}


def gate_on(store: Any, log: Log, fate: Fate, **options: Any) -> Gate:
    """The gate of a worker, or of who looks after them."""
    return Gate(
        tools(log, fate),
        [Audit(anchor_every=5)],
        store=store,
        signing_keys=KEYS,
        allow_unguarded=True,
        **gate_options(effects=OPTIONS, **options),
    )


async def end_with(parent: int) -> None:
    """End when nobody is there any more who would kill this process."""
    while True:
        await asyncio.sleep(0.2)
        if os.getppid() != parent:
            os._exit(1)


async def live(task: Task, parent: int) -> None:
    """A worker's life."""
    fate = Fate(task.point)
    random.seed(task.seed ^ os.getpid())
    async with gate_on(FatalStore(task.address, fate), Log(task.effects), fate, clock=Ahead(task.ahead)) as gate:
        crew = Crew(gate, Log(task.journal), task)
        say(ready=os.getpid())
        await asyncio.gather(end_with(parent), *(crew.work() for _ in range(6)), *(crew.decide() for _ in range(2)))


# ---------------------------------------------------------------------- forking


def say(**facts: Any) -> None:
    """One line to whoever started us."""
    os.write(1, json.dumps(facts).encode() + b"\n")


def nursery() -> None:
    """Fork workers, and tell of them. A worker that is dead keeps its process id until its death was asked for.

    ``{"start": task}`` → ``{"pid": n}``, later ``{"ready": n}``; ``{"watch": n}`` → ``{"dead": n}`` when it is;
    ``{"bury": n}`` → ``{"status": s}``.
    """
    for name in LATER:
        importlib.import_module(name)
    if os.environ.get("CALLGATE_KILL_SABOTAGE") == "no-claim":
        keeping: Any = importlib.import_module("callgate.runtime.effects.steps")
        keeping.LedgerClaims.of_tool = without_claim
    gate_on(None, Log(os.devnull), Fate(None))  # what is compiled once is compiled before
    gc.freeze()
    for line in sys.stdin:
        told = json.loads(line)
        if "start" in told:
            parent, pid = os.getpid(), os.fork()
            if not pid:
                die_after(Task(**told["start"]), parent)
            say(pid=pid)
        elif "watch" in told:
            os.waitid(os.P_PID, told["watch"], os.WEXITED | os.WNOWAIT)
            say(dead=told["watch"])
        else:
            say(status=os.waitpid(told["bury"], 0)[1])


def die_after(task: Task, parent: int) -> None:
    """A worker, from its fork to its end; it ends only when it is killed, or breaks."""
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(live(task, parent))
    except BaseException:  # noqa: BLE001  (it must not go on as the one that forks)
        Path(f"{task.journal}.broken").write_text(traceback.format_exc(), "utf-8")
    os._exit(1)


if __name__ == "__main__":
    nursery()
