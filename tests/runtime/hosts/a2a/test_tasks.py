"""A2A's tasks in the gate's store, and the life of an agent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from a2a import types as p
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion
from starlette.applications import Starlette
from starlette.routing import Mount

from callgate import Gate, User
from callgate.errors import RegistrationError
from callgate.providers.signing import SigningKeys
from callgate.runtime.hosts.a2a import agent
from callgate.runtime.hosts.a2a.card import agent_card
from callgate.runtime.hosts.a2a.task_store import TaskStore
from callgate.runtime.suspensions.pending import LONGEST_WAIT, PendingTask, PendingTasks, Wanted
from callgate.stores import MemoryStore
from tests.runtime.conversation.conversing import asks, call, says
from tests.runtime.hosts.a2a.making import ANN, BEN, EVE, Desk, Documents, running, who
from tests.runtime.hosts.serving import served

KEYS = SigningKeys(["a signing key for tests"])
WORKING, ASKS, DONE, CANCELED = (
    p.TaskState.TASK_STATE_WORKING,
    p.TaskState.TASK_STATE_INPUT_REQUIRED,
    p.TaskState.TASK_STATE_COMPLETED,
    p.TaskState.TASK_STATE_CANCELED,
)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def of(user: User) -> Any:
    return SimpleNamespace(user=SimpleNamespace(principal=user, user_name=f"{user.tenant}/{user.id}"), state={})


def task(id: str = "t1", state: Any = WORKING, *said: str) -> p.Task:
    history = [p.Message(message_id=one, role=p.Role.ROLE_USER, parts=[p.Part(text=one)]) for one in said]
    return p.Task(id=id, context_id="ctx", status=p.TaskStatus(state=state), history=history)


async def saved(tasks: TaskStore, one: p.Task, version: Any = TaskVersion.MISSING, user: User = ANN) -> Any:
    return await tasks.save(one, event=None, prev=None, prev_version=version, context=of(user))


async def test_a_task_is_its_owners_alone() -> None:
    """B6, I8."""
    store = MemoryStore()
    tasks = TaskStore(lambda: store, KEYS, Clock())
    await saved(tasks, task())
    stored = await tasks.get("t1", of(ANN))
    assert stored is not None
    assert stored.task == task()
    for other in (BEN, EVE, User("ann")):
        assert await tasks.get("t1", of(other)) is None
        assert (await tasks.list(p.ListTasksRequest(), of(other))).total_size == 0
        with pytest.raises(ConcurrentTaskModificationError):
            await saved(tasks, task(), TaskVersion(1), other)
    assert (await tasks.list(p.ListTasksRequest(), of(ANN))).total_size == 1


async def test_what_has_ended_is_never_changed() -> None:
    """I16: not even by a cancellation."""
    store = MemoryStore()
    tasks = TaskStore(lambda: store, KEYS, Clock())
    version = await saved(tasks, task("t1", DONE), await saved(tasks, task()))
    for state in (WORKING, CANCELED):
        with pytest.raises(ConcurrentTaskModificationError):
            await saved(tasks, task("t1", state), version)
    with pytest.raises(ConcurrentTaskModificationError):
        await saved(tasks, task())
    with pytest.raises(ConcurrentTaskModificationError):
        await saved(tasks, task("t2"), TaskVersion(1))


async def test_of_two_writers_none_loses_a_message() -> None:
    """I16."""
    store = MemoryStore()
    tasks = TaskStore(lambda: store, KEYS, Clock())
    first = await saved(tasks, task("t1", WORKING, "a"))
    await saved(tasks, task("t1", WORKING, "a", "b"), first)
    await saved(tasks, task("t1", WORKING, "a", "c"), first)
    stored = await tasks.get("t1", of(ANN))
    assert stored is not None
    found = stored.task
    assert [message.message_id for message in found.history] == ["a", "c", "b"]


@pytest.mark.parametrize("moment", ["before the write", "during the write"])
@pytest.mark.parametrize("taken", ["waits", "is taken", "is taken and has ended"])
async def test_a_task_that_was_taken_up_asks_for_nothing_whoever_writes_last(
    taken: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I16: a client would answer again what it has answered, and a remote agent give the call up."""
    store, clock = MemoryStore(), Clock()
    tasks, there = (TaskStore(lambda: store, KEYS, clock) for _ in range(2))
    pending = PendingTasks(lambda: store.suspensions, KEYS, clock)
    version = await saved(tasks, task())
    held = await pending.hold(
        PendingTask("t1", "ctx", ANN.id, ANN.tenant or "", (Wanted("c1", "search", "input", "h"),))
    )
    put = tasks._put

    async def goes_on() -> None:
        if taken != "waits":
            mine = await pending.take(held)
            await saved(there, task("t1", WORKING), version)
            if "ended" in taken:
                await pending.end(mine)

    async def put_late(*given: Any) -> bool:
        monkeypatch.undo()
        await goes_on()
        return await put(*given)

    if moment == "before the write":
        await goes_on()
    else:
        monkeypatch.setattr(tasks, "_put", put_late)
    asks = task("t1", ASKS)
    asks.status.message.CopyFrom(p.Message(message_id="q", role=p.Role.ROLE_AGENT, parts=[p.Part(text="Well?")]))
    await saved(tasks, asks, version)
    stored = await tasks.get("t1", of(ANN))
    assert stored is not None
    waits = taken == "waits"
    assert (stored.task.status.state, stored.task.status.HasField("message")) == (ASKS if waits else WORKING, waits)
    assert asks.status.state == ASKS, "the task of the SDK stays as it is"


