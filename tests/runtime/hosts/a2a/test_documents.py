"""The documents' dialect, to the letter."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callgate import Effects, Gate, tool
from tests.runtime.conversation.conversing import asks, call, says, told
from tests.runtime.hosts.a2a.making import KEY, SEARCH, Desk, Documents, Refused, approve, result, running

BIG = 2**60 + 1
MESSAGE = {"role": "user", "parts": [{"kind": "text", "text": "Search for users"}], "contextId": "ctx-123"}


async def test_an_input_required_event_is_the_one_of_the_documents() -> None:
    """Contract 39, 42, C8."""
    async with running(Desk().gate(), asks(call("call-456", "search", query="x", limit=BIG)), says("never")) as agent:
        ann = await agent.as_user("ann", Documents)
        events = ann.stream({"message": MESSAGE, "tools": [{"type": "function", "function": SEARCH}]})
        found = [await anext(events) for _ in range(3)]
        await events.aclose()
        assert [one["status"]["state"] for one in found] == ["submitted", "working", "input-required"]
        assert found[-1] == {
            "kind": "status-update",
            "taskId": found[0]["taskId"],
            "contextId": "ctx-123",
            "status": {
                "state": "input-required",
                "message": {
                    "role": "assistant",
                    "content": "",
                    "toolCalls": [
                        {
                            "id": "call-456",
                            "type": "function",
                            "function": {"name": "search", "arguments": f'{{"query":"x","limit":{BIG}}}'},
                        }
                    ],
                },
            },
            "final": False,
        }


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_stream_stays_open_until_its_task_is_over(wrapped: bool) -> None:
    """Contract 38, 39, C4: final is false until it is true."""
    heard: list[Any] = []

    def answered(messages: Any, _: Any) -> Any:
        heard.append(told(messages)["c1"])
        return says("Two users.")

    tools = [{"type": "function", "function": SEARCH} if wrapped else SEARCH]
    async with running(Desk().gate(), asks(call("c1", "search", query="x")), answered) as agent:
        ann, other = await agent.as_user("ann", Documents), await agent.as_user("ann", Documents)
        events = []
        async for event in ann.stream({"message": MESSAGE, "tools": tools}):
            events.append(event)
            if event["status"]["state"] == "input-required":
                seen = await other.answer(event["taskId"], "c1", {"users": [BIG]})
                assert (seen.state, seen.text) == ("completed", "Two users.")
        states = [(event["status"]["state"], event["final"]) for event in events]
        assert states[:3] == [("submitted", False), ("working", False), ("input-required", False)]
        assert states[-1] == ("completed", True)
        assert events[-1]["status"]["message"] == {"role": "assistant", "content": "Two users."}
        assert heard == [{"users": [BIG]}]


async def test_resuming_streams_for_those_who_accept_one() -> None:
    """Contract 40."""
    async with running(Desk().gate(), asks(call("c1", "search", query="x")), says("Done.")) as agent:
        ann = await agent.as_user("ann", Documents)
        task = (await ann.start("Find it.", SEARCH)).task
        params = {
            "taskId": task,
            "toolResults": [{"toolCallId": "c1", "toolName": "search", "success": True, "result": 1}],
        }
        body = {"jsonrpc": "2.0", "id": "r", "method": "tasks/resume", "params": params}
        async with ann.http.stream("POST", "/a2a", json=body, headers={"accept": "text/event-stream"}) as response:
            lines = [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: ")]
        assert [line["id"] for line in lines] == ["r", "r"]
        assert [line["result"]["status"]["state"] for line in lines] == ["working", "completed"]


GOOD = {"toolCallId": "c1", "toolName": "search", "success": True, "result": 1}


@pytest.mark.parametrize(
    "results",
    [
        [GOOD | {"toolCallId": "c9"}],
        [GOOD | {"toolName": "refund"}],
        [GOOD, GOOD],
        [GOOD, GOOD | {"toolCallId": "c9"}],
        [GOOD | {"success": "yes"}],
        [GOOD | {"toolCallId": ""}],
        [GOOD | {"toolName": 1}],
        ["c1"],
        [GOOD | {"toolCallId": str(number)} for number in range(65)],
    ],
)
async def test_results_that_are_not_wanted_change_nothing(results: Any) -> None:
    """Contract 40, C8."""
    async with running(Desk().gate(), asks(call("c1", "search", query="x")), says("Done.")) as agent:
        ann = await agent.as_user("ann", Documents)
        task = (await ann.start("Find it.", SEARCH)).task
        with pytest.raises(Refused) as refused:
            await ann.resume(task, *results)
        assert refused.value.code == -32602
        assert (await ann.resume(task, GOOD)).text == "Done."
        with pytest.raises(Refused):
            await ann.resume(task, GOOD)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": "Hello."},
        {"message": {"parts": []}},
        {"message": {"parts": ["Hello."]}},
        {"message": {"parts": [{"kind": "text", "text": 1}]}},
        {"message": {"parts": [{"kind": "file", "file": {"uri": "http://127.0.0.1/"}}]}},
        {"message": MESSAGE | {"contextId": 1}},
        {"message": MESSAGE, "tools": "search"},
        {"message": MESSAGE, "tools": [{"type": "function"}]},
    ],
)
async def test_a_message_that_cannot_be_read_is_no_stream(params: Any) -> None:
    """Contract 37, 38."""
    async with running(Desk().gate(), says("never")) as agent:
        ann = await agent.as_user("ann", Documents)
        with pytest.raises(Refused) as refused:
            await anext(ann.stream(params))
        assert refused.value.code == -32602


async def test_what_waits_for_a_person_is_said_in_words_and_goes_on_when_it_is_decided() -> None:
    """Contract 39, B7."""
    desk = Desk()
    async with running(desk.gate(), asks(call("c1", "refund", order_id="A-1", cents=BIG)), says("Paid.")) as agent:
        ann, other = await agent.as_user("ann", Documents), await agent.as_user("ann", Documents)
        events = ann.stream({"message": MESSAGE})
        found = [await anext(events) for _ in range(3)]
        said = found[-1]["status"]["message"]
        assert said["toolCalls"] == []
        assert f"cents={BIG}" in said["content"]
        assert (await other.look(found[-1]["taskId"])).state == "input-required"
        await approve(agent.gate)
        looking = asyncio.create_task(other.look(found[-1]["taskId"]))
        last = [event async for event in events][-1]
        assert (last["status"]["state"], last["final"]) == ("completed", True)
        assert (await looking).text == "Paid."
        assert desk.refunds == [("A-1", BIG)]


async def test_a_call_of_a_tool_is_made_with_exact_numbers() -> None:
    """Contract 33: JSON here, no protobuf between."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        ann = await agent.as_user("ann", Documents)
        part = {"kind": "data", "data": {"type": "tool_call", "name": "add", "arguments": {"a": BIG}}}
        events = [event async for event in ann.stream({"message": {"role": "user", "parts": [part]}})]
        assert desk.seen == [(BIG, 1)]
        assert json.loads(events[-1]["status"]["message"]["content"])["result"] == str(BIG + 1)


async def test_other_methods_are_not_found() -> None:
    """Contract C8."""
    async with running(Desk().gate()) as agent:
        http = await agent.http()
        for method in ("message/send", "tasks/get", "SendMessage"):
            answer = await http.post("/a2a", json={"jsonrpc": "2.0", "id": 7, "method": method, "params": {}})
            assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, -32601)
        with pytest.raises(Refused):
            result((await http.post("/a2a", json={"jsonrpc": "2.0", "method": "tasks/resume"})).json())


@tool(effect="read")
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_an_agent_without_a_hook_for_the_tools_of_clients_takes_none(caplog: pytest.LogCaptureFixture) -> None:
    """A client's tool needs a hook that authorises it, as any tool without an effect does. It passed unguarded."""
    gate = Gate([double], effects=Effects(durable=False), signing_keys=[KEY])
    async with running(gate, asks(call("c1", "search", query="x")), says("never")) as agent:
        ann = await agent.as_user("ann", Documents)
        with pytest.raises(Refused) as refused:
            await anext(ann.stream({"message": MESSAGE, "tools": [SEARCH]}))
        assert (refused.value.code, "takes no tools of clients" in str(refused.value)) == (-32602, True)
        assert "no hook authorises every call of tool" in caplog.text
