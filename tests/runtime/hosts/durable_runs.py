"""What the tests of DBOS use: worker processes, and suspended calls to decide."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callgate import Gate
from tests.runtime.hosts.durable_app import LEAD, folder

ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """A process that runs workflows."""

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", f"tests.runtime.hosts.{module}", *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
        )

    def output(self) -> str:
        printed, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, printed
        return printed

    def kill_when_stopped(self, *who: str) -> None:
        """Kill the process when all its calls are at the point that they report."""
        while {path.name for path in folder().glob("stopped *")} != {f"stopped {one}" for one in who}:
            with pytest.raises(subprocess.TimeoutExpired):  # it must not end by itself
                self._process.wait(0.05)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def working(module: str, *arguments: str, **environment: str) -> Generator[Worker]:
    """A process that works until it is killed."""
    worker = Worker(module, *arguments, **environment)
    try:
        yield worker
    finally:
        worker.kill()


def ids(*cases: str) -> dict[str, str]:
    """Cases by new ids of workflows."""
    return {f"{case.replace(':', '-')}-{uuid.uuid4().hex[:12]}": case for case in cases}


async def suspended(gate: Gate, number: int) -> dict[tuple[str, str], str]:
    """The handles of suspended calls by tool and person, once there are as many."""
    async with asyncio.timeout(60):
        while len(pending := await gate.waits.pending(LEAD)) != number:  # noqa: ASYNC110  (another process suspends them)
            await asyncio.sleep(0.05)
    return {(one.tool, (one.arguments or {})["who"]): one.handle for one in pending}
