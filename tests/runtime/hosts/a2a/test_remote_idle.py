"""News of a remote agent resets the idle limit of the call that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("a2a", reason="NO A2A: the extra 'a2a' is not installed")

from a2a.types import a2a_pb2 as p

from callgate import ToolContext, User
from callgate.runtime.hosts.a2a.remote_call import RemoteCall
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.pipeline.test_deadlines import gate_of, read

WORKING, DONE = p.TaskState.TASK_STATE_WORKING, p.TaskState.TASK_STATE_COMPLETED


class Agent:
    """The client of an agent: events every *pause* seconds, then tasks, whose message changes where *news* are."""

    def __init__(self, pause: float, *, events: int, polls: int, news: bool) -> None:
        self.pause, self.events, self.polls, self.news = pause, events, polls, news
        self.cancelled: list[str] = []

    async def send_message(self, *_: Any, **__: Any) -> AsyncGenerator[p.StreamResponse]:
        yield p.StreamResponse(task=p.Task(id="t", status=p.TaskStatus(state=WORKING)))
        for _number in range(self.events):
            await asyncio.sleep(self.pause)
            yield p.StreamResponse(status_update=p.TaskStatusUpdateEvent(task_id="t"))

    async def get_task(self, *_: Any, **__: Any) -> p.Task:
        self.polls -= 1
        state = DONE if self.polls < 0 else WORKING
        said = p.Message(parts=[p.Part(text=str(self.polls if self.news else 0))])
        return p.Task(id="t", status=p.TaskStatus(state=state, message=said))

    async def cancel_task(self, asked: Any, **_: Any) -> None:
        self.cancelled.append(asked.id)


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        (Agent(4.0, events=5, polls=0, news=True), None),
        (Agent(6.0, events=5, polls=0, news=True), "idle_timeout"),
        (Agent(1.0, events=0, polls=9, news=True), None),
        (Agent(1.0, events=0, polls=9, news=False), "idle_timeout"),
    ],
    ids=["events in time", "events too late", "a task that changes", "a task that does not"],
)
@on_virtual_time
async def test_events_and_changes_of_a_remote_task_count_as_progress(
    loop: StepLoop, agent: Agent, code: str | None
) -> None:
    """The call ends where nothing comes, and cancels the remote task."""

    async def asks(ctx: ToolContext) -> str:
        """Ask the agent."""
        return (await RemoteCall(agent, ctx, "", None).send([])).state  # type: ignore[arg-type]

    async with gate_of([read(asks)]) as gate:
        result = await gate.call("asks", {}, user=User("u"), idle=5.0)
    assert (result.error and result.error.code) == code
    assert agent.cancelled == ([] if code is None else ["t"])
