"""Jobs that fit no worker: they cost next to nothing, delay no other job, and the command line shows why they wait."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Jobs, ToolCall, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.jobs import Job
from callgate.runtime.commands.jobs import main
from callgate.runtime.jobs.calls import LONGEST_PAUSE, LOOK_AGAIN, OF_DEFINITION, OF_TOOL, Misfits
from callgate.runtime.jobs.records import WAITS, fitting
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import Backend, place
from tests.providers.stores.conftest import durable, places, queue
from tests.providers.stores.job_rows import found_in, job

__all__ = ["durable", "places", "queue"]  # fixtures

ANN = User("ann", "acme")
KEY, OTHER = "a key of sixteen bytes", "another key of 16 bytes"
MANY = 40


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


def gone(version: str = "1", name: str = "gone") -> Any:
    """A tool that the worker does not have, or not in this version."""

    async def body(n: int) -> int:
        return n

    return tool(name=name, description="Go.", effect="read", version=version)(body)


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


def gate(store: Any, clock: FakeClock, *tools: Any, key: str = KEY) -> Gate:
    return Gate(
        [look, *tools],
        allow_unguarded=True,
        store=store,
        signing_keys=[key],
        jobs=Jobs(engine=EmbeddedJobs(0), notify=False),
        **gate_options(clock=clock),
    )


async def both(
    opened: AsyncExitStack, address: str, clock: FakeClock, *tools: Any, key: str = KEY
) -> tuple[Gate, Gate]:
    """A gate with the tool ``gone``, and one with *tools*, on one store."""
    new = await opened.enter_async_context(gate(address, clock, gone()))
    store = new.store if address == "memory://" else address
    return new, await opened.enter_async_context(gate(store, clock, *tools, key=key))


MISFITS: dict[str, tuple[list[Any], str, str]] = {
    "a removed tool": ([], KEY, "with its tool"),
    "another definition": ([gone("2")], KEY, "with its definition of the tool"),
    "another key": ([gone()], OTHER, "with its signing key"),
}


@pytest.mark.parametrize("misfit", MISFITS)
async def test_jobs_that_fit_no_worker_are_taken_once_for_all_and_delay_no_good_job(misfit: str, address: str) -> None:
    """Issue 34: 2,000 such jobs cost 793 row updates a second, and 10,000 delayed good jobs by 8 s."""
    tools, key, why = MISFITS[misfit]
    clock = FakeClock()
    async with AsyncExitStack() as opened:
        new, old = await both(opened, address, clock, *tools, key=key)
        calls = [ToolCall(name="gone", arguments={"n": n}) for n in range(MANY)]
        handles = await new.submit_many(calls, user=ANN, priority=9)
        states = [await old.jobs.run_invocation() for _ in range(3)]
        assert states == [JobState.QUEUED, None, None]
        if key == KEY:
            good = await new.submit("look", {"n": 7}, user=ANN)
            assert await old.jobs.run_invocation() is JobState.DONE, "behind all of the others"
            assert (await good).output == 7
        assert {(await one.status()).reason for one in handles} == {f"{WAITS} {why}"}
        taken = 0
        for _ in range(20):  # ten minutes
            clock.advance(LOOK_AGAIN)
            while await old.jobs.run_invocation() is not None:
                taken += 1
        assert taken <= 20, "one look in each half minute, whatever their number"
        clock.advance(LONGEST_PAUSE)
        assert [await new.jobs.run_invocation() for _ in range(MANY + 1)] == [*[JobState.DONE] * MANY, None]


async def test_jobs_with_deadlines_that_fit_no_worker_are_looked_at_more_and_more_rarely(address: str) -> None:
    """They are taken one by one, so that any worker ends those that are late."""
    clock = FakeClock()
    async with AsyncExitStack() as opened:
        new, old = await both(opened, address, clock)
        late = await new.submit("gone", {"n": 1}, user=ANN, deadline=3_600.0)
        taken = 0
        for _ in range(718):
            taken += await old.jobs.run_invocation() is JobState.QUEUED
            clock.advance(5.0)
        assert 5 <= taken <= 40, "it was 720 times"
        clock.advance(LONGEST_PAUSE)
        assert await old.jobs.run_invocation() is JobState.DONE
        error = (await late).error
        assert error is not None
        assert error.code == "deadline_exceeded"


async def test_jobs_list_shows_why_each_of_them_waits(tmp_path: Path) -> None:
    clock, address = FakeClock(), f"sqlite:///{tmp_path}/jobs.db"
    async with gate(address, clock, gone()) as new, gate(address, clock) as old:
        await new.submit_many([ToolCall(name="gone", arguments={"n": n}) for n in range(3)], user=ANN)
        await old.jobs.run_invocation()
    out = io.StringIO()
    assert await asyncio.to_thread(main, ["list", address, "--json"], out) == 0
    assert [row["reason"] for row in json.loads(out.getvalue())] == [f"{WAITS} with its tool"] * 3


VERSIONS, KEYS = [("look", "d1"), ("look", "d2"), ("pay", "d1")], ["k1", "k2"]


def body(n: int, choose: Callable[[Sequence[Any]], Any], now: float) -> bytes:
    """The body of a job: one that a worker with VERSIONS and KEYS fits, or not, in the form of any version."""
    first = {"v": choose([1, 1, 1, 2]), "tool": choose(["look", "pay", "gone"]), "version": choose(["d1", "d2", "d3"])}
    deadline = choose([None, None, now - 0.25, now + 0.75, now + 60.0, 1e16])
    first |= {"key_id": choose(["k1", "k2", "k3"]), "deadline_at": deadline}
    # Arguments that look like the members before them, bytes that are no text, and long ones.
    rest = {"arguments": choose([{"key_id": "k1", "deadline_at": None}, "\\", "x" * 2_000, {"n": n}]), "n": n}
    earlier = {"tool": first["tool"], "version": first["version"], "key_id": "k3", **rest, "deadline_at": None, "v": 1}
    far = {"v": 1, "tool": "x" * 600, "version": "d1", "key_id": "k1", "deadline_at": None}
    made = choose([first | rest, first | rest, first | rest, earlier, far, {"v": 1}])
    text = json.dumps(made, separators=(",", ":")).encode()
    bodies: list[bytes] = [text, text, text, b"", b"\x00\xff" + text, text + b"\xff\x00"]
    chosen: bytes = bodies[choose(range(len(bodies)))]
    return chosen


@pytest.mark.parametrize("seed", range(3))
async def test_each_store_takes_and_explains_as_what_fits_a_worker_says(seed: int, queue: Backend) -> None:
    """In the order of priority and time, in every queue; jobs of earlier forms, late ones and cancelled ones fit all."""
    choice, jobs, tenant, now = random.Random(seed), queue.store.jobs, queue.tenant, queue.now()
    fits, made = fitting(VERSIONS, KEYS), list[Job]()
    for n in range(60):
        facts = {"priority": choice.randrange(3), "queue": choice.choice("ab"), "stop": choice.random() < 0.1}
        made.append(job(now + n * 0.001, f"j{n:02}", body=body(n, choice.choice, now + 1.0), **facts))
        await jobs.add(tenant, made[-1])
    now += 1.0
    mine = [one for one in made if fits.has(one, now)]
    others = {one.id for one in made} - {one.id for one in mine}
    assert 5 <= len(others) <= 50, "the control: there are both"
    found = await jobs.unfit(fits, now, WAITS)
    assert {id for id, *_ in found} == others
    assert all(first == one.body[:512] for id, _, first in found for one in made if one.id == id)
    explained = sorted(others)[:3]
    await jobs.explain(explained, f"{WAITS} with its tool")
    assert {id for id, *_ in await jobs.unfit(fits, now, WAITS)} == others - set(explained)
    assert len(await jobs.unfit(fits, now, WAITS, limit=2)) == 2
    of_b = await jobs.take("o", now, now + 9.0, queues=["b"], fitting=fits)
    assert of_b is not None
    order = sorted((one for one in mine if one.id != of_b[1].id), key=lambda one: (-one.priority, one.run_at))
    assert of_b[1].queue == "b"
    taken = []
    while (next := await jobs.take("o", now, now + 9.0, fitting=fits)) is not None:
        taken.append(next[1].id)
    assert taken == [one.id for one in order]
    rest = set[str]()
    while (next := await jobs.take("o", now, now + 9.0)) is not None:
        rest.add(next[1].id)
    assert rest == others, "the control: they were ready"
    assert [(await found_in(queue, id)).reason for id in explained] == [f"{WAITS} with its tool"] * 3


@pytest.mark.parametrize("groups", [1, 65, 400])
async def test_jobs_that_fit_no_worker_cost_as_much_for_any_number_of_tools(groups: int, address: str) -> None:
    """Issue 34: with more than 64 tools a good job waited for 19 s, with 400 for more than 30 s."""
    clock, names = FakeClock(), [f"gone{n}" for n in range(groups)]
    async with AsyncExitStack() as opened:
        new = await opened.enter_async_context(gate(address, clock, *(gone(name=name) for name in names)))
        store = new.store if address == "memory://" else address
        old = await opened.enter_async_context(gate(store, clock))
        calls = [ToolCall(name=names[n % groups], arguments={"n": n}) for n in range(2 * groups)]
        await new.submit_many(calls, user=ANN, priority=9)
        good = await new.submit("look", {"n": 7}, user=ANN)
        assert [await old.jobs.run_invocation() for _ in range(2)] == [JobState.QUEUED, JobState.DONE]
        assert (await good).output == 7
        rows = await old.store.jobs.list(None, state=JobState.QUEUED, limit=2 * groups + 1)
        assert [one.reason for _, one in rows] == [OF_TOOL] * 2 * groups
        for _ in range(20):  # ten minutes
            clock.advance(LOOK_AGAIN)
            while await old.jobs.run_invocation() is not None:
                pass
        rows = await old.store.jobs.list(None, state=JobState.QUEUED, limit=2 * groups + 1)
        assert sum(one.token for _, one in rows) <= 21, "the takes: one in each half minute"


async def test_without_the_limit_a_good_job_waits_behind_those_that_fit_no_worker(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test before."""
    monkeypatch.setattr(Misfits, "limit", lambda _: None)
    clock = FakeClock()
    async with AsyncExitStack() as opened:
        new, old = await both(opened, address, clock)
        await new.submit_many([ToolCall(name="gone", arguments={"n": n}) for n in range(3)], user=ANN, priority=9)
        await new.submit("look", {"n": 7}, user=ANN)
        states = [await old.jobs.run_invocation() for _ in range(4)]
    assert states == [*[JobState.QUEUED] * 3, JobState.DONE]


