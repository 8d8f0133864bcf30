"""``Audit``: a row for every call, an intent before every effect, a chain that shows every change."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Effects, Gate, Hook, InvokeContext, ToolCall, User, configure_logging, tool
from callgate.errors import HookError
from callgate.hooks.stock.records import audit_verify
from callgate.hooks.stock.records.audit import Audit
from callgate.hooks.stock.records.audit_chain import row_hash
from callgate.hooks.stock.records.audit_verify import AuditReport, verify_audit, verify_rows
from callgate.providers.clock import FakeClock
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.memory.audit import MemoryAudit
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.commands.audit import main as audit_command
from callgate.tools.values import canonical, canonical_fast, digest
from tests.harness.steploop import cost_of, on_virtual_time
from tests.hooks.stock.records.auditing import USER, FailingAudit, WaitingAudit, a_gate, outcomes, rows_of, store_with
from tests.world import RAN, asked


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


# ---------------------------------------------------------------------- what is recorded


async def test_every_call_leaves_one_row_about_its_end_however_it_ends() -> None:
    """Contract C1, C19; design 10.2: denials and failed hydrations included."""
    store = MemoryStore()
    async with a_gate(Audit(), store=store) as gate:
        await gate.call(asked("look", n=1), user=USER)
        await gate.call(asked("look", n=1), user=User("nobody"))
        await gate.call(asked("look", n="x"), user=USER)
        await gate.call(ToolCall(id="c", name="look", arguments='{"n": 1'), user=USER)
        await gate.call(gate.hydrate(asked("look", n="x")), user=USER)
        for n in (101, 102, 103, 104):
            await gate.call(asked("look", n=n), user=USER)
        await gate.call(asked("fail", n=1), user=USER)
        await gate.call(asked("crash", n=1), user=USER)
        await gate.call(asked("wait", n=1), user=USER, deadline=0.01)
        cancelled = asyncio.create_task(gate.call(asked("wait", n=1), user=USER))
        for _ in range(50):  # until it is in the tool; nothing before that waits for time
            await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await gate.call(asked("nothing_like_it", n=1), user=USER)
    assert sorted(await outcomes(store.audit), key=str) == sorted(
        [
            ("look", "success", None),
            ("look", "denied", "who"),
            ("look", "invalid", "invalid_arguments"),
            ("look", "invalid", "invalid_json"),
            ("look", "invalid", "invalid_arguments"),
            ("look", "retry_later", "retry_later"),
            ("look", "suspended", "suspended"),
            ("look", "success", None),
            ("look", "denied", "policy_error"),
            ("fail", "error", "tool_error"),
            ("crash", "error", "tool_failed"),
            ("wait", "error", "deadline_exceeded"),
            ("wait", "cancelled", "cancelled"),
            ("unknown_tool", "invalid", "unknown_tool"),
        ],
        key=str,
    )
    assert (await verify_audit(store.audit)).ok


async def test_a_row_says_who_called_what_how_it_ended_and_why() -> None:
    """Design 5, B10: internal reason for the record, ids, times, hashes, provenance of parsing."""
    store, clock = MemoryStore(), FakeClock(2_000.5)
    async with a_gate(Audit(), store=store, clock=clock) as gate:
        asking = gate.call(
            ToolCall(id="c7", name="look", arguments='```json\n{"n": 2}\n```'),
            user=USER,
            session_id="s",
            request_id="r",
        )
        await asking
        await gate.call(asked("look", n=101), user=USER, request_id="q")
    first, second = [row.body for row in await rows_of(store.audit)]
    assert first == {
        "v": 1,
        "kind": "outcome",
        "at_us": 2_000_500_000,
        "request_id": "r",
        "call_id": "c7",
        "session_id": "s",
        "depth": 0,
        "attempt": 1,
        "tool": "look",
        "called": None,
        "version": "1",
        "effect": "read",
        "tenant": "acme",
        "user": "u",
        "roles": ["clerk"],
        "scopes": [],
        "input_hash": first["input_hash"],
        "input": {"n": 2, "note": ""},
        "masked": [],
        "rules": first["rules"],
        "definition": gate.registry.get("look").definition.digest,
        "schema": digest(gate.registry.get("look").definition.parameters or {}),
        "validated": True,
        "validator": first["validator"],
        "wire": None,
        "repaired": False,
        "outcome": "success",
        "started_us": 2_000_500_000,
        "duration_us": 0,
        "executed": True,
        "cache_hit": None,
        "frozen": True,
        "output_hash": first["output_hash"],
        "output_validated": True,
    }
    assert first["rules"]
    assert first["validator"].endswith(first["schema"])
    assert len(first["input_hash"]) == len(first["output_hash"]) == 64
    kept = {name: second[name] for name in ("code", "stage", "hook", "own", "error", "reason", "outcome")}
    assert kept == {
        "code": "retry_later",
        "stage": "will_authorize_input",
        "hook": "Ends",
        "own": False,
        "error": "RetryLater",
        "reason": "busy",
        "outcome": "retry_later",
    }


async def test_the_hash_of_the_input_is_the_one_that_the_context_tells() -> None:
    """I2: what was authorised, run and audited is one value, by its hash."""
    seen: list[str] = []

    class Sees(Hook):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            seen.append(ctx.input_hash)

    store = MemoryStore()
    async with a_gate(Sees(), Audit(), store=store) as gate:
        await gate.call(asked("pay", cents=5, note="1.50 é 2.0"), user=USER)
        await gate.call(ToolCall(id="c", name="look", arguments={"n": 2.0}), user=USER)
    assert [row.body["input_hash"] for row in await rows_of(store.audit) if row.body["kind"] == "outcome"][:1] == seen[
        :1
    ]


class Masks(Hook):
    def will_redact_input(self, ctx: InvokeContext) -> None:
        ctx.masked_input = {**ctx.input, "note": "***"}


@pytest.mark.parametrize(("hooks", "masked"), [((), {"/password"}), ((Masks(),), {"/note"})])
async def test_a_row_holds_masked_arguments_and_never_the_raw_ones(hooks: Any, masked: set[str]) -> None:
    """B10, I9."""
    store = MemoryStore()
    async with a_gate(*hooks, Audit(), store=store) as gate:
        await gate.call(asked("pay", cents=5, password="canary-password", note="canary-note"), user=USER)
        await gate.call(asked("pay", cents="x", password="canary-password"), user=USER)
        await gate.call(asked("pay", cents=5, password="canary-password"), user=User("nobody"))
    rows = await rows_of(store.audit)
    written = json.dumps([row.body for row in rows])
    assert ("canary-password" in written) is (not masked & {"/password"})
    assert ("canary-note" in written) is (not masked & {"/note"})
    assert "hunter22" not in written
    assert [set(row.body["masked"]) for row in rows][:2] == [masked, masked]
    assert [row.body["input"] for row in rows][2:] == [None, None]


async def test_arguments_can_be_left_out_altogether() -> None:
    """B10."""
    store = MemoryStore()
    async with a_gate(Audit(arguments=False), store=store) as gate:
        await gate.call(asked("look", n=1), user=USER)
    (row,) = await rows_of(store.audit)
    assert row.body["input"] is None
    assert row.body["input_hash"]


async def test_what_a_tool_raised_stands_in_no_row() -> None:
    """I9."""
    store = MemoryStore()
    async with a_gate(Audit(), store=store) as gate:
        await gate.call(asked("crash", n=1), user=USER)
    (row,) = await rows_of(store.audit)
    assert "canary" not in json.dumps(row.body)
    assert (row.body["error"], row.body["reason"]) == ("RuntimeError", None)


# ---------------------------------------------------------------------- intents


async def test_a_tool_that_is_not_read_runs_only_behind_a_row_that_says_so() -> None:
    """Design 10.3, I3: the intent is written before the effect, the outcome after it."""
    store = MemoryStore()
    seen: list[list[str]] = []

    @tool(effect="keyed", key=("n",))
    async def book(n: int) -> int:
        """Book."""
        seen.append([row.body["kind"] for row in await rows_of(store.audit)])
        return n

    async with Gate([book], [Audit()], allow_unguarded=True, store=store, effects=Effects(durable=False)) as gate:
        await gate.call(asked("book", n=1))
    assert seen == [["intent"]]
    assert [row.body["kind"] for row in await rows_of(store.audit)] == ["intent", "outcome"]
    assert [row.body["attempt"] for row in await rows_of(store.audit)] == [1, 1]


class Again(Hook):
    repeats = True

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            return await next()
        except Exception:  # noqa: BLE001
            return await next()


async def test_each_attempt_has_its_intent() -> None:
    """I3: every started execution."""
    store = MemoryStore()
    async with a_gate(Again(), Audit(), store=store) as gate:
        await gate.call(asked("fail", n=1), user=USER)
    told = [(row.body["kind"], row.body["attempt"]) for row in await rows_of(store.audit)]
    assert told == [("intent", 1), ("intent", 2), ("outcome", 2)]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_intent_that_cannot_be_written_denies_the_call_and_no_tool_runs(waits: bool) -> None:
    """B10: audit failure is a denial, for tools that may change the world."""
    audit = FailingAudit(1, after=False, waits=waits)
    async with a_gate(Audit(), store=store_with(audit)) as gate:
        result = await gate.call(asked("pay", cents=1), user=USER)
        assert (result.outcome, result.error.code if result.error else "") == ("denied", "audit_failed")
        assert RAN == []
        assert await outcomes(audit) == [("pay", "denied", "audit_failed")]
        assert (await gate.call(asked("pay", cents=1), user=USER)).ok


async def test_a_row_about_the_end_that_cannot_be_written_changes_nothing_and_is_told() -> None:
    """I10, contract C1c."""
    events: list[dict[str, Any]] = []
    configure_logging(events.append)
    suppressed: list[Any] = []

    class Last(Hook):
        def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            suppressed.extend(ctx.suppressed)

    try:
        async with a_gate(Audit(), Last(), store=store_with(FailingAudit(2, after=False))) as gate:
            assert (await gate.call(asked("pay", cents=1), user=USER)).output == "paid 1"
            assert (await gate.call(asked("look", n=1), user=USER)).ok
    finally:
        configure_logging()
    assert [(one.stage, one.hook) for one in suppressed] == [("will_audit", "Audit")]
    assert [event["stage"] for event in events if event["event"] == "hook.failed"] == ["will_audit"]


async def test_in_shadow_mode_a_failing_record_denies_nobody() -> None:
    async with a_gate(Audit(mode="shadow"), store=store_with(FailingAudit(1, after=False))) as gate:
        assert (await gate.call(asked("pay", cents=1), user=USER)).ok


@on_virtual_time
async def test_a_store_that_hangs_denies_within_the_limit_of_a_write(loop: Any) -> None:
    """I12."""
    async with a_gate(Audit(write_timeout=2.0), store=store_with(WaitingAudit(1e9))) as gate:
        began = loop.time()
        result = await gate.call(asked("pay", cents=1), user=USER)
        assert result.error is not None
        assert result.error.code == "audit_failed"
        assert loop.time() - began < 5.0
    assert RAN == []


# ---------------------------------------------------------------------- the chain


@on_virtual_time
async def test_rows_of_calls_at_once_are_numbered_without_gaps_and_written_together(loop: Any) -> None:
    """I17: one process, many tasks, a store that waits."""
    audit = WaitingAudit()
    async with a_gate(Audit(), store=store_with(audit)) as gate:
        users = [User(f"u{n}", tenant=f"t{n % 3}") for n in range(200)]
        await asyncio.gather(*(gate.call(asked("pay", cents=1), user=user) for user in users))
    rows = await rows_of(audit)
    assert sorted(row.number for row in rows) == list(range(1, 401))
    assert len({row.segment for row in rows}) == 1
    assert (await verify_audit(audit)).ok
    assert audit.appends < 400


async def test_each_gate_writes_its_own_segment_into_one_store() -> None:
    """Design 10.15."""
    store, hook = MemoryStore(), Audit()
    async with a_gate(hook, store=store) as one, a_gate(hook, store=store) as two:
        for _ in range(3):
            await one.call(asked("look", n=1), user=USER)
            await two.call(asked("look", n=1), user=USER)
    rows = await rows_of(store.audit)
    assert sorted(row.number for row in rows) == [1, 1, 2, 2, 3, 3]
    assert len({row.segment for row in rows}) == 2
    assert (await verify_audit(store.audit)).ok
    assert {(number) for _, number, _, _ in await store.audit.anchors()} == {3}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("after", [False, True])
async def test_whichever_operation_of_the_store_fails_the_chain_holds_and_no_effect_lacks_its_intent(
    after: bool, waits: bool
) -> None:
    """I3, I17, I20: the n-th operation fails, or is done and reported as failed, for all n."""
    for at in range(1, 14):
        RAN.clear()
        audit = FailingAudit(at, after=after, waits=waits)
        async with a_gate(Audit(anchor_every=3), store=store_with(audit)) as gate:
            results = [await gate.call(asked("pay", cents=n), user=USER) for n in range(5)]
        report = await verify_audit(audit)
        assert report.ok, (at, after, str(report))
        done = sum(result.ok for result in results)
        intents = sum(row.body["kind"] == "intent" for row in await rows_of(audit))
        assert len(RAN) == done <= intents
        assert done >= 4


@on_virtual_time
async def test_callers_that_are_cancelled_while_they_wait_leave_no_gap(loop: Any) -> None:
    """I17, I1: the write is not theirs to tear."""
    audit = WaitingAudit()
    async with a_gate(Audit(), store=store_with(audit)) as gate:
        tasks = [asyncio.create_task(gate.call(asked("pay", cents=n), user=USER)) for n in range(40)]
        await asyncio.sleep(0.005)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    told = await outcomes(audit)
    assert len(told) == 40
    assert sum(outcome == "cancelled" for _, outcome, _ in told) == len(tasks[::3])
    assert len(RAN) == 40 - len(tasks[::3])
    report = await verify_audit(audit)
    assert report.ok, str(report)


def test_with_the_store_in_memory_no_task_is_made_and_nothing_waits() -> None:
    """Rule of the hot path: a hook that has nothing to wait for costs no task."""

    async def scenario() -> None:
        async with a_gate(Audit(), session_ttl=None) as gate:
            await gate.call(asked("pay", cents=1), user=USER)

    async def without() -> None:
        async with a_gate(session_ttl=None) as gate:
            await gate.call(asked("pay", cents=1), user=USER)

    assert cost_of(scenario) == cost_of(without)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
@settings(max_examples=300)
def test_the_fast_canonical_form_is_the_canonical_form(value: Any) -> None:
    """I2, I17: the same bytes whoever makes them."""
    try:
        expected = canonical(value)
    except (TypeError, ValueError):
        return
    assert canonical_fast(value) == expected
    assert canonical_fast(json.loads(expected.decode("utf-8", "surrogatepass"))) == expected


# ---------------------------------------------------------------------- verification


async def a_record(calls: int = 6, every: int = 4) -> MemoryAudit:
    store = MemoryStore(cache_size=1)
    async with a_gate(Audit(anchor_every=every), store=store) as gate:
        for n in range(calls):
            await gate.call(asked("look" if n % 2 else "pay", **{"n" if n % 2 else "cents": n}), user=USER)
    return store.audit


Verify = Callable[[list[AuditRow], list[Any]], AuditReport]


async def checked(rows: list[AuditRow], anchors: list[Any]) -> AuditReport:
    return await verify_rows(rows, anchors)


def _mutations(row: AuditRow) -> list[AuditRow]:
    """The row with each field, and each byte of its body, hash and names, changed."""
    found = [dataclasses.replace(row, number=row.number + delta) for delta in (1, -1, 1000)]
    found += [dataclasses.replace(row, at=row.at + delta) for delta in (1e-3, -5.0)]
    for name in ("segment", "previous", "hash"):
        text = getattr(row, name)
        for at in range(len(text)):
            changed = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
            found.append(dataclasses.replace(row, **{name: changed}))
    text = json.dumps(row.body)
    for at in range(len(text)):
        for letter in ("0", "x"):
            try:
                body = json.loads(text[:at] + letter + text[at + 1 :])
            except ValueError:
                continue
            if body != row.body:
                found.append(dataclasses.replace(row, body=body))
    return found


async def missed_mutations() -> tuple[int, int]:
    """How many single changes there are, and how many the verifier does not see."""
    audit = await a_record(4)
    rows, anchors = await rows_of(audit), await audit.anchors()
    tried = missed = 0
    for index, row in enumerate(rows):
        for changed in _mutations(row):
            tried += 1
            missed += (await checked([*rows[:index], changed, *rows[index + 1 :]], anchors)).ok
    return tried, missed


async def test_every_change_of_any_byte_of_any_row_is_found() -> None:
    """I17: 100 %."""
    tried, missed = await missed_mutations()
    assert tried > 2_000
    assert missed == 0


async def test_control_a_verifier_that_trusts_bodies_misses_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """I17: the sabotaged control."""
    monkeypatch.setattr(audit_verify, "_hash_matches", lambda row: True)
    tried, missed = await missed_mutations()
    assert missed > tried // 2


async def test_control_a_verifier_that_ignores_links_misses_a_row_that_was_sealed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I17: the sabotaged control."""
    audit = await a_record(4, every=100)
    rows = await rows_of(audit)
    forged_body = {**rows[1].body, "user": "somebody else"}
    forged = dataclasses.replace(
        rows[1], body=forged_body, hash=row_hash(forged_body, rows[1].segment, rows[1].number, rows[1].previous)
    )
    assert [one.kind for one in (await checked([rows[0], forged, *rows[2:]], [])).problems] == ["order"]
    monkeypatch.setattr(audit_verify, "_follows", lambda row, head: True)
    assert (await checked([rows[0], forged, *rows[2:]], [])).ok


