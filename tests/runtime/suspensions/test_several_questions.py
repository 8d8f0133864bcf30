"""Several named questions at once: the answers come one by one, and the call goes on with the last. Issue 35 §1.6."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Deny, Gate, Hook, InvokeContext, Outcome, Question, Respond, ToolContext, User, tool
from callgate.errors import Invalid
from callgate.jobs import EmbeddedJobs, JobState
from callgate.providers.stores.memory.suspensions import MemorySuspensions
from callgate.runtime.suspensions.resumption import SuspendedCall
from tests.runtime.effects.scene_desk import ANN, BOB, CID, Desk, code, gate_of
from tests.runtime.suspensions.test_handover import EVERY_STORE, processes

GOOD: dict[str, Any] = {"day": "friday", "seats": 2, "meal": None}
WRONG: dict[str, Any] = {"day": 7, "seats": "two"}
QUESTIONS = {
    "day": Question("Which day?", {"type": "string", "minLength": 3}),
    "seats": Question("How many seats?", {"type": "integer", "maximum": 9}),
    "meal": Question("Any wishes?"),  # any JSON
}
ORDERS = list(itertools.permutations(GOOD))


class Flights:
    """A tool, or a hook before it, that asks all questions at once; ``booked`` lists the answers of each run."""

    def __init__(self, asker: str = "tool", **options: Any) -> None:
        self.booked: list[Any] = []
        self.asker, self.options = asker, options

    def ask(self, ctx: Any) -> Any:
        return ctx.suspend("input", "Your flight", questions=QUESTIONS, **self.options)

    def tool(self) -> Any:
        @tool(effect="read", resumable=True)
        async def book(to: str, *, ctx: ToolContext) -> str:
            """Book a flight."""
            if self.asker == "tool":
                self.booked.append(self.ask(ctx))
            return f"to {to}"

        return book

    @property
    def hooks(self) -> list[Hook]:
        flights = self

        class Asks(Hook):
            def will_authorize_input(self, ctx: InvokeContext) -> None:
                if flights.asker == "hook":
                    flights.booked.append(flights.ask(ctx))

        return [Asks()]

    def gate(self, **options: Any) -> Gate:
        return gate_of(self.tool(), self.hooks, **options)


async def asked(gate: Gate, **options: Any) -> str:
    """Ask for a flight; return the handle."""
    result = await gate.call("book", {"to": "Rome"}, user=ANN, **options)
    assert result.outcome is Outcome.SUSPENDED
    assert result.pending.questions.keys() == QUESTIONS.keys()
    return str(result.pending.handle)


async def waiting(gate: Gate, handle: str) -> set[str]:
    """Return the names of the questions that wait, as every reader sees them."""
    seen, found = await gate.waits.look(handle, ANN), (await gate.outcome(handle, user=ANN)).pending
    assert seen.questions is not None
    assert found is not None
    assert found.questions is not None
    assert seen.questions.keys() == found.questions.keys()
    assert seen.schema is not None
    assert list(seen.schema["properties"]) == list(seen.questions)
    assert (seen.schema["required"], seen.schema["additionalProperties"]) == (list(seen.questions), False)
    return set(seen.questions)


@EVERY_STORE
@pytest.mark.parametrize("asker", ["tool", "hook"])
async def test_the_answers_come_in_any_order_and_the_last_lets_the_call_go_on(
    kind: str, asker: str, tmp_path: Path
) -> None:
    """One by one, in parts, or all at once, from any process."""
    flights = Flights(asker)
    tools, desk = [flights.tool()], Desk()
    async with processes(kind, tmp_path, desk, tools=tools, hooks=flights.hooks) as (first, second, third):
        one_by_one: list[list[Mapping[str, Any]]] = [[{name: GOOD[name]} for name in order] for order in ORDERS]
        ways: list[list[Mapping[str, Any]]] = [*one_by_one, [GOOD], [{"day": "friday", "meal": None}, {"seats": 2}]]
        for number, parts in enumerate(ways):
            handle, left, result = await asked(first), set(GOOD), None
            for gate, part in zip(itertools.cycle((second, third)), parts, strict=False):
                assert await waiting(gate, handle) == left
                result = await gate.resume(handle, part, approver=ANN)
                left -= part.keys()
                if left:
                    assert (result.outcome, result.pending.handle) == (Outcome.SUSPENDED, handle)
                    assert result.pending.questions.keys() == left
                    assert len(flights.booked) == number
            assert result is not None
            assert (result.outcome, result.output) == (Outcome.SUCCESS, "to Rome")
    assert flights.booked == [GOOD] * len(ways)


async def test_control_a_call_that_goes_on_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above would fail if one answer were enough."""
    monkeypatch.setattr(SuspendedCall, "is_met", True)
    flights = Flights()
    async with flights.gate() as gate:
        first = await asked(gate)
        result = await gate.resume(first, {"day": "friday"}, approver=ANN)
        assert result.pending.handle != first, "it ran, and asked again"


