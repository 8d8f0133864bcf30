"""Workers that are killed again and again on one database, and all that they left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg

from callgate import Gate
from callgate.hooks import verify_audit
from callgate.providers.stores.effects import OPEN_STATES, EffectRecord, EffectState
from tests.providers.stores.backends import POSTGRES
from tests.runtime.effects.kill_points import POINTS, Fate
from tests.runtime.effects.kill_worker import OPTIONS, Ahead, Crew, Log, Task, gate_on, job_of

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING = 10_000_000
FATES = (*POINTS, *["at any moment"] * 5, "while it opens")
"""How workers die: each in turn, in an order of chance."""
CLOCKS = 0.05
"""Seconds that two clocks of one machine may differ."""


@dataclass
class Left:
    """What the workers left behind: effects, what they asked for and were told, rows, and what came of orphans."""

    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    journal: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    rows: dict[str, EffectRecord] = field(default_factory=dict[str, EffectRecord])
    intents: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])
    orphans: int = 0
    kills: Counter[str] = field(default_factory=Counter[str])

    def figures(self) -> str:
        """In one line."""
        states = Counter(str(row.state) for row in self.rows.values())
        killed = ", ".join(f"{number} {how}" for how, number in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({killed}); {len(self.lines)} effects, {len(self.intents)} intents, "
            f"{self.orphans} orphans, {len(self.journal)} lines of journal; rows: {dict(sorted(states.items()))}"
        )


class Nursery:
    """The process that forks workers (``kill_worker.nursery``). Only they are killed, and by their ids."""

    def __init__(self, sabotage: str = "") -> None:
        self._environment = {**os.environ, "CALLGATE_KILL_SABOTAGE": sabotage}
        self._heard: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.runtime.effects.kill_worker"),
            cwd=ROOT,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        return self

    async def __aexit__(self, *error: object) -> None:
        self._to.close()
        await self._process.wait()

    def tell(self, **what: Any) -> None:
        """See ``kill_worker.nursery``."""
        self._to.write(json.dumps(what).encode() + b"\n")

    async def hear(self, name: str, value: int | None = None) -> int:
        """Wait to be told so."""
        while True:
            for said in self._heard:
                if name in said and value in {None, said[name]}:
                    self._heard.remove(said)
                    return int(said[name])
            line = await self._from.readline()
            assert line, "it has ended"
            self._heard.append(json.loads(line))

    def forget(self, pid: int) -> None:
        """Forget what was said of a worker that is buried: another process may get its id."""
        self._heard = [said for said in self._heard if pid not in (said.get("dead"), said.get("ready"))]


class KillLoop:
    """Rounds on one database: workers are born, killed, looked after, and the next ones repeat what was not answered."""

    def __init__(self, address: str, folder: Path, seed: int, nursery: Nursery, gate: Gate, clock: Ahead) -> None:
        self.address, self.gate, self.clock, self.nursery = address, gate, clock, nursery
        self.left = Left()
        self._effects, self._journal = folder / "effects", folder / "journal"
        self._chance, self._read, self._rounds = random.Random(seed), 0, 0
        self._fates: list[str] = []
        self._asked: set[int] = set()
        self._answered: set[int] = set()

    @property
    def unanswered(self) -> list[int]:
        """Calls with a key that nobody was answered, by their numbers."""
        return sorted(number for number in self._asked - self._answered if job_of(number).key is not None)

    async def run(self, kills: int) -> None:
        """So many kills."""
        while (to_go := kills - self.left.kills.total()) > 0:
            await self._round(min(to_go, self._chance.choice([1, 1, 2])))
            if self._chance.random() < 0.5:
                await self.sweep()
            elif self._chance.random() < 0.5:  # who repeats the call finds its row, and that its lease is over
                self.clock.ahead += OPTIONS.lease

    async def _round(self, workers: int) -> None:
        """Workers that are given the same work, and killed one after the other."""
        self._rounds += 1
        seed, first, again = self._chance.getrandbits(32), max(self._asked, default=0) + 1, self.unanswered
        born: list[tuple[int, str]] = []
        for _ in range(workers):
            how = self._next_fate()
            point = (how, self._chance.randint(1, 2 if "wait" in how else 6)) if how in POINTS else None
            files = str(self._effects), str(self._journal)
            task = Task(self._own_address(), *files, seed, again, first, point, self.clock.ahead)
            self.nursery.tell(start=asdict(task))
            born.append((await self.nursery.hear("pid"), how))
        for pid, how in born:
            await self._end(pid, how)
        self.dead_at = self.clock.time()
        await self._wait_for_server()
        self._look_into_journal()

    def _next_fate(self) -> str:
        """How the next worker dies."""
        if not self._fates:
            self._fates = list(FATES)
            self._chance.shuffle(self._fates)
        return self._fates.pop()

    async def _end(self, pid: int, how: str) -> None:
        """See a worker die, or kill it."""
        if how in POINTS:
            self.nursery.tell(watch=pid)
            try:
                await asyncio.wait_for(self.nursery.hear("dead", pid), 1.0)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                how = "at any moment"
        else:
            if how == "at any moment":
                await asyncio.wait_for(self.nursery.hear("ready", pid), 100.0)
            await asyncio.sleep(self._chance.random() * (0.15 if how == "at any moment" else 0.03))
            os.kill(pid, signal.SIGKILL)
        self.nursery.tell(bury=pid)
        status = await self.nursery.hear("status")
        self.nursery.forget(pid)
        assert status == signal.SIGKILL, f"it ended by itself: {why_it_broke(self._journal)}"
        self.left.kills[how] += 1

    def _own_address(self) -> str:
        """The database, where it has a server under a name for the connections of this round."""
        return (
            f"{self.address}&application_name={self._name}" if self.address.startswith("postgresql") else self.address
        )

    @property
    def _name(self) -> str:
        return f"callgate-kill-{os.getpid()}-{self._rounds}"

    async def _wait_for_server(self) -> None:
        """A server may commit yet what it had got before the kill, until it notices that nobody is there."""
        if not self.address.startswith("postgresql"):
            return
        async with await psycopg.AsyncConnection.connect(POSTGRES, autocommit=True) as server:
            while True:
                asked = await server.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [self._name]
                )
                if await asked.fetchone() == (0,):
                    return
                await asyncio.sleep(0.002)

    def _look_into_journal(self) -> None:
        with self._journal.open("rb") as journal:
            journal.seek(self._read)
            text = journal.read()
            self._read = journal.tell()
        for line in text.splitlines():
            said = json.loads(line)
            asked = said.get("answer", said)
            if "ask" not in asked or asked["other"]:
                continue
            self._asked.add(asked["ask"])
            if "answer" in said and said["outcome"] != "in_flight" and said["code"] != "not_recorded":
                self._answered.add(asked["ask"])

    # ------------------------------------------------------------------ looking after

    async def sweep(self) -> None:
        """One lease after the last death: what the dead were running is unknown."""
        effects, problems = self.gate.store.effects, self.left.problems
        held = await effects.list(None, states=OPEN_STATES, limit=EVERYTHING)
        self.left.orphans += len(held)
        until = self.dead_at + OPTIONS.lease
        for _, row in held:
            if row.lease_until > self.dead_at + OPTIONS.valid + CLOCKS:
                problems.append(f"a dead worker's lease lasts {row.lease_until - self.dead_at} s")
        self.clock.stopped = until
        await self.gate.maintain()
        self.clock.ahead, self.clock.stopped = until - time.time(), None
        for tenant, row in held:
            found = await effects.get(tenant, row.key)
            if found is None or found.state is not EffectState.UNKNOWN or (found.ended_at or 0.0) > until + CLOCKS:
                problems.append(f"an orphan is {found} one lease after its death")

    async def finish(self) -> Left:
        """The last word: one that lives answers all that is open; then everything is gathered."""
        await self.sweep()
        log = Log(str(self._journal))
        crew = Crew(self.gate, log, Task("", "", "", 0, [], 0))
        repeats = self._chance.sample(sorted(self._answered), min(50, len(self._answered)))
        for number in [*self.unanswered, *(one for one in repeats if job_of(one).key is not None)]:
            await crew.call(job_of(number))
        rounds = 0
        while await crew.decide_some(100, declines=False) and rounds < 100:
            rounds += 1
        self._look_into_journal()
        left, store = self.left, self.gate.store
        left.problems += ["some calls wait for ever"] * (rounds == 100)
        left.problems += [f"{job_of(number)} has no answer" for number in self.unanswered]
        left.journal = [json.loads(line) for line in self._journal.read_bytes().splitlines()]
        left.lines = [json.loads(line) for line in self._effects.read_bytes().splitlines()]
        left.rows = {row.key: row for _, row in await store.effects.list(None, limit=EVERYTHING)}
        left.intents = {row.body["request_id"] async for row in store.audit.read(None) if row.body["kind"] == "intent"}
        report = await verify_audit(store.audit)
        if not report.ok:
            left.problems.append(str(report))
        return left


def why_it_broke(journal: Path) -> str:
    """What a worker has written down that was not killed."""
    broken = Path(f"{journal}.broken")
    return broken.read_text("utf-8") if broken.exists() else "nobody knows why"


@asynccontextmanager
async def loop_on(address: str, folder: Path, seed: int, sabotage: str = "") -> AsyncGenerator[KillLoop]:
    """A kill loop on an empty database, with its nursery and a gate that looks after what the dead leave."""
    clock = Ahead()
    gate = gate_on(address, Log(str(folder / "effects")), Fate(None), clock=clock)
    Log(str(folder / "journal"))
    async with gate, Nursery(sabotage) as nursery:
        yield KillLoop(address, folder, seed, nursery, gate, clock)
