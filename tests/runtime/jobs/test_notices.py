"""Other processes are told of ends and of new jobs through PostgreSQL; without it they poll."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Jobs, Options, Outcome, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.runtime.jobs import executor, jobs
from callgate.stores import Store, store_at
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

KEY = "a key of the tests, long enough"
ANN = User("ann", "acme")


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    with place("postgresql", tmp_path) as (where, _):
        yield where


@pytest.fixture
def _rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls that come too late for a test: only a notice wakes in time."""
    monkeypatch.setattr(jobs, "LIVE_POLL", 3_600.0)
    for module in (jobs, executor):
        monkeypatch.setattr(module, "FIRST_POLL", 3_600.0)
        monkeypatch.setattr(module, "LAST_POLL", 3_600.0)


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


@asynccontextmanager
async def a_gate(
    store: str | Store, concurrency: int = 0, *, namespace: str = "", **options: Any
) -> AsyncGenerator[Gate]:
    given = gate_options(signing_keys=[KEY], jobs=Jobs(engine=EmbeddedJobs(concurrency), **options))
    given |= {"store": store, "options": Options(namespace=namespace)}
    async with Gate([look], allow_unguarded=True, **given) as gate:
        yield gate


def waiting(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when a caller waits for a job."""
    begins, wait = asyncio.Event(), gate.jobs.waiters.wait

    async def note(what: Any, seconds: float) -> None:
        begins.set()
        await wait(what, seconds)

    monkeypatch.setattr(gate.jobs.waiters, "wait", note)
    return begins


async def until_live(gate: Gate) -> None:
    """Wait until the process gets its own notices."""
    notices: Any = gate.jobs.listen()
    heard, known = asyncio.Event(), gate.jobs._heard

    def hear(word: str) -> None:
        known(word)
        heard.set()

    gate.jobs._heard = hear  # type: ignore[method-assign]
    await notices.close()
    notices.listen(hear)
    async with asyncio.timeout(20.0):
        while not (heard.is_set() and notices.is_live):
            notices.announce("ready")
            await notices._sender


@pytest.mark.usefixtures("_rare_polls")
async def test_a_result_is_pushed_to_the_process_that_awaits_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_gate(address) as one, a_gate(address) as other:
        await until_live(one)
        job = await one.submit("look", {"n": 4}, user=ANN)
        begins = waiting(one, monkeypatch)
        async with asyncio.timeout(20.0), asyncio.TaskGroup() as group:
            awaited = group.create_task(job.result())
            await begins.wait()
            await other.jobs.run_invocation(job.id)
            assert (await awaited).output == 4


@pytest.mark.usefixtures("_rare_polls")
async def test_without_notices_it_is_not(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: nothing else wakes the waiting process in time."""
    async with a_gate(address, notify=False) as one, a_gate(address, notify=False) as other:
        job = await one.submit("look", {"n": 4}, user=ANN)
        begins = waiting(one, monkeypatch)
        async with asyncio.TaskGroup() as group:
            awaited = group.create_task(job.result())
            await begins.wait()
            await other.jobs.run_invocation(job.id)
            done, _ = await asyncio.wait({awaited}, timeout=0.3)
            assert not done
            one.jobs.waiters.wake(job.id)
            assert (await awaited).outcome is Outcome.SUCCESS


@pytest.mark.usefixtures("_rare_polls")
async def test_a_cancellation_is_pushed_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_gate(address) as one, a_gate(address) as other:
        await until_live(one)
        job = await one.submit("look", {"n": 4}, user=ANN)
        begins = waiting(one, monkeypatch)
        async with asyncio.timeout(20.0), asyncio.TaskGroup() as group:
            awaited = group.create_task(job.result())
            await begins.wait()
            await other.job(job.id, user=ANN).cancel()
            assert (await awaited).outcome is Outcome.CANCELLED


@pytest.mark.usefixtures("_rare_polls")
async def test_a_worker_is_woken_by_a_job_that_another_process_submits(address: str) -> None:
    async with a_gate(address, 2) as worker, a_gate(address) as other:
        await (await worker.submit("look", {"n": 1}, user=ANN))  # its engine runs
        await until_live(worker)
        job = await other.submit("look", {"n": 2}, user=ANN)
        async with asyncio.timeout(20.0):
            assert (await job).output == 2


async def test_a_lost_connection_is_opened_again_and_meanwhile_the_process_polls(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callgate.providers.stores.sql import notices as sql_notices

    monkeypatch.setattr(sql_notices, "RETRY", 0.0)
    name = f"notices {uuid.uuid4().hex[:8]}"
    async with a_gate(f"{address}&application_name={name.replace(' ', '%20')}") as one, a_gate(address) as other:
        await until_live(one)
        async with one.store.transaction() as within:
            await within.driver().execute(  # type: ignore[attr-defined]
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE query = 'LISTEN callgate_jobs' AND application_name = %s",
                (name,),
            )
        job = await one.submit("look", {"n": 5}, user=ANN)
        await other.jobs.run_invocation(job.id)
        async with asyncio.timeout(20.0):
            assert (await job).output == 5
        await until_live(one)


async def test_a_gate_that_closes_leaves_no_connection_and_no_task(address: str) -> None:
    async with a_gate(address) as gate:
        await until_live(gate)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("callgate job")]


async def test_many_words_are_sent_in_few_notices(address: str) -> None:
    async with a_gate(address) as gate:
        await until_live(gate)
        notices: Any = gate.store.notices  # type: ignore[attr-defined]
        sent: list[str] = []
        notify = notices._notify

        async def count(words: str) -> None:
            sent.append(words)
            await notify(words)

        notices._notify = count
        words = [f"{n:032x}" for n in range(450)]
        for word in words:
            notices.announce(word)
        await notices._sender
        told = [[word for word in one.split() if word in words] for one in sent]  # the upkeep may send words of its own
        assert [len(one) for one in told if one] == [200, 200, 50]
        assert [word for one in told for word in one] == words


@pytest.mark.parametrize("shares", [True, False], ids=["one store object", "two"])
async def test_a_word_reaches_each_gate_of_its_namespace_and_no_other(
    address: str, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34. Two gates of one store object share the listener; the first that closes leaves it to the others."""
    one = store_at(address)
    heard: dict[str, list[str]] = {}
    async with AsyncExitStack() as closing:
        gates = {}
        for name, namespace in {"a": "a", "also a": "a", "b": "b", "default": ""}.items():
            made = a_gate(one if shares else address, namespace=namespace)
            gates[name] = await closing.enter_async_context(made)
            heard[name] = []
            monkeypatch.setattr(gates[name].jobs, "_heard", heard[name].append)
            gates[name].jobs.listen()
        async with a_gate(one if shares else address, namespace="a") as closes:
            closes.jobs.listen()
        async with asyncio.timeout(20.0):
            while not all(gate.jobs.listen().is_live for gate in gates.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for name in ("a", "b", "default"):
                gates[name].jobs.announce(f"of-{name}")
            while len([word for words in heard.values() for word in words if word[:3] == "of-"]) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    of = {name: {word for word in words if word.startswith("of-")} for name, words in heard.items()}
    assert of == {"a": {"of-a"}, "also a": {"of-a"}, "b": {"of-b"}, "default": {"of-default"}}
