"""The record of a repair in audit rows and spans: before and after, masked like the arguments."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate import Approve, Hook, InvokeContext, ToolCall, User
from callgate.hooks import Audit, Tracing
from callgate.hooks.stock.records import masking
from tests.hooks.stock.records.auditing import USER, a_gate, rows_of

BOSS = User("boss", tenant="acme")
PUT_RIGHT = {"cents": 5, "password": "hunter22", "note": "canary"}
BROKEN = {
    "an object": '{"cents": "five", "password": "hunter22", "note": "canary"}',
    "no JSON": '{"cents": five, "password": "hunter22"}',
}


class MasksNotes(Hook):
    """Masks the members ``note`` and ``password``."""

    def will_redact_input(self, ctx: InvokeContext) -> None:
        ctx.masked_input = {**ctx.masked_input, "note": "***", "password": "***"}


async def audited(broken: str, *hooks: Any, on_repair: str = "approve") -> list[dict[str, Any]]:
    async with a_gate(Audit(), *hooks, on_repair=on_repair) as gate:
        asked = ToolCall(id="c", name="pay", arguments=broken)
        found = gate.hydrate(asked, wire="ollama", repair=lambda _call, _error: PUT_RIGHT)
        result = await gate.call(found, user=USER)
        if result.pending is not None:
            await gate.resume(result.pending.handle, Approve(), approver=BOSS)
        return [dict(row.body) for row in await rows_of(gate.store.audit)]


@pytest.mark.parametrize("on_repair", ["approve", "run"])
@pytest.mark.parametrize("how", BROKEN)
async def test_every_row_of_a_repaired_call_has_both_arguments_masked(how: str, on_repair: str) -> None:
    """Contract 49, 54, C10c."""
    rows = await audited(BROKEN[how], MasksNotes(), on_repair=on_repair)
    assert [row["kind"] for row in rows] == ["outcome"] * (on_repair == "approve") + ["intent", "outcome"]
    assert all(row["repaired"] for row in rows)
    ran = rows[-1]["repair"]
    assert ran["by"].endswith("<lambda>")
    assert ran["stage"] == ("validate" if how == "an object" else "parse")
    assert ran["after"] == {"cents": 5, "password": "***", "note": "***"}
    assert ran["before"] == (
        {"cents": "five", "password": "***", "note": "***"} if how == "an object" else "<39 characters>"
    )
    assert "hunter22" not in str(rows)


async def test_the_probe_finds_a_secret_that_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(masking, "_masked_payload", lambda value, *_, **__: value)
    assert "hunter22" in str(await audited(BROKEN["an object"], MasksNotes()))


async def test_a_row_without_arguments_has_none_of_a_repair() -> None:
    """Contract 54."""
    async with a_gate(Audit(arguments=False), on_repair="run") as gate:
        asked = ToolCall(id="c", name="pay", arguments=BROKEN["an object"])
        await gate.call(gate.hydrate(asked, repair=lambda _call, _error: PUT_RIGHT), user=USER)
        rows = [row.body for row in await rows_of(gate.store.audit)]
    assert [("repair" in row, row["repaired"]) for row in rows] == [(False, True)] * 2


@pytest.mark.parametrize("shows", [False, True])
async def test_the_span_of_a_repaired_call_says_so_and_shows_arguments_only_on_request(shows: bool) -> None:
    """Contract 49, C10c."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    async with a_gate(Tracing(provider, arguments=shows), on_repair="run") as gate:
        asked = ToolCall(id="c", name="pay", arguments=BROKEN["an object"])
        await gate.call(gate.hydrate(asked, repair=lambda _call, _error: PUT_RIGHT), user=USER)
    (span,) = kept.get_finished_spans()
    seen = dict(span.attributes or {})
    assert seen["callgate.repaired"] is True
    assert ("callgate.repair.before" in seen, "callgate.repair.after" in seen) == (shows, shows)
    assert "hunter22" not in str(seen)


async def test_a_row_of_invalid_arguments_names_each_issue_and_the_schema_that_judged_them() -> None:
    """Contract 11, 54."""
    async with a_gate(Audit()) as gate:
        await gate.call(
            gate.hydrate(ToolCall(id="c", name="pay", arguments='{"cents": "x", "moon": 1}'), wire="gemini")
        )
        (row,) = [row.body for row in await rows_of(gate.store.audit)]
        definition = gate.registry.get("pay").definition.digest
    assert (row["validated"], row["definition"], row["wire"]) == (False, definition, "gemini")
    assert row["validator"].endswith(row["schema"])
    assert sorted(row["issues"]) == [["/cents", "type"], ["/moon", "additionalProperties"]]


async def test_a_row_of_an_unknown_tool_names_no_schema() -> None:
    """Contract 54."""
    async with a_gate(Audit()) as gate:
        await gate.call(ToolCall(id="c", name="nope"))
        (row,) = [row.body for row in await rows_of(gate.store.audit)]
    assert (row["called"], row["definition"], row["schema"], row["validator"]) == ("nope", None, None, None)
