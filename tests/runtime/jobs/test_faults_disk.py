"""The disk of SQLite gets full: who submits is told what to do, and when there is room all goes on (Issue 8, I20)."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from callgate import Gate, Jobs, ToolCall
from callgate.errors import StoreError
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.jobs import FINAL_STATES
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN, LEASE, effects
from tests.runtime.jobs.engine_brokers import ROOT

MOUNTED = 'mount -t tmpfs -o size=12m none "$0" && exec "$@"'
"""A disk of its own for one process and its children; it goes with them."""


def on_a_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a small disk at the folder; skipped loudly where that may not be."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("NO SMALL DISK: there is no unshare here")
    own = (unshare, "--user", "--map-root-user", "--mount", "sh", "-c", MOUNTED, str(folder))
    try_out = subprocess.run([*own, "true"], capture_output=True, text=True, timeout=300, check=False)
    if try_out.returncode:
        pytest.skip(f"NO SMALL DISK: {try_out.stderr.strip()}")
    return subprocess.run(
        [*own, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CALLGATE_TEST_FOLDER": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_on_a_full_disk_who_submits_is_told_and_what_was_submitted_is_run_when_there_is_room(tmp_path: Path) -> None:
    """A real one. The process is not begun again."""
    ended = on_a_small_disk(tmp_path, sys.executable, "-m", "tests.runtime.jobs.full_disk", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert len(told["refused"]) == 3
    for said in told["refused"]:
        assert "disk is full; free space" in said
        assert "secret" not in said
    assert len(told["outcomes"]) > 3
    assert told["outcomes"] == {who: ["success", f"paid {who}"] for who in told["outcomes"]}
    assert {told["paid"][who] for who in told["outcomes"]} == {1}


class Room:
    """Whether the database may grow."""

    def __init__(self, gate: Gate, path: Path) -> None:
        self.path, self.pages = path, 1 << 30
        database: Any = gate.store
        event.listen(database._database.engines.calls.sync_engine, "checkout", self._tell)
        batches, connect = database.ledger._batches, database.ledger._batches._open
        batches._open = lambda: self._tell(connect())

    def take_away(self) -> None:
        """None is left but in pages that are there already."""
        with sqlite3.connect(self.path) as own:
            (self.pages,) = own.execute("PRAGMA page_count").fetchone()
        own.close()

    def give_back(self) -> None:
        self.pages = 1 << 30

    def _tell(self, connection: Any, *_: Any) -> Any:
        connection.execute(f"PRAGMA max_page_count={self.pages}").close()
        return connection


async def test_a_job_that_cannot_be_recorded_is_not_given_up_however_long_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is room for changes, and none for what is new: a worker can take it, and may not run it."""
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))
    clock, path = FakeClock(), tmp_path / "store.db"
    options = Jobs(lease=LEASE, max_attempts=2)
    async with engine_app.gate(EmbeddedJobs(0), store=f"sqlite:///{path}", clock=clock, job_options=options) as gate:

        async def run(id: str) -> JobState | None:
            with suppress(StoreError):
                return await gate.jobs.run_invocation(id)
            return None

        jobs = [
            await gate.submit(ToolCall(id="c1", name="pay", arguments={"who": str(n)}), user=ANN) for n in range(40)
        ]
        room = Room(gate, path)
        room.take_away()
        for stuck in jobs:
            if await run(stuck.id) is JobState.QUEUED:
                break
        else:
            raise AssertionError("there is room for all of them")
        for _ in range(4 * options.max_attempts):
            clock.advance(3600.0)
            await gate.maintain()
            await run(stuck.id)
            status = await stuck.status()
            assert status.state in {JobState.QUEUED, JobState.RUNNING}, status
        with pytest.raises(StoreError, match="free space"):
            while True:
                await gate.submit(ToolCall(id="c1", name="look", arguments={"n": 1}), user=ANN, delay=1e6)
        room.give_back()
        for job in jobs:
            while (await job.status()).state not in FINAL_STATES:
                clock.advance(3600.0)
                await run(job.id)
        assert {(await job).ok for job in jobs} == {True}
    assert sorted(effects()) == sorted(str(n) for n in range(40))
