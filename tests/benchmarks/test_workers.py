"""The benchmark of the workers counts what is lost and what runs twice, and its file has the form that is promised."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import workers, workers_place
from benchmarks.workers_engine import Ours
from benchmarks.workers_place import ANN, RAN, account, schemas, sql
from callgate import ToolCall
from tests.providers.stores.backends import schema

TINY = workers.Effort(submit=(1, 8), two=(1, 24), backlog=(1, 8), few=40, many=80, at_once=5)
LOSSES = ("DELETE FROM callgate_jobs WHERE id = %s", "UPDATE callgate_jobs SET state = 'dead' WHERE id = %s")


@pytest.fixture(autouse=True)
def _server() -> None:
    """Skipped loudly where there is no PostgreSQL."""
    with schema():
        pass


def test_the_file_has_the_promised_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 8: ``benchmarks/out/workers.json``. Nothing here looks at how long anything takes."""
    monkeypatch.setattr(workers, "FULL", TINY)
    path = tmp_path / "deep" / "workers.json"
    assert workers.main(["--json", str(path)]) == 0
    written = json.loads(path.read_text("utf-8"))
    assert list(written) == [*workers.KEYS, "more"]
    assert [key for key in workers.KEYS if not isinstance(written[key], int | float)] == []
    assert (written["lost"], written["doubled"]) == (0, 0)
    assert {row.key for row in workers.ROWS} <= {*written, *written["more"]}
    told = capsys.readouterr()
    assert "two workers, times one" in told.out
    assert "few jobs waiting, and many" in told.err


@pytest.mark.parametrize("loss", ["", *LOSSES])
@pytest.mark.parametrize("again", [0, 1, 2])
async def test_every_job_that_is_lost_or_runs_again_is_counted(loss: str, again: int) -> None:
    """Issue 8. The control: what a sound run leaves, and what one with a fault would."""
    before = len(RAN)
    with schemas() as make:
        side = Ours(make())
        async with side.working(), asyncio.timeout(60):
            done = side.tally.expect(4)
            for n in range(4):
                await side.submit(n)
            await done.wait()
            if loss:
                await sql(side.gate, loss, next(iter(side.asked)))
            for _ in range(again):
                await side.gate.call(ToolCall(id="again", name="look", arguments={"n": 3}), user=ANN)
            found = await account(side.gate, side.asked, RAN[before:])
    assert (found["lost"], found["doubled"]) == (bool(loss), again)


async def test_what_waits_is_lost_where_all_were_to_run_and_nowhere_else() -> None:
    """Issue 8: of many that wait a sample is drained."""
    before = len(RAN)
    with schemas() as make:
        side = Ours(make())
        async with side.gate:
            await side.submit(0)
            for may_wait in (False, True):
                found = await account(side.gate, side.asked, RAN[before:], may_wait=may_wait)
                assert found["lost"] == (not may_wait)


def test_absent_postgresql_is_said_and_nothing_of_its_address_that_is_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Issue 8: a clear message and exit code."""
    monkeypatch.setattr(workers_place, "POSTGRES", "postgresql://ann:pa55@127.0.0.1:1/none")
    path = tmp_path / "workers.json"
    assert workers.main(["--json", str(path)]) == 2
    told = capsys.readouterr().err
    assert "no PostgreSQL at postgresql://ann:***@127.0.0.1:1/none (set CALLGATE_TEST_POSTGRES)" in told
    assert "pa55" not in told
    assert not path.exists()
