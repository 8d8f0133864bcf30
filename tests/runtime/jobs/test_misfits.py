"""Jobs that fit no worker: they cost next to nothing, delay no other job, and the command line shows why they wait."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Jobs, ToolCall, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.jobs import Group
from callgate.runtime.commands.jobs import main
from callgate.runtime.jobs.calls import LONGEST_PAUSE, LOOK_AGAIN, WAITS
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


def gone(version: str = "1") -> Any:
    """A tool that the worker does not have, or not in this version."""

    async def body(n: int) -> int:
        return n

    return tool(name="gone", description="Go.", effect="read", version=version)(body)


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


async def test_the_next_job_is_found_past_the_groups_that_are_left_out(queue: Backend) -> None:
    """On each store: in the order of priority and time, in every queue, by tool and beginning together."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    rows = [
        ("left 1", "gone", b'{"v":1}', "a", 9),
        ("left 2", "gone", b'{"v":1,"n":2}', "a", 9),
        ("second", "gone", b'{"v":2}', "a", 5),
        ("first", "other", b'{"v":1}', "b", 9),
        ("third", "other", b'{"v":1}', "a", 0),
        ("left 3", "gone", b'{"v":1}', "only", 9),
    ]
    for number, (id, name, body, of, priority) in enumerate(rows):
        await jobs.add(tenant, job(now + number * 0.001, id, tool=name, body=body, queue=of, priority=priority))
    now += 1.0
    without = [Group("gone", b'{"v":1'), Group("none", b"{")]
    assert await jobs.take("o", now, now + 9.0, queues=["only"], without=without) is None
    order = []
    while (taken := await jobs.take("o", now, now + 9.0, without=without)) is not None:
        order.append(taken[1].id)
    assert order == ["first", "second", "third"]
    assert await jobs.explain(without[0], now, "why", limit=2) == 2
    assert await jobs.explain(without[0], now, "why", limit=2) == 1
    assert await jobs.explain(without[0], now, "why") == 0
    assert [(await found_in(queue, id)).reason for id, *_ in rows] == ["why", "why", None, None, None, "why"]
    ids = set[str]()
    while (taken := await jobs.take("o", now, now + 9.0)) is not None:
        ids.add(taken[1].id)
    assert ids == {"left 1", "left 2", "left 3"}, "the control: they were ready"


async def test_an_attempt_that_does_not_count_may_have_a_reason(queue: Backend) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    await jobs.add(tenant, job(now))
    for token, counts in ((1, False), (2, True)):
        assert await jobs.take("o", now, now + 9.0) is not None
        assert await jobs.put_back(tenant, "j", token, run_at=now, reason="r", counts=counts)
        found = await found_in(queue)
        assert (found.attempts, found.reason) == (int(counts), "r")
