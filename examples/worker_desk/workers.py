"""The worker processes of a run: start, monitor by their log files, kill, stop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from examples.order_desk.trouble import Trouble
from examples.worker_desk.desk import FOLDER, KEY, STORE
from examples.worker_desk.places import Place

ROOT = Path(__file__).resolve().parents[2]
APP = "examples.worker_desk.desk:worker"
CONCURRENCY = 4


@dataclass
class Worker:
    """One ``callgate worker``. Its file ``calls.PID`` logs ``+`` when a call starts and ``-`` when it ends."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    calls: Path
    state: str = "starts"
    begun: int = 0
    done: int = 0
    _read: int = field(default=0, repr=False)

    @property
    def running(self) -> int:
        """Return the calls that have started and not ended; those of a dead process never end."""
        return self.begun - self.done

    @property
    def is_up(self) -> bool:
        """Return True if the process is alive."""
        return self.process.poll() is None

    def news(self) -> Iterator[str]:
        """Read the new lines of the worker; return its ended calls as text.

        Raises:
            Trouble: the process ended unexpectedly.
        """
        if self.state == "starts" and "at once" in self._logged():
            self.state = "works"
        if self.state in {"starts", "works"} and not self.is_up:
            raise Trouble(f"worker {self.number} has ended by itself: {self._logged().strip()[-500:]}")
        if not self.calls.exists():
            return
        with self.calls.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                sign, _, rest = line.decode().strip().partition(" ")
                self.begun += sign == "+"
                self.done += sign == "-"
                if sign == "-":
                    yield rest

    def kill(self) -> None:
        """Kill the process without warning, as a power failure does."""
        self.state = "killed"
        self.process.kill()
        self.process.wait()

    def _logged(self) -> str:
        return self.log.read_text("utf-8", "replace")


class Workers:
    """All workers of a run, killed ones included. ``async with`` stops them."""

    def __init__(self, place: Place, key: str) -> None:
        self._place = place
        self._settings = {**os.environ, STORE: place.store, FOLDER: str(place.folder), KEY: key}
        self.all: list[Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drain the workers; kill those that do not stop."""
        for worker in self.all:
            if worker.is_up:
                worker.process.terminate()
        try:
            async with asyncio.timeout(10.0):
                while any(worker.is_up for worker in self.all):  # noqa: ASYNC110  (other processes make it so)
                    await asyncio.sleep(0.05)
        finally:
            for worker in self.all:
                if worker.is_up:
                    worker.process.kill()
                worker.process.wait()

    def begin(self) -> Worker:
        """Start one more worker."""
        number = len(self.all) + 1
        log = self._place.folder / f"worker-{number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603  (our own command)
                [sys.executable, "-m", "callgate", "worker", "--app", APP, "--concurrency", str(CONCURRENCY)],
                cwd=ROOT,
                env=self._settings,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        worker = Worker(number, process, log, self._place.folder / f"calls.{process.pid}")
        self.all.append(worker)
        return worker
