"""The worked example, run in process and as a user runs it: what it prints is what happened."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import HydrationResult, Outcome, as_tool, codec
from examples.order_desk import app
from examples.order_desk.answers import ANSWERS, Answer
from examples.order_desk.app import OrderDesk, all_given_back, main, order_desk
from examples.order_desk.desk import ORDERS, AppContainer
from examples.order_desk.exchange import Passed, exchange
from examples.order_desk.tools import TOOLS
from tests.examples.running import lines_of_calls, one_line, run

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
    "toolu_forbidden": ("denied", "forbidden"),
    "call_reserve": SUCCESS,
    "call_slow": ("error", "deadline_exceeded"),
    "call_scarce": ("error", "out_of_stock"),
    "toolu_too_much": ("denied", "over_limit"),
    "toolu_refund": SUCCESS,
    "toolu_twice": ("error", "refunded_before"),
    "call_strict": ("invalid", "invalid_json"),  # no tolerance where money is concerned
    "call_when": ("invalid", "invalid_arguments"),
    "call_damaged": ("error", "tool_failed"),
    "call_1": SUCCESS,
    "call_2": SUCCESS,
    "call_3": SUCCESS,
    "call_4": ("retry_later", "retry_later"),
    "ollama_tortoise": ("unknown", "outcome_unknown"),
    "call_role": ("denied", "forbidden"),
}
REFUSED = {call for call, (outcome, _) in ENDS.items() if outcome in {"invalid", "denied", "retry_later"}}
ALONE = sorted(REFUSED - {"call_unknown", "call_4"})  # refused for what they are, not for what runs beside them


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
            done = [await exchange(desk.gate, answer.wire, answer.response, answer.user) for answer in ANSWERS]
            await all_given_back(desk.quota)
            passed = [one for each in done for one in each.passed]
            assert len({one.result.call_id for one in passed}) == len(passed), "the tests tell calls by their id"
            yield desk, {one.result.call_id: one for one in passed}


def audited(db: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    cursor = db.execute("select * from audit")
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    assert len({row["call_id"] for row in rows}) == len(rows), "one row a call"
    return {row["call_id"]: row for row in rows}


def count(db: sqlite3.Connection, what: str) -> Any:
    return db.execute(f"select {what}").fetchone()[0]


# How the calls end


async def test_every_call_ends_as_its_author_meant() -> None:
    async with after_all_answers() as (_, passed):
        ended = {call: (one.result.outcome, one.result.error and one.result.error.code) for call, one in passed.items()}
    assert ended == ENDS
    assert {outcome for outcome, _ in ended.values()} == {
        "success",
        "invalid",
        "denied",
        "retry_later",
        "error",
        "unknown",
    }
    assert {one.wire for one in passed.values()} == {"openai_chat", "anthropic", "ollama"}
    assert len({one.result.tool for one in passed.values() if one.result.ok}) == 5, "each tool has a call that works"


async def test_the_books_hold_what_succeeded_and_nothing_else() -> None:
    async with after_all_answers() as (desk, _):
        db = desk.db
        assert db.execute("select * from refunds").fetchall() == [("A-1001", 2900, "late", "max")]
        assert db.execute("select order_id, sku, quantity from reservations").fetchall() == [("A-1001", "lamp", 2)]
        assert dict(db.execute("select * from stock")) == {"lamp": 38, "desk": 2}
        moved = [("A-1001", "acme", "2026-03-02T09:15:00+00:00", 12_900, "Am Wall 77", "28203", "DE")]
        assert sorted(db.execute("select * from orders")) == moved + ORDERS[1:]


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
        rows = audited(desk.db)
    ran = [one for call, one in passed.items() if call not in REFUSED and not rows[call]["cached"]]
    assert entered == Counter(one.result.tool for one in ran)
    assert {call for call in rows if rows[call]["attempts"]} == {one.result.call_id for one in ran}


@pytest.mark.parametrize("call_id", ALONE)
async def test_a_refused_call_leaves_the_database_alone_but_for_its_audit_row(call_id: str) -> None:
    answer, place = next(
        (answer, place) for answer in ANSWERS for place, call in enumerate(read(answer)) if call.id == call_id
    )
    with a_desk() as desk:
        statements: list[str] = []
        async with desk.gate:
            hydrated = desk.gate.hydrate(read(answer)[place], wire=answer.wire)
            desk.db.set_trace_callback(statements.append)
            result = await desk.gate.call(hydrated, user=answer.user)
            desk.db.set_trace_callback(None)
        assert (result.outcome, result.error and result.error.code) == ENDS[call_id]
        assert [text.split(" values")[0].strip().lower() for text in statements] == [
            "begin",
            "insert into audit",
            "commit",
        ]
        assert count(desk.db, "attempts from audit") == 0


def read(answer: Answer) -> list[Any]:
    return codec(answer.wire).calls(answer.response)


# Audit, quota, cache


async def test_the_audit_has_a_row_for_every_call_whatever_came_of_it() -> None:
    """Also one of a tool that does not exist."""
    async with after_all_answers() as (desk, passed):
        rows = audited(desk.db)
    assert rows.keys() == passed.keys()
    for call, row in rows.items():
        result = passed[call].result
        assert (row["tool"], row["user"], row["outcome"]) == (result.tool, passed[call].user.id, result.outcome)
        if result.error is not None and call != "call_damaged":
            assert row["code"] == result.error.code
        frozen = row["attempts"] or row["cached"]
        assert bool(row["arguments_sha256"]) == bool(frozen), "what was never valid has no hash worth keeping"


async def test_a_crash_is_told_in_full_to_the_audit_and_not_at_all_to_the_model() -> None:
    async with after_all_answers() as (desk, passed):
        row = audited(desk.db)["call_damaged"]
    error = passed["call_damaged"].result.error
    assert error is not None
    assert error.public == "The tool failed."
    assert "31.02.2026" in row["detail"]
    assert row["request_id"] == error.correlation_id, "by this the one is found from the other"


async def test_the_quota_is_back_to_zero_also_after_a_body_was_left_behind() -> None:
    with a_desk() as desk:
        left_behind = next(answer for answer in ANSWERS if read(answer)[0].id == "ollama_tortoise")
        async with desk.gate:
            done = await exchange(desk.gate, left_behind.wire, left_behind.response, left_behind.user)
            assert done.passed[0].result.outcome is Outcome.UNKNOWN
            assert done.passed[0].result.pending_release
            assert desk.quota.held[left_behind.user.tenant, left_behind.user.id] == 1, "the thread still runs"
            await all_given_back(desk.quota)
            assert not any(desk.quota.held.values())
    async with after_all_answers() as (desk, _):
        assert desk.quota.held
        assert set(desk.quota.held.values()) == {0}


async def test_the_cache_answers_one_user_until_something_was_written() -> None:
    async with after_all_answers() as (desk, passed):
        rows = audited(desk.db)
    assert {call for call, row in rows.items() if row["cached"]} == {"ollama_again"}
    assert rows["ollama_again"]["attempts"] == 0
    assert passed["ollama_again"].result.output == passed["call_look"].result.output
    assert passed["ollama_again"].result.output["address"]["street"] == "Am Markt 4"
    assert passed["call_fresh"].result.output["address"]["street"] == "Am Wall 77"


async def test_tolerance_is_in_the_provenance_and_off_for_the_irreversible() -> None:
    async with after_all_answers() as (_, passed):
        assert passed["call_comma"].hydrated.provenance.rules
        strict = passed["call_strict"].hydrated
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


@pytest.mark.usefixtures("piped")
def test_main_prints_one_line_a_call_the_stages_and_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed, complaints = capsys.readouterr()
    assert complaints == ""
    assert "\x1b" not in printed, "no colour in a pipe"
    assert [line for line in printed.splitlines() if len(line) > 100] == []
    lines = lines_of_calls(printed)
    assert len(lines) == len(ENDS)
    told = [(line.split()[2], outcome, code) for line, (outcome, code) in zip(lines, ENDS.values(), strict=True)]
    for line, (_, outcome, code) in zip(lines, told, strict=True):
        assert outcome in line
        assert code is None or code in line
    assert "from cache" in lines[2]
    for stage in ("will_authorize ", "will_acquire_quota", "will_audit", "did_release_quota", "will_finalize_invoke"):
        assert re.search(rf"^\w+ +{stage} +\w+ +ok", printed, re.MULTILINE), stage
    assert "plan of refund" in printed
    assert '"tool_use_id": "toolu_refund"' in printed
    assert "quota still held: 0" in printed
    counts = Counter(outcome for outcome, _ in ENDS.values())
    summed = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    assert printed.rstrip().splitlines()[-1] == f"{len(ENDS)} calls: {summed}"


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
    assert "refunded_before" in first
    assert second.count("refunded_before") > first.count("refunded_before"), "the second morning finds it refunded"
    db = sqlite3.connect(path)
    try:
        assert count(db, "count(*) from refunds") == 1
        assert count(db, "count(*) from audit") == 2 * len(ENDS)
    finally:
        db.close()


@pytest.mark.parametrize("path", ["missing/desk.db", ".", "text"])
def test_a_database_that_cannot_be_used_is_one_line(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no database\n" * 100)
    assert main(["--db", str(tmp_path / path)]) == 2
    assert one_line(capsys).startswith("order_desk: the database")