async def test_a_row_that_is_taken_out_is_missed_wherever_it_stood() -> None:
    """I17: delete."""
    audit = await a_record()
    rows, anchors = await rows_of(audit), await audit.anchors()
    for index in range(len(rows)):
        report = await checked(rows[:index] + rows[index + 1 :], anchors)
        assert not report.ok
        assert {one.kind for one in report.problems} <= {"missing", "cut"}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_rows_that_change_places_are_found(data: st.DataObject) -> None:
    """I17: reorder: two rows swap their numbers, their bodies, or both."""

    async def scenario() -> None:
        audit = await a_record()
        rows, anchors = await rows_of(audit), await audit.anchors()
        one, two = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=2, max_size=2)))
        what = data.draw(st.sampled_from([("number",), ("body", "at"), ("number", "previous"), ("hash",)]))
        changed = list(rows)
        changed[one] = dataclasses.replace(rows[one], **{name: getattr(rows[two], name) for name in what})
        changed[two] = dataclasses.replace(rows[two], **{name: getattr(rows[one], name) for name in what})
        assert not (await checked(changed, anchors)).ok

    asyncio.run(scenario())


async def test_the_order_in_which_rows_are_read_is_no_matter() -> None:
    """Clocks go back; what counts are the numbers."""
    audit = await a_record()
    assert (await checked((await rows_of(audit))[::-1], await audit.anchors())).ok


