"""Questions with names: the client sees the name, and the answers are matched by it, in whatever order the tool asks."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import Gate, Outcome, Respond, ToolContext, User, tool
from callgate.jobs import EmbeddedJobs, JobState
from tests.harness.gate_options import gate_options

ANN = User("ann", "acme")
TEXT = {"type": "string"}


class Asking:
    """A tool that asks for a day and a seat; each run asks in the other order."""

    def __init__(self) -> None:
        self.runs = 0

    def tool(self) -> Any:
        @tool(effect="read", resumable=True)
        async def flight(*, ctx: ToolContext) -> dict[str, Any]:
            """Ask."""
            self.runs += 1
            names = ("day", "seat") if self.runs % 2 else ("seat", "day")
            return {name: ctx.suspend("input", f"Which {name}?", schema=TEXT, name=name) for name in names}

        return flight


def gate_of(*tools: Any, **options: Any) -> Gate:
    known: dict[str, Any] = {"signing_keys": ["k" * 32], "durable": False, "open": True, **options}
    return Gate(tools, **gate_options(**known))


@pytest.mark.parametrize("deferred", [False, True])
async def test_answers_are_matched_by_name_and_not_by_order(deferred: bool) -> None:
    """Of a call, and of a job; the pending question has its name wherever it is read."""
    asking = Asking()
    async with gate_of(asking.tool(), jobs=EmbeddedJobs(0)) as gate:
        job: Any = None
        waits: Any = {"deadline": 0.01} if deferred else {}  # the decision is stored, and the worker below runs the job
        if deferred:
            job = await gate.submit("flight", {}, user=ANN)
            assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
            pending = (await gate.outcome(job, user=ANN)).pending
        else:
            pending = (await gate.call("flight", {}, user=ANN)).pending
        answers = {"day": "friday", "seat": "aisle"}
        told: list[str] = []
        result: Any = None
        while pending is not None:
            assert pending.name in answers
            assert pending.handle is not None
            found = await gate.outcome(pending.handle, user=ANN)
            assert found.pending is not None
            assert found.pending.name == pending.name
            told.append(pending.name)
            result = await gate.resume(pending.handle, Respond(answers[pending.name]), approver=ANN, **waits)
            if deferred and result.outcome is Outcome.IN_FLIGHT:
                await gate.jobs.run_invocation()
                found = await gate.outcome(job, user=ANN)
                pending, result = found.pending, found.result
            else:
                pending = result.pending
        assert result.output == answers
        assert sorted(told) == ["day", "seat"]


async def test_control_questions_without_names_are_matched_by_order() -> None:
    """So the name is what makes the difference in the test above."""
    runs = 0

    @tool(effect="read", resumable=True)
    async def flight(*, ctx: ToolContext) -> dict[str, Any]:
        """Ask."""
        nonlocal runs
        runs += 1
        names = ("day", "seat") if runs % 2 else ("seat", "day")
        return {name: ctx.suspend("input", f"Which {name}?", schema=TEXT) for name in names}

    async with gate_of(flight) as gate:
        first = await gate.call("flight", {}, user=ANN)
        assert first.pending.name is None
        second = await gate.resume(first.pending.handle, Respond("friday"), approver=ANN)
        third = await gate.resume(second.pending.handle, Respond("aisle"), approver=ANN)
        assert third.output == {"day": "friday", "seat": "aisle"}
        assert (first.pending.prompt, second.pending.prompt) == ("Which day?", "Which day?")


async def test_one_name_twice_is_two_questions() -> None:
    """They are counted by their name."""

    @tool(effect="read", resumable=True)
    async def twice(*, ctx: ToolContext) -> list[Any]:
        """Ask twice."""
        return [ctx.suspend("input", f"Number {n}?", schema=TEXT, name="number") for n in (1, 2)]

    async with gate_of(twice) as gate:
        first = await gate.call("twice", {}, user=ANN)
        second = await gate.resume(first.pending.handle, Respond("one"), approver=ANN)
        assert second.pending.name == "number"
        done = await gate.resume(second.pending.handle, Respond("two"), approver=ANN)
        assert done.output == ["one", "two"]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b", "é"])
async def test_a_name_that_no_client_could_send_back_is_refused(name: str) -> None:
    """The call fails, and nothing is suspended."""

    @tool(effect="read", resumable=True)
    async def asks(*, ctx: ToolContext) -> Any:
        """Ask."""
        return ctx.suspend("input", "?", name=name)

    async with gate_of(asks) as gate:
        assert (await gate.call("asks", {}, user=ANN)).outcome is Outcome.ERROR
        assert await gate.waits.pending(ANN) == []
