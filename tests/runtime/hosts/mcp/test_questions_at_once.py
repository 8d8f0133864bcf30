"""A call that asks several questions at once, through MCP: all forms in one result, and answers one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client, MCPError

from callgate import Gate, Question, ToolContext, tool
from callgate.jobs import EmbeddedJobs
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.test_questions import BOTH_ERAS, Person, accept
from tests.runtime.hosts.mcp.test_tasks import Peer, connect
from tests.runtime.hosts.mcp.world import client_of, server_of, text_of

pytestmark = pytest.mark.timeout(120)

SEAT = {"type": "object", "properties": {"seat": {"type": "string", "enum": ["aisle", "window"]}}, "required": ["seat"]}
QUESTIONS = {
    "day": Question("Which day?", {"type": "string", "minLength": 3}),
    "seat": Question("Which seat?", SEAT),
    "back": Question("Which day back?"),
}
GOOD = {"day": accept(value="friday"), "seat": accept(seat="aisle"), "back": accept(value="sunday")}
OUTPUT = "friday aisle sunday"


class Trips:
    """A tool that asks three questions at once, here or in a worker."""

    def __init__(self) -> None:
        self.booked = 0

    def gate(self, run_on: Any = "caller") -> Gate:
        @tool(effect="read", resumable=True, run_on=run_on)
        async def trip(*, ctx: ToolContext) -> str:
            """Book a trip."""
            answers: Any = ctx.suspend("input", "Your trip.", questions=QUESTIONS)
            self.booked += 1
            return f"{answers['day']} {answers['seat']['seat']} {answers['back']}"

        options = gate_options(signing_keys=["k" * 32], durable=False, open=True, jobs=EmbeddedJobs(2))
        return Gate([trip], **options)


@BOTH_ERAS
async def test_a_client_answers_all_questions_of_a_call(era: str) -> None:
    """A modern client gets three forms in one result; an older client is asked three times during its request."""
    trips, person = Trips(), Person(*GOOD.values())
    async with client_of(server_of(trips.gate(), "memory"), "memory", era, answers=person) as client:
        assert text_of(await client.call_tool("trip", {})) == OUTPUT
        assert [one.message for one in person.asked] == [f"Your trip.\n{one.prompt}" for one in QUESTIONS.values()]
    assert trips.booked == 1


@BOTH_ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_question_ends_the_call(era: str, action: Any) -> None:
    """The model reads that the user gave no answer."""
    trips, answers = Trips(), [*GOOD.values()]
    answers[1] = types.ElicitResult(action=action)
    async with client_of(server_of(trips.gate(), "memory"), "memory", era, answers=Person(*answers)) as client:
        result = await client.call_tool("trip", {})
        assert result.is_error
        assert "gave no answer" in text_of(result)
    assert trips.booked == 0


def never(_: types.ElicitRequestParams) -> types.ElicitResult:
    raise AssertionError("the test answers itself")


async def sent(client: Client, state: str | None, **answers: types.ElicitResult) -> Any:
    """Call the tool as a client does that keeps the state of the protocol itself."""
    responses: Any = answers or None
    return await client.session.call_tool(
        "trip", {}, input_responses=responses, request_state=state, allow_input_required=True
    )


@pytest.mark.parametrize("order", list(itertools.permutations(GOOD)), ids=" ".join)
async def test_partial_answers_leave_the_other_questions(order: tuple[str, ...]) -> None:
    """Each result asks only what is left. A wrong answer is refused, and extra keys are ignored."""
    trips = Trips()
    async with client_of(server_of(trips.gate(), "memory"), "memory", "modern", answers=never) as client:
        result = await sent(client, None)
        left, state = set(GOOD), result.request_state
        for name in order:
            assert set(result.input_requests) == left
            if name == "seat":
                refused = await sent(client, state, seat=accept(seat="roof"), extra=accept(value=1))
                assert refused.is_error
                assert set((await sent(client, state)).input_requests) == left
            result = await sent(client, state, **{name: GOOD[name]}, extra=accept(value=1))
            left.remove(name)
        assert text_of(result) == OUTPUT
    assert trips.booked == 1


async def test_a_wrong_answer_does_not_lose_those_beside_it() -> None:
    """The client sends two answers, and one of them again."""
    trips = Trips()
    async with client_of(server_of(trips.gate(), "memory"), "memory", "modern", answers=never) as client:
        state = (await sent(client, None)).request_state
        assert (await sent(client, state, day=accept(value="x"), seat=GOOD["seat"])).is_error
        assert set((await sent(client, state)).input_requests) == {"day", "back"}
        assert text_of(await sent(client, state, day=GOOD["day"], back=GOOD["back"])) == OUTPUT
    assert trips.booked == 1


async def test_a_task_asks_all_questions_and_takes_the_answers_one_by_one() -> None:
    """``tasks/get`` has only the questions that are left; the task goes on with the last answer."""
    trips = Trips()
    async with connect(server_of(trips.gate("worker"), "memory").sdk) as client:
        peer = Peer(client)
        id = (await peer.call("trip"))["taskId"]
        asked = (await peer.until(id, "input_required"))["inputRequests"]
        keys = {one["params"]["message"].rpartition("\n")[2]: key for key, one in asked.items()}
        for name, question in QUESTIONS.items():
            task = await peer.get(id)
            assert task["status"] == "input_required"
            assert keys[question.prompt] in task["inputRequests"]
            assert len(task["inputRequests"]) == len(QUESTIONS) - list(QUESTIONS).index(name)
            key = keys[question.prompt]
            if name == "day":
                wrong = {key: {"action": "accept", "content": {"value": "x"}}}
                with pytest.raises(MCPError):
                    await peer.send("tasks/update", taskId=id, inputResponses=wrong)
            answer = {key: GOOD[name].model_dump(mode="json", exclude_none=True)}
            assert await peer.send("tasks/update", taskId=id, inputResponses=answer) == {"resultType": "complete"}
            assert trips.booked == 0 or name == "back"
        assert (await peer.ended(id))["result"]["structuredContent"] == OUTPUT
    assert trips.booked == 1