async def test_a_record_that_is_cut_off_is_found_by_its_anchors_and_by_nothing_else() -> None:
    """I17: truncation needs an anchor, and the report says so."""
    audit = await a_record(6)
    rows, anchors = await rows_of(audit), await audit.anchors()
    assert anchors[-1][1] == len(rows)
    for length in range(len(rows)):
        assert "cut" in {one.kind for one in (await checked(rows[:length], anchors)).problems}
        unseen = await checked(rows[:length], [])
        assert unseen.ok
        assert unseen.unanchored == length
    assert "cannot be detected" in str(await checked(rows[:3], []))


async def test_an_anchor_that_was_changed_is_found() -> None:
    """I17."""
    audit = await a_record()
    rows, (first, *rest) = await rows_of(audit), await audit.anchors()
    for changed in ((first[0] + "x", *first[1:]), (first[0], 99, *first[2:]), (*first[:2], "f" * 64, first[3])):
        assert not (await checked(rows, [changed, *rest])).ok


async def test_a_row_that_was_moved_to_another_tenant_is_found() -> None:
    """I17, I8."""
    audit = await a_record(3)
    await rows_of(audit)
    held = audit.rows
    held[1] = ("globex", held[1][1])
    assert [one.kind for one in (await verify_audit(audit)).problems] == ["moved"]


