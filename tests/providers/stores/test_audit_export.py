"""Export of the audit log on every store: a cursor that misses no row, a file, and an OTLP endpoint."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.errors import HookError, StoreConflict, StoreError
from callgate.hooks import AuditFile, AuditOtlp, AuditRow, export_audit, prune_audit, read_audit_file, verify_rows
from callgate.hooks.stock.records import audit_export
from callgate.providers.stores.memory.audit import MemoryAudit
from callgate.runtime.commands.audit import main as audit_command
from tests.providers.stores.audit_log import KEY, chained
from tests.providers.stores.backends import Backend, opened

LIVE = pytest.mark.parametrize("fresh", ["memory", "postgresql"], indirect=True)  # two transactions at once


class Received:
    """A destination; the delivery with the number *fails* raises, before or after it has the rows."""

    def __init__(self, fails: int = 0, *, after: bool = False) -> None:
        self.rows: list[AuditRow] = []
        self.sizes: list[int] = []
        self.fails, self.after = fails, after

    async def __call__(self, rows: Sequence[tuple[str, AuditRow]]) -> None:
        self.sizes.append(len(rows))
        failing = len(self.sizes) == self.fails
        if not failing or self.after:
            self.rows += [row for _, row in rows]
        if failing:
            raise OSError("injected")

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(row.segment, row.number) for row in self.rows]


async def late(backend: Backend, deliver: Received, export: Any) -> set[tuple[str, int]]:
    """Commit rows with an early time after an export of later ones; the places that were delivered in the end."""
    audit = backend.store.audit
    async with backend.store.transaction() as transaction:
        await transaction.audit.append("t", chained(2, name="slow", at=1_000.0))
        await audit.append("t", chained(2, name="fast", at=2_000.0))
        await export(deliver)
        assert {place[0] for place in deliver.places} == {"fast"}
    await export(deliver)
    return set(deliver.places)


ALL = {("slow", 1), ("slow", 2), ("fast", 1), ("fast", 2)}


@LIVE
async def test_a_row_that_is_committed_late_is_delivered_however_early_its_time_is(fresh: Backend) -> None:
    """Issue 16 D3: a cursor of times misses such rows."""
    got = Received()
    assert await late(fresh, got, lambda deliver: export_audit(fresh.store.audit, "siem", deliver)) == ALL
    assert len(got.rows) == 4


@LIVE
async def test_control_a_cursor_of_times_misses_a_row_that_is_committed_late(fresh: Backend) -> None:
    """Issue 16 D3: the sabotaged control."""
    times = [0.0]

    async def by_time(deliver: Received) -> None:
        rows = [row async for row in fresh.store.audit.read(None, since=times[-1])]
        await deliver([("t", row) for row in rows if row.at > times[-1]])
        times.append(max([row.at for row in rows], default=times[-1]))

    assert await late(fresh, Received(), by_time) == {("fast", 1), ("fast", 2)}


async def gap(backend: Backend) -> list[list[tuple[str, int]]]:
    """Commit the second row of a segment before the first; what was delivered then, and in the end."""
    rows, got = chained(3, name="s"), Received()
    async with backend.store.transaction() as transaction:
        await transaction.audit.append("t", rows[:1])
        await backend.store.audit.append("t", rows[1:])
        await export_audit(backend.store.audit, "siem", got)
        before = list(got.places)
    await export_audit(backend.store.audit, "siem", got)
    return [before, got.places]


@LIVE
async def test_a_cursor_waits_for_a_row_that_is_missing(fresh: Backend) -> None:
    """Issue 16 D3: a cursor never passes a number that may still be committed."""
    assert await gap(fresh) == [[], [("s", 1), ("s", 2), ("s", 3)]]


@LIVE
async def test_control_a_cursor_that_passes_gaps_misses_a_row(fresh: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 D3: the sabotaged control."""
    monkeypatch.setattr(
        audit_export, "_without_gaps", lambda snapshot, segment: snapshot.rows(segment.name, segment.exported)
    )
    assert await gap(fresh) == [[("s", 2), ("s", 3)]] * 2


