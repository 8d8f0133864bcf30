"""Two servers of one store: either of them resumes a task, once; unfinished work of one is not done twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from a2a import types as p
from a2a.utils.errors import A2AError, TaskNotCancelableError

from callgate.providers.clock import FakeClock
from callgate.runtime.hosts.a2a import handler
from tests.providers.stores.backends import place
from tests.runtime.conversation.conversing import FakeModel, asks, call, says
from tests.runtime.hosts.a2a.making import MAX, SEARCH, Desk, Documents, Official, Running, approve, running

BOTH = asks(call("c1", "search", query="x"), call("c2", "refund", order_id="A-1", cents=1))


@pytest.fixture(params=["sqlite-file", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """The store of both servers."""
    with place(request.param, tmp_path) as (address, _):
        yield address


@contextlib.asynccontextmanager
async def two(
    desk: Desk, store: str, first: Any, second: Any, **options: Any
) -> AsyncGenerator[tuple[Running, Running], None]:
    """Two servers, each with a model that says its part."""
    async with (
        running(desk.gate(store=store, **options), model=FakeModel(*first)) as one,
        running(desk.gate(store=store, **options), model=FakeModel(*second)) as other,
    ):
        yield one, other


async def clients(one: Running, other: Running) -> tuple[Official, Official]:
    return await one.as_user("ann"), await other.as_user("ann")


async def test_a_task_that_began_here_goes_on_there(store: str) -> None:
    """I16."""
    desk = Desk()
    async with two(desk, store, [BOTH], [says("Done.")]) as (one, other):
        here, there = await clients(one, other)
        task = (await here.start("Do both.", SEARCH)).task
        assert [one["id"] for one in (await there.look(task)).calls] == ["c1"]
        await there.answer(task, "c1", 1)
        assert (await here.look(task)).calls == ()
        await approve(one.gate)
        seen = await there.look(task)
        assert (seen.state, seen.text, desk.refunds) == ("completed", "Done.", [("A-1", 1)])
        assert (await here.look(task)).text == "Done."
        with pytest.raises(TaskNotCancelableError):
            await here.cancel(task)


async def test_asked_by_both_at_once_it_goes_on_once(store: str) -> None:
    """I16: duplicate delivery."""
    desk = Desk()
    models = [asks(call("c1", "refund", order_id="A-1", cents=1)), says("Done.")], [says("Done.")]
    async with two(desk, store, *models) as (one, other):
        here, there = await clients(one, other)
        task = (await here.start("Pay.")).task
        await approve(other.gate)
        await asyncio.gather(*(client.look(task) for client in (here, there) * 4), return_exceptions=True)
        for client in (here, there):
            seen = await client.look(task)
            assert (seen.state, seen.text) == ("completed", "Done.")
        assert desk.refunds == [("A-1", 1)]


async def test_who_follows_a_task_sees_what_others_do_to_it(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I16: decided in one process, resumed in another, ended in a third, without a request of the client."""
    monkeypatch.setattr(handler, "POLL", 0.01)
    desk = Desk()
    models = [asks(call("c1", "refund", order_id="A-1", cents=1)), says("Done.")], [says("Done.")]
    async with two(desk, store, *models) as (one, other):
        here, there = await clients(one, other)
        task = (await here.start("Pay.")).task
        seen = []
        async for event in there.client.subscribe(p.SubscribeToTaskRequest(id=task)):
            seen.append(p.TaskState.Name(event.task.status.state))
            if len(seen) == 1:
                await approve(one.gate)
        assert (seen[0], seen[-1]) == ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED")
        assert ((await here.look(task)).text, desk.refunds) == ("Done.", [("A-1", 1)])


async def test_of_two_results_that_come_at_once_none_is_lost(store: str) -> None:
    """Contract 40, I16."""
    script = [asks(*(call(f"c{number}", "search", query="x") for number in range(6)))]
    async with two(Desk(), store, [*script, says("All.")], [says("All.")]) as (one, other):
        here, there = await clients(one, other)
        task = (await here.start("Find six.", SEARCH)).task
        await asyncio.gather(*((here, there)[number % 2].answer(task, f"c{number}", number) for number in range(6)))
        assert (await here.look(task)).text == "All."


async def test_a_task_that_is_cancelled_there_does_not_go_on_here(store: str) -> None:
    """B7, I16."""
    desk = Desk()
    async with two(desk, store, [BOTH, says("never")], [says("never")]) as (one, other):
        here, there = await clients(one, other)
        task = (await here.start("Do both.", SEARCH)).task
        assert (await there.cancel(task)).state == "canceled"
        with pytest.raises(A2AError):
            await here.answer(task, "c1", 1)
        assert await one.gate.waits.pending(MAX) == []
        assert (await here.look(task)).state == "canceled"


async def test_what_a_server_was_at_when_it_ended_has_failed_for_the_other(store: str) -> None:
    """I3, I16: nothing is done a second time."""
    desk, clock = Desk(), FakeClock()
    asked = asyncio.Event()

    class Hanging(FakeModel):
        async def reply(self, messages: Any, tools: Any) -> Any:
            if len(self.seen) == 1:
                asked.set()
                await asyncio.Event().wait()
            return await super().reply(messages, tools)

    async with running(desk.gate(store=store, clock=clock), model=Hanging(BOTH), grace=0.1) as agent:
        ann = await agent.as_user("ann", Documents)
        task = (await ann.start("Do both.", SEARCH)).task
        await approve(agent.gate)
        answering = asyncio.create_task(ann.answer(task, "c1", 1))
        await asked.wait()
    await asyncio.gather(answering, return_exceptions=True)
    async with running(desk.gate(store=store, clock=clock), says("never")) as agent:
        ann = await agent.as_user("ann", Documents)
        for deed in (ann.look(task), ann.answer(task, "c1", 1)):  # for all one knows it is still at it
            with pytest.raises(Exception, match="does not wait for this answer"):
                await deed
        clock.advance(3600)
        seen = await ann.look(task)
        assert (seen.state, seen.text) == ("failed", "The task was interrupted, or waited too long.")
        assert desk.refunds == [("A-1", 1)]