async def test_a_segment_that_goes_on_from_rows_that_are_gone_shows_it() -> None:
    """I17: after a failed write the next segment names the last row of the one before."""
    audit = FailingAudit(4, after=False)
    async with a_gate(Audit(), store=store_with(audit)) as gate:
        for n in range(6):
            await gate.call(asked("look", n=n), user=USER)
    rows = await rows_of(audit)
    assert sorted(row.number for row in rows) == [1, 1, 2, 2, 3]
    (second,) = (row for row in rows if row.number == 1 and row.previous)
    assert second.previous == next(row.hash for row in rows if row.number == 3)
    cut = [row for row in rows if row.number != 3]
    assert [one.kind for one in (await checked(cut, [])).problems] == ["cut"]


# ---------------------------------------------------------------------- anchors and sinks


async def test_heads_are_anchored_every_so_many_rows_and_at_the_end_and_told_to_whoever_asks() -> None:
    """Design 10.15."""
    heads: list[tuple[str, int, str, float]] = []
    events: list[dict[str, Any]] = []

    async def keep(segment: str, number: int, hash: str, at: float) -> None:
        heads.append((segment, number, hash, at))

    configure_logging(events.append)
    store = MemoryStore()
    try:
        async with a_gate(Audit(anchor_every=2, on_anchor=keep), store=store) as gate:
            for n in range(5):
                await gate.call(asked("look", n=n), user=USER)
    finally:
        configure_logging()
    rows = await rows_of(store.audit)
    assert [(number, hash) for _, number, hash, _ in heads] == [
        (2, rows[1].hash),
        (4, rows[3].hash),
        (5, rows[4].hash),
    ]
    assert heads == await store.audit.anchors()
    told = [(event["number"], event["hash"]) for event in events if event["event"] == "audit.anchored"]
    assert told == [(number, hash) for _, number, hash, _ in heads]