async def test_every_row_is_delivered_once_in_batches_across_segments(fresh: Backend) -> None:
    """Issue 16 D3: with every size of a batch, and for each cursor of its own."""
    audit = fresh.store.audit
    segments = [chained(count, name=name) for name, count in (("a", 3), ("b", 1), ("c", 5), ("d", 2))]
    for rows in segments:
        await audit.append("t", rows)
    expected = [row for rows in segments for row in rows]
    for size in (1, 2, 3, 4, 11, 500):
        got = Received()
        assert await export_audit(audit, f"cursor {size}", got, batch=size) == 11
        assert got.rows == expected
        assert max(got.sizes) <= size
        assert await export_audit(audit, f"cursor {size}", got, batch=size) == 0
    await audit.append("t", chained(1, name="a", begin=4, previous=segments[0][-1].hash))
    await audit.append("t", chained(1, name="0"))
    got = Received()
    await export_audit(audit, "cursor 2", got)
    assert got.places == [("0", 1), ("a", 4)]
    assert await audit.cursors() == {f"cursor {size}" for size in (1, 2, 3, 4, 11, 500)}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 12), st.booleans())
@settings(max_examples=80, deadline=None)
def test_whichever_delivery_fails_no_row_is_missed(counts: list[int], size: int, fails: int, after: bool) -> None:
    """Issue 16 D3: at least once, in the order of each segment."""

    async def scenario() -> None:
        audit, got = MemoryAudit(), Received(fails, after=after)
        rows = [row for index, count in enumerate(counts) for row in chained(count, name=f"s{index}")]
        await audit.append("t", rows)
        for _ in range(2):
            try:
                await export_audit(audit, "siem", got, batch=size)
            except OSError:
                continue
        assert list(dict.fromkeys(got.places)) == [(row.segment, row.number) for row in rows]
        repeated = len(got.rows) - len(rows)
        assert repeated == (got.sizes[fails - 1] if after and len(got.sizes) >= fails else 0)

    asyncio.run(scenario())


async def test_two_exporters_with_one_cursor_are_noticed(fresh: Backend) -> None:
    """Issue 16 D3: a cursor never goes back."""
    audit, rows, both = fresh.store.audit, chained(4, name="s"), Received()
    await audit.append("t", rows)

    async def overtaken(found: Sequence[tuple[str, AuditRow]]) -> None:
        await export_audit(audit, "siem", both)

    with pytest.raises(StoreConflict, match="cursor"):
        await export_audit(audit, "siem", overtaken, batch=2)
    assert both.rows == rows
    assert await export_audit(audit, "siem", both) == 0
    with pytest.raises(HookError):
        await export_audit(audit, "", both)
    with pytest.raises(HookError):
        await export_audit(audit, "c", both, batch=0)


async def test_a_cursor_goes_on_behind_rows_that_were_removed(fresh: Backend) -> None:
    """Issue 16 D2, D3: a new destination begins at the first row that is left."""
    audit = fresh.store.audit
    await audit.append("t", chained(5, name="s"))
    await prune_audit(audit, 1_003.0, Received(), signing_keys=[KEY])
    got = Received()
    await export_audit(audit, "siem", got)
    assert got.places == [("s", 3), ("s", 4), ("s", 5)]


async def test_no_transaction_is_open_during_a_delivery(fresh: Backend) -> None:
    """Issue 16 D3: a slow destination holds up nothing; the writer of SQLite in memory has one connection."""
    audit = fresh.store.audit
    await audit.append("t", chained(2))

    async def write(rows: Sequence[tuple[str, AuditRow]]) -> None:
        if not written:
            written.append(True)
            await audit.append("t", chained(1, name="z"))

    written: list[bool] = []
    assert await export_audit(audit, "siem", write) == 2
    assert await export_audit(audit, "siem", write) == 1


# ---------------------------------------------------------------------- the file


async def test_a_file_has_every_row_and_mends_its_last_line(tmp_path: Path) -> None:
    """Issue 16 D3: a crash in the middle of a line, and a row that is delivered again."""
    file, rows = tmp_path / "audit.jsonl", chained(5)
    deliver = AuditFile(file)
    await deliver([("t", row) for row in rows[:2]])
    await deliver([])
    whole = file.read_bytes()
    for cut in (1, 10, len(whole) - 1):
        file.write_bytes(whole[:-cut])
        await AuditFile(file)([("t", row) for row in rows])
        assert list(read_audit_file(file)) == rows
        assert (await verify_rows(read_audit_file(file, file))).ok
    assert json.loads(file.read_text().splitlines()[0])["tenant"] == "t"
    file.write_bytes(b"x" * 200_000)
    await AuditFile(file)([("t", rows[0])])
    assert list(read_audit_file(file)) == rows[:1]


