"""A tool of workers that asks in the response of its call: the client shows the question, and its answer gets the task."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="tasks need the extra mcp")

from mcp import MCPError

from callgate import Approval, Gate, Jobs, Question, ToolContext, tool
from callgate.hooks import Authorize, permit
from callgate.jobs import EmbeddedJobs
from callgate.runtime.hosts.mcp import tasks
from callgate.runtime.hosts.mcp.capabilities import TASKS
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.test_tasks import SCHEMA, Peer, connect, person
from tests.runtime.hosts.mcp.world import server_of
from tests.runtime.hosts.serving import served

FIRST = {"mcp_asks_first": True}
LONG = 60.0
"""Seconds for a question of the worker, which comes at once."""


def gate_of(ran: list[str], workers: int = 2, store: str = "memory://") -> Gate:
    """A gate with tools that ask, once a worker has begun them."""

    @tool(effect="irreversible", run_on="worker", resumable=True, metadata=FIRST)
    async def book(*, ctx: ToolContext) -> str:
        """Ask one question after another."""
        out: Any = ctx.suspend("input", "Which day?", schema=SCHEMA)
        back: Any = ctx.suspend("input", "Which day back?", schema=SCHEMA)
        ran.append("book")
        return f"{out['day']} to {back['day']}"

    @tool(effect="read", run_on="worker", resumable=True, metadata=FIRST)
    async def both(*, ctx: ToolContext) -> str:
        """Ask two questions at once."""
        given: Any = ctx.suspend(
            "input", "", questions={"out": Question("Out?", SCHEMA), "back": Question("Back?", SCHEMA)}
        )
        return f"{given['out']['day']} to {given['back']['day']}"

    @tool(
        effect="irreversible",
        run_on="worker",
        key=("order",),
        requires_approval=Approval(requester=True, reason="Confirm it."),
        metadata=FIRST,
    )
    async def refund(order: str) -> str:
        """Give money back, after the caller's own confirmation."""
        ran.append(order)
        return f"refunded {order}"

    @tool(
        effect="irreversible",
        run_on="worker",
        requires_approval=Approval(roles={"lead"}, reason="A lead."),
        metadata=FIRST,
    )
    async def payout() -> str:
        """Pay, after the approval of another person."""
        return "paid"

    @tool(effect="read", run_on="worker", metadata=FIRST)
    async def quiet() -> str:
        """Ask nothing."""
        return "done"

    options = gate_options(
        signing_keys=["k" * 32], durable=False, store=store, jobs=EmbeddedJobs(workers), job_options=Jobs(keep=60.0)
    )
    hooks = [Authorize(permit("staff", roles={"clerk", "lead"}))]
    return Gate([book, both, refund, payout, quiet], hooks, **options)


class Caller(Peer):
    """A client with tasks, which answers questions in the next call."""

    async def again(self, asked: dict[str, Any], name: str, *, of: str | None = None, **content: Any) -> dict[str, Any]:
        """Call again with the answer to each question, or to that one whose form asks for *of*."""
        keys = [key for key, one in asked["inputRequests"].items() if of is None or of in one["params"]["message"]]
        answers = {key: {"action": "accept", "content": content} for key in keys}
        more = {"requestState": asked["requestState"], "inputResponses": answers}
        return await self.send("tools/call", name=name, arguments={}, **more)

    async def output(self, task: dict[str, Any]) -> Any:
        assert "requestState" not in task
        assert "inputRequests" not in task
        assert task["resultType"] == "task"
        return (await self.ended(task["taskId"]))["result"].get("structuredContent")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_QUESTION", LONG)


@contextlib.asynccontextmanager
async def caller_of(gate: Gate) -> AsyncGenerator[Caller]:
    async with connect(server_of(gate, "memory").sdk) as client:
        yield Caller(client)


def asks(reply: dict[str, Any], *texts: str) -> bool:
    assert reply["resultType"] == "input_required"
    assert "taskId" not in reply
    return sorted(one["params"]["message"].splitlines()[0] for one in reply["inputRequests"].values()) == sorted(texts)


async def test_the_questions_come_first_and_the_last_answer_gets_the_task() -> None:
    ran: list[str] = []
    async with caller_of(gate_of(ran)) as caller:
        first = await caller.call("book")
        assert asks(first, "Which day?")
        second = await caller.again(first, "book", day="Monday")
        assert asks(second, "Which day back?")
        assert ran == []
        repeated = await caller.again(first, "book", day="Sunday")
        assert repeated["inputRequests"] == second["inputRequests"], "an answer counts once"
        task = await caller.again(second, "book", day="Friday")
        assert await caller.output(task) == "Monday to Friday"
        late = await caller.again(second, "book", day="Sunday")
        assert late["taskId"] == task["taskId"], "a repeat gets the same task"
        assert await caller.output(late) == "Monday to Friday"
        assert ran == ["book"]