async def test_a_changed_or_old_record_is_no_task() -> None:
    """B8, T7."""
    store, clock = MemoryStore(), Clock()
    tasks = TaskStore(lambda: store, KEYS, clock)
    await saved(tasks, task())
    (at,) = store.suspensions._suspensions
    kept = store.suspensions._suspensions[at]
    for change in (
        {"user": "ben"},
        {"body": kept.body.replace(b"ctx", b"ctz")},
        {"number": 9},
        {"kind": "conversation"},
    ):
        store.suspensions._suspensions[at] = replace(kept, **change)
        for user in (ANN, BEN):
            assert await tasks.get("t1", of(user)) is None
            assert (await tasks.list(p.ListTasksRequest(), of(user))).total_size == 0
    store.suspensions._suspensions[at] = kept
    assert await tasks.get("t1", of(ANN)) is not None
    clock.now += LONGEST_WAIT
    assert await tasks.get("t1", of(ANN)) is None


async def test_tasks_are_listed_in_pages_and_by_state() -> None:
    """Contract C8."""
    store = MemoryStore()
    tasks = TaskStore(lambda: store, KEYS, Clock())
    for number in range(5):
        await saved(tasks, task(f"t{number}"))
    await saved(tasks, task("t0", DONE), TaskVersion(1))
    first = await tasks.list(p.ListTasksRequest(page_size=3), of(ANN))
    rest = await tasks.list(p.ListTasksRequest(page_size=3, page_token=first.next_page_token), of(ANN))
    assert sorted(one.id for one in (*first.tasks, *rest.tasks)) == [f"t{number}" for number in range(5)]
    done = await tasks.list(p.ListTasksRequest(status=DONE), of(ANN))
    assert [one.id for one in done.tasks] == ["t0"]


async def test_an_agent_can_be_started_again() -> None:
    gate = Desk().gate()
    app = agent(gate, authenticate=who, name="desk", description="A desk.", url="http://desk.test")
    for _ in range(2):
        async with served(app) as one, one.client() as http:
            documents = Documents(one, http, {})
            data = {"type": "tool_call", "name": "add", "arguments": {"a": 1}}
            parts = [{"kind": "data", "data": data}]
            events = [event async for event in documents.stream({"message": {"parts": parts}})]
            assert events[-1]["status"]["state"] == "completed"
        assert not gate.is_open


async def test_mounted_it_leaves_the_gate_to_the_other_application() -> None:
    gate = Desk().gate()
    app = Starlette(
        routes=[
            Mount(
                "/desk", agent(gate, authenticate=who, name="desk", description="A desk.", url="http://desk.test/desk")
            )
        ]
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://desk.test") as http:
        card = (await http.get("/desk/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"] == "http://desk.test/desk/rpc"
        headers = {"authorization": "Bearer ann", "A2A-Version": "1.0"}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        assert (await http.post("/desk/rpc", json=asked, headers=headers)).status_code == 503
        async with gate:
            assert (await http.post("/desk/rpc", json=asked, headers=headers)).json()["result"]["totalSize"] == 0


def test_an_agent_that_knows_nobody_is_refused() -> None:
    """B6: fail closed."""
    with pytest.raises(RegistrationError, match="authenticate"):
        agent(Gate([], allow_unguarded=True), authenticate=None, name="desk", description="d", url="http://desk.test")
    assert agent(Gate([], allow_unguarded=True), authenticate=who, name="desk", description="d", url="http://desk.test")


def test_the_skill_for_texts_has_an_id_of_its_own() -> None:
    """C6."""
    from callgate import ToolDefinition

    tools = [ToolDefinition("converse", "Talk.", {"type": "object"})]
    card = agent_card(tools, name="n", description="d", url="http://x", version="1", converses=True)
    assert [skill.id for skill in card.skills] == ["converse", "converse_"]


async def test_a_model_that_fails_fails_the_task_and_is_not_quoted() -> None:
    """I9."""
    broken = ConnectionError("CANARY: sk-secret")
    script: list[Any] = [asks(call("c1", "add", a=1)), broken]
    async with running(Desk().gate(), *script, says("never")) as one:
        seen = await (await one.as_user("ann")).start("Add.")
        assert (seen.state, seen.text) == ("failed", "The task failed.")
        assert "CANARY" not in str(seen)
