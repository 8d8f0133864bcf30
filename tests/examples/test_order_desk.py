"""The worked example, run in process and as a user runs it: what it prints is what happened."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from callgate import HydrationResult, Outcome, as_tool, codec
from callgate.runtime.commands.audit import main as verify
from callgate.stores import EffectRecord
from examples.order_desk import app
from examples.order_desk.answers import ANSWERS, MAX, Answer
from examples.order_desk.app import OrderDesk, all_given_back, happens, main, order_desk
from examples.order_desk.deeds import Audited, audited, recorded
from examples.order_desk.desk import CARRIER_KEY, ORDERS, AppContainer
from examples.order_desk.exchange import Exchange, Passed, exchange
from examples.order_desk.tools import TOOLS
from tests.examples.running import as_in_a_pipe, lines_of_calls, one_line, run

SUCCESS = ("success", None)
ENDS = {
    "call_look": SUCCESS,
    "call_comma": SUCCESS,  # tolerance, and it says so
    "ollama_again": SUCCESS,  # from the cache
    "toolu_other_tenant": ("error", "no_such_order"),  # not from the cache, and not theirs to see
    "toolu_move": SUCCESS,
    "toolu_types": ("invalid", "invalid_arguments"),
    "call_fresh": SUCCESS,
    "call_broken": ("invalid", "invalid_json"),
    "call_unknown": ("invalid", "unknown_tool"),
    "call_inject": ("invalid", "invalid_arguments"),
    "call_cut": ("invalid", "invalid_json"),
    "toolu_forbidden": ("denied", "not_authorized"),
    "call_reserve": SUCCESS,
    "call_slow": ("error", "deadline_exceeded"),
    "call_scarce": ("error", "out_of_stock"),
    "call_impatient": ("unknown", "outcome_unknown"),  # what call_slow has done nobody knows: it does not run again
    "toolu_unasked": SUCCESS,  # with a question to the user in the place of the tool's output
    "toolu_too_much": ("denied", "not_authorized"),
    "toolu_refund": SUCCESS,
    "toolu_twice": SUCCESS,  # with the receipt of the first
    "toolu_more": ("conflict", "conflict"),
    "call_strict": ("invalid", "invalid_json"),  # no tolerance where money is concerned
    "call_when": ("invalid", "invalid_arguments"),
    "call_damaged": ("error", "tool_failed"),
    "call_1": SUCCESS,
    "call_2": SUCCESS,
    "call_3": SUCCESS,
    "call_4": ("retry_later", "over_quota"),
    "ollama_tortoise": ("unknown", "outcome_unknown"),
    "call_track": SUCCESS,
    "call_long": SUCCESS,
    "toolu_down_1": ("error", "tool_failed"),
    "toolu_down_2": ("error", "tool_failed"),
    "toolu_down_3": ("retry_later", "circuit_open"),
    "call_up": SUCCESS,
    "ollama_off": ("denied", "switched_off"),
    "call_role": ("denied", "not_authorized"),
}
REFUSED = {call for call, (outcome, _) in ENDS.items() if outcome in {"invalid", "denied", "retry_later"}}
REPEATS = {"toolu_twice", "toolu_more", "call_impatient"}
"""Answered by the ledger of effects: the tool does not run."""
ALONE = sorted(
    REFUSED - {"call_unknown", "call_4", "toolu_down_3", "ollama_off"}
)  # refused for what they are, not for what came before


@contextmanager
def a_desk() -> Generator[OrderDesk]:
    container = AppContainer()
    container.config.db.from_value(":memory:")
    try:
        yield order_desk(container)
    finally:
        container.shutdown_resources()


@asynccontextmanager
async def after_all_answers() -> AsyncGenerator[tuple[OrderDesk, dict[str, Passed]]]:
    """The desk, still open, and every call by its id."""
    with a_desk() as desk:
        async with desk.gate:
            done: list[Exchange] = []
            for answer in ANSWERS:
                done.append(await exchange(desk.gate, answer.wire, answer.response, answer.user))
                await happens(answer.then, desk.policies)
            await all_given_back(desk.policies.concurrency)
            passed = [one for each in done for one in each.passed]
            assert len({one.result.call_id for one in passed}) == len(passed), "the tests tell calls by their id"
            yield desk, {one.result.call_id: one for one in passed}


@dataclasses.dataclass(frozen=True)
class Morning:
    """What one run of all answers left: calls and rows of outcomes by id, and all rows of the record."""

    passed: dict[str, Passed]
    rows: dict[str, dict[str, Any]]
    record: list[dict[str, Any]]
    books: dict[str, list[Any]]
    spans: list[str]
    held: int
    effects: list[EffectRecord]
    audit: Audited


@pytest.fixture(scope="module")
def morning() -> Morning:
    """One run for all tests that only look at what it left."""
    return asyncio.run(a_morning())


async def a_morning() -> Morning:
    tables = ("refunds", "reservations", "stock", "orders")
    async with after_all_answers() as (desk, passed):
        books = {name: desk.db.execute(f"select * from {name}").fetchall() for name in tables}
        record = [dict(row.body) async for row in desk.gate.store.audit.read(None)]
        facts = passed, await ended(desk), record, books, desk.telemetry.spans(), desk.policies.concurrency.in_use()
    return Morning(*facts, await recorded(desk.gate.store), await audited(desk.gate.store))


async def ended(desk: OrderDesk) -> dict[str, dict[str, Any]]:
    """What the record says of how each call ended."""
    rows = [dict(row.body) async for row in desk.gate.store.audit.read(None) if row.body["kind"] == "outcome"]
    assert len({row["call_id"] for row in rows}) == len(rows), "one row a call"
    return {row["call_id"]: row for row in rows}


def count(db: sqlite3.Connection, what: str) -> Any:
    return db.execute(f"select {what}").fetchone()[0]


# How the calls end


def test_every_call_ends_as_its_author_meant(morning: Morning) -> None:
    passed = morning.passed
    ends = {call: (one.result.outcome, one.result.error and one.result.error.code) for call, one in passed.items()}
    assert ends == ENDS
    assert {outcome for outcome, _ in ends.values()} == {
        "success",
        "invalid",
        "denied",
        "retry_later",
        "error",
        "conflict",
        "unknown",
    }
    assert {one.wire for one in passed.values()} == {"openai_chat", "anthropic", "ollama"}
    assert len({one.result.tool for one in passed.values() if one.result.ok}) == 6, "each tool has a call that works"


def test_the_books_hold_what_succeeded_and_nothing_else(morning: Morning) -> None:
    books = morning.books
    assert books["refunds"] == [("A-1001", 2900, "late", "max")]
    assert [row[:3] for row in books["reservations"]] == [("A-1001", "lamp", 2)]
    assert dict(books["stock"]) == {"lamp": 38, "desk": 2}
    moved = [("A-1001", "acme", "2026-03-02T09:15:00+00:00", 12_900, "Am Wall 77", "28203", "DE")]
    assert sorted(books["orders"]) == moved + ORDERS[1:]


async def test_no_refused_call_reaches_its_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: Counter[str] = Counter()

    def spied(item: Any) -> Any:
        record = as_tool(item)

        async def entering(**arguments: Any) -> Any:
            entered[record.id] += 1
            return await record.execute(**arguments)

        def entering_in_a_thread(**arguments: Any) -> Any:
            entered[record.id] += 1
            return record.execute(**arguments)

        return dataclasses.replace(record, execute=entering if record.is_async else entering_in_a_thread)

    monkeypatch.setattr(app, "TOOLS", [spied(item) for item in TOOLS])
    async with after_all_answers() as (desk, passed):
        rows = await ended(desk)
    answered = {"ollama_again", "toolu_unasked"}  # by the cache, and by the question for consent
    ran = [one for call, one in passed.items() if call not in REFUSED | REPEATS | answered]
    expected: Counter[str] = Counter()
    for one in ran:
        expected[one.result.tool] += rows[one.result.call_id]["attempt"]
    assert entered == expected
    assert expected["track_parcel"] == 5 + 3, "three of five were tried again"


@pytest.mark.parametrize("call_id", ALONE)
async def test_a_refused_call_leaves_the_database_alone_and_is_recorded(call_id: str) -> None:
    answer, place = next(
        (answer, place) for answer in ANSWERS for place, call in enumerate(read(answer)) if call.id == call_id
    )
    with a_desk() as desk:
        statements: list[str] = []
        async with desk.gate:
            await desk.policies.consent.grant(MAX, "refund", store=desk.gate.store)
            hydrated = desk.gate.hydrate(read(answer)[place], wire=answer.wire)
            desk.db.set_trace_callback(statements.append)
            result = await desk.gate.call(hydrated, user=answer.user)
            desk.db.set_trace_callback(None)
        assert (result.outcome, result.error and result.error.code) == ENDS[call_id]
        assert statements == []
        (row,) = (await ended(desk)).values()
        assert (row["outcome"], row["executed"]) == (result.outcome, False)


def read(answer: Answer) -> list[Any]:
    return codec(answer.wire).calls(answer.response)


# What the hooks do


def test_the_audit_has_a_row_for_every_call_whatever_came_of_it(morning: Morning) -> None:
    """Also one of a tool that does not exist."""
    rows, passed = morning.rows, morning.passed
    assert rows.keys() == passed.keys()
    for call, row in rows.items():
        result = passed[call].result
        named = row["called"] or row["tool"]
        assert (named, row["user"], row["outcome"]) == (result.tool, passed[call].user.id, result.outcome)
        assert result.error is None or row["code"] == result.error.code
        assert row["input_hash"] or not row["frozen"], "what was valid can be told apart by its hash"


def test_before_every_effect_there_is_a_row_that_says_so(morning: Morning) -> None:
    bodies, passed = morning.record, morning.passed
    intents = [body["call_id"] for body in bodies if body["kind"] == "intent"]
    assert {"toolu_refund", "call_slow"} <= set(intents)
    assert not set(intents) & (REFUSED | REPEATS | {"toolu_unasked"})
    assert {body["effect"] for body in bodies if body["kind"] == "intent"} == {
        "idempotent",
        "keyed",
        "irreversible",
        None,
    }
    assert passed.keys() >= set(intents)


def test_the_record_verifies_and_one_changed_word_shows(morning: Morning) -> None:
    audit = morning.audit
    assert (audit.report.ok, audit.report.unanchored) == (True, 0)
    assert [problem.kind for problem in audit.forged.problems] == ["altered"]


def test_addresses_are_masked_in_the_record_and_only_there(morning: Morning) -> None:
    rows, passed = morning.rows, morning.passed
    assert rows["toolu_move"]["input"]["address"] == {"street": "***", "postcode": "***", "country": "DE"}
    assert passed["toolu_move"].result.output["street"] == "Am Wall 77"
    told = [body for call, body in rows.items() if "Wall" in str(body) or "Rue du Bac" in str(body)]
    assert told == []


def test_a_crash_is_named_in_the_record_and_not_at_all_to_the_model(morning: Morning) -> None:
    row = morning.rows["call_damaged"]
    error = morning.passed["call_damaged"].result.error
    assert error is not None
    assert error.public == "The tool failed."
    assert (row["error"], row["stage"]) == ("ValueError", "will_execute")
    assert row["request_id"] == error.correlation_id, "by this the one is found from the other"


async def test_every_place_is_given_back_also_after_a_body_was_left_behind(morning: Morning) -> None:
    with a_desk() as desk:
        places = desk.policies.concurrency
        left_behind = next(answer for answer in ANSWERS if read(answer)[0].id == "ollama_tortoise")
        async with desk.gate:
            done = await exchange(desk.gate, left_behind.wire, left_behind.response, left_behind.user)
            assert done.passed[0].result.outcome is Outcome.UNKNOWN
            assert done.passed[0].result.pending_release
            assert places.in_use() == 1, "the thread still runs"
            await all_given_back(places)
            assert places.in_use() == 0
    assert morning.held == 0


def test_what_is_over_the_quota_is_told_when_it_fits_again(morning: Morning) -> None:
    waits = {call: morning.passed[call].result.retry_after for call in ("call_4", "toolu_down_3")}
    assert 0 < (waits["call_4"] or 0) <= 120_000, "one of three a minute, when the oldest is a window away"
    assert 29_000 < (waits["toolu_down_3"] or 0) <= 30_000, "the circuit stays open for 30 seconds"


def test_the_cache_answers_one_user_until_something_was_written(morning: Morning) -> None:
    rows, passed = morning.rows, morning.passed
    assert {call for call, row in rows.items() if row["cache_hit"]} == {"ollama_again"}
    assert not rows["ollama_again"]["executed"]
    assert passed["ollama_again"].result.output == passed["call_look"].result.output
    assert passed["ollama_again"].result.output["address"]["street"] == "Am Markt 4"
    assert passed["call_fresh"].result.output["address"]["street"] == "Am Wall 77"


def test_a_carrier_that_is_down_opens_its_own_circuit_and_no_other(morning: Morning) -> None:
    rows, passed = morning.rows, morning.passed
    assert rows["call_track"]["attempt"] == 2
    assert [rows[f"toolu_down_{number}"]["attempt"] for number in (1, 2)] == [2, 2]
    assert not rows["toolu_down_3"]["executed"]
    assert passed["call_up"].result.ok, "the other carrier is still asked"


def test_the_user_is_asked_once_before_money_moves(morning: Morning) -> None:
    rows, passed = morning.rows, morning.passed
    assert passed["toolu_unasked"].result.output["type"] == "consent_required"
    assert not rows["toolu_unasked"]["executed"]
    assert rows["toolu_refund"]["executed"]


def test_an_output_that_is_too_long_is_cut_and_says_so(morning: Morning) -> None:
    text = morning.passed["call_long"].result.output
    assert len(text.encode()) <= 400
    assert re.search(r"… \[cut, \d+ bytes in all\]$", text)


def test_the_ledger_answers_a_repeat_and_refuses_what_would_be_another_effect(morning: Morning) -> None:
    """I4: one key, one effect; what nobody knows the end of is not run again."""
    rows, passed, effects = morning.rows, morning.passed, morning.effects
    first, again = passed["toolu_refund"].result, passed["toolu_twice"].result
    assert (first.replayed, again.replayed, again.output) == (False, True, first.output)
    assert [call for call, row in rows.items() if row.get("replayed")] == ["toolu_twice"]
    assert {call for call in REPEATS if rows[call]["executed"]} == set()
    refunds = [(effect.call_id, effect.state, effect.user) for effect in effects if effect.tool == "refund"]
    assert refunds == [("toolu_refund", "committed", "max")]
    assert {effect.call_id for effect in effects if effect.state == "unknown"} == {"call_slow", "ollama_tortoise"}


def test_the_carriers_key_reaches_the_carrier_and_nothing_else(morning: Morning) -> None:
    """Contract C15b: looked for in results, records and spans. The tool did get it: its answer was scrubbed of it."""
    texts = [*(str(one.result) for one in morning.passed.values()), *morning.spans, *map(str, morning.record)]
    assert "?key=***" in morning.passed["call_track"].result.output
    assert [text for text in texts if CARRIER_KEY in text] == []


def test_tolerance_is_in_the_provenance_and_off_for_the_irreversible(morning: Morning) -> None:
    assert morning.passed["call_comma"].hydrated.provenance.rules
    strict = morning.passed["call_strict"].hydrated
    assert isinstance(strict, HydrationResult)
    assert not strict.success


async def test_the_plans_have_nothing_that_the_linter_would_remark() -> None:
    with a_desk() as desk:
        assert desk.gate.lint() == []


def test_a_clerks_model_is_not_offered_the_refund() -> None:
    with a_desk() as desk:
        users = {answer.user.id: answer.user for answer in ANSWERS}
        names = {user: {tool.name for tool in desk.gate.definitions(user=users[user])} for user in users}
    assert names["max"] - names["ann"] == {"refund"}


# What is printed


@pytest.fixture(scope="module")
def printed() -> str:
    """What one run prints into a pipe, without a complaint."""
    out, complaints = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as environment, redirect_stdout(out), redirect_stderr(complaints):
        as_in_a_pipe(environment)
        assert main([]) == 0
    assert complaints.getvalue() == ""
    return out.getvalue()


def test_main_prints_one_line_a_call_the_stages_and_the_sum(printed: str) -> None:
    assert "\x1b" not in printed, "no colour in a pipe"
    assert [line for line in printed.splitlines() if len(line) > 100] == []
    lines = lines_of_calls(printed)
    assert len(lines) == len(ENDS)
    told = [(line.split()[2], outcome, code) for line, (outcome, code) in zip(lines, ENDS.values(), strict=True)]
    for line, (_, outcome, code) in zip(lines, told, strict=True):
        assert outcome in line
        assert code is None or code in line
    assert "from cache" in lines[2]
    assert [told[place][0] for place, line in enumerate(lines) if "replayed" in line] == ["refund"]
    assert re.search(r"^refund +max +toolu_refund +committed +the receipt", printed, re.MULTILINE)
    assert re.search(r"^reserve_stock +max +call_slow +unknown +that the outcome is unknown", printed, re.MULTILINE)
    for stage in (
        "will_authorize ",
        "will_check_consent",
        "will_audit",
        "did_release_semaphore",
        "will_finalize_invoke",
    ):
        assert re.search(rf"^\w+ +{stage} +\w+ +ok", printed, re.MULTILINE), stage
    assert "plan of refund" in printed
    assert '"tool_use_id": "toolu_refund"' in printed
    assert "permits still held: 0" in printed
    counts = Counter(outcome for outcome, _ in ENDS.values())
    summed = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    assert printed.rstrip().splitlines()[-1] == f"{len(ENDS)} calls: {summed}"


DEEDS = {
    "Authorize": ("denied", 3, "ann may not call refund: no rule permits it"),
    "Cache": ("answered", 1, "get_order for ann; the tool did not run"),
    "CircuitBreaker": ("retry_later", 1, "the circuit of track_parcel is open; try again in 30 s"),
    "Consent": ("asked the user", 1, "The tool refund needs your consent: refunds."),
    "FeatureFlags": ("denied", 1, "flag 'desk.quote_shipping' is off"),
    "OutputPolicy": ("cut an output", 1, "bytes in all]"),
    "Quota": ("retry_later", 1, "over the quota of 3 in 60 s; try again in"),
    "Redact": ("masked in the record", 8, "/address/street, /address/postcode"),
    "Retry": ("tried again", 3, "track_parcel: success at attempt 2"),
    "Secrets": ("let one out", 0, "looked for in"),
    "Timeout": ("unknown", 1, "quote_shipping did not stop and was left behind"),
}


def test_main_tells_what_each_hook_did_and_verifies_the_record(printed: str) -> None:
    for hook, (did, times, example) in DEEDS.items():
        assert re.search(rf"^{hook} +{did} +{times} .*{re.escape(example)}", printed, re.MULTILINE), hook
    assert "over_quota, in " in printed
    assert re.search(r"verified: audit log of \d+ rows in 1 segments with 1 anchors: no problems", printed)
    assert re.search(r"with one word of row \d+ changed: altered, the row does not match its hash", printed)
    assert CARRIER_KEY not in printed


@pytest.mark.usefixtures("piped")
def test_without_opentelemetry_it_runs_and_tells_no_metrics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "Metrics: by OpenTelemetry" not in printed
    assert len(lines_of_calls(printed)) == len(ENDS)


@pytest.mark.usefixtures("piped")
def test_a_store_keeps_the_record_for_the_command_that_verifies_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract I17: what a hook keeps is where the address says, and `audit verify` reads it."""
    address = f"sqlite:///{tmp_path / 'hooks.db'}"
    assert main(["--store", address]) == 0
    assert main(["--store", address]) == 0
    first, second = capsys.readouterr().out.split("6 tools: ")[1:]
    assert "in 2 segments with 2 anchors: no problems" in second
    again = [sum("refund" in line and "replayed" in line for line in lines_of_calls(text)) for text in (first, second)]
    assert again == [1, 3], "what was done is not done again tomorrow"
    assert verify(["verify", address]) == 0


def test_a_store_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", f"sqlite:///{tmp_path / 'missing' / 'hooks.db'}"]) == 2
    assert one_line(capsys).startswith("order_desk: the store cannot be used")


def test_it_runs_as_a_user_runs_it() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines_of_calls(done.stdout)) == len(ENDS)


def test_a_terminal_without_unicode_gets_its_lines_too() -> None:
    done = run(PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines_of_calls(done.stdout)) == len(ENDS)


def test_a_database_in_a_file_is_kept_and_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "desk.db"
    assert main(["--db", str(path)]) == 0
    first = capsys.readouterr().out
    assert main(["--db", str(path)]) == 0
    second = capsys.readouterr().out
    assert "refunded_before" not in first
    assert "refunded_before" in second, "the ledger was in memory, so the second morning asks the books"
    db = sqlite3.connect(path)
    try:
        assert count(db, "count(*) from refunds") == 1
    finally:
        db.close()


@pytest.mark.parametrize("path", ["missing/desk.db", ".", "text"])
def test_a_database_that_cannot_be_used_is_one_line(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no database\n" * 100)
    assert main(["--db", str(tmp_path / path)]) == 2
    assert one_line(capsys).startswith("order_desk: the database")
