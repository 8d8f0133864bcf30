"""The idempotency key of a job: one key is one job with one set of arguments."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from callgate import Effects, Gate, Outcome, ToolCall, User, tool
from callgate.errors import Conflict, StoreError
from callgate.jobs import EmbeddedJobs
from callgate.stores import JobState

ANN = User("ann", "acme")
SENT: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_was_sent_yet() -> None:
    SENT.clear()


@tool(effect="irreversible")
async def send(to: str) -> str:
    """Send something."""
    SENT.append(to)
    return f"sent to {to}"


@tool(effect="read")
async def look(n: int = 0) -> int:
    """Look something up."""
    return n


@asynccontextmanager
async def gate_at(store: str) -> AsyncGenerator[Gate]:
    """A gate without a worker: a test runs the jobs."""
    options: dict[str, Any] = {"effects": Effects(durable=False), "signing_keys": ["a key of the tests"]}
    async with Gate([send, look], allow_unguarded=True, store=store, jobs=EmbeddedJobs(0), **options) as gate:
        yield gate


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments)


@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
@pytest.mark.parametrize("state", ["queued", "done"])
async def test_one_key_with_other_arguments_is_a_conflict(store: str, state: str) -> None:
    """Issue 16 B5: as in ``gate.call``. The caller got the result of another job."""
    async with gate_at(store) as gate:
        job = await gate.submit(call("send", to="you"), user=ANN, key="k")
        if state == "done":
            assert await gate.jobs.run_invocation() is JobState.DONE
        with pytest.raises(Conflict) as conflict:
            await gate.submit(call("send", to="CANARY"), user=ANN, key="k")
        assert (conflict.value.code, "CANARY" in str(conflict.value)) == ("conflict", False)
        for same in ({"to": "you"}, '{ "to": "you" }'):
            repeat = ToolCall(id="c2", name="send", arguments=same)
            assert (await gate.submit(repeat, user=ANN, key="k")).id == job.id
        other = await gate.submit(call("look", n=1), user=ANN, key="k")
        assert other.id != job.id, "another tool has its own keys"
        while await gate.jobs.run_invocation() is not None:
            pass
        assert (await job).output == "sent to you"
        direct = await gate.call(call("send", to="CANARY"), user=ANN, idempotency_key="k")
        assert direct.outcome is Outcome.CONFLICT
    assert SENT == ["you"]


@pytest.mark.parametrize(
    ("one", "other", "repeats"),
    [
        ({"n": 1}, '{"n": 1}', True),
        ('{"n": 1}', '{"n": 1.0}', True),
        ("{}", None, True),
        ("no JSON", "no JSON", True),
        ("no JSON", "nor this", False),
        ({"n": 1}, {"n": True}, False),
        ({"n": 1}, {}, False),
        ({"n": 10**30}, {"n": 10**30 + 1}, False),
    ],
)
async def test_arguments_of_one_key_are_compared_as_they_are_read(one: Any, other: Any, repeats: bool) -> None:
    """Issue 16 B5: text and objects alike."""
    async with gate_at("memory://") as gate:
        job = await gate.submit(ToolCall(id="c1", name="look", arguments=one), user=ANN, key="k")
        again = gate.submit(ToolCall(id="c2", name="look", arguments=other), user=ANN, key="k")
        if repeats:
            assert (await again).id == job.id
        else:
            with pytest.raises(Conflict):
                await again


async def test_a_key_whose_job_another_version_wrote_is_refused() -> None:
    """Issue 16 B5: its arguments cannot be compared."""
    async with gate_at("memory://") as gate:
        job = await gate.submit(call("look", n=1), user=ANN, key="k")
        written = await gate.store.jobs.get("acme", job.id)
        assert written is not None
        written.body = b'{"v": 0}'
        with pytest.raises(StoreError, match="another version"):
            await gate.submit(call("look", n=1), user=ANN, key="k")