async def test_an_anchor_that_cannot_be_written_keeps_the_gate_from_nothing_and_comes_later() -> None:
    """I10."""
    audit = FailingAudit(3, after=False)  # two rows, then their anchor
    async with a_gate(Audit(anchor_every=2), store=store_with(audit)) as gate:
        for n in range(3):
            assert (await gate.call(asked("look", n=n), user=USER)).ok
    assert [number for _, number, _, _ in await audit.anchors()] == [3]
    last = FailingAudit(2, after=False)
    async with a_gate(Audit(), store=store_with(last)) as gate:
        await gate.call(asked("look", n=1), user=USER)
    assert await last.anchors() == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_gets_every_row(is_async: bool) -> None:
    got: list[AuditRow] = []

    async def later(row: AuditRow) -> None:
        await asyncio.sleep(0)
        got.append(row)

    store = MemoryStore()
    async with a_gate(Audit(later if is_async else got.append), store=store) as gate:
        await asyncio.gather(*(gate.call(asked("pay", cents=n), user=USER) for n in range(5)))
    assert len(got) == 10
    assert (await verify_rows(got)).ok
    assert await rows_of(store.audit) == []


async def test_a_function_that_fails_denies_effects() -> None:
    def refuse(row: AuditRow) -> None:
        raise ConnectionError("no")

    async with a_gate(Audit(refuse)) as gate:
        result = await gate.call(asked("pay", cents=1), user=USER)
        assert result.error is not None
        assert result.error.code == "audit_failed"
        assert (await gate.call(asked("look", n=1), user=USER)).ok