async def test_a_call_asks_its_user_for_the_approval_first() -> None:
    ran: list[str] = []
    async with caller_of(gate_of(ran)) as caller:
        asked = await caller.call("refund", order="A1")
        assert asks(asked, "Confirm it.")
        assert ran == []
        assert await caller.output(await caller.again(asked, "refund", approve=True)) == "refunded A1"
        asked = await caller.call("refund", order="A2")
        assert await caller.output(await caller.again(asked, "refund", approve=False)) is None
        assert ran == ["A1"]


async def test_several_questions_are_answered_one_by_one_or_together() -> None:
    async with caller_of(gate_of([])) as caller:
        asked = await caller.call("both")
        assert asks(asked, "Out?", "Back?")
        left = await caller.again(asked, "both", of="Out?", day="Monday")
        assert asks(left, "Back?")
        assert await caller.output(await caller.again(left, "both", day="Friday")) == "Monday to Friday"
        asked = await caller.call("both")
        assert await caller.output(await caller.again(asked, "both", day="Monday")) == "Monday to Monday"


async def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    async with caller_of(gate_of([])) as caller:
        asked = await caller.call("both")
        refused = await caller.again(asked, "both", of="Out?", day="x")
        assert refused["isError"] is True
        left = await caller.again(asked, "both", of="Back?", day="Friday")
        assert asks(left, "Out?")


@pytest.mark.parametrize("name", ["quiet", "payout"])
async def test_a_call_without_a_question_for_its_user_is_a_task(name: str) -> None:
    """It asks nothing, or another person decides."""
    async with caller_of(gate_of([])) as caller:
        task = await caller.call(name)
        assert (task["resultType"], task["status"]) == ("task", "working")


async def test_a_question_that_comes_late_is_asked_in_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is free while the response waits."""
    monkeypatch.setattr(tasks, "FIRST_QUESTION", 0.0)
    gate = gate_of([], workers=0)
    async with caller_of(gate) as caller:
        task = await caller.call("both")
        assert task["resultType"] == "task"
        await gate.jobs.run_invocation()
        waiting = await caller.get(task["taskId"])
        assert len(waiting["inputRequests"]) == 2
        await caller.answer(waiting, day="Monday")
        await gate.jobs.run_invocation()
        assert await caller.output(task) == "Monday to Monday"


async def test_a_client_that_shows_no_forms_gets_the_task() -> None:
    from mcp import Client
    from mcp.client.extension import advertise

    async with Client(server_of(gate_of([]), "memory").sdk, extensions=[advertise(TASKS)]) as client:
        assert (await Caller(client).call("book"))["resultType"] == "task"


async def test_the_answer_may_come_to_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with caller_of(gate_of([], store=store)) as caller:
        asked = await caller.call("refund", order="A1")
    ran: list[str] = []
    async with caller_of(gate_of(ran, store=store)) as caller:
        assert await caller.output(await caller.again(asked, "refund", approve=True)) == "refunded A1"
        assert ran == ["A1"]


@pytest.mark.parametrize(
    "state", ["another user's", "changed", "of another tool", pytest.param("own", id="the control")]
)
async def test_a_state_that_is_not_of_the_user_and_the_tool_is_refused(state: str) -> None:
    ran: list[str] = []
    server = server_of(gate_of(ran), "http")
    async with (
        served(server.asgi()) as running,
        person(running.port, "ann") as of_ann,
        person(running.port, "eve") as of_eve,
        connect(of_ann) as ann,
        connect(of_eve) as eve,
    ):
        asked = await Caller(ann).call("refund", order="A1")
        name = "quiet" if state == "of another tool" else "refund"
        if state == "changed":
            asked["requestState"] = asked["requestState"][:-1] + ("A" if asked["requestState"][-1] != "A" else "B")
        sender = Caller(eve if state == "another user's" else ann)
        if state == "own":
            assert await sender.output(await sender.again(asked, name, approve=True)) == "refunded A1"
        else:
            with pytest.raises(MCPError, match="requestState"):
                await sender.again(asked, name, approve=True)
        assert ran == (["A1"] if state == "own" else [])