@EVERY_STORE
async def test_a_wrong_answer_is_refused_and_the_others_are_kept(kind: str, tmp_path: Path) -> None:
    """Those of before, and those of the same mapping. The error names the question, and has no value."""
    flights = Flights()
    async with processes(kind, tmp_path, Desk(), tools=[flights.tool()]) as (gate, other, _):
        for name, value in WRONG.items():
            handle = await asked(gate)
            await gate.resume(handle, {"meal": None}, approver=ANN)
            rest = {each: GOOD[each] for each in GOOD if each not in {name, "meal"}}
            with pytest.raises(Invalid) as alone:
                await other.resume(handle, {name: value}, approver=ANN)
            assert await waiting(gate, handle) == {name, *rest}
            with pytest.raises(Invalid) as beside:
                await other.resume(handle, {name: value, **rest}, approver=ANN)
            assert await waiting(gate, handle) == {name}
            for caught in (alone, beside):
                assert [one.pointer for one in caught.value.issues] == [f"/{name}"]
                assert str(value) not in caught.value.public.replace(name, "")
            assert (await gate.resume(handle, {name: GOOD[name]}, approver=ANN)).ok
    assert flights.booked == [GOOD] * len(WRONG)


@pytest.mark.parametrize(
    "answers", [{"colour": "red"}, {"colour": "red", **GOOD}, {}, Respond("friday"), Respond(None), "approve"], ids=str
)
async def test_answers_without_their_question_are_refused_as_a_whole(answers: Any) -> None:
    """Nothing of them is recorded, and the call keeps waiting."""
    flights = Flights()
    async with flights.gate() as gate:
        handle = await asked(gate)
        with pytest.raises(Invalid) as caught:
            await gate.resume(handle, answers, approver=ANN)
        assert caught.value.code == "answer_expected"
        assert await waiting(gate, handle) == set(GOOD)


async def test_the_last_answer_beside_a_wrong_one_does_not_run_the_call() -> None:
    """An answer that was recorded stays, and may be replaced until the last is in."""
    flights = Flights()
    async with flights.gate() as gate:
        handle = await asked(gate)
        await gate.resume(handle, {"day": "monday", "meal": None}, approver=ANN)
        with pytest.raises(Invalid):
            await gate.resume(handle, {"day": 7, "seats": 2}, approver=ANN)
        assert flights.booked == []
        assert await waiting(gate, handle) == {"seats"}
        await gate.resume(handle, {"day": "friday"}, approver=ANN)
        assert (await gate.resume(handle, Respond({"seats": 2}), approver=ANN)).ok
    assert flights.booked == [GOOD]


# ---------------------------------------------------------------------- at once


@EVERY_STORE
async def test_answers_that_come_at_once_all_count_and_the_call_runs_once(kind: str, tmp_path: Path) -> None:
    """Each process answers one question; one of them has the last answer, and runs the call."""
    flights = Flights()
    async with processes(kind, tmp_path, Desk(), tools=[flights.tool()]) as gates:
        for number in range(1, 4):
            handle = await asked(gates[0])
            results = await asyncio.gather(
                *(gate.resume(handle, {name: GOOD[name]}, approver=ANN) for gate, name in zip(gates, GOOD, strict=True))
            )
            assert sorted(one.outcome.value for one in results) == ["success", "suspended", "suspended"]
            assert len(flights.booked) == number
    assert flights.booked == [GOOD] * 3


async def test_control_a_store_that_replaces_any_version_loses_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above sees a lost answer."""
    barrier, real = asyncio.Barrier(2), MemorySuspensions.replace

    async def replace(store: Any, tenant: str, wait: Any) -> bool:
        await barrier.wait()  # both have read the same version
        store._suspensions[tenant, wait.id] = wait
        return True

    flights = Flights()
    async with flights.gate() as gate:
        handle = await asked(gate)
        monkeypatch.setattr(MemorySuspensions, "replace", replace)
        await asyncio.gather(*(gate.resume(handle, {name: GOOD[name]}, approver=ANN) for name in ("day", "seats")))
        monkeypatch.setattr(MemorySuspensions, "replace", real)
        assert len(await waiting(gate, handle)) == 2


# ---------------------------------------------------------------------- people, jobs and repeats


async def test_each_question_needs_the_answers_of_as_many_people_as_the_rule_says() -> None:
    """A different answer to one question drops that question's others, and leaves the rest."""
    flights = Flights("hook", by=Approval(roles={"lead"}, quorum=2))
    async with flights.gate() as gate:
        handle = await asked(gate)
        await gate.resume(handle, GOOD, approver=BOB)
        assert await waiting(gate, handle) == set(GOOD)
        result = await gate.resume(handle, {**GOOD, "seats": 3}, approver=CID)
        assert result.pending.questions.keys() == {"seats"}
        assert flights.booked == []
        assert (await gate.resume(handle, {"seats": 3}, approver=BOB)).ok
    assert flights.booked == [{**GOOD, "seats": 3}]