async def test_rows_that_did_not_reach_the_disk_are_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 D3: the cursor moves after the rows are durable."""
    audit, file, rows = MemoryAudit(), tmp_path / "audit.jsonl", chained(3)
    await audit.append("t", rows)

    def full(_file: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            await export_audit(audit, "file", AuditFile(file))
    assert await export_audit(audit, "file", AuditFile(file)) == 3
    assert list(read_audit_file(file)) == rows


def test_a_file_that_is_no_audit_log_is_named(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for line in ("no json", "[]", "{}", '{"tenant": "t"}'):
        file.write_text(f"{line}\n")
        with pytest.raises(ValueError, match=r"line 1 of audit\.jsonl"):
            list(read_audit_file(file))


# ---------------------------------------------------------------------- OTLP


def endpoint(answer: httpx.Response | Exception, requests: list[httpx.Request]) -> httpx.AsyncClient:
    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return httpx.AsyncClient(transport=httpx.MockTransport(respond))


async def test_rows_are_sent_as_log_records() -> None:
    """Issue 16 D3: OTLP with HTTP and JSON."""
    requests: list[httpx.Request] = []
    (row,) = chained(1, name="s")
    async with endpoint(httpx.Response(200, json={}), requests) as client:
        await AuditOtlp("http://otlp/v1/logs", {"authorization": "Bearer x"}, client=client)([("acme", row)])
    (request,) = requests
    assert (request.headers["authorization"], request.headers["content-type"]) == ("Bearer x", "application/json")
    (resource,) = json.loads(request.content)["resourceLogs"]
    assert resource["resource"] == {"attributes": [{"key": "service.name", "value": {"stringValue": "callgate"}}]}
    (record,) = resource["scopeLogs"][0]["logRecords"]
    assert record["timeUnixNano"] == "1001000000000"
    assert json.loads(record["body"]["stringValue"]) == row.body
    shown = {one["key"].rpartition(".")[2]: one["value"] for one in record["attributes"]}
    assert shown["tenant"] == {"stringValue": "acme"}
    assert shown["number"] == {"intValue": "1"}
    assert shown["hash"] == {"stringValue": row.hash}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(503, text="secret"), "status 503"),
        (httpx.Response(200, json={"partialSuccess": {"rejectedLogRecords": "2"}}), "rejected 2 of 2"),
        (httpx.Response(200, text="<html>secret"), "no valid response"),
        (httpx.ConnectError("secret"), "cannot be reached: ConnectError"),
    ],
)
async def test_rows_that_an_endpoint_did_not_take_are_sent_again(answer: Any, says: str) -> None:
    """Issue 16 D3: the cursor stays."""
    audit, requests = MemoryAudit(), list[httpx.Request]()
    await audit.append("t", chained(2))
    async with endpoint(answer, requests) as client:
        with pytest.raises(StoreError, match=says) as failed:
            await export_audit(audit, "otlp", AuditOtlp("http://otlp/v1/logs", client=client))
    assert "secret" not in str(failed.value)
    async with endpoint(httpx.Response(200), requests) as client:
        assert await export_audit(audit, "otlp", AuditOtlp("http://otlp/v1/logs", client=client)) == 2


# ---------------------------------------------------------------------- the command


def test_the_command_exports_new_rows(tmp_path: Path) -> None:
    """Issue 16 D3: ``callgate audit export``."""
    address, file = f"sqlite:///{tmp_path}/a.db", tmp_path / "audit.jsonl"

    async def add(name: str, count: int) -> None:
        async with opened("sqlite-file", (address, "")) as backend:
            await backend.store.audit.append("t", chained(count, name=name))

    def run(*given: str) -> tuple[int, str]:
        out = io.StringIO()
        return audit_command(["export", address, "--cursor", "siem", *given], out), out.getvalue()

    assert run("--file", os.fspath(file))[0] == 2, "a mistyped address creates nothing"
    asyncio.run(add("a", 10_100))
    code, shown = run("--file", os.fspath(file))
    assert (code, shown.split()) == (0, ["rows", "10,000", "exported:", "10100", "rows"])
    asyncio.run(add("b", 2))
    assert run("--file", os.fspath(file)) == (0, "exported: 2 rows\n")
    assert len(list(read_audit_file(file))) == 10_102
    asyncio.run(add("c", 1))
    code, shown = run("--otlp", "http://127.0.0.1:1/v1/logs")
    assert (code, "cannot be reached" in shown) == (2, True)
    assert run("--file", os.fspath(file)) == (0, "exported: 1 rows\n")
