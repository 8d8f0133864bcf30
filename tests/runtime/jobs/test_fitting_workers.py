"""Workers of several versions on one store: each takes the jobs that fit it, and leaves the others."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from callgate import Gate, Jobs, Outcome, ToolCall, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.runtime.jobs import records
from callgate.runtime.jobs.calls import LOOK_AGAIN
from callgate.runtime.jobs.records import WAITS
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

ANN = User("ann", "acme")
OLD_KEY, NEW_KEY = "an old key of 16 bytes", "a new key of 16 bytes"
RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    RAN.clear()


@pytest.fixture(params=["sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


def send(worker: str, **options: Any) -> Any:
    """A tool that notes which worker ran it."""

    async def body(to: str) -> str:
        RAN.append(worker)
        return f"sent to {to}"

    given: dict[str, Any] = {"name": "send", "description": "Send.", "effect": "irreversible", **options}
    return tool(**cast("Any", given))(body)


@asynccontextmanager
async def worker(address: str, clock: FakeClock, *tools: Any, **options: Any) -> AsyncGenerator[Gate]:
    """A process on the store; a test runs its jobs."""
    settings: dict[str, Any] = {
        "store": address,
        "clock": clock,
        "jobs": Jobs(engine=EmbeddedJobs(0), max_attempts=2, backoff=0.0),
        "signing_keys": [OLD_KEY],
        "open": True,
        **options,
    }
    async with Gate(list(tools), **gate_options(**settings)) as gate:
        yield gate


def call(to: str = "you") -> ToolCall:
    return ToolCall(id="c1", name="send", arguments={"to": to})


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    RAN.append("look")
    return n


MISFITS: dict[str, dict[str, Any]] = {
    "no such tool": {"old": []},
    "another version": {"old": [send("old", version="0")]},
    "another effect": {"old": [send("old", effect="idempotent")]},
    "a newer key": {"new_keys": [NEW_KEY, OLD_KEY]},
    "an older key": {"new_keys": [OLD_KEY], "old_keys": [NEW_KEY]},
}


@pytest.mark.parametrize("misfit", MISFITS)
async def test_a_worker_leaves_a_job_that_does_not_fit_it_to_one_that_it_fits(misfit: str, address: str) -> None:
    """Issue 16 C1: an older worker ended it as ``unknown_tool``, and a foreign key killed it."""
    what, clock = MISFITS[misfit], FakeClock()
    new_keys, old_keys = what.get("new_keys", [OLD_KEY]), what.get("old_keys", [OLD_KEY])
    async with (
        worker(address, clock, send("new"), signing_keys=new_keys) as new,
        worker(address, clock, look, *what.get("old", [send("old")]), signing_keys=old_keys) as old,
    ):
        job = await new.submit(call(), user=ANN)
        for _ in range(5):  # more often than it may be attempted
            assert await old.jobs.run_invocation() is JobState.QUEUED
            assert await old.jobs.run_invocation() is None, "not at once again"
            status = await job.status()
            assert (status.state, status.attempts) == (JobState.QUEUED, 0)
            assert (status.reason or "").startswith(WAITS)
            clock.advance(max(status.run_at.timestamp() - old.jobs.now(), LOOK_AGAIN))
        assert await new.jobs.run_invocation() is JobState.DONE
        assert (await job).output == "sent to you"
        assert (await job.status()).attempts == 1
    assert RAN == ["new"]


async def test_a_worker_takes_what_fits_it_from_among_what_does_not(address: str) -> None:
    """Issue 16 C1: jobs of others hold up none."""
    clock = FakeClock()
    async with (
        worker(address, clock, look, send("new", version="2")) as new,
        worker(address, clock, look, send("old")) as old,
    ):
        jobs = [await new.submit(call(str(n)), user=ANN, priority=9) for n in range(3)]
        mine = await new.submit(ToolCall(id="c2", name="look", arguments={"n": 7}), user=ANN)
        states = [await old.jobs.run_invocation() for _ in range(5)]
        assert states == [JobState.QUEUED, JobState.DONE, None, None, None], "one of them shows what the others are"
        assert (await mine).output == 7
        assert {(await job.status()).attempts for job in jobs} == {0}
    assert RAN == ["look"]


async def test_a_changed_text_of_a_tool_is_no_other_definition(address: str) -> None:
    """Issue 16 C1, B4."""
    clock = FakeClock()
    async with (
        worker(address, clock, send("new", description="Send a letter.", title="Letter")) as new,
        worker(address, clock, send("old")) as old,
    ):
        job = await new.submit(call(), user=ANN)
        assert await old.jobs.run_invocation() is JobState.DONE
        assert (await job).output == "sent to you"
    assert RAN == ["old"]


async def test_a_record_of_another_version_of_callgate_is_left_to_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 C1: during an upgrade of Callgate itself."""
    clock = FakeClock()
    async with worker(address, clock, send("new")) as gate:
        with monkeypatch.context() as newer:
            newer.setattr(records, "VERSION", records.VERSION + 1)
            job = await gate.submit(call(), user=ANN)
        assert await gate.jobs.run_invocation() is JobState.QUEUED
        assert (await job.status()).attempts == 0
        clock.advance(LOOK_AGAIN)
        monkeypatch.setattr(records, "VERSION", records.VERSION + 1)
        assert await gate.jobs.run_invocation() is JobState.DONE
    assert RAN == ["new"]


