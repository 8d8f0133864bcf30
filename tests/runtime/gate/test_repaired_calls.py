"""A call whose arguments a repairer wrote: who approves it, what runs, and the marks that it carries."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from callgate import (
    Approve,
    Deny,
    Edit,
    Gate,
    HydrationResult,
    InvokeContext,
    NoSchemaMode,
    Options,
    Outcome,
    Respond,
    ToolCall,
    User,
    converse,
    invoke_tool,
    tool,
)
from callgate.errors import Denied
from callgate.hooks.state.facts import OnRepair
from callgate.models import OpenAIChat
from callgate.runtime.conversation.events import Ending
from callgate.runtime.models.wire.offered_tools import ToolTranslator
from callgate.testing import trace
from callgate.tools.declaring.declare import as_tool
from tests.runtime.conversation.conversing import FakeModel, asks, says
from tests.runtime.gate.making import USER, Counting, Seeing, call, double, gate_of, made

BOSS = User("boss", tenant="acme")
BROKEN = '{"n": "two"}'


def two(_call: ToolCall, _error: Any) -> Any:
    return {"n": 2}


async def two_later(_call: ToolCall, _error: Any) -> Any:
    await asyncio.sleep(0)
    return '{"n": 2}'


def gate_with(on_repair: OnRepair, *hooks: Any, **options: Any) -> Gate:
    return gate_of([made(double)], *hooks, on_repair=on_repair, **options)


@pytest.mark.parametrize("repairer", [two, two_later])
async def test_a_repaired_call_waits_until_a_person_approves_the_repaired_arguments(repairer: Any) -> None:
    """Contract 49, C10c."""
    seeing = Seeing()
    async with gate_of([made(double)], seeing) as gate:
        found = await gate.repair(gate.hydrate(call(BROKEN)), repairer)
        assert (found.success, found.trusted) == (True, False)
        waits = await gate.call(found, user=USER)
        assert waits.outcome is Outcome.SUSPENDED
        pending = await gate.waits.look(waits.pending.handle, BOSS)
        assert pending.arguments == {"n": 2}
        assert "repairer" in pending.prompt
        ran = await gate.resume(waits.pending.handle, Approve(), approver=BOSS)
    assert ran.output == 4
    for result in (waits, ran):
        noted = result.provenance["repair"]
        assert (noted.before, noted.by) == (BROKEN, repairer.__qualname__)
        assert noted.after in ({"n": 2}, '{"n": 2}')
    assert seeing.inputs == [{"n": 2}, {"n": 2}]


@pytest.mark.parametrize("decision", [Deny("no"), Edit({"n": 5})])
async def test_the_approver_may_decline_or_change_what_a_repairer_wrote(decision: Any) -> None:
    """Contract 49, C10c."""
    async with gate_with("approve") as gate:
        waits = await gate.call(gate.hydrate(call(BROKEN), repair=two), user=USER)
        ended = await gate.resume(waits.pending.handle, decision, approver=BOSS)
    assert (ended.outcome, ended.output) == (
        (Outcome.SUCCESS, 10) if isinstance(decision, Edit) else (Outcome.DENIED, None)
    )


async def test_the_caller_cannot_approve_the_repair_of_its_own_call() -> None:
    """Contract 49, C10c."""
    async with gate_with("approve") as gate:
        waits = await gate.call(gate.hydrate(call(BROKEN), repair=two), user=USER)
        with pytest.raises(Denied):
            await gate.resume(waits.pending.handle, Approve(), approver=USER)


async def test_a_gate_runs_repaired_calls_where_its_settings_say_so() -> None:
    """Contract 49, C10c."""
    engine = Counting()
    async with gate_with("run", validator=engine) as gate:
        found = gate.hydrate(call(BROKEN), repair=two)
        engine.judged = 0
        result = await gate.call(found, user=USER)
        assert (result.output, engine.judged) == (4, 0), "hydration validated the repaired arguments"
        assert result.provenance["repair"].before == BROKEN


async def test_a_gate_refuses_repaired_calls_where_its_settings_say_so_with_a_text_for_the_model() -> None:
    """Contract 49, C10c."""
    async with gate_with("refuse") as gate:
        result = await gate.call(gate.hydrate(call(BROKEN), repair=two), user=USER)
    assert result.outcome is Outcome.DENIED
    assert result.error is not None
    assert (result.error.code, "send valid arguments" in result.error.public) == ("repaired", True)


def test_another_setting_is_refused_with_the_settings_that_exist() -> None:
    with pytest.raises(ValueError, match='"approve", "run" or "refuse"'):
        Options(on_repair="maybe")  # type: ignore[arg-type]


async def test_without_anyone_to_ask_a_repaired_call_is_denied() -> None:
    """Contract 49, C10c."""
    record = as_tool(made(double))
    async with gate_of([record]) as gate:
        found = gate.hydrate(call(BROKEN), repair=two)
    with pytest.raises(Denied) as caught:
        await invoke_tool(record, found, user=USER)
    assert caught.value.code == "approval_required"


STRIPPED: dict[str, Any] = {
    "the mark": lambda found: dataclasses.replace(
        found, provenance=dataclasses.replace(found.provenance, repaired=False, repair=None)
    ),
    "the token": lambda found: dataclasses.replace(found, token=None),
}


@pytest.mark.parametrize("what", STRIPPED)
async def test_a_repaired_result_without_its_mark_does_not_run(what: str) -> None:
    """Contract 44, 49, I2."""
    async with gate_with("approve") as gate:
        found: HydrationResult = STRIPPED[what](gate.hydrate(call(BROKEN), repair=two))
        result = await gate.call(found, user=USER)
    assert result.outcome is (Outcome.SUSPENDED if what == "the mark" else Outcome.INVALID)


async def test_arguments_that_a_hook_changes_after_the_approval_wait_again() -> None:
    """Contract 49, I2."""

    class Growing(Seeing):
        by = 0

        def will_normalize_input(self, ctx: InvokeContext) -> None:
            ctx.input = {**ctx.input, "n": ctx.input["n"] + self.by}

    growing = Growing()
    async with gate_with("approve", growing) as gate:
        waits = await gate.call(gate.hydrate(call(BROKEN), repair=two), user=USER)
        growing.by = 1
        again = await gate.resume(waits.pending.handle, Approve(), approver=BOSS)
        assert again.outcome is Outcome.SUSPENDED
        assert (await gate.waits.look(again.pending.handle, BOSS)).arguments == {"n": 3}


async def test_a_repaired_call_that_waits_before_its_arguments_are_read_keeps_the_repaired_ones() -> None:
    """Contract 49, C10c."""

    class Asking(Seeing):
        def will_check_consent(self, ctx: InvokeContext) -> None:
            ctx.suspend("consent", "May it?", schema={"type": "boolean"})

    async with gate_with("approve", Asking()) as gate:
        first = await gate.call(gate.hydrate(call(BROKEN), repair=two), user=USER)
        assert first.pending.kind == "consent"
        second = await gate.resume(first.pending.handle, Respond(True), approver=USER)
        assert second.pending.kind == "approval"
        assert (await gate.resume(second.pending.handle, Approve(), approver=BOSS)).output == 4


async def test_a_call_without_a_schema_whose_text_was_repaired_waits_too() -> None:
    """Contract 16, 49, C9, C10c."""

    @tool(allow_no_schema=True, no_schema_mode=NoSchemaMode.FULL)
    async def loose(**arguments: Any) -> Any:
        """Takes anything."""
        return arguments

    async with gate_of([loose], durable=False) as gate:
        found = gate.hydrate(call("nonsense", "loose"), repair=two)
        waits = await gate.call(found, user=USER)
        assert waits.outcome is Outcome.SUSPENDED
        ran = await gate.resume(waits.pending.handle, Approve(), approver=BOSS)
        assert (ran.output, ran.provenance["validated"]) == ({"n": 2}, False)


async def test_the_trace_of_a_repaired_call_names_the_repairer_and_both_arguments() -> None:
    """Contract 49, C10c."""
    async with gate_with("run") as gate:
        seen = await trace(gate, gate.hydrate(call(BROKEN), repair=two), user=USER)
        plain = await trace(gate, call(), user=USER)
    assert seen.verdicts["[repaired].will_parse_input"] == "ok"
    assert 'repaired by two: {"n": "two"} -> {"n": 2}' in str(seen)
    assert "repaired" not in str(plain)


def test_a_plain_repairer_is_required_where_nothing_is_awaited() -> None:
    """Contract 49."""
    with pytest.raises(TypeError, match=r"await gate.repair\(gate.hydrate\(call\), repairer\)"):
        gate_of([made(double)]).hydrate(call(BROKEN), repair=two_later)


async def test_a_result_is_repaired_at_most_once_and_a_valid_one_never() -> None:
    """Contract 49, C10c."""
    asked: list[Any] = []

    async def nonsense(_call: ToolCall, error: Any) -> Any:
        asked.append(error)
        return "nonsense"

    gate = gate_of([made(double)])
    valid = gate.hydrate(call())
    assert await gate.repair(valid, nonsense) is valid
    failed = await gate.repair(gate.hydrate(call(BROKEN)), nonsense)
    assert await gate.repair(failed, nonsense) is failed
    unknown = gate.hydrate(call(name="nope"))
    assert await gate.repair(unknown, nonsense) is unknown
    assert len(asked) == 1


async def test_a_repaired_call_is_not_made_a_job() -> None:
    async with gate_with("run") as gate:
        with pytest.raises(ValueError, match=r"use gate\.call"):
            await gate.submit(gate.hydrate(call(BROKEN), repair=two), user=USER)


@pytest.mark.parametrize("repairer", [two, two_later])
@pytest.mark.parametrize("on_repair", ["approve", "run"])
async def test_a_conversation_repairs_calls_and_does_as_its_gate_says(repairer: Any, on_repair: OnRepair) -> None:
    """Contract 49, C10c."""
    asked = ToolCall(id="c1", name="work", arguments=BROKEN)
    async with gate_with(on_repair) as gate:
        ended = await converse(FakeModel(asks(asked), says("done")), gate, "go", user=USER, repair=repairer)
        (one,) = ended.calls
        if on_repair == "approve":
            assert ended.ended is Ending.SUSPENDED
            result = await gate.resume(one.result.pending.handle, Approve(), approver=BOSS)
            ended = await converse(FakeModel(says("done")), gate, user=USER, resume=ended.state, results={"c1": result})
            (one,) = ended.calls
    assert (ended.text, one.result.output) == ("done", 4)


@pytest.mark.parametrize("repairer", [two, two_later])
async def test_a_model_client_repairs_calls_with_a_plain_or_async_repairer(repairer: Any) -> None:
    """Contract 49."""
    async with gate_with("run") as gate:
        for tools in (gate, [made(double)]):
            offered = ToolTranslator(OpenAIChat.codec).of(tools, USER, checked=True)
            found = await offered.hydrate(ToolCall(id="c1", name="work", arguments=BROKEN), repairer)
            assert (found.success, found.trusted) == (True, False)