async def test_rows_can_go_to_the_log_with_ids_and_hashes_whole() -> None:
    events: list[dict[str, Any]] = []
    configure_logging(events.append)
    try:
        async with a_gate(Audit("log")) as gate:
            await gate.call(asked("pay", cents=1, password="canary-password"), user=USER, request_id="ab12" * 8)
    finally:
        configure_logging()
    rows = [event for event in events if event["event"] == "audit.row"]
    assert [event["kind"] for event in rows] == ["intent", "outcome"]
    assert rows[1]["previous"] == rows[0]["hash"]
    assert (rows[1]["request_id"], rows[1]["tool"], len(rows[1]["input_hash"])) == ("ab12" * 8, "pay", 64)
    assert rows[1]["call"]["outcome"] == "success"
    assert "canary" not in str(rows)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sink": "syslog"}, "sink"),
        ({"sink": print, "store": MemoryStore()}, "register two"),
        ({"anchor_every": 0}, "anchor_every"),
        ({"write_timeout": 0}, "write_timeout"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: Any, says: str) -> None:
    with pytest.raises(HookError, match=says):
        Audit(**options)


# ---------------------------------------------------------------------- the command


async def _record_in(file: Path) -> None:
    async with a_gate(Audit(anchor_every=3), store=f"sqlite:///{file}") as gate:
        for n in range(5):
            await gate.call(asked("look", n=n), user=USER)


