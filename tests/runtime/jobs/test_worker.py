"""``callgate worker`` as a process: it runs what others submitted, drains when told to, and loses nothing when killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from callgate import Gate, Outcome, ToolCall, User
from callgate.jobs import EmbeddedJobs
from callgate.runtime.commands.worker import main
from callgate.runtime.options.job_engine import Tally
from callgate.stores import JobState
from tests.providers.stores.backends import place
from tests.world import look

ROOT = Path(__file__).resolve().parents[3]
ANN = User("ann", "acme")


@pytest.fixture(params=["sqlite-file", "postgresql"])
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[dict[str, str]]:
    with place(request.param, tmp_path) as (address, _):
        own = {"CALLGATE_TEST_FOLDER": str(tmp_path), "CALLGATE_TEST_STORE": address}
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        yield {**os.environ, **own, "PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def submitter() -> AsyncGenerator[Gate]:
    """The application in this process, which runs no jobs itself."""
    from tests.runtime.jobs import worker_app

    async with worker_app.gate(EmbeddedJobs(0)) as gate:
        yield gate


@asynccontextmanager
async def worker(settings: dict[str, str], *options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A worker process that has begun; whatever happens it is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "callgate", "worker", "--app", "tests.runtime.jobs.worker_app:gate", *options),
        cwd=ROOT,
        env=settings,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(300):
            assert b"at once" in await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def lines_of(name: str, least: int, settings: dict[str, str]) -> list[str]:
    """The lines of a file that a worker writes, once there are so many."""
    path = Path(settings["CALLGATE_TEST_FOLDER"]) / name
    async with asyncio.timeout(300):
        while not path.exists() or len(path.read_text().splitlines()) < least:  # noqa: ASYNC110  (a process writes it)
            await asyncio.sleep(0.02)
    return path.read_text().splitlines()


async def test_a_worker_runs_what_another_process_submitted_and_ends_when_told(settings: dict[str, str]) -> None:
    """Design 8. Ended by SIGTERM, with a line that says what it did."""
    async with submitter() as gate, worker(settings, "--concurrency", "3") as process:
        jobs = [
            await gate.submit(ToolCall(id=f"c{n}", name="pay", arguments={"who": str(n)}), user=ANN) for n in range(20)
        ]
        async with asyncio.timeout(300):
            results = await asyncio.gather(*(job.result() for job in jobs))
        assert {result.outcome for result in results} == {Outcome.SUCCESS}
        process.send_signal(signal.SIGTERM)
        told, _ = await process.communicate()
        assert process.returncode == 0
        assert b"20 done, 0 dead, 0 put back" in told
    assert sorted(await lines_of("effects", 20, settings)) == sorted(str(n) for n in range(20))


async def test_a_worker_that_drains_hands_back_what_does_not_end(settings: dict[str, str]) -> None:
    """Within the grace; the job waits for the next worker, and the attempt does not count."""
    async with submitter() as gate, worker(settings, "--grace", "0.1") as process:
        job = await gate.submit(ToolCall(id="c", name="hang", arguments={"n": 1}), user=ANN)
        await lines_of("begun", 1, settings)
        process.send_signal(signal.SIGTERM)
        told, _ = await process.communicate()
        assert b"1 handed back" in told
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.QUEUED, 0)


async def test_what_a_killed_worker_was_running_is_taken_by_another(settings: dict[str, str]) -> None:
    """I3, I4: the lease of a dead worker is over after a second here."""
    async with submitter() as gate:
        async with worker(settings) as process:
            hangs = await gate.submit(ToolCall(id="c", name="hang", arguments={"n": 1}), user=ANN)
            await lines_of("begun", 1, settings)
            process.kill()
            await process.communicate()
        async with worker(settings):
            await lines_of("begun", 2, settings)
            assert (await hangs.status()).attempts == 2


async def test_a_worker_says_whether_it_lives_and_is_ready(settings: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with worker(settings, "--health", str(port)), httpx.AsyncClient(trust_env=False) as client:
        base = f"http://127.0.0.1:{port}"
        assert [(await client.get(f"{base}{path}")).status_code for path in ("/health", "/ready", "/x")] == [
            200,
            200,
            404,
        ]


@pytest.mark.parametrize("settings", ["sqlite-file"], indirect=True)
async def test_a_worker_that_cannot_begin_says_why(settings: dict[str, str]) -> None:
    for app in (
        "tests.runtime.jobs.no_such:gate",
        "tests.runtime.jobs.worker_app:no_such",
        "tests.runtime.jobs.worker_app:FOLDER",
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "callgate", "worker", "--app", app, cwd=ROOT, env=settings, stdout=-1, stderr=-1
        )
        told, errors = await process.communicate()
        assert process.returncode == 2
        assert (told, b"cannot start" in errors) == (b"", True)
        assert b"Traceback" not in errors


@pytest.mark.parametrize("queues", ["", ",", "mail,", " "])
def test_queues_without_a_name_are_refused(queues: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is not set was no limit: the worker took the jobs of all queues."""
    with pytest.raises(SystemExit) as ended:
        main(["--app", "tests.runtime.jobs.worker_app:gate", "--queues", queues])
    assert (ended.value.code, "give names with commas" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(("named", "runs"), [((), ["mail"]), (("other",), ["other"])])
async def test_a_worker_takes_from_the_queues_of_its_gate_unless_it_names_some(
    named: tuple[str, ...], runs: list[str]
) -> None:
    """As with the other engines. It took the jobs of all queues."""
    async with Gate([look], jobs=EmbeddedJobs(0, queues=["mail"])) as gate:
        jobs = {name: await gate.submit("look", {"n": 1}, user=ANN, queue=name) for name in ("mail", "other")}
        stop, tally = asyncio.Event(), Tally()
        work = asyncio.create_task(gate.jobs.backend.work(2, named, stop, 5.0, tally))
        assert (await jobs[runs[0]]).output == 1
        await asyncio.sleep(0.05)
        stop.set()
        await work
        done = [name for name, job in jobs.items() if (await job.status()).state is JobState.DONE]
        assert (done, tally.done) == (runs, 1)
