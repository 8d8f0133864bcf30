"""Every hydration attempt can be kept, with secrets masked: valid, invalid, repaired, and of unknown tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate import ToolCall
from callgate.models import OpenAIChat
from callgate.runtime.models.wire.offered_tools import ToolTranslator
from callgate.tools.arguments import attempts
from tests.runtime.gate.making import USER, call, gate_of, made

SECRET: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "password": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


async def work(n: int, password: str = "") -> int:
    return n


def keeping(**options: Any) -> tuple[Any, list[dict[str, Any]]]:
    kept: list[dict[str, Any]] = []
    return gate_of([made(work, parameters=SECRET)], on_hydration=kept.append, **options), kept


TEXTS = {
    "valid": '{"n": 2, "password": "hunter22"}',
    "an object": {"n": 2, "password": "hunter22"},
    "invalid": '{"n": "x", "password": "hunter22"}',
    "no JSON": '{"n": 2, "password": "hunter22"',
}


@pytest.mark.parametrize("how", TEXTS)
async def test_an_attempt_is_kept_with_wire_definition_validator_and_errors(how: str) -> None:
    """Contract 46, 47, 48, 54."""
    gate, kept = keeping()
    found = gate.hydrate(call(TEXTS[how]), wire="gemini")
    (record,) = kept
    stage = {"invalid": "validate", "no JSON": "parse"}.get(how)
    assert (record["tool"], record["call_id"], record["wire"], record["success"]) == (
        "work",
        "c1",
        "gemini",
        found.success,
    )
    assert [error["stage"] for error in record["errors"]] == ([] if stage is None else [stage])
    assert record["definition"] == gate.registry.get("work").definition.digest
    assert (record["validator"] is None) is (stage == "parse")
    if stage != "parse":
        assert record["payload"] == {"n": "x" if stage else 2, "password": "***"}
    if stage == "validate":
        assert record["errors"][0]["issues"][0][:2] == ["/n", "type"]
    assert "hunter22" not in json.dumps(record)


async def test_the_probe_finds_a_payload_that_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""

    class Open:
        def event(self, _logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
            return event

    monkeypatch.setattr(attempts, "_REDACT", Open())
    gate, kept = keeping()
    gate.hydrate(call(TEXTS["valid"]))
    assert "hunter22" in str(kept)


@pytest.mark.parametrize("later", [False, True])
async def test_both_attempts_of_a_repaired_call_are_kept(later: bool) -> None:
    """Contract 49, 54."""

    async def repairs_later(_call: ToolCall, _error: Any) -> Any:
        return {"n": 2, "password": "hunter33"}

    def repairs(_call: ToolCall, _error: Any) -> Any:
        return {"n": 2, "password": "hunter33"}

    gate, kept = keeping()
    if later:
        await gate.repair(gate.hydrate(call(TEXTS["invalid"])), repairs_later)
    else:
        gate.hydrate(call(TEXTS["invalid"]), repair=repairs)
    assert [(one["success"], one["repaired"]) for one in kept] == [(False, False), (True, True)]
    repair = kept[1]["repair"]
    assert repair["before"] == {"n": "x", "password": "***"}
    assert repair["after"] == {"n": 2, "password": "***"}
    assert "hunter" not in json.dumps(kept)


async def test_calls_of_unknown_tools_are_kept_whether_the_gate_or_the_request_lacks_them() -> None:
    """Contract 50, 54, C10a."""
    gate, kept = keeping()
    gate.hydrate(call({"api_key": "hunter22"}, "nope"))
    async with gate:
        offered = ToolTranslator(OpenAIChat.codec).of(gate, USER, checked=True)
        await offered.hydrate(call(name="other"), None)
    assert [(one["tool"], one["errors"][0]["detail"]) for one in kept] == [
        ("nope", {"code": "unknown_tool"}),
        ("other", {"code": "unknown_tool"}),
    ]
    assert kept[0]["payload"] == {"api_key": "***"}


async def test_a_function_that_cannot_keep_a_record_changes_nothing() -> None:
    """Contract 54."""

    def broken(_record: dict[str, Any]) -> None:
        raise OSError("disk full")

    gate = gate_of([made(work, parameters=SECRET)], on_hydration=broken)
    assert gate.hydrate(call({"n": 2})).success
