"""The demonstration of the workers: one is killed, and its tally says of every call what became of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from callgate import Gate, ToolCall
from examples.worker_desk.desk import MAX, Bank, append, desk, take_orders
from examples.worker_desk.places import Place, place
from examples.worker_desk.tally import Asked, Tally, tally
from examples.worker_desk.view import view
from examples.worker_desk.workers import Worker
from tests.examples.running import ROOT

ORDER = "A-0001"


@contextmanager
def begun(*arguments: str, **environment: str) -> Generator[subprocess.Popen[str]]:
    """The program, which has ended afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.worker_desk", "--on", "sqlite", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_worker_is_killed_and_nothing_is_lost_and_nothing_runs_twice() -> None:
    """Issue 8: ``make run-workers``. The bank's file and the ledger agree."""
    with begun("--calls", "60") as process:
        printed, complaint = process.communicate(timeout=300)
    assert (process.returncode, complaint) == (0, "")
    assert re.search(r"worker [12] was killed; it was running \d calls", printed)
    assert "worker 3 begins" in printed
    told = dict(re.findall(r"^ +(submitted|done|lost|twice|effects [a-z ]+?)  +(.*?) *$", printed, re.MULTILINE))
    assert (told["submitted"], told["lost"], told["twice"]) == ("60 calls", "0", "0")
    outcomes = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", told["done"])}
    assert sum(outcomes.values()) == 60
    assert outcomes.keys() <= {"success", "denied", "error", "unknown"}
    intended, paid = (int(told[f"effects {what}"].split()[0]) for what in ("intended", "that took place"))
    assert 0 < paid <= intended <= 30


def test_whoever_ends_it_early_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    """Issue 8. The workers are told to end, too."""
    workers: list[int] = []
    with begun("--calls", "5000", TMPDIR=str(tmp_path)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            workers += map(int, re.findall(r"begins, pid (\d+)", line))
            if len(workers) == 2:
                break
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        _, complaint = process.communicate(timeout=300)
    assert (process.returncode, complaint) == (130, "worker_desk: ended; its processes and tables are gone\n")
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- the tally


async def one_refund(gate: Gate, *, runs: bool = True) -> Asked:
    call = ToolCall(id="call-1", name="refund", arguments={"order_id": ORDER, "cents": 100, "reason": "late"})
    job = await gate.submit(call, user=MAX)
    if runs:
        await gate.jobs.run_invocation(job.id)
    return Asked("refund", ORDER, job)


async def counted(where: Place, sabotage: str) -> Tally:
    """One refund, and what could go wrong with it."""
    take_orders(where.folder, [ORDER])
    bank = Bank(where.folder)
    async with desk(where.store, where.folder, "a key of the tests, long enough") as gate:
        asked = await one_refund(gate, runs=sabotage != "it never runs")
        if sabotage == "the bank has paid once more":
            append(bank.file, f"{ORDER} 100")
        elif sabotage == "the bank has paid nothing":
            bank.file.unlink()
        return await tally(gate, [asked], bank, 1.0)


@pytest.mark.parametrize(
    ("sabotage", "lost", "twice"),
    [
        ("", 0, 0),
        ("it never runs", 1, 0),
        ("the bank has paid nothing", 1, 0),
        ("the bank has paid once more", 0, 1),
    ],
)
async def test_what_is_lost_or_paid_twice_is_counted_and_said(sabotage: str, lost: int, twice: int) -> None:
    """Issue 8. The control: a run in which nothing can go wrong would show nothing."""
    with place("sqlite") as where:
        found = await counted(where, sabotage)
    assert (len(found.lost), found.twice, found.is_sound) == (lost, twice, not sabotage)
    printed = StringIO()
    found.print(Console(file=printed, width=120))
    assert re.search(rf"^ +lost +{lost} *$", printed.getvalue(), re.MULTILINE)
    assert ("lost: refund A-0001 is " in printed.getvalue()) is bool(lost)


# ---------------------------------------------------------------------- what is seen


def test_a_terminal_shows_each_worker_a_bar_and_the_last_events(tmp_path: Path) -> None:
    """Issue 8: the live view."""
    fake: Any = subprocess.Popen([sys.executable, "-c", ""])
    fake.wait()
    worker = Worker(1, fake, tmp_path / "log", tmp_path / "calls", state="works", begun=7, done=5)
    seen = StringIO()
    with view(20, Console(file=seen, force_terminal=True, width=100, color_system=None)) as shown:
        shown.say("worker 2 was killed")
        shown.ended(worker, "refund success")
        shown.show(5, [worker])
    for told in (str(fake.pid), "works", "5/20", "worker 2 was killed", "worker 1: refund success"):
        assert told in seen.getvalue()


def test_a_worker_that_cannot_begin_is_trouble_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2: the run could not be made."""
    from examples.worker_desk import app, workers

    monkeypatch.setattr(workers, "APP", "examples.worker_desk.desk:no_such")
    printed = StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    assert app.main(["--calls", "4", "--on", "sqlite"]) == 2
    assert "no_such" in printed.getvalue()