def _tamper(file: Path, statement: str) -> None:
    """As somebody who may write to the database: its triggers go first."""
    with sqlite3.connect(file) as base:
        triggers = base.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            base.execute(f'DROP TRIGGER "{name}"')
        base.execute(statement)
    base.close()


def _command(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return audit_command(["verify", *arguments], out), out.getvalue()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ('UPDATE callgate_audit SET body = replace(body, \'"user":"u"\', \'"user":"v"\') WHERE number = 2', "altered"),
        ("DELETE FROM callgate_audit WHERE number = 3", "missing"),
        ("DELETE FROM callgate_audit WHERE number > 4", "cut"),
        ("UPDATE callgate_audit SET number = number + 10 WHERE number = 2", "altered"),
        ("UPDATE callgate_audit SET tenant = 'globex' WHERE number = 2", "moved"),
        ("UPDATE callgate_audit SET body = 'no json' WHERE number = 2", "unread"),
        ("UPDATE callgate_audit SET at = at + 60 WHERE number = 2", "altered"),
    ],
)
async def test_the_command_finds_what_was_done_to_a_database(tmp_path: Path, statement: str, says: str) -> None:
    """I17, with SQLite: exit code 1, and a table that says what is wrong where."""
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("aiosqlite")
    file = tmp_path / "audit.db"
    await _record_in(file)
    code, shown = await asyncio.to_thread(_command, f"sqlite:///{file}")
    assert code == 0, shown
    assert "no problems" in shown
    _tamper(file, statement)
    code, shown = await asyncio.to_thread(_command, f"sqlite:///{file}")
    assert code == 1, shown
    assert says in shown


