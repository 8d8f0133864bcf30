"""Cancelling: what runs ends, what waits can not be decided any more, nothing is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a import types as p
from a2a.utils.errors import TaskNotCancelableError, UnsupportedOperationError

from callgate import Effects, Gate, ToolCall, tool
from callgate.errors import NotPending
from callgate.providers.stores.effects import SuspensionState
from callgate.runtime.hosts.a2a.messages import ClientMessage
from callgate.runtime.hosts.a2a.task_runner import TaskRunner, session_of
from callgate.runtime.suspensions.pending import Answer, PendingTasks
from tests.runtime.conversation.conversing import FakeModel, asks, call, says
from tests.runtime.hosts.a2a.making import ANN, MAX, SEARCH, Desk, running
from tests.runtime.hosts.serving import until


class Slow:
    """A tool that waits to be cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended: list[str] = []

    def gate(self) -> Gate:
        slow = self

        @tool(effect="read")
        async def wait() -> str:
            """Wait."""
            slow.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                slow.ended.append("wait")
            return "never"

        return Gate([wait], allow_unguarded=True, effects=Effects(durable=False))  # clients bring tools with effects


@pytest.mark.parametrize("how", ["call", "conversation"])
async def test_what_runs_has_ended_when_the_task_says_so(how: str) -> None:
    """Contract C1d, B6."""
    slow = Slow()
    async with running(slow.gate(), asks(ToolCall(id="c1", name="wait", arguments={})), says("never")) as agent:
        ann, other = await agent.as_user("ann"), await agent.as_user("ann")
        asking = asyncio.create_task(ann.call("wait") if how == "call" else ann.start("Wait."))
        await slow.started.wait()
        (listed,) = (await other.client.list_tasks(p.ListTasksRequest())).tasks
        seen = await other.cancel(listed.id)
        assert (seen.state, slow.ended) == ("canceled", ["wait"])
        assert (await asking).state == "canceled"
        with pytest.raises(TaskNotCancelableError):
            await other.cancel(listed.id)
        assert len(agent.gate.providers.sessions) == 0


async def test_a_client_that_leaves_does_not_end_its_task() -> None:
    """Contract C8: a task outlives its connection."""
    slow = Slow()
    async with running(slow.gate()) as agent:
        ann, other = await agent.as_user("ann"), await agent.as_user("ann")
        asking = asyncio.create_task(ann.call("wait"))
        await slow.started.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        (listed,) = (await other.client.list_tasks(p.ListTasksRequest())).tasks
        assert (
            await other.client.get_task(p.GetTaskRequest(id=listed.id))
        ).status.state == p.TaskState.TASK_STATE_WORKING
        assert (await other.cancel(listed.id)).state == "canceled"


async def test_what_a_cancelled_task_waited_for_can_not_be_decided_any_more() -> None:
    """B7: no approval of a task that is over takes effect."""
    desk = Desk()
    gate = desk.gate()
    script = [asks(call("c1", "search", query="x"), call("c2", "refund", order_id="A-1", cents=1)), says("never")]
    async with running(gate, *script) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.start("Do both.", SEARCH)
        (waiting,) = await gate.waits.pending(MAX)
        assert (await ann.cancel(seen.task)).state == "canceled"
        assert await gate.waits.pending(MAX) == []
        with pytest.raises(NotPending):
            await gate.resume(waiting.handle, "approve", approver=MAX)
        for late in (ann.answer(seen.task, "c1", 1), ann.data({"type": "continue"}, task=seen.task)):
            with pytest.raises(UnsupportedOperationError):
                await late
        assert (desk.refunds, (await ann.look(seen.task)).state) == ([], "canceled")
        assert await gate.store.suspensions.list("acme") == []


async def test_cancelled_at_any_step_nothing_of_a_task_is_left_waiting() -> None:
    """Contract C1d, B7: every await of a conversation that comes to wait, and goes on."""
    ended = set()
    for steps in range(400):
        desk = Desk()
        async with desk.gate() as gate:
            script = [
                asks(call("c1", "search", query="x"), call("c2", "refund", order_id="A-1", cents=1)),
                says("Done."),
            ]
            tasks = tasks_of(gate)
            work = TaskRunner(gate, FakeModel(*script), tasks, 60.0)
            asked = ClientMessage("Do both.", tools=(SEARCH,))
            doing = asyncio.ensure_future(whole(work, tasks, asked))
            for _ in range(steps):
                await asyncio.sleep(0)
            over = doing.done()
            doing.cancel()
            await asyncio.wait([doing])
            await work.abandon("t1", ANN)
            left = [one.kind for one in await gate.store.suspensions.list("acme", state=SuspensionState.WAITING)]
            assert left == [], f"after {steps} steps"
            assert len(gate.providers.sessions) == 0, f"after {steps} steps"
            ended.add(over)
        if over:
            break
    assert ended == {False, True}


def tasks_of(gate: Gate) -> PendingTasks:
    return PendingTasks(lambda: gate.store.suspensions, gate.waits.keys, gate.waits.now)


async def whole(work: TaskRunner, tasks: PendingTasks, asked: ClientMessage) -> None:
    await work.start(asked, ANN, "t1", "ctx")
    pending = await tasks.find(ANN, "t1")
    assert pending is not None
    await tasks.answer(pending, {"c1": Answer(1)})
    (waiting,) = await work.gate.waits.pending(MAX)
    await work.gate.resume(waiting.handle, "approve", approver=MAX)
    pending = await tasks.find(ANN, "t1")
    assert pending is not None
    await work.resume(await work.refresh(pending, ANN), ANN)


async def test_without_the_withdrawal_something_would_be_left() -> None:
    """B7: the control of the one above."""
    async with Desk().gate() as gate:
        tasks = tasks_of(gate)
        work = TaskRunner(gate, FakeModel(asks(call("c2", "refund", order_id="A-1", cents=1))), tasks, 60.0)
        await work.start(ClientMessage("Pay."), ANN, "t1", "ctx")
        pending = await tasks.find(ANN, "t1")
        assert pending is not None
        await tasks.end(pending)
        assert [one.kind for one in await gate.store.suspensions.list("acme")] == ["approval"]
        assert session_of("t1") == pending_session(await gate.store.suspensions.list("acme"), gate)


def pending_session(waits: Any, gate: Gate) -> str | None:
    bound = gate.waits.opened("acme", waits[0])
    assert bound is not None
    return bound.session_id


async def test_a_server_that_ends_leaves_no_task_of_the_loop_behind() -> None:
    """I1."""
    slow = Slow()
    async with running(slow.gate(), asks(call("c1", "search", query="x")), says("never")) as agent:
        ann = await agent.as_user("ann")
        await ann.start("Find it.", SEARCH)
        asking = asyncio.create_task(ann.call("wait"))
        await slow.started.wait()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: [name for name in left() if name != "_shutdown_watcher"] == [])  # sse-starlette's, one a loop
    assert slow.ended == ["wait"]


def left() -> list[str]:
    """The names of the other asyncio tasks."""
    return [
        str(getattr(one.get_coro(), "__name__", "")) for one in asyncio.all_tasks() if one is not asyncio.current_task()
    ]
