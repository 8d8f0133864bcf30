"""Calls of a gate's tools over A2A: what comes in, what goes out, who may."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types import GetExtendedAgentCardRequest
from a2a.utils.errors import InvalidParamsError

from callgate import Gate, tool
from callgate.runtime.hosts.a2a import EXTENSION
from tests.runtime.hosts.a2a.making import MAX, Desk, running


async def test_a_call_gives_its_output_as_data() -> None:
    """Contract 42."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.call("add", {"a": 2, "b": 3}, id="mine")
        assert (seen.state, seen.data) == (
            "completed",
            ({"type": "tool_result", "id": "mine", "name": "add", "result": 5.0},),
        )
        assert [type(one) for one in desk.seen[0]] == [int, int]


@pytest.mark.parametrize(
    "arguments", [{"a": 2**53 + 1}, {"a": str(2**53 + 1)}, f'{{"a": {2**53 + 1}}}'], ids=["number", "text", "JSON"]
)
async def test_an_integer_is_never_rounded(arguments: Any) -> None:
    """Contract 33: exact, or refused."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        ann = await agent.as_user("ann")
        if isinstance(arguments, dict) and isinstance(arguments["a"], int):
            with pytest.raises(InvalidParamsError, match="decimal text"):
                await ann.call("add", arguments)
            assert desk.seen == []
        else:
            seen = await ann.call("add", arguments)
            assert desk.seen == [(2**53 + 1, 1)]
            assert seen.data[0]["result"] == str(2**53 + 2)


@pytest.mark.parametrize(
    ("name", "arguments", "state", "code"),
    [
        ("add", {}, "failed", "invalid_arguments"),
        ("add", {"a": "CANARY"}, "failed", "invalid_arguments"),
        ("add", {"a": 1.5}, "failed", "invalid_arguments"),
        ("add", {"a": "5"}, "failed", "invalid_arguments"),
        ("add", {"a": 1, "c": 2}, "failed", "invalid_arguments"),
        ("add", "{CANARY", "failed", "invalid_json"),
        ("broken", {}, "failed", "tool_failed"),
        ("sorry", {}, "failed", "cannot"),
        ("secret", {"plan": "CANARY"}, "failed", "unknown_tool"),
        ("CANARY", {}, "failed", "unknown_tool"),
    ],
)
async def test_a_call_without_an_output_says_why_and_no_more(name: str, arguments: Any, state: str, code: str) -> None:
    """I9, contract 44."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        seen = await (await agent.as_user("ann")).call(name, arguments)
        assert (seen.state, seen.data[0]["error"]["code"]) == (state, code)
        assert "CANARY" not in str(seen.data[0]["error"])
        assert "hunter2" not in str(seen)


async def test_a_call_under_an_idempotency_key_is_made_once() -> None:
    """I4."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        for _ in range(2):
            seen = await ann.call("refund", {"order_id": "A-1", "cents": 5}, idempotency_key="k1")
            for waiting in await gate.waits.pending(MAX):
                await gate.resume(waiting.handle, "approve", approver=MAX)
            seen = await ann.look(seen.task)
            assert (seen.state, seen.data[0]["result"]) == ("completed", "5 cents for A-1")
        assert desk.refunds == [("A-1", 5)]


async def test_an_output_that_protobuf_cannot_carry_is_sent_as_json_text() -> None:
    """B5: deeper than it goes."""

    @tool(effect="read")
    async def deep() -> Any:
        """Nest."""
        value: Any = 1
        for _ in range(60):
            value = [value]
        return value

    async with running(Gate([deep])) as agent:
        seen = await (await agent.as_user("ann")).call("deep")
        assert (seen.state, seen.data) == ("completed", ())
        assert json.loads(seen.text)["result"] == json.loads("[" * 60 + "1" + "]" * 60)


async def test_the_public_card_names_what_anybody_may_see_and_the_other_ones_own() -> None:
    """Contract 38, I8."""
    async with running(Desk().gate(), security={"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}) as agent:
        public = [skill["id"] for skill in agent.card["skills"]]
        assert "add" in public
        assert "secret" not in public
        assert agent.card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"] == {"scheme": "bearer"}
        for token, sees in (("ann", False), ("max", True)):
            client = (await agent.as_user(token)).client
            card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
            assert ("secret" in [skill.id for skill in card.skills]) is sees
            (extension,) = card.capabilities.extensions
            assert extension.uri == EXTENSION
            assert len(extension.params["tools"]) == len(card.skills)


@pytest.mark.parametrize("path", ["/rpc", "/a2a", "/a2a/message/stream", "/a2a/tasks/resume"])
@pytest.mark.parametrize("token", [None, "unknown"])
async def test_nobody_gets_in(path: str, token: str | None) -> None:
    """B6."""
    async with running(Desk().gate()) as agent:
        http = await agent.http(token)
        answer = await http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks"})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