async def test_anchors_that_were_kept_elsewhere_show_a_record_that_was_cut_with_its_own(tmp_path: Path) -> None:
    """I17: truncation needs an anchor out of the writer's reach."""
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("aiosqlite")
    file, kept = tmp_path / "audit.db", tmp_path / "anchors.jsonl"

    async def keep(segment: str, number: int, hash: str, at: float) -> None:
        with kept.open("a") as lines:
            lines.write(json.dumps({"segment": segment, "number": number, "hash": hash}) + "\n")

    async with a_gate(Audit(anchor_every=2, on_anchor=keep), store=f"sqlite:///{file}") as gate:
        for n in range(5):
            await gate.call(asked("look", n=n), user=USER)
    with sqlite3.connect(file) as base:
        tables = [
            name
            for (name,) in base.execute("SELECT name FROM sqlite_master WHERE name LIKE '%anchor%' AND type = 'table'")
        ]
    base.close()
    _tamper(file, "DELETE FROM callgate_audit WHERE number > 3")
    _tamper(file, f"DELETE FROM {tables[0]}")
    code, shown = await asyncio.to_thread(_command, f"sqlite:///{file}")
    assert code == 0
    assert "cannot be detected" in " ".join(shown.split())
    code, shown = await asyncio.to_thread(_command, f"sqlite:///{file}", "--anchors", str(kept))
    assert code == 1
    assert "cut" in shown


async def test_the_command_is_part_of_the_package(tmp_path: Path) -> None:
    """``python -m callgate audit verify``: 0 and 1."""
    file = tmp_path / "audit.db"
    await _record_in(file)
    command = [sys.executable, "-m", "callgate", "audit", "verify", f"sqlite:///{file}"]
    assert (await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)).returncode == 0
    _tamper(file, "DELETE FROM callgate_audit WHERE number = 3")
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, text=True)
    assert (done.returncode, "missing" in done.stdout) == (1, True)


async def test_postgresql_keeps_the_record_of_calls_at_once_whole() -> None:
    """I17, on a real server."""
    psycopg = pytest.importorskip("psycopg")
    address, base = os.environ.get("CALLGATE_TEST_POSTGRES", "postgresql://127.0.0.1:5432/test"), "callgate_audit_test"
    try:
        server = await psycopg.AsyncConnection.connect(address, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError:
        pytest.skip(f"NO POSTGRESQL at {address.rpartition('@')[2]}: the audit record is not tested on it")
    async with server:
        await server.execute(f"DROP DATABASE IF EXISTS {base}")
        await server.execute(f"CREATE DATABASE {base}")
        try:
            store = store_at(f"{address.rpartition('/')[0]}/{base}")
            async with a_gate(Audit(anchor_every=10), store=store) as gate:
                users = [User(f"u{n}", tenant=f"t{n % 3}") for n in range(60)]
                await asyncio.gather(*(gate.call(asked("pay", cents=1, note="1.5 é"), user=user) for user in users))
                report = await verify_audit(store.audit)
                assert (report.ok, report.rows) == (True, 120), str(report)
                assert len(await rows_of(store.audit, "t1")) == 40
        finally:
            await server.execute(f"DROP DATABASE IF EXISTS {base} WITH (FORCE)")


async def test_a_plain_function_that_returns_a_coroutine_is_no_sink() -> None:
    async def later(row: AuditRow) -> None: ...

    async with a_gate(Audit(lambda row: later(row))) as gate:  # noqa: PLW0108  (a plain function is the point)
        result = await gate.call(asked("pay", cents=1), user=USER)
    assert result.error is not None
    assert result.error.code == "audit_failed"


def test_the_command_says_what_it_cannot_look_at(tmp_path: Path) -> None:
    code, shown = _command("nosuch://x")
    assert (code, "cannot read" in shown) == (2, True)
    bad = tmp_path / "anchors"
    bad.write_text("{}\n")
    code, shown = _command("memory://", "--anchors", str(bad))
    assert (code, "line 1" in shown) == (2, True)


async def test_a_report_is_readable_as_text_and_as_a_table() -> None:
    from rich.console import Console

    audit = await a_record(3)
    rows = await rows_of(audit)
    report = await checked([rows[0], *rows[2:]], await audit.anchors())
    assert "missing: segment" in str(report)
    out = io.StringIO()
    Console(file=out, width=160).print(report)
    assert "missing" in out.getvalue()
