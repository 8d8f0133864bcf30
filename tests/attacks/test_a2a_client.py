"""A hostile client of an A2A agent."""

from __future__ import annotations

import asyncio
import json
import logging
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from a2a.types import CancelTaskRequest, SubscribeToTaskRequest
from a2a.utils.errors import InvalidParamsError

from callgate import Effects, Gate, Outcome, ToolCall
from callgate.hooks import Audit
from callgate.providers.http.bounded import has_more_values
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.hosts.a2a import access, handler, task_store
from callgate.runtime.hosts.a2a.client_tools import client_tools
from callgate.runtime.pipeline.services import Services
from tests.harness.cpu import loop_seconds
from tests.runtime.hosts.a2a.making import ANN, KEY, SEARCH, Desk, running

RPC = {"jsonrpc": "2.0", "id": "\ud800", "method": "GetTask", "params": {"id": "x"}}
HEADERS = {"content-type": "application/json", "A2A-Version": "1.0"}


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control without the check"])
@pytest.mark.parametrize("path", ["/rpc", "/a2a"])
async def test_an_id_with_half_of_a_surrogate_pair_is_a_bad_request(
    path: str, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # the id of the control stops pytest-xdist
    if not guarded:
        monkeypatch.setattr(access, "holds_half_pair", lambda _: False)
        monkeypatch.setattr(orjson, "loads", len)  # which would refuse it, too
    async with running(Desk().gate()) as agent:
        http = await agent.http()
        answer = await http.post(path, content=json.dumps(RPC), headers=HEADERS)
        assert (answer.status_code, "Traceback" in answer.text) == (400 if guarded else 500, False)
        whole = json.dumps(RPC | {"id": "\U0001f600"})  # as a pair of escapes
        assert (await http.post(path, content=whole, headers=HEADERS)).json()["id"] == "\U0001f600"


@pytest.mark.parametrize("limit", [3, 1_000], ids=["at the limit", "control below the limit"])
async def test_a_user_has_a_bounded_number_of_open_tasks(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are served, and a task that ends makes room."""
    monkeypatch.setattr(task_store, "MAX_OPEN", limit)
    async with running(Desk().gate()) as agent:
        ann, ben = await agent.as_user("ann"), await agent.as_user("ben")
        waiting = [await ann.call("refund", {"order_id": f"{number}", "cents": 1}) for number in range(3)]
        assert {one.state for one in waiting} == {"input-required"}
        if limit == 1_000:
            await ann.call("refund", {"order_id": "3", "cents": 1})
            return
        with pytest.raises(InvalidParamsError, match="too many tasks"):
            await ann.call("refund", {"order_id": "3", "cents": 1})
        assert (await ben.call("add", {"a": 1})).state == "completed"
        await ann.client.cancel_task(CancelTaskRequest(id=waiting[0].task))
        assert (await ann.call("add", {"a": 1})).state == "completed"


@pytest.mark.parametrize("limit", [2, 32], ids=["at the limit", "control below the limit"])
async def test_a_user_has_a_bounded_number_of_subscriptions(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one polls the store. Others are served, and a subscription that is closed makes room."""
    monkeypatch.setattr(handler, "MAX_SUBSCRIPTIONS", limit)
    async with running(Desk().gate()) as agent, AsyncExitStack() as open_ones:
        ann, ben = await agent.as_user("ann"), await agent.as_user("ben")

        async def subscribed(user: Any) -> Any:
            task = (await user.call("refund", {"order_id": "1", "cents": 1})).task
            events = user.client.subscribe(SubscribeToTaskRequest(id=task))
            open_ones.push_async_callback(events.aclose)
            await anext(events)
            return events

        first, _ = [await subscribed(ann) for _ in range(2)]
        await subscribed(ben)
        if limit == 32:
            await subscribed(ann)
            return
        with pytest.raises(InvalidParamsError, match="2 subscriptions, the maximum"):
            await subscribed(ann)
        await first.aclose()
        for _ in range(100):  # until the server has noticed
            await asyncio.sleep(0)
        await subscribed(ann)


@pytest.mark.parametrize("shared", [True, False], ids=["one for a gate", "control with one for a task"])
async def test_tasks_with_client_tools_leave_nothing_to_close_behind(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit log of a gate has one segment, which all tasks write."""
    if not shared:
        monkeypatch.setattr(Services, "origin", property(lambda self: self))
    store = MemoryStore()
    gate = Gate([], [Audit()], allow_unguarded=True, store=store, signing_keys=[KEY], effects=Effects(durable=False))
    async with gate:
        before = len(gate._services.closers)
        for number in range(20):
            task = gate.with_tools(client_tools([SEARCH]))
            result = await task.call(ToolCall(id=f"{number}", name="search", arguments={"query": "x"}), user=ANN)
            assert result.outcome is Outcome.SUSPENDED
        assert len(gate._services.closers) - before == (1 if shared else 20)


GET = b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":%s}}'
NO_JSON = {"NaN": GET % b"NaN", "1e400": GET % b"1e400", "digits": GET % (b"9" * 5_000), "no UTF-8": GET % b'"\xff"'}


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control without the check"])
async def test_what_is_no_json_is_no_failure_of_the_agent(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of the SDK takes these, or answers "internal error" with the message of an exception."""
    if not guarded:
        monkeypatch.setattr(orjson, "loads", len)
    async with running(Desk().gate()) as agent:
        http = await agent.http()
        answers = [(await http.post("/rpc", content=one, headers=HEADERS)).json() for one in NO_JSON.values()]
    assert (-32603 in [one["error"]["code"] for one in answers]) is not guarded
    assert not guarded or {one["error"]["code"] for one in answers} == {-32700}


async def test_a_method_that_is_no_text_is_unknown() -> None:
    """An object cannot be looked up in a set."""
    async with running(Desk().gate()) as agent:
        answer = await (await agent.http()).post("/a2a", json=RPC | {"id": 1, "method": {}}, headers=HEADERS)
        assert answer.json()["error"]["code"] == -32601


def message_of_tools(count: int, patterns: int) -> bytes:
    """A message with client tools, as short as it can be: each property has a pattern of its own."""

    def parameters(n: int) -> dict[str, object]:
        return {"type": "object", "properties": {f"{at}": {"pattern": f"{n}_{at}"} for at in range(patterns)}}

    tools = [{"name": f"t{n}", "description": "d", "parameters": parameters(n)} for n in range(count)]
    parts = [{"data": {"type": "tools", "tools": tools}}, {"text": "Go."}]
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts}}
    return json.dumps(RPC | {"id": 1, "method": "SendMessage", "params": params}, separators=(",", ":")).encode()


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control without the limit, a smaller message"])
async def test_a_whole_message_of_310_tools_with_64_patterns_costs_the_loop_at_most_50_ms_and_32_mb(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the bytes of the request to the response, over HTTP."""
    if not limited:
        monkeypatch.setattr(access, "MAX_VALUES", 10**9)
    body = message_of_tools(310 if limited else 200, 64)
    assert len(body) < access.MAX_BODY
    async with running(Desk().gate()) as agent:
        http = await agent.http()
        await http.post("/rpc", content=message_of_tools(1, 1), headers=HEADERS)  # imports
        tracemalloc.start()
        answer = await http.post("/rpc", content=body, headers=HEADERS)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.status_code == (413 if limited else 200)
        worst = await loop_seconds(lambda: http.post("/rpc", content=body, headers=HEADERS), 0.05)
    assert (worst < 0.05) is limited
    assert peak < 32_000_000


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control without the limit"])
async def test_the_texts_of_a_message_cost_no_step_of_the_loop_more_than_50_ms(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protobuf searches texts, and several steps of a task do."""
    if not limited:
        monkeypatch.setattr(access, "MAX_TEXT", 10**9)

    def message(part: dict[str, object]) -> bytes:
        params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [part]}}
        return json.dumps(RPC | {"id": 1, "method": "SendMessage", "params": params}).encode()

    async with running(Desk().gate()) as agent:
        http = await agent.http()
        answer = await http.post("/rpc", content=message({"text": "a" * 1_000_000}), headers=HEADERS)
        assert answer.status_code == (413 if limited else 200)
        data = {"type": "tool_call", "name": "none", "arguments": {"a": "a" * 1_000_000}}
        assert (await http.post("/rpc", content=message({"data": data}), headers=HEADERS)).status_code == 200
        largest = message({"text": "a" * 260_000})
        assert await loop_seconds(lambda: http.post("/rpc", content=largest, headers=HEADERS), 0.05) < 0.05


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (json.dumps([1] * 999), False),
        (json.dumps([1] * 1_000), True),
        (json.dumps({"a": ["," * 5_000, '"[{,' * 1_000, "\\" * 999]}), False),
        (json.dumps([[{}]] * 400), True),
        (json.dumps([[{}]] * 300), False),
    ],
)
def test_values_are_counted_outside_of_texts(body: str, more: bool) -> None:
    """A list of 999 numbers has 1,000 values: each number, and the list."""
    assert has_more_values(body.encode() + b" " * 2_000, 1_000) is more