async def test_a_job_that_fits_nobody_ends_at_its_deadline_or_when_it_is_cancelled(address: str) -> None:
    """Issue 16 C1: what stays queued can be ended."""
    clock = FakeClock()
    async with worker(address, clock, send("new")) as new, worker(address, clock, look) as old:
        late, cancelled = [await new.submit(call(), user=ANN, deadline=left) for left in (60.0, None)]
        assert [await old.jobs.run_invocation() for _ in range(2)] == [JobState.QUEUED, None]
        assert await cancelled.cancel()
        clock.advance(60.0)
        assert await old.jobs.run_invocation() is JobState.DONE
        result = await late
        assert (result.outcome, result.error and result.error.code) == (Outcome.ERROR, "deadline_exceeded")
        assert (await cancelled).outcome is Outcome.CANCELLED
    assert RAN == []


FORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "without a digest and a key": ({"version": None, "key_id": None}, True),
    "with the digest of the whole definition, for people": ({"version": "digest", "key_id": None}, True),
    "with that of a definition whose texts have changed since": ({"version": "0" * 64, "key_id": None}, True),
    "bound to the digest of the whole definition": ({"version": "digest"}, True),
    "of today": ({}, True),
    "the control: bound to another definition": ({"version": "0" * 64}, False),
}
"""What the body of a job of an earlier version differs in, and whether a worker of today runs it."""


@pytest.mark.parametrize("form", FORMS)
async def test_jobs_that_earlier_versions_have_queued_run(form: str, address: str) -> None:
    """Issue 34. They are rewritten as those versions wrote them, and signed."""
    changed, runs = FORMS[form]
    clock = FakeClock()
    async with worker(address, clock, send("new")) as gate:
        job, _ = gate.jobs.prepare(call(), ANN)
        body: dict[str, Any] = json.loads(job.body) | changed
        if changed.get("version") == "digest":
            body["version"] = gate.registry.get("send").definition.digest
        if changed.get("key_id", "") is None:
            del body["key_id"]
        if body["version"] is None:
            del body["version"]
        old = dict(sorted(body.items()))  # its members are in another order
        written = records.signed(gate.jobs.keys, "acme", replace(job, body=json.dumps(old).encode()))
        await gate.store.jobs.add("acme", written)
        assert await gate.jobs.run_invocation() is (JobState.DONE if runs else JobState.QUEUED)
    assert ["new"] * runs == RAN
