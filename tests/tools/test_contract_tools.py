"""Items of the contract that lie between tools, wires and the gate: no-schema tools, results' shapes, a call's whole way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from callgate import (
    Denied,
    Effects,
    Gate,
    Outcome,
    ToolCall,
    ToolDefinition,
    ToolError,
    ToolRecord,
    ToolResult,
    codec,
    invoke_tool,
    tool,
)
from callgate.errors import DefinitionError
from callgate.tools.declaring.component import attach_validator
from callgate.tools.record import Style
from callgate.tools.schemas.validation import compile_schema

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def note(**arguments: Any) -> str:
    RAN.append(arguments)
    return "done"


def free(mode: str, effect: str | None = None) -> Any:
    return tool(name="free", description="…", allow_no_schema=True, no_schema_mode=mode, effect=effect)(note)  # type: ignore[call-overload]


# Tools without a schema


@pytest.mark.parametrize(("mode", "effect"), [("read-only", "read"), ("full", None)])
async def test_a_call_without_a_schema_runs_and_says_that_it_was_not_validated(mode: str, effect: str | None) -> None:
    """Contract 15, 16, C9."""
    async with Gate([free(mode, effect)], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        result = await gate.call(ToolCall(id="c1", name="free", arguments={"anything": 1}))
    assert result.ok
    assert result.provenance["validated"] is False
    assert result.provenance["no_schema_mode"] == mode


async def test_a_tool_that_wants_a_persons_approval_is_denied_for_want_of_one() -> None:
    """Contract 15, 17, C9: without a gate nobody could approve; in one the call waits."""
    record = free("human-approval")
    with pytest.raises(Denied) as refused:
        await invoke_tool(record, {})
    assert refused.value.code == "approval_required"
    async with Gate([record], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        assert (await gate.call(ToolCall(id="c1", name="free", arguments={}))).outcome is Outcome.SUSPENDED
    assert not RAN


async def test_a_tool_without_schema_and_mode_is_denied_even_where_registration_was_got_around() -> None:
    """Contract 13, 17."""
    definition = free("full").definition
    with pytest.raises(DefinitionError, match="no schema"):
        ToolDefinition("free")
    for name, value in (("allow_no_schema", False), ("no_schema_mode", None)):
        object.__setattr__(definition, name, value)
    record = ToolRecord(definition, note, Style.KEYWORDS)
    async with Gate([record], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        result = await gate.call(ToolCall(id="c1", name="free", arguments={}))
    assert result.outcome is Outcome.DENIED
    assert not RAN


# Schemas and validators

FULL = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "additionalProperties": False}


async def test_a_model_sees_the_compact_schema_and_arguments_are_judged_by_the_full_one() -> None:
    """Contract 11, 20."""
    compact = {"type": "object", "properties": {"n": {"type": "integer"}}}
    counted = tool(name="count", parameters=FULL, provider_schema=compact, effect="read")(note)
    async with Gate([counted]) as gate:
        (offered,) = gate.definitions("anthropic")["tools"]
        result = await gate.call(
            ToolCall(id="c1", name="count", arguments={"n": 10})
        )  # fine by what the model was shown
    assert offered["input_schema"] == compact
    assert result.outcome is Outcome.INVALID
    assert not RAN


async def test_a_schema_that_leads_elsewhere_is_refused_and_nothing_is_fetched() -> None:
    """Contract 19."""
    elsewhere = {"type": "object", "properties": {"n": {"$ref": "https://schemas.invalid/n.json"}}}
    with pytest.raises(DefinitionError, match="external_ref"):
        Gate([tool(name="far", parameters=elsewhere, effect="read")(note)])


def test_an_attached_validator_is_the_one_that_the_class_shows() -> None:
    """Contract 7, 18."""

    @tool(parameters=FULL, effect="read")
    class Count:
        def __init__(self, arguments: Mapping[str, Any]) -> None: ...

        async def run(self) -> None: ...

    mine = compile_schema(FULL)
    attach_validator(Count, mine)
    assert cast("Any", Count).validator is mine


# Results


def test_a_result_shows_itself_in_both_of_the_documents_shapes() -> None:
    """Contract 36, 76, C11."""
    done = ToolResult("c1", "t", Outcome.SUCCESS, output={"n": 1}, duration=0.5)
    told = {"outcome": "success", "duration": 0.5}
    assert done.to_status() == {
        "callId": "c1", "toolName": "t", "status": "success", "output": {"n": 1}, "metadata": told,
    }  # fmt: skip
    assert done.to_success() == {"toolCallId": "c1", "toolName": "t", "success": True, "result": {"n": 1}}


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.SUCCESS])
def test_every_other_outcome_is_an_error_in_both_shapes_and_is_told_in_the_metadata(outcome: Outcome) -> None:
    """Contract 36, 76, C11."""
    failed = ToolResult("c1", "t", outcome)
    status, success = failed.to_status(), failed.to_success()
    assert (status["status"], status["metadata"]["outcome"]) == ("error", outcome)
    assert success["success"] is False
    assert status["error"] == success["error"] == outcome
    assert "output" not in status


async def test_the_gate_fills_in_call_id_tool_and_duration() -> None:
    """Contract 76, C11."""

    @tool(effect="read")
    async def broken() -> None:
        raise ToolError("Out of paper.")

    async with Gate([broken]) as gate:
        result = await gate.call(ToolCall(id="c7", name="broken"))
    shown = result.to_status()
    assert (shown["callId"], shown["toolName"], shown["status"], shown["error"]) == (
        "c7",
        "broken",
        "error",
        "Out of paper.",
    )
    assert shown["metadata"]["duration"] > 0


# The whole way of a call


def answer(wire: str, name: str, arguments: Any) -> dict[str, Any]:
    """A provider's answer with one call."""
    if wire == "anthropic":
        used = {"type": "tool_use", "id": "p1", "name": name, "input": arguments}
        return {"content": [used], "stop_reason": "tool_use"}
    call = {"id": "p1", "type": "function", "function": {"name": name, "arguments": arguments}}
    if wire == "ollama":
        return {"message": {"tool_calls": [call]}}
    return {"choices": [{"message": {"tool_calls": [call]}}]}


@pytest.mark.parametrize("wire", ["openai_chat", "anthropic", "ollama"])
async def test_definitions_go_out_an_answer_comes_in_and_nothing_runs_before_the_gate_is_asked(wire: str) -> None:
    """Contract 50, 55, 57, C10."""
    counted = tool(name="count", description="Counts.", parameters=FULL, effect="read")(note)
    spelled = codec(wire)
    async with Gate([counted]) as gate:
        translation = spelled.translate(gate.definitions())
        right, wrong, foreign = (
            gate.hydrate(call, wire=wire)
            for name, n in (("count", 3), ("count", 10), ("other", 3))
            for call in spelled.calls(answer(wire, name, {"n": n}), translation)
        )
        assert (right.success, right.arguments, right.errors) == (True, {"n": 3}, ())
        assert [error.stage for error in wrong.errors] == ["validate"]
        assert [error.stage for error in foreign.errors] == ["instantiate"]
        assert not RAN
        results = [await gate.call(hydrated) for hydrated in (right, wrong, foreign)]
    assert [result.outcome for result in results] == [Outcome.SUCCESS, Outcome.INVALID, Outcome.INVALID]
    assert RAN == [{"n": 3}]
    assert spelled.results(results, translation)
