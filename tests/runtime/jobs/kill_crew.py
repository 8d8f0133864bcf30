"""The processes of a kill run. Each leads a group of its own, which we started and which we alone end."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.runtime.jobs.kill_app import Place
from tests.runtime.jobs.kill_nursery import Nursery


@dataclass(frozen=True)
class Death:
    """When a process lived yet that we then killed, and with it those that it had started."""

    pid: int
    at: float


class Process:
    """One that we started, and what it tells."""

    def __init__(self, nursery: Nursery, place: Place, told: Path, command: Sequence[str], marker: str) -> None:
        self._nursery, self._told, self._marker = nursery, told, marker.encode()
        self.pid: int = nursery.ask(start=command, environment=place.environment, told=str(told))
        self._status: list[int] = []
        self._ready = False

    @property
    def lives(self) -> bool:
        """Whether it has not ended. One that has keeps its id, and that of its group, until ``end``."""
        return bool(self._nursery.ask(lives=self.pid))

    @property
    def is_ready(self) -> bool:
        """Whether it has said so."""
        self._ready = self._ready or (self._told.exists() and self._marker in self._told.read_bytes())
        return self._ready

    def last_words(self) -> str:
        """The end of what it told."""
        return self._told.read_text("utf-8", "replace")[-3_000:]

    def kill(self, *, whole: bool = True) -> Death:
        """End it with its group, or alone: the processes of a worker of Celery end when it does."""
        at = time.monotonic()
        (os.killpg if whole else os.kill)(self.pid, signal.SIGKILL)
        return Death(self.pid, at)

    def end(self) -> int:
        """Its status, once it has gone with its group; only now may others get its id."""
        if not self._status:
            self._status = [self._nursery.ask(bury=self.pid)]
        return self._status[0]


@dataclass
class Crew:
    """The processes of a run: workers, and others that were asked for."""

    nursery: Nursery
    place: Place
    workers: list[Process] = field(default_factory=list[Process])
    all: list[Process] = field(default_factory=list[Process])
    deaths: list[Death] = field(default_factory=list[Death])

    def start(self, *command: str, marker: str = "") -> Process:
        """``python -m`` of that command."""
        told = self.place.path(f"told-{len(self.all)}")
        self.all.append(Process(self.nursery, self.place, told, command, marker))
        return self.all[-1]

    def start_worker(self, concurrency: int, pool: str = "prefork") -> Process:
        """A worker; of Celery one with a pool of processes, or of ``threads``."""
        number = str(concurrency)
        if self.place.engine != "celery":
            app = ("--app", "tests.runtime.jobs.kill_app:for_worker", "--concurrency", number)
            worker = self.start("callgate", "worker", *app, marker=" at once")
        else:
            worker = self.start(
                *("celery", "-A", "tests.runtime.jobs.kill_celery", "worker", "-P", pool, "-c", number),
                *("-n", f"{uuid.uuid4().hex[:8]}@callgate", "-Q", f"{self.place.prefix}.default", "-l", "INFO"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
                marker="gate.opened" if pool == "prefork" else " ready.",  # in threads with the first job
            )
        self.workers.append(worker)
        return worker

    @property
    def ready(self) -> list[Process]:
        """The workers that work."""
        return [worker for worker in self.workers if worker.is_ready]

    def kill(self, worker: Process, *, whole: bool = True) -> None:
        """A worker dies, alone or with all its processes."""
        self.workers.remove(worker)
        self.deaths.append(worker.kill(whole=whole))

    def kill_child(self, pid: int) -> None:
        """A process of a worker dies, which told us its id and has not ended since."""
        self.deaths.append(Death(pid, time.monotonic()))
        os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """Whoever is to live does."""
        for worker in self.workers:
            assert worker.lives, f"a worker ended by itself: {worker.last_words()}"

    def end(self) -> None:
        """Everybody is gone."""
        for process in self.all:
            process.end()
