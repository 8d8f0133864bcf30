"""The broker of Celery goes away: a submit returns all the same, and its job is sent when the broker is back (Issue 8, I20)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, JobHandle, ToolCall
from callgate.runtime.hosts.celery import CeleryJobs, sender
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.tcp_way import Way, way_to
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN, effects, note, until
from tests.runtime.jobs.engine_brokers import KINDS, QUEUES, Broker, broker

AWAY: dict[str, Callable[[Way], None]] = {"refuses": Way.cut, "is silent": Way.silence, "forsakes": Way.silence}
BACK: dict[str, Callable[[Way], None]] = {
    "refuses": Way.let_through,
    "is silent": Way.let_through,
    "forsakes": Way.forsake,
}
"""How it goes away, and comes back; one that forsakes leaves those in silence whom it was connected to."""


@pytest.fixture(params=KINDS)
def one(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Broker]:
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))
    with broker(request.param) as made:
        jobs = CeleryJobs(made.app, queues=QUEUES, queue_prefix=f"{made.prefix}.")
        engine_app.gate(jobs, store=made.store)
        jobs.prepare()  # it declares the queues before the broker goes away
        yield made


@asynccontextmanager
async def a_gate(one: Broker, address: str, **options: Any) -> AsyncGenerator[Gate]:
    """A gate that reaches its broker at that address."""
    app = engine_app.celery_app(address, one.prefix)
    jobs = CeleryJobs(app, queues=QUEUES, queue_prefix=f"{one.prefix}.")
    async with engine_app.gate(jobs, store=one.store, **options) as gate, asyncio.timeout(300):
        if "clock" in options:  # the test moves it, and sweeps itself: no sweep in real time comes in between
            await gate._lifespan.background.stop()
        yield gate
    app.close()


async def submit(gate: Gate, who: str, **options: Any) -> JobHandle:
    return await gate.submit(ToolCall(id="c1", name="pay", arguments={"who": who}), user=ANN, **options)


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the broker for less than one would."""
    monkeypatch.setattr(sender, "SEND_TIMEOUT", 0.3)
    for options in sender.TIMEOUTS.values():
        for name, value in options.items():
            if value == sender.RESPONSE_TIMEOUT:
                monkeypatch.setitem(options, name, 0.5)


# ---------------------------------------------------------------------- who submits


@pytest.mark.parametrize("how", AWAY)
async def test_what_is_submitted_while_the_broker_is_away_is_sent_when_it_is_back(
    one: Broker, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever submits does not wait for long. More than can wait for the broker at a time."""
    quickly(monkeypatch)
    clock = FakeClock()
    with way_to(one.address) as (way, address):
        async with a_gate(one, address, clock=clock) as gate:
            await submit(gate, "before", queue="idle")
            assert len(await one.messages(1)) == 1
            AWAY[how](way)
            async with asyncio.timeout(60):
                jobs = [await submit(gate, str(n), queue="idle") for n in range(sender.MAX_SENDERS + 2)]
            assert {(await job.status()).state for job in jobs} == {JobState.QUEUED}
            assert all(f"job.not_sent job='{job.id}'" in caplog.text for job in jobs)
            BACK[how](way)
            clock.advance(engine_app.LEASE + 1.0)
            found: set[str] = set()
            while not found >= {job.id for job in jobs}:
                await gate.maintain()
                found |= {json.loads(message.body)[0][0] for message in await one.messages(0)}
                clock.advance(engine_app.LEASE)


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_without_the_sweep_it_is_never_sent(
    one: Broker, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above; and the same with nothing left out."""
    quickly(monkeypatch)
    clock = FakeClock()
    with way_to(one.address) as (way, address):
        async with a_gate(one, address, clock=clock) as gate:
            if sabotaged:
                monkeypatch.setattr(gate.jobs.backend, "recover", nothing)
            way.cut()
            await submit(gate, "you", queue="idle")
            way.let_through()
            found = 0
            for _ in range(3):
                clock.advance(engine_app.LEASE + 1.0)
                await gate.maintain()
                found += len(await one.messages(0))
            assert (found > 0) is not sabotaged


async def nothing() -> None:
    """What a sweep does that is left out."""


# ---------------------------------------------------------------------- a worker


@pytest.mark.parametrize("held", [1, 2])
async def test_a_worker_goes_on_when_its_broker_is_back(
    one: Broker, held: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither it nor who submits is begun again, and what it was running, in one of its places or in all, has run once."""
    names = [f"held-{n}" for n in range(held)]
    with way_to(one.address) as (way, address):
        one.address = address
        one.start()
        async with a_gate(one, address) as gate:
            await (await submit(gate, "before"))
            jobs = await end_in_an_outage(gate, way, names)
            jobs.append(await submit(gate, "after"))
            for job in jobs:
                assert (await job).ok
        assert one.worker is not None
        assert one.worker.poll() is None
    assert "job.not_sent" in caplog.text
    told = [f"{name} {what}" for name in names for what in ("began", "stopped")]
    assert sorted(effects()) == ["after", "before", *told, *(f"meanwhile-{n}" for n in range(3))]


@pytest.mark.parametrize("one", ["redis"], indirect=True)
async def test_control_a_full_worker_that_is_not_told_of_the_outage_runs_nothing_more(one: Broker) -> None:
    """The control of the test above: what the worker's step of our own is for.

    Such a worker sometimes meets the outage while it reads, and then it goes on: one of a few does not.
    """
    address = one.address
    for number in range(5):
        one.address = address
        with way_to(address) as (way, one.address):
            one.start("tests.runtime.jobs.engine_celery_unwatched")
            async with a_gate(one, one.address) as gate:
                await (await submit(gate, f"before-{number}"))
                await end_in_an_outage(gate, way, [f"held-{number}-0", f"held-{number}-1"])
                after = await submit(gate, f"after-{number}")
                try:
                    async with asyncio.timeout(3 * engine_app.LEASE):
                        await after
                except TimeoutError:
                    assert one.worker is not None
                    assert one.worker.poll() is None
                    assert f"after-{number}" not in effects()
                    return
            one.kill()
    pytest.fail("no worker was stopped by the outage")


async def end_in_an_outage(gate: Gate, way: Way, names: list[str]) -> list[JobHandle]:
    """Jobs begin, the broker goes away, they end, and it is back; the others that were submitted meanwhile."""
    running = [
        await gate.submit(ToolCall(id="c1", name="outlast", arguments={"who": name}), user=ANN) for name in names
    ]
    for name in names:
        await until(partial(is_noted, f"{name} began"))
    way.cut()
    jobs = [await submit(gate, f"meanwhile-{n}") for n in range(3)]
    for name in names:
        note(f"{name} stopped")
    assert [(await job).output for job in running] == names
    assert {(await job.status()).state for job in jobs} == {JobState.QUEUED}
    way.let_through()
    return jobs


async def is_noted(line: str) -> bool:
    return line in effects()
