"""Every hydration attempt can be kept, with secrets masked: valid, invalid, repaired, and of unknown tools."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate import Bound, Gate, Options, ToolCall
from callgate.hooks import Audit, Hook, by_stage, verify_audit
from callgate.models import OpenAIChat
from callgate.providers.clock import FakeClock
from callgate.runtime.gate.hydration import GRACE
from callgate.runtime.models.wire.offered_tools import ToolTranslator
from callgate.tools.arguments import attempts
from tests.providers.stores.backends import opened, place
from tests.runtime.gate.making import USER, call, gate_of, made

SECRET: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "password": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


async def work(n: int, password: str = "") -> int:
    return n


async def other() -> None: ...


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


# ---------------------------------------------------------------------- the log, and the audit log


@pytest.mark.parametrize("how", [*TEXTS, "unknown tool"])
async def test_each_attempt_is_logged_at_debug_with_its_provenance_and_without_values(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract 46, 48, 54."""
    gate = gate_of([made(work, parameters=SECRET)])
    proposed = call(TEXTS[how]) if how in TEXTS else call(TEXTS["valid"], name="nope")
    with caplog.at_level(logging.DEBUG, "callgate"):
        found = gate.hydrate(proposed, wire="gemini")
    (shown,) = [one.getMessage() for one in caplog.records if "hydration.attempted" in one.getMessage()]
    assert f"success={found.success}" in shown
    assert "wire='gemini'" in shown
    assert ("stage=" in shown) is not found.success
    assert ("validator=" in shown) is (how in ("valid", "an object", "invalid"))
    assert "hunter22" not in shown
    caplog.clear()
    with caplog.at_level(logging.INFO, "callgate"):
        gate.hydrate(proposed)
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
async def test_the_audit_log_has_a_row_for_each_attempt_that_never_ran(kind: str, tmp_path: Path) -> None:
    """Contract 54."""
    with place(kind, tmp_path) as at:
        async with opened(kind, at) as backend:
            hook = Audit(hydrations=True)
            async with gate_of([made(work, parameters=SECRET)], hook, store=backend.store) as gate:
                attempts = [*TEXTS.values()]
                found = [gate.hydrate(call(text), wire="gemini") for text in attempts]
                found.append(gate.hydrate(call("{}", name="nope")))
            await backend.store.open()
            rows = [row.body async for row in backend.store.audit.read(None)]
            assert (await verify_audit(backend.store.audit)).ok
    assert [row["kind"] for row in rows] == ["hydration"] * len(found)
    assert [row["success"] for row in rows] == [one.success for one in found]
    assert [[error["stage"] for error in row["errors"]] for row in rows] == [
        [error.stage for error in one.errors] for one in found
    ]
    assert rows[0]["input"] == {"n": 2, "password": "***"}
    assert rows[0]["definition"] == gate.registry.get("work").definition.digest
    assert "hunter22" not in json.dumps(rows)


@pytest.mark.parametrize(
    ("hook", "noted"),
    [
        (lambda: Audit(hydrations=False), []),  # the control: without the rows there is none
        (Audit, []),  # not yet: the calls may begin
        (lambda: Audit(hydrations=True, tools={"work"}), ["work"]),
        (lambda: Audit(hydrations=True, tools={"other"}), []),
        (lambda: by_stage(Audit(hydrations=True)), ["work", "nope"]),
        (lambda: Audit(hydrations=True, mode="shadow"), []),
    ],
    ids=["not asked", "by default", "for the tool", "for another tool", "by stage", "shadow"],
)
async def test_a_hook_notes_the_attempts_of_its_tools(hook: Any, noted: list[str]) -> None:
    async with gate_of([made(work, parameters=SECRET), made(other, name="other")], hook()) as gate:
        gate.hydrate(call(TEXTS["valid"]))
        gate.hydrate(call("{}", name="nope"))
        rows = [row.body async for row in gate.store.audit.read(None)]
    assert [row["tool"] for row in rows] == noted