@pytest.mark.parametrize("decision", [Deny("no"), Respond(error="I do not know.")], ids=["deny", "no answer"])
async def test_a_refusal_ends_all_questions(decision: Any) -> None:
    """Also after some of them were answered."""
    flights = Flights()
    async with flights.gate() as gate:
        handle = await asked(gate)
        await gate.resume(handle, {"day": "friday"}, approver=ANN)
        result = await gate.resume(handle, decision, approver=ANN)
        assert not result.ok
        assert code(result) == "declined"
        assert flights.booked == []
        assert await gate.waits.pending(ANN) == []


async def test_a_job_goes_on_once_the_last_answer_is_in() -> None:
    """Its outcome names the questions that still wait."""
    flights = Flights()
    async with flights.gate(jobs=EmbeddedJobs(0)) as gate:
        job = await gate.submit("book", {"to": "Rome"}, user=ANN)
        assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
        pending = (await gate.outcome(job, user=ANN)).pending
        assert pending is not None
        left = set(GOOD)
        for name, value in GOOD.items():
            found = (await gate.outcome(job, user=ANN)).pending
            assert found is not None
            assert found.questions is not None
            assert set(found.questions) == left
            assert pending.handle is not None
            await gate.resume(pending.handle, {name: value}, approver=ANN, deadline=0.01)
            left.remove(name)
        await gate.jobs.run_invocation()
        assert (await job).output == "to Rome"
    assert flights.booked == [GOOD]


@EVERY_STORE
async def test_a_repeat_finds_the_questions_that_still_wait(kind: str, tmp_path: Path) -> None:
    """And the last answer may be recorded for another process."""
    flights = Flights()
    async with processes(kind, tmp_path, Desk(), tools=[flights.tool()]) as (gate, other, _):
        handle = await asked(gate, idempotency_key="k")
        await other.resume(handle, {"day": "friday"}, approver=ANN)
        again = await gate.call("book", {"to": "Rome"}, user=ANN, idempotency_key="k")
        assert again.pending.handle == handle
        assert again.pending.questions.keys() == {"seats", "meal"}
        result = await other.resume(handle, {"seats": 2, "meal": None}, approver=ANN, here=False)
        assert (result.outcome, flights.booked) == (Outcome.IN_FLIGHT, [])
        assert (await gate.proceed(handle, user=ANN)).output == "to Rome"
    assert flights.booked == [GOOD]


# ---------------------------------------------------------------------- one question, and mistakes


async def test_one_named_question_takes_a_mapping_as_well() -> None:
    """Its value may be an object with the same name; ``Respond`` has the value itself."""
    schema = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

    @tool(effect="read", resumable=True)
    async def book(*, ctx: ToolContext) -> Any:
        """Book."""
        return ctx.suspend("input", "When?", schema=schema, name="day")

    async with gate_of(book) as gate:
        for decision in (Respond({"day": "friday"}), {"day": {"day": "friday"}}):
            handle = (await gate.call("book", {}, user=ANN)).pending.handle
            for wrong in ({"night": {"day": "friday"}}, {}, {"day": {"day": "friday"}, "night": 1}):
                with pytest.raises(Invalid):
                    await gate.resume(handle, wrong, approver=ANN)
            assert (await gate.resume(handle, decision, approver=ANN)).output == {"day": "friday"}


@pytest.mark.parametrize(
    "options",
    [
        {"questions": {}},
        {"questions": {"a b": Question("?")}},
        {"questions": {1: Question("?")}},
        {"questions": {"day": "Which day?"}},
        {"questions": {"day": Question("?")}, "name": "day"},
        {"questions": {"day": Question("?")}, "schema": {"type": "string"}},
    ],
    ids=str,
)
async def test_questions_that_are_written_wrongly_fail_the_call(options: Any) -> None:
    """Nothing is suspended."""
    flights = Flights()
    flights.ask = lambda ctx: ctx.suspend("input", "?", **options)  # type: ignore[method-assign]
    async with flights.gate() as gate:
        assert (await gate.call("book", {"to": "Rome"}, user=ANN)).outcome is Outcome.ERROR
        assert await gate.waits.pending(User("ann", "acme")) == []
