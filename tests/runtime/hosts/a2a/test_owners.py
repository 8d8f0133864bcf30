"""Every verb, asked by everybody but the owner: a task that is not one's own is a task that is not there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from a2a import types as p
from a2a.utils.errors import A2AError

from callgate.providers.stores.effects import SuspensionRecord
from callgate.runtime.hosts.a2a.task_store import TaskStore
from callgate.runtime.suspensions.pending import PendingTasks
from tests.runtime.conversation.conversing import asks, call, says
from tests.runtime.hosts.a2a.making import (
    SEARCH,
    STRANGERS,
    Desk,
    Documents,
    Official,
    Refused,
    Running,
    approve,
    running,
)

Verb = Callable[[Official, Documents, str], Awaitable[Any]]


async def subscribed(client: Any, task: str) -> None:
    async for _ in client.subscribe(p.SubscribeToTaskRequest(id=task)):
        return


async def streamed(documents: Documents, task: str) -> None:
    message = {"role": "user", "parts": [{"kind": "text", "text": "Hm?"}], "taskId": task}
    async for _ in documents.stream({"message": message}):
        return


VERBS: dict[str, Verb] = {
    "get": lambda a2a, _, task: a2a.client.get_task(p.GetTaskRequest(id=task)),
    "cancel": lambda a2a, _, task: a2a.cancel(task),
    "subscribe": lambda a2a, _, task: subscribed(a2a.client, task),
    "text": lambda a2a, _, task: a2a.send(p.Part(text="Hm?"), task=task),
    "answer": lambda a2a, _, task: a2a.answer(task, "c1", 1),
    "continue": lambda a2a, _, task: a2a.data({"type": "continue"}, task=task),
    "approve": lambda a2a, _, task: a2a.decide(task, "c2", "approve"),
    "tasks/resume": lambda _, documents, task: documents.answer(task, "c1", 1),
    "tasks/resume, nothing": lambda _, documents, task: documents.look(task),
    "message/stream": lambda _, documents, task: streamed(documents, task),
}


async def told(verb: Verb, a2a: Official, documents: Documents, task: str) -> str:
    """The error of another user; "" without an error."""
    try:
        await verb(a2a, documents, task)
    except (A2AError, Refused) as error:
        return f"{type(error).__name__} {getattr(error, 'code', '')} {error}"
    return ""


async def waiting(agent: Running) -> str:
    """A task of Ann's that waits for a result of hers, and for an approval."""
    ann = await agent.as_user("ann")
    return str((await ann.start("Do both.", SEARCH)).task)


async def let_in(agent: Running, task: str, who: str) -> dict[str, str]:
    """The response of each verb to another user."""
    a2a, documents = await agent.as_user(who), await agent.as_user(who, Documents)
    return {name: await told(verb, a2a, documents, task) for name, verb in VERBS.items()}


SCRIPT = (asks(call("c1", "search", query="x"), call("c2", "refund", order_id="A-1", cents=1)), says("Done."))


@pytest.mark.parametrize("who", [one for one in STRANGERS if one != "max"])
async def test_an_unknown_task_and_a_foreign_one_are_told_alike_by_every_verb(who: str) -> None:
    """B6, I8."""
    desk = Desk()
    async with running(desk.gate(), *SCRIPT) as agent:
        task = await waiting(agent)
        foreign, unknown = await let_in(agent, task, who), await let_in(agent, "no-such-task", who)
        assert foreign == unknown
        assert "" not in foreign.values()
        stranger = await agent.as_user(who)
        assert (await stranger.client.list_tasks(p.ListTasksRequest())).total_size == 0
        ann = await agent.as_user("ann")
        assert (await ann.client.list_tasks(p.ListTasksRequest())).total_size == 1
        assert (await ann.look(task)).state == "input-required"  # nothing has changed
        await approve(agent.gate)
        assert (await ann.answer(task, "c1", 1)).state == "completed"
        assert desk.refunds == [("A-1", 1)]


async def test_without_its_check_of_owners_a_stranger_would_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """B6: the control of the one above."""
    ours, find = TaskStore._is_ours, PendingTasks.find

    def anybodys(self: TaskStore, wait: SuspensionRecord, user: Any) -> bool:
        return ours(self, wait, type(user)(wait.user, user.tenant))

    async def found(self: PendingTasks, user: Any, task: str) -> Any:
        return await find(self, type(user)("ann", user.tenant), task)

    monkeypatch.setattr(TaskStore, "_is_ours", anybodys)
    monkeypatch.setattr(PendingTasks, "find", found)
    async with running(Desk().gate(), *SCRIPT) as agent:
        foreign = await let_in(agent, await waiting(agent), "ben")
        assert [name for name, said in foreign.items() if not said] != []
        assert foreign["get"] == ""


async def test_an_approver_may_decide_and_see_nothing_else() -> None:
    """B7: on the same task, for those whom the gate lets decide."""
    desk = Desk()
    async with running(desk.gate(), *SCRIPT) as agent:
        task = await waiting(agent)
        a2a, documents = await agent.as_user("max"), await agent.as_user("max", Documents)
        for name, verb in VERBS.items():
            if name != "approve":
                assert await told(verb, a2a, documents, task) != "", name
        seen = await a2a.decide(task, "c2", "approve")
        assert seen.data == ({"type": "decision", "id": "c2", "outcome": "success"},)
        assert desk.refunds == [("A-1", 1)]
        with pytest.raises(A2AError):
            await a2a.decide(task, "c2", "approve")
        ann = await agent.as_user("ann")
        assert (await ann.answer(task, "c1", 1)).state == "completed"
        assert desk.refunds == [("A-1", 1)]
