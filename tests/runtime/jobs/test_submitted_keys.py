"""The idempotency key of a job: one key is one job with one set of arguments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, JobHandle, Jobs, Outcome, ToolCall, ToolContext, User, tool
from callgate.errors import Conflict, Invalid, StoreError
from callgate.jobs import EmbeddedJobs
from callgate.stores import JobState
from tests.providers.stores.backends import place

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


# ---------------------------------------------------------------------- keys that are free again


class Refusal(Hook):
    """Refuses calls while ``refuses`` is set."""

    def __init__(self) -> None:
        self.refuses = False

    def will_authorize(self, ctx: InvokeContext) -> None:
        if self.refuses:
            ctx.abort("no")


@tool(effect="irreversible", key=("to",))
async def mail(to: str) -> str:
    """Mail somebody once."""
    SENT.append(to)
    return f"sent to {to}"


@tool(effect="irreversible")
async def fails(to: str) -> str:
    """Fail after an effect that may have taken place."""
    SENT.append(to)
    raise RuntimeError(to)


@tool(effect="read")
async def busy(to: str, ctx: ToolContext) -> str:
    """Be busy with all but one."""
    if to != "you":
        ctx.retry_after(0, "busy")
    return f"sent to {to}"


@asynccontextmanager
async def gate_with(kind: str, tmp_path: Path, refusal: Refusal) -> AsyncGenerator[Gate]:
    jobs = Jobs(engine=EmbeddedJobs(0), backoff=0.0, max_attempts=2)
    options: dict[str, Any] = {"effects": Effects(durable=False), "signing_keys": ["a key of the tests"], "jobs": jobs}
    with place(kind, tmp_path) as (address, _):
        async with Gate([send, mail, fails, busy], [refusal], allow_unguarded=True, store=address, **options) as gate:
            yield gate


async def run_all(gate: Gate) -> None:
    while await gate.jobs.run_invocation() is not None:
        pass


async def first_job(gate: Gate, end: str, name: str, refusal: Refusal) -> JobHandle:
    """A job of the key ``k`` that has ended that way."""
    to: Any = {"invalid": 7, "success": "you"}.get(end, "them")
    refusal.refuses = end == "denied"
    job = await gate.submit(call(name, to=to), user=ANN, key="k")
    if end == "cancelled":
        assert await job.cancel()
    elif end.startswith("dead"):
        for _ in range(2):
            taken = await gate.store.jobs.take("dead worker", gate.jobs.now(), 0.0)
            assert taken is not None
        if end == "dead after its effect":
            assert (await gate.call(call(name, to=to), user=ANN, idempotency_key="k")).outcome is Outcome.SUCCESS
    await run_all(gate)
    refusal.refuses = False
    state = (await job.status()).state
    assert state is {"cancelled": JobState.CANCELLED, "dead": JobState.DEAD}.get(end.partition(" ")[0], JobState.DONE)
    return job


FREE = ["cancelled", "denied", "invalid", "dead"]
KEPT = ["success", "error", "dead after its effect"]


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
@pytest.mark.parametrize("end", FREE)
@pytest.mark.parametrize("way", ["submit", "submit_many"])
async def test_the_key_of_a_job_that_ended_without_an_effect_is_free_again(
    kind: str, end: str, way: str, tmp_path: Path
) -> None:
    """Also with other arguments. It was taken for seven days."""
    async with gate_with(kind, tmp_path, refusal := Refusal()) as gate:
        job = await first_job(gate, end, "send", refusal)
        again = call("send", to="you")
        if way == "submit":
            other = await gate.submit(again, user=ANN, key="k")
        else:
            fresh, other = await gate.submit_many([call("send", to="fresh"), again], user=ANN, keys=["k2", "k"])
            assert fresh.id != other.id
        assert other.id == job.id, "the id of a key stays"
        assert (await other.status()).state is JobState.QUEUED
        await run_all(gate)
        assert (await other).output == "sent to you"
        assert (await other.status()).attempts == 1
        assert (await gate.submit(again, user=ANN, key="k")).id == job.id
        await run_all(gate)
        assert SENT.count("you") == 1
        assert "them" not in SENT
        with pytest.raises(Conflict):
            await gate.submit(call("send", to="another"), user=ANN, key="k")


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
@pytest.mark.parametrize("end", KEPT)
async def test_the_key_of_a_job_with_an_effect_or_a_result_is_kept(kind: str, end: str, tmp_path: Path) -> None:
    async with gate_with(kind, tmp_path, refusal := Refusal()) as gate:
        name = "fails" if end == "error" else "send"
        job = await first_job(gate, end, name, refusal)
        before, state = list(SENT), (await job.status()).state
        to = "you" if end == "success" else "them"
        assert (await gate.submit(call(name, to=to), user=ANN, key="k")).id == job.id
        with pytest.raises(Conflict):
            await gate.submit(call(name, to="another"), user=ANN, key="k")
        await run_all(gate)
        assert before == SENT
        assert (await job.status()).state is state


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
async def test_the_key_of_a_read_that_was_given_up_is_free_again(kind: str, tmp_path: Path) -> None:
    async with gate_with(kind, tmp_path, Refusal()) as gate:
        job = await gate.submit(call("busy", to="them"), user=ANN, key="k")
        await run_all(gate)
        assert (await job.status()).state is JobState.DEAD
        other = await gate.submit(call("busy", to="you"), user=ANN, key="k")
        await run_all(gate)
        assert ((await other).output, (await other.status()).reason) == ("sent to you", None)


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
@pytest.mark.parametrize("end", FREE)
async def test_the_job_of_a_tool_with_a_declared_key_gives_its_place_to_a_repeat_only(
    kind: str, end: str, tmp_path: Path
) -> None:
    """Its effect may be under its declared key, by which the ledger recognises a repeat, and not other arguments."""
    async with gate_with(kind, tmp_path, refusal := Refusal()) as gate:
        await first_job(gate, end, "mail", refusal)
        if end == "invalid":  # it never had arguments
            other = await gate.submit(call("mail", to="you"), user=ANN, key="k")
            await run_all(gate)
            assert ((await other).output, SENT) == ("sent to you", ["you"])
            return
        with pytest.raises(Conflict):
            await gate.submit(call("mail", to="another"), user=ANN, key="k")
        again = await gate.submit(call("mail", to="them"), user=ANN, key="k")
        await run_all(gate)
        assert ((await again).output, SENT) == ("sent to them", ["them"])


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
async def test_of_many_callers_that_take_a_free_key_one_does(kind: str, tmp_path: Path) -> None:
    """I4: the others get its job, or a conflict if their arguments differ."""
    async with gate_with(kind, tmp_path, refusal := Refusal()) as gate:
        job = await first_job(gate, "cancelled", "send", refusal)
        submits = [gate.submit(call("send", to=f"you {n % 3}"), user=ANN, key="k") for n in range(12)]
        handles = await asyncio.gather(*submits, return_exceptions=True)
        assert {one.id for one in handles if isinstance(one, JobHandle)} == {job.id}
        assert sum(isinstance(one, Conflict) for one in handles) == 8
        await run_all(gate)
        assert len(SENT) == 1


async def test_a_worker_of_the_earlier_job_changes_nothing_of_the_later_one() -> None:
    """I4: the token of the key's jobs grows."""
    async with gate_at("sqlite://") as gate:
        job = await gate.submit(call("send", to="them"), user=ANN, key="k")
        taken = await gate.store.jobs.take("slow worker", gate.jobs.now(), gate.jobs.now() + 600.0)
        assert taken is not None
        token = taken[1].token
        assert await gate.store.jobs.end("acme", job.id, token, JobState.DEAD, at=0.0, result=None, reason="x")
        await gate.submit(call("send", to="you"), user=ANN, key="k")
        assert await gate.store.jobs.take("other", gate.jobs.now(), gate.jobs.now() + 600.0) is not None
        late = await gate.store.jobs.end("acme", job.id, token, JobState.DONE, at=0.0, result=None, reason=None)
        assert late is False


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", ["send", "look"])
async def test_a_key_is_checked_when_the_job_is_submitted(name: str, many: bool) -> None:
    """A text of 1 to 255 characters, as in a call. The job of an empty key was stored, and then ended as ``invalid``."""
    async with gate_at("memory://") as gate:
        for key in ("", "k" * 256, "a\0", 5):
            wrong: Any = key
            with pytest.raises(Invalid):
                if many:
                    await gate.submit_many([call(name)], user=ANN, keys=[wrong])
                else:
                    await gate.submit(call(name), user=ANN, key=wrong)
            result = await gate.call(call("look"), user=ANN, idempotency_key=wrong)
            assert result.outcome is Outcome.INVALID, "also of a tool that only reads"
        assert not await gate.store.jobs.list(None)


async def test_an_empty_id_of_a_request_is_refused() -> None:
    """An empty text, such as of a header that is missing, was one request: another call of the user was its repeat."""
    async with gate_at("memory://") as gate:
        with pytest.raises(Invalid, match="the request_id is empty; leave it out"):
            await gate.submit(call("look"), user=ANN, request_id="")
        result = await gate.call(call("send", to="you"), user=ANN, request_id="")
        assert (result.outcome, SENT) == (Outcome.INVALID, [])