async def test_two_workers_that_lack_different_things_do_not_replace_the_reason_in_turn(address: str) -> None:
    clock = FakeClock()
    async with AsyncExitStack() as opened:
        new, first = await both(opened, address, clock)
        second = await opened.enter_async_context(
            gate(new.store if address == "memory://" else address, clock, gone("2"))
        )
        handles = await new.submit_many([ToolCall(name="gone", arguments={"n": n}) for n in range(9)], user=ANN)
        await first.jobs.run_invocation()
        await second.jobs.run_invocation()
        reasons = [(await one.status()).reason for one in handles]
    assert sorted(map(str, reasons)) == [OF_DEFINITION, *[OF_TOOL] * 8], "the second wrote that of the job it took"


async def test_a_job_with_a_deadline_that_fits_no_worker_delays_no_good_job(address: str) -> None:
    """Nor does a worker that takes only what fits leave it after its deadline."""
    clock = FakeClock()
    async with AsyncExitStack() as opened:
        new, old = await both(opened, address, clock)
        calls = [ToolCall(name="gone", arguments={"n": n}) for n in range(MANY)]
        late = await new.submit_many(calls, user=ANN, priority=9, deadline=20.0)
        await new.submit("look", {"n": 7}, user=ANN)
        assert [await old.jobs.run_invocation() for _ in range(3)] == [JobState.QUEUED, JobState.DONE, None]
        clock.advance(21.0)
        states = [await old.jobs.run_invocation() for _ in range(MANY + 1)]
        assert states == [*[JobState.DONE] * MANY, None]
        assert {(await one).error.code for one in late} == {"deadline_exceeded"}  # type: ignore[union-attr]


async def test_an_attempt_that_does_not_count_may_have_a_reason(queue: Backend) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    await jobs.add(tenant, job(now))
    for token, counts in ((1, False), (2, True)):
        assert await jobs.take("o", now, now + 9.0) is not None
        assert await jobs.put_back(tenant, "j", token, run_at=now, reason="r", counts=counts)
        found = await found_in(queue)
        assert (found.attempts, found.reason) == (int(counts), "r")
