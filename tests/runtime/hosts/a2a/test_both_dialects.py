"""The same scenarios in both dialects, over a real socket: client tools, approvals, restarts of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from a2a.types import ListTasksRequest
from a2a.utils.errors import A2AError

from tests.runtime.conversation.conversing import asks, call, says, told
from tests.runtime.hosts.a2a.making import MAX, SEARCH, Desk, Refused, approve, each_speaker, running


@each_speaker
async def test_a_client_tool_and_an_approval_survive_the_end_of_every_server(speaker: Any, tmp_path: Path) -> None:
    """Contract 38-40, C4, C8, I16."""
    desk, store = Desk(), f"sqlite:///{tmp_path / 'desk.db'}"
    heard: list[Any] = []
    async with running(desk.gate(store=store), asks(call("c1", "search", query="x", limit=3))) as agent:
        ann = await agent.as_user("ann", speaker)
        seen = await ann.start("Find it and pay.", SEARCH)
        assert (seen.state, list(seen.calls)) == ("input-required", [called(seen, "c1", {"query": "x", "limit": 3})])

    def answered(messages: Any, _tools: Any) -> Any:
        heard.append(told(messages)["c1"])
        return asks(call("c2", "refund", order_id="A-1", cents=4200))

    async with running(desk.gate(store=store), answered) as agent:
        ann = await agent.as_user("ann", speaker)
        seen = await ann.answer(seen.task, "c1", {"files": 2})
        assert (seen.state, seen.calls, desk.refunds) == ("input-required", (), [])
        assert heard == [{"files": 2}]
        assert 'refund(order_id="A-1", cents=4200)' in seen.text
    async with desk.gate(store=store) as other:  # an approver's process, which knows nothing of A2A
        result = await approve(other)
        assert (result.output, desk.refunds) == ("4200 cents for A-1", [("A-1", 4200)])

    def paid(messages: Any, _tools: Any) -> Any:
        heard.append(told(messages)["c2"])
        return says("Paid.")

    async with running(desk.gate(store=store), paid) as agent:
        ann = await agent.as_user("ann", speaker)
        seen = await ann.look(seen.task)
        assert (seen.state, seen.text) == ("completed", "Paid.")
        assert heard[1:] == ["4200 cents for A-1"]
        assert desk.refunds == [("A-1", 4200)]


def called(seen: Any, id: str, arguments: Any) -> Any:
    """The call that the client received, without the members of one dialect only."""
    (found,) = seen.calls
    assert (found["id"], found["name"], found["arguments"]) == (id, "search", arguments)
    return found


@each_speaker
async def test_what_a_client_says_of_a_failure_is_told_to_the_model(speaker: Any) -> None:
    """Contract 34, 40."""
    heard: list[Any] = []

    def answered(messages: Any, _tools: Any) -> Any:
        heard.append(told(messages)["c1"])
        return says("Pity.")

    async with running(Desk().gate(), asks(call("c1", "search", query="x")), answered) as agent:
        ann = await agent.as_user("ann", speaker)
        seen = await ann.start("Find it.", SEARCH)
        seen = await ann.answer(seen.task, "c1", error="The disk is full")
        assert (seen.state, seen.text) == ("completed", "Pity.")
        assert heard[0]["error"]["message"] == "The disk is full"


@each_speaker
async def test_several_calls_wait_until_each_has_its_result(speaker: Any) -> None:
    """Contract 40."""
    script = [asks(call("c1", "search", query="x"), call("c2", "search", query="y")), says("Both.")]
    async with running(Desk().gate(), *script) as agent:
        ann = await agent.as_user("ann", speaker)
        seen = await ann.start("Find both.", SEARCH)
        assert [one["id"] for one in seen.calls] == ["c1", "c2"]
        seen = await ann.answer(seen.task, "c2", 2)
        assert [one["id"] for one in seen.calls] == ["c1"]
        seen = await ann.answer(seen.task, "c1", 1)
        assert (seen.state, seen.text) == ("completed", "Both.")


@each_speaker
async def test_a_denied_call_is_told_to_the_model_as_such(speaker: Any) -> None:
    """Contract 40."""
    heard: list[Any] = []

    def denied(messages: Any, _tools: Any) -> Any:
        heard.append(told(messages)["c1"])
        return says("No.")

    desk = Desk()
    async with running(desk.gate(), asks(call("c1", "refund", order_id="A-1", cents=1)), denied) as agent:
        ann = await agent.as_user("ann", speaker)
        seen = await ann.start("Pay.")
        (waiting,) = await agent.gate.waits.pending(MAX)
        await agent.gate.resume(waiting.handle, "deny", approver=MAX)
        seen = await ann.look(seen.task)
        assert (seen.state, seen.text, desk.refunds) == ("completed", "No.", [])
        assert heard[0]["error"]["code"] == "declined"


@each_speaker
@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([SEARCH, SEARCH], "Invalid client tool definitions: Duplicate tool names: search"),
        ([SEARCH | {"name": "add"}], "Invalid client tool definitions: names that are taken: add"),
        ([SEARCH | {"name": "no good"}], "Invalid client tool definitions: "),
        ([SEARCH | {"effect": "read"}], "effect is set by the application"),
        ([{"name": "search"}], "Invalid client tool definitions: "),
    ],
)
async def test_tools_that_a_client_may_not_offer_start_nothing(speaker: Any, tools: Any, said: str) -> None:
    """Contract 24, 30, 34, 38, C6."""
    async with running(Desk().gate(), says("never")) as agent:
        ann = await agent.as_user("ann", speaker)
        with pytest.raises((Refused, A2AError), match=said) as refused:
            await ann.start("Hello.", *tools)
        assert getattr(refused.value, "code", -32602) == -32602
        listed = await (await agent.as_user("ann")).client.list_tasks(ListTasksRequest())
        assert listed.total_size == 0


@each_speaker
async def test_text_is_refused_where_there_is_no_model(speaker: Any) -> None:
    """Contract 38."""
    async with running(Desk().gate()) as agent:
        ann = await agent.as_user("ann", speaker)
        with pytest.raises((Refused, A2AError), match="does not answer texts"):
            await ann.start("Hello.")
