"""Calls that wait: the client asks its user, another process decides, or the caller comes back with the handle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client, MCPError

from callgate import Approve
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, WAYS, Desk, client_of, desk_at, server_of, text_of

EVERY_WAY = pytest.mark.parametrize(("transport", "era"), WAYS)
BOTH_ERAS = pytest.mark.parametrize("era", ERAS)
pytestmark = pytest.mark.timeout(120)


class Person:
    """Answers the forms of a client, and notes them."""

    def __init__(self, *answers: types.ElicitResult) -> None:
        self.answers, self.asked = list(answers), list[types.ElicitRequestParams]()

    def __call__(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params)
        return self.answers.pop(0)


def accept(**content: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=content)


@EVERY_WAY
async def test_the_user_of_a_call_confirms_it_through_the_client(transport: str, era: str) -> None:
    """The form shows exactly the call that runs; it runs once."""
    person = Person(accept(approve=True))
    async with desk_at(transport, era, answers=person) as (desk, client):
        result = await client.call_tool("refund", {"order": "A1", "cents": 5})
        assert text_of(result) == "5 for A1"
        (asked,) = person.asked
        assert isinstance(asked, types.ElicitRequestFormParams)
        assert 'refund(order="A1", cents=5)' in asked.message
        assert "Confirm it." in asked.message
        again = await client.call_tool("refund", {"order": "A1", "cents": 5})
        assert (text_of(again), (again.meta or {})["callgate/replayed"]) == ("5 for A1", True)
        assert transport == "stdio" or desk.ran == ["A1 5"]


NO = [accept(approve=False), accept(), types.ElicitResult(action="decline"), types.ElicitResult(action="cancel")]
"""Answers that confirm nothing: each in both eras, and one in each way."""


@pytest.mark.parametrize(
    ("transport", "era", "answer"),
    [
        *(("memory", era, answer) for era in ERAS for answer in NO),
        *((*way, NO[number % len(NO)]) for number, way in enumerate(WAYS) if way[0] != "memory"),
    ],
)
async def test_a_user_who_does_not_confirm_stops_the_call(transport: str, era: str, answer: types.ElicitResult) -> None:
    """Nothing runs, and the model is told."""
    async with desk_at(transport, era, answers=Person(answer)) as (desk, client):
        result = await client.call_tool("refund", {"order": "A1", "cents": 5})
        assert result.is_error
        assert "declined" in text_of(result)
        assert desk.ran == []


@EVERY_WAY
async def test_a_tool_asks_one_question_after_another(transport: str, era: str) -> None:
    """A single value is asked for in a form of one field; an object is a form."""
    person = Person(accept(value="friday"), accept(seat="aisle"))
    async with desk_at(transport, era, answers=person) as (_, client):
        assert text_of(await client.call_tool("flight", {"to": "Rome"})) == "to Rome on friday, aisle"
        assert [one.message for one in person.asked] == ["Which day?", "Which seat?"]


@BOTH_ERAS
async def test_an_answer_that_does_not_fit_is_refused_and_can_be_given_again(era: str) -> None:
    """The gate validates it against the whole schema; the call keeps waiting."""
    person = Person(accept(value="x"), accept(value="friday"), accept(seat="aisle"))
    async with desk_at("memory", era, answers=person) as (_, client):
        result = await client.call_tool("flight", {"to": "Rome"})
        assert result.is_error
        assert len(person.asked) == 1
        result = await client.call_tool("flight", {"to": "Rome"})
        assert text_of(result) == "to Rome on friday, aisle"


@EVERY_WAY
async def test_a_client_that_cannot_ask_is_told_how_to_go_on(transport: str, era: str) -> None:
    """The tool has not run; the handle of the call is in ``_meta``."""
    async with desk_at(transport, era) as (desk, client):
        for tool, arguments in (("refund", {"order": "A1", "cents": 5}), ("payout", {"order": "A2"})):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "has not run" in text_of(result)
            assert (result.meta or {})["callgate/outcome"] == "suspended"
            assert (result.meta or {})["callgate/handle"]
        assert desk.ran == []


@BOTH_ERAS
@pytest.mark.parametrize("here", [True, False], ids=["ran by the approver", "recorded by the approver"])
@pytest.mark.parametrize("how", ["again", "handle"])
async def test_a_call_that_another_person_approves_is_taken_up_by_its_caller(era: str, how: str, here: bool) -> None:
    """By the same call, or by its handle; it runs once, and only its caller gets the outcome."""
    desk = Desk()
    async with desk.gate() as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        waiting = await client.call_tool("payout", {"order": "A1"})
        handle = (waiting.meta or {})["callgate/handle"]
        meta: Any = {} if how == "again" else {"callgate/handle": handle}
        still = await client.call_tool("payout", {"order": "A1"}, meta=meta)
        assert (still.meta or {})["callgate/handle"] == handle
        assert (await gate.resume(handle, Approve(), approver=PEOPLE["lea"], here=here)).ok is here
        done = await client.call_tool("payout", {"order": "A1"}, meta=meta)
        assert text_of(done) == "paid A1"
        assert desk.ran == ["payout A1"]
        foreign: Any = {"callgate/handle": handle}
        other = await client.call_tool("add", {"a": 1}, meta=foreign)
        assert other.is_error
        assert "paid" not in text_of(other)


@BOTH_ERAS
async def test_the_page_of_an_approval_is_opened_where_the_client_can(era: str) -> None:
    """It is the requester's page; the decision is another person's."""
    opened: list[str] = []

    def open_page(params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        opened.append(params.url)
        return types.ElicitResult(action="accept")

    async with desk_at("memory", era, answers=open_page, approvals_url="https://desk.example/wait/{handle}") as (
        desk,
        client,
    ):
        result = await client.call_tool("payout", {"order": "A1"})
        assert result.is_error
        assert (result.meta or {})["callgate/handle"]
        (url,) = opened
        assert url.startswith("https://desk.example/wait/")
        assert desk.ran == []


# ---------------------------------------------------------------------- the state that a client sends back


async def sent(client: Client, tool: str, state: str | None, answer: types.ElicitResult | None = None) -> Any:
    """Call a tool as a client does that keeps the state of the protocol itself."""
    responses: Any = None if answer is None else {"answer": answer}
    return await client.session.call_tool(
        tool,
        {"order": "A1", "cents": 5},
        input_responses=responses,
        request_state=state,
        allow_input_required=True,
    )


def ask(_: types.ElicitRequestParams) -> types.ElicitResult:
    raise AssertionError("the test answers itself")


@pytest.mark.parametrize(
    ("case", "runs"),
    [
        ("as asked", True),
        ("of another user", False),
        ("of another tenant", False),
        ("changed", False),
        ("of another tool", False),
        ("without an answer", False),
        ("withdrawn", False),
    ],
)
async def test_a_state_is_of_one_call_of_one_user(case: str, runs: bool) -> None:
    """What a client sends back decides nothing for others; the first case is the control."""
    desk = Desk()
    users = {"of another user": "lea", "of another tenant": "eve"}
    async with desk.gate() as gate:
        first = server_of(gate, "memory", user=PEOPLE["ann"])
        second = server_of(gate, "memory", user=PEOPLE[users.get(case, "ann")])
        async with (
            client_of(first, "memory", "modern", answers=ask) as ann,
            client_of(second, "memory", "modern", answers=ask) as other,
        ):
            state = (await sent(ann, "refund", None)).request_state
            if case == "withdrawn":
                await gate.waits.withdraw(state, PEOPLE["ann"])
            given = {"changed": state[:-1] + ("0" if state[-1] != "0" else "1")}.get(case, state)
            answer = None if case == "without an answer" else accept(approve=True)
            called = "count" if case == "of another tool" else "refund"
            if case.startswith("of another") or case == "changed":
                with pytest.raises(MCPError, match="Invalid or expired requestState"):
                    await sent(other, called, given, answer)
                assert desk.ran == []
                return
            result = await sent(other, called, given, answer)
            assert desk.ran == (["A1 5"] if runs else [])
            if runs:
                again = await sent(other, "refund", state, answer)
                assert text_of(again) == text_of(result) == "5 for A1"
            elif case == "without an answer":
                assert result.request_state == state
            else:
                assert result.is_error
                assert "A1" not in text_of(result)
    assert len(desk.ran) == int(runs)


async def test_one_state_at_once_runs_once() -> None:
    """A client that repeats its answer, such as after a lost connection, makes one effect."""
    desk = Desk()
    async with (
        desk.gate() as gate,
        client_of(server_of(gate, "memory"), "memory", "modern", answers=ask) as client,
    ):
        state = (await sent(client, "refund", None)).request_state
        results = await asyncio.gather(*(sent(client, "refund", state, accept(approve=True)) for _ in range(20)))
        assert desk.ran == ["A1 5"]
        assert "5 for A1" in {text_of(one) for one in results}