@pytest.mark.parametrize("ends", ["maintenance", "close", "many"])
@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
async def test_by_default_the_audit_log_has_the_attempts_whose_calls_never_ran(
    kind: str, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 54; issue 36 §5: no row for the attempts whose calls ran, in any way, or were submitted."""
    clock = FakeClock()
    with place(kind, tmp_path) as at:
        async with opened(kind, at) as backend:
            gate = Gate(
                [made(work, parameters=SECRET)],
                [Audit()],
                store=backend.store,
                allow_unguarded=True,
                signing_keys=["k" * 32],
                options=Options(clock=clock),
            )
            async with gate:
                for how in ("valid", "invalid"):
                    gate.hydrate(call(TEXTS[how], id=how))
                gate.hydrate(call("{}", name="nope", id="nope"))
                more = gate.with_tools([])
                ways: list[Callable[[Any], Awaitable[Any]]] = [gate.call, gate.invoke, more.call, gate.submit]
                ways += [Bound(gate, USER).call, lambda one: gate.call_many([one]), lambda one: gate.submit_many([one])]
                ways += [lambda one: gate.call_many([one], run_on="worker")]
                for number, run in enumerate(ways):
                    await run(gate.hydrate(call(TEXTS["valid"], id=f"ran {number}")))
                clock.advance(GRACE)
                late = gate.hydrate(call(TEXTS["valid"], id="late"))
                if ends == "maintenance":
                    await gate.maintain()
                    assert len(gate._attempts.waiting) == 1
                    await gate.call(late)
                elif ends == "many":
                    monkeypatch.setattr("callgate.runtime.gate.hydration.MAX_WAITING", 3)
                    gate.hydrate(call(TEXTS["valid"], id="last"))
                    assert not gate._attempts.waiting
            await backend.store.open()
            rows = [row.body async for row in backend.store.audit.read(None)]
            assert (await verify_audit(backend.store.audit)).ok
    noted = [row["call_id"] for row in rows if row["kind"] == "hydration"]
    assert noted == [
        "valid",
        "invalid",
        "nope",
        *{"maintenance": [], "close": ["late"], "many": ["late", "last"]}[ends],
    ]


async def test_a_thread_without_an_event_loop_has_its_attempts_written_by_the_gate(tmp_path: Path) -> None:
    with place("sqlite-file", tmp_path) as at:
        async with opened("sqlite-file", at) as backend:
            async with gate_of([made(work, parameters=SECRET)], Audit(hydrations=True), store=backend.store) as gate:
                await asyncio.to_thread(gate.hydrate, call(TEXTS["valid"]))
            await backend.store.open()
            assert [row.body["kind"] async for row in backend.store.audit.read(None)] == ["hydration"]


async def test_an_attempt_that_no_loop_can_record_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with place("sqlite-file", tmp_path) as at:
        async with opened("sqlite-file", at) as backend:
            gate = gate_of([made(work, parameters=SECRET)], Audit(hydrations=True), store=backend.store)
            assert (await asyncio.to_thread(gate.hydrate, call(TEXTS["valid"]))).success
    assert "provider.failed" in caplog.text


async def test_a_hook_that_fails_to_note_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Hook):
        def note_hydration(self, host: Any, record: Any) -> None:
            raise OSError("the disk is full")

    async with gate_of([made(work, parameters=SECRET)], Broken()) as gate:
        assert gate.hydrate(call(TEXTS["valid"])).success
    assert "provider.failed" in caplog.text


@pytest.mark.parametrize("number", [float("nan"), 10**400], ids=["nan", "huge"])
async def test_arguments_that_no_row_can_hold_are_left_out_of_it(number: Any) -> None:
    async with gate_of([made(work, parameters=SECRET)], Audit(hydrations=True)) as gate:
        gate.hydrate(call({"n": number}))
        (row,) = [row.body async for row in gate.store.audit.read(None)]
        assert (await verify_audit(gate.store.audit)).ok
    assert row["kind"] == "hydration"
