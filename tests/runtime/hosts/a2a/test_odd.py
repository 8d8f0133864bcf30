"""Odd, hostile and late input: refused, each in a way that a client understands, and nothing has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a import helpers as h
from a2a import types as p
from a2a.utils.errors import A2AError, InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError

from callgate.errors import StoreError
from callgate.runtime.hosts.a2a import access, task_store
from tests.runtime.conversation.conversing import asks, call, says
from tests.runtime.hosts.a2a.making import SEARCH, Desk, Documents, Official, Running, running
from tests.runtime.hosts.a2a.test_messages import BAD

RPC = {"jsonrpc": "2.0", "id": 1}


async def listed(ann: Official) -> int:
    return int((await ann.client.list_tasks(p.ListTasksRequest())).total_size)


UNREADABLE: list[list[p.Part]] = [
    [p.Part(raw=b"CANARY")],
    [p.Part(url="http://127.0.0.1/CANARY")],
    [p.Part(text="Hello."), p.Part(raw=b"CANARY")],
    [p.Part()],
    [p.Part(text="")],
    *([h.new_data_part(one) for one in data] for data in BAD if data),
]


async def test_a_message_that_cannot_be_read_starts_nothing() -> None:
    """Contract 37, B6."""
    async with running(Desk().gate(), says("never")) as agent:
        ann = await agent.as_user("ann")
        for parts in UNREADABLE:
            with pytest.raises(A2AError) as refused:
                await ann.send(*parts)
            assert "CANARY" not in str(refused.value), parts
        assert await listed(ann) == 0


async def test_what_is_about_a_task_needs_one() -> None:
    """Contract 40."""
    async with running(Desk().gate(), says("never")) as agent:
        ann = await agent.as_user("ann")
        for data in ({"type": "tool_result", "id": "c1", "result": 1}, {"type": "continue"}):
            with pytest.raises(TaskNotFoundError):
                await ann.data(data)
        with pytest.raises(InvalidParamsError):
            await ann.send(p.Part(text="Hello."), context="x" * 129)
        assert await listed(ann) == 0


WRONG: dict[str, Any] = {
    "an unknown id": {"type": "tool_result", "id": "CANARY", "result": 1},
    "an answer to a client's tool": {"type": "decision", "id": "c1", "decision": "approve"},
    "a result for an approval": {"type": "tool_result", "id": "c2", "result": 1},
    "another call": {"type": "tool_call", "name": "add", "arguments": {"a": 1}},
    "tools": {"type": "tools", "tools": [SEARCH]},
}


async def both_wait(agent: Running) -> tuple[Official, str]:
    ann = await agent.as_user("ann")
    return ann, (await ann.start("Do both.", SEARCH)).task


SCRIPT = (asks(call("c1", "search", query="x"), call("c2", "refund", order_id="A-1", cents=1)), says("Done."))


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
async def test_what_a_task_does_not_wait_for_changes_nothing(data: Any) -> None:
    """Contract 40, C8."""
    async with running(Desk().gate(), *SCRIPT) as agent:
        ann, task = await both_wait(agent)
        before = await ann.client.get_task(p.GetTaskRequest(id=task))
        with pytest.raises(A2AError) as refused:
            await ann.data(data, task=task)
        assert "CANARY" not in str(refused.value)
        assert await ann.client.get_task(p.GetTaskRequest(id=task)) == before


async def test_of_results_one_that_is_wrong_makes_all_of_them_wrong() -> None:
    """Contract 40."""
    async with running(Desk().gate(), *SCRIPT) as agent:
        ann, task = await both_wait(agent)
        good = {"type": "tool_result", "id": "c1", "result": 1}
        with pytest.raises(InvalidParamsError):
            await ann.data(good, {"type": "tool_result", "id": "c9", "result": 1}, task=task)
        assert [one["id"] for one in (await ann.look(task)).calls] == ["c1"]
        await ann.data(good, task=task)
        with pytest.raises(InvalidParamsError):  # once
            await ann.data(good, task=task)


async def test_a_result_after_the_end_is_late() -> None:
    """Contract 40."""
    async with running(Desk().gate(), asks(call("c1", "search", query="x")), says("Done.")) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.start("Find it.", SEARCH)).task
        assert (await ann.answer(task, "c1", 1)).state == "completed"
        with pytest.raises(A2AError):
            await ann.answer(task, "c1", 2)
        assert (await ann.look(task)).text == "Done."


async def test_a_context_of_another_task_is_refused() -> None:
    """B6."""
    async with running(Desk().gate(), *SCRIPT) as agent:
        ann, task = await both_wait(agent)
        with pytest.raises(A2AError):
            await ann.send(h.new_data_part({"type": "continue"}), task=task, context="another")


@pytest.mark.parametrize("path", ["/rpc", "/a2a"])
async def test_bodies_are_bounded_and_json(path: str) -> None:
    """B1, B6."""
    async with running(Desk().gate()) as agent:
        http = await agent.http()
        for content, media, status in (
            (b" " * (access.MAX_BODY + 1), "application/json", 413),
            (b"{}", "text/plain", 415),
            (b"{}", "application/x-www-form-urlencoded", 415),
        ):
            answer = await http.post(path, content=content, headers={"content-type": media})
            assert answer.status_code == status


DEEP = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"


NO_REQUESTS = [
    b"",
    b"{",
    b"[]",
    b"1",
    b'"text"',
    b"\xff",
    DEEP,
    b'{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"a":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"a":' + b"9" * 5000 + b"}}",
    json.dumps(RPC).encode(),
    json.dumps(RPC | {"method": "CANARY", "params": {}}).encode(),
    json.dumps(RPC | {"method": 5, "params": {}}).encode(),
    json.dumps(RPC | {"method": "SendMessage", "params": []}).encode(),
    json.dumps(RPC | {"method": "message/stream", "params": "x"}).encode(),
    json.dumps(RPC | {"method": "tasks/resume", "params": {"taskId": 1}}).encode(),
    json.dumps(RPC | {"jsonrpc": "1.0", "method": "message/stream", "params": {}}).encode(),
    json.dumps(RPC | {"id": {}, "method": "message/stream", "params": {}}).encode(),
]


@pytest.mark.parametrize("path", ["/rpc", "/a2a"])
async def test_what_is_no_request_gets_an_error_of_json_rpc(path: str) -> None:
    """B1, B6."""
    async with running(Desk().gate()) as agent:
        http = await agent.http()
        for body in NO_REQUESTS:
            headers = {"content-type": "application/json", "A2A-Version": "1.0"}
            answer = await http.post(path, content=body, headers=headers)
            assert answer.status_code == 200, body[:80]
            assert answer.json()["error"]["code"] in {-32700, -32600, -32601, -32602, -32603}
            assert "Traceback" not in answer.text


async def test_an_address_that_a_client_names_is_never_called() -> None:
    """B6: no push notifications."""
    async with running(Desk().gate()) as agent:
        ann = await agent.as_user("ann")
        with pytest.raises(PushNotificationNotSupportedError):
            await ann.client.create_task_push_notification_config(
                p.TaskPushNotificationConfig(task_id="x", url="http://127.0.0.1:1/hook")
            )


@pytest.mark.parametrize("stored", ["fails", "is full", "control"])
async def test_a_task_that_is_not_stored_does_not_run(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: of two processes, the one that stores its task later may find the limit reached."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann = await agent.as_user("ann")

        async def put(*_: object, **__: object) -> bool:
            if stored == "fails":
                raise StoreError("CANARY: postgres://app:hunter2@db")
            return False

        if stored == "control":
            assert (await ann.call("add", {"a": 1})).state == "completed"
        else:
            monkeypatch.setattr(task_store, "put_in_turn", put)
            with pytest.raises(Exception, match="too many tasks" if stored == "is full" else "Internal error") as told:
                await ann.call("add", {"a": 1})
            assert "CANARY" not in str(told.value)
    assert len(desk.seen) == (stored == "control")


async def test_a_store_that_fails_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    gate = Desk().gate()
    async with running(gate, *SCRIPT) as agent:
        ann, task = await both_wait(agent)

        async def broken(*_: Any) -> Any:
            raise ConnectionError("CANARY: postgres://app:hunter2@db")

        monkeypatch.setattr(gate.store.suspensions, "get", broken)
        documents = await agent.as_user("ann", Documents)
        for deed in (
            ann.look(task),
            ann.answer(task, "c1", 1),
            ann.cancel(task),
            documents.look(task),
            ann.call("add"),
        ):
            with pytest.raises(Exception, match="Internal error") as told:
                await deed
            assert "CANARY" not in str(told.value)
