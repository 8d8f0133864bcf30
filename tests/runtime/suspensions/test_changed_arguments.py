"""A model is told which arguments ran if they are not its own."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from callgate import (
    Approve,
    Edit,
    Effects,
    Gate,
    Options,
    Outcome,
    Stage,
    ToolCall,
    ToolError,
    ToolResult,
    User,
    on,
    tool,
)
from callgate.hooks import Redact
from callgate.runtime.hosts.a2a.parts import result_data
from callgate.runtime.hosts.asgi.response import ran_with_header
from callgate.runtime.models import codec
from callgate.runtime.models.wire.result_text import CHANGED, result_text
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json

ANN, EVA = User("ann", tenant="acme"), User("eva", tenant="acme")
ASKED = {"n": 1, "day": "2026-05-01", "pin": "1234"}
WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")


async def work(n: int, day: date, pin: str = "0000", note: str = "") -> Any:
    """Return the arguments, or fail."""
    if n < 0:
        raise ToolError("No.")
    return {"n": n, "day": day, "note": note}


def setting(stage: str, **values: Any) -> Any:
    """Return a hook that replaces arguments at one stage."""

    async def replace(ctx: Any) -> None:
        given = json.loads(ctx.raw_input) if stage == "will_parse_input" else ctx.input
        ctx.input = {**given, **values}

    return on(Stage(stage))(replace)


def gate_of(*hooks: Any, approval: bool = False) -> Gate:
    made = tool(name="work", effect="idempotent", requires_approval=approval)(work)
    return Gate(
        tools=[made],
        hooks=[*hooks, Redact("pin")],
        allow_unguarded=True,
        effects=Effects(durable=False),
        options=Options(on_repair="run"),
    )


async def result_with(*hooks: Any, edit: Any = None, asked: Any = ASKED) -> ToolResult:
    """Call the tool; an approver may edit the arguments."""
    async with gate_of(*hooks, approval=edit is not None) as gate:
        result = await gate.call(ToolCall(name="work", arguments=json.dumps(asked), id="c"), user=ANN)
        if edit is not None:
            assert result.ran_with is None
            assert result.pending is not None
            result = await gate.resume(
                result.pending.handle, Edit(edit) if isinstance(edit, dict) else edit, approver=EVA
            )
        return result


def read_by_wires(result: ToolResult) -> dict[str, str]:
    """What a model reads of a result, by wire."""
    return {wire: json.dumps(codec(wire).results([result], None)) for wire in WIRES}


CHANGES: dict[str, dict[str, Any]] = {
    "an edit": {"edit": {**ASKED, "n": 2}},
    "a hook before the parse": {"hooks": [setting("will_parse_input", n=2)]},
    "a hook before validation": {"hooks": [setting("will_validate_input", n=2)]},
    "a hook that normalises": {"hooks": [setting("will_normalize_input", n=2)]},
    "a hook that mends": {"hooks": [setting("will_validate_input", n=2)], "asked": {**ASKED, "n": "two"}},
    "a hook, and an approver who agrees": {"hooks": [setting("will_normalize_input", n=2)], "edit": Approve()},
}


@pytest.mark.parametrize("case", CHANGES)
async def test_changed_arguments_are_told_on_every_way_to_a_model(case: str) -> None:
    """I3: in the text of each wire, over A2A and HTTP, and after the result was stored; secrets are masked."""
    how = CHANGES[case]
    result = await result_with(*how.get("hooks", ()), edit=how.get("edit"), asked=how.get("asked", ASKED))
    assert result.ok
    assert result.ran_with is not None
    assert (result.ran_with["n"], result.ran_with["pin"] != "1234") == (2, True)
    for text in (*read_by_wires(result).values(), json.dumps(result_data(result)), str(ran_with_header(result))):
        assert "2026-05-01" in text
        assert "1234" not in text
    for text in (*read_by_wires(result).values(), json.dumps(result_data(result))):
        assert CHANGED in text
    assert result_from_json(json.loads(json.dumps(result_as_json(result)))).ran_with == result.ran_with
    assert result.to_status()["metadata"]["ranWith"] == result.ran_with


async def test_the_failure_of_changed_arguments_tells_them_too() -> None:
    """I3: and a long list of them keeps the text of an error short."""
    for note, shown in (("", True), ("x" * 5_000, False)):
        result = await result_with(setting("will_normalize_input", n=-2, note=note))
        assert result.outcome is Outcome.ERROR
        read = json.loads(result_text(result))
        assert (read["error"]["message"], read["ran_with"]["note"]) == ("No.", CHANGED)
        assert ("arguments" in read["ran_with"]) is shown
        assert len(result_text(result).encode()) <= 2300


UNCHANGED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a default": {"asked": {"n": 1, "day": "2026-05-01"}},
    "a conversion": {"asked": {"n": 1.0, "day": "2026-05-01"}},
    "a hook that sets the same": {"hooks": [setting("will_normalize_input")]},
    "a hook that sets a default": {
        "hooks": [setting("will_validate_input", note="")],
        "asked": {"n": 1, "day": "2026-05-01"},
    },
    "an edit to the same": {"edit": ASKED},
}


@pytest.mark.parametrize("case", UNCHANGED)
async def test_defaults_and_conversions_are_no_change(case: str) -> None:
    """I3: such results are as before."""
    how = UNCHANGED[case]
    result = await result_with(*how.get("hooks", ()), edit=how.get("edit"), asked=how.get("asked", ASKED))
    assert (result.ok, result.ran_with) == (True, None)
    assert json.loads(result_text(result)) == result.output
    assert "ran_with" not in result_as_json(result)
    assert ran_with_header(result) == []


async def test_a_repair_is_told_and_a_call_that_never_ran_tells_nothing() -> None:
    """I3."""
    async with gate_of() as gate:
        broken = ToolCall(name="work", arguments='{"n": "x"}', id="c")
        repaired = await gate.call(gate.hydrate(broken, repair=lambda _call, _error: ASKED), user=ANN)
        assert (repaired.ok, repaired.ran_with is not None) == (True, True)
    refused = await result_with(setting("will_validate_input", n="no number"))
    assert (refused.outcome, refused.ran_with) == (Outcome.INVALID, None)
