"""A writer of the database who has no signing key cannot compute an audit log anew."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import Gate, User
from callgate.errors import HookError
from callgate.hooks import Audit, AuditRow, verify_audit, verify_rows
from callgate.hooks.stock.records import audit_signatures
from callgate.hooks.stock.records.audit_chain import row_hash
from callgate.hooks.stock.records.audit_signatures import row_signer
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.address import in_namespace
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.commands.audit import main as audit_command
from callgate.runtime.commands.stores import main as stores_command
from tests.harness.gate_options import gate_options
from tests.providers.stores.audit_log import KEY, forge, look, pay
from tests.providers.stores.backends import Backend
from tests.runtime.pipeline.ledgers import KEY as EFFECT
from tests.runtime.pipeline.ledgers import effects, keep, sqlite

__all__ = ["sqlite"]  # a fixture

NEW = "a newer signing key of the tests"
SQL = pytest.mark.parametrize("fresh", ["sqlite-file", "postgresql"], indirect=True)
STORES = pytest.mark.parametrize("fresh", ["memory", "sqlite-file", "postgresql"], indirect=True)
USER = User("ann", tenant="t")


async def work(backend: Backend, *keys: str, namespace: str = "", audit: Audit | None = None) -> list[AuditRow]:
    """Run calls in a gate with these signing keys, and return the rows of its namespace."""
    options = gate_options(store=backend.store, durable=False, namespace=namespace)
    gate = Gate([look, pay], [audit or Audit()], allow_unguarded=True, signing_keys=keys, **options)
    async with gate:
        for number in range(3):
            await gate.call("look", {"n": number}, user=USER)
            await gate.call("pay", {"n": number}, user=USER)
    if isinstance(backend.store, SqlStore):
        await backend.store.open()  # the gate has closed it
    found = [row async for row in in_namespace(backend.store, namespace).audit.read(None)]
    return sorted(found, key=lambda row: (row.segment, row.number))


async def problems(audit: Any, *keys: str, since: float | None = 0.0) -> set[str]:
    report = await verify_audit(audit, signing_keys=keys, signed_since=since if keys else None)
    return {one.kind for one in report.problems}


def rechained(rows: list[AuditRow], signed: Callable[[str, AuditRow], str]) -> list[AuditRow]:
    """The whole log computed anew, as if another user had made its calls."""
    made: list[AuditRow] = []
    previous = ""
    for row in rows:
        body = {**row.body, "user": "eve"}
        hash = signed(row_hash(body, row.segment, row.number, previous), row)
        made.append(replace(row, body=body, previous=previous, hash=hash))
        previous = hash
    return made


def _of_another_key(hash: str, row: AuditRow) -> str:
    sign = row_signer(SigningKeys([NEW]), None)
    assert sign is not None
    return sign(hash)


def _under_the_id_of_ours(hash: str, row: AuditRow) -> str:
    return f"{hash}.{SigningKeys([KEY]).ids[0]}.{_of_another_key(hash, row).split('.')[2]}"


FORGERIES: dict[str, Callable[[str, AuditRow], str]] = {
    "the old signatures": lambda hash, row: hash + row.hash[64:],
    "no signatures": lambda hash, row: hash,
    "no signature on the first row": lambda hash, row: hash + row.hash[64:] * (row.number > 1),
    "empty signatures": lambda hash, row: f"{hash}.",
    "the id of the key alone": lambda hash, row: f"{hash}.{SigningKeys([KEY]).ids[0]}",
    "signatures of another key": _of_another_key,
    "those under the id of ours": _under_the_id_of_ours,
}


async def rewrite(backend: Backend, rows: list[AuditRow]) -> None:
    """Replace the whole log and its anchors."""
    for table in ("callgate_audit", "callgate_anchors"):
        await forge(backend, f"DELETE FROM {table}")
    await backend.store.audit.append("t", rows)
    await backend.store.audit.anchor(rows[-1].segment, rows[-1].number, rows[-1].hash, rows[-1].at)


@SQL
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_log_that_was_computed_anew_without_the_key_does_not_verify(fresh: Backend, forgery: str) -> None:
    rows = await work(fresh, KEY)
    assert await problems(fresh.store.audit, KEY) == set()
    await rewrite(fresh, rechained(rows, FORGERIES[forgery]))
    assert await problems(fresh.store.audit, KEY) == {"signature"}


@SQL
async def test_control_the_same_forgery_verifies_in_a_log_of_a_gate_without_keys(fresh: Backend) -> None:
    rows = await work(fresh)
    await rewrite(fresh, rechained(rows, FORGERIES["no signatures"]))
    report = await verify_audit(fresh.store.audit, signing_keys=[KEY])
    assert (report.ok, report.unsigned) == (True, len(rows))
    assert await problems(fresh.store.audit, KEY) == {"signature"}  # a time since when rows are signed says more


@SQL
async def test_without_keys_a_verification_says_how_many_signatures_it_did_not_check(fresh: Backend) -> None:
    rows = await work(fresh, KEY)
    await rewrite(fresh, rechained(rows, FORGERIES["the old signatures"]))
    report = await verify_audit(fresh.store.audit)
    assert (report.ok, report.unchecked, report.unsigned) == (True, len(rows), 0)
    assert "give the signing keys" in str(report)


@STORES
async def test_rows_of_before_verify_as_unsigned_until_the_time_since_when_rows_are_signed(fresh: Backend) -> None:
    before = await work(fresh)
    fresh.now.move(600)
    after = [row for row in await work(fresh, KEY) if row not in before]
    report = await verify_audit(fresh.store.audit, signing_keys=[KEY])
    assert (report.ok, report.unsigned, report.rows) == (True, len(before), len(before) + len(after))
    assert f"{len(before)} rows are not signed" in str(report)
    assert await problems(fresh.store.audit, KEY, since=after[0].at) == set()
    strict = await verify_audit(fresh.store.audit, signing_keys=[KEY], signed_since=0.0)
    assert len(strict.problems) == len(before)


@STORES
async def test_the_first_key_signs_and_each_key_verifies_its_own_rows(fresh: Backend) -> None:
    old = await work(fresh, KEY)
    both = await work(fresh, NEW, KEY)
    assert await problems(fresh.store.audit, NEW, KEY) == set()
    for keys, unknown in (([KEY], len(both) - len(old)), ([NEW], len(old))):
        report = await verify_audit(fresh.store.audit, signing_keys=keys)
        assert [one.kind for one in report.problems] == ["signature"] * unknown


@SQL
@pytest.mark.parametrize("bound", [True, False], ids=["ours", "control without the namespace"])
async def test_rows_that_are_moved_to_another_namespace_have_no_valid_signature(
    fresh: Backend, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bound:
        monkeypatch.setattr(audit_signatures, "_origin", lambda namespace: ())
    rows = await work(fresh, KEY, namespace="one")
    assert await problems(in_namespace(fresh.store, "one").audit, KEY) == set()
    other = in_namespace(fresh.store, "two").audit
    await other.append("t", rows)
    assert await problems(other, KEY) == ({"signature"} if bound else set())


async def test_a_sink_gets_signed_rows() -> None:
    rows: list[AuditRow] = []
    async with Gate([look], [Audit(rows.append)], allow_unguarded=True, signing_keys=[KEY]) as gate:
        await gate.call("look", {"n": 1}, user=USER)
    report = await verify_rows(rows)
    assert (report.ok, report.unchecked) == (True, 1)
    hash, _, tag = rows[0].hash.partition(".")
    assert SigningKeys([KEY]).has_tag(tag, b"callgate audit row", b"", hash.encode())


@pytest.mark.parametrize("fresh", ["sqlite-file"], indirect=True)
async def test_a_time_since_when_rows_are_signed_needs_the_keys(fresh: Backend) -> None:
    with pytest.raises(HookError, match="needs signing_keys"):
        await verify_audit(fresh.store.audit, signed_since=0.0)


@pytest.mark.parametrize("signed", [True, False])
def test_the_commands_sign_and_verify(sqlite: str, signed: bool, tmp_path: Path) -> None:
    """`effects settle` signs its row when it gets the keys; `audit verify --signed-since` reports a row without."""
    keys = tmp_path / "keys.txt"
    keys.write_text(f"{KEY.replace(' ', '-')}\n", "utf-8")
    keep(sqlite, EFFECT)
    given = ["--signing-keys", str(keys)]
    if signed:
        unsigned = effects("settle", sqlite, EFFECT, "--no-effect", "--note", "n", "--yes", *given)
        assert unsigned[0] == 1
        assert "callgate stores sign" in unsigned[1]
        assert stores_command(["sign", "--store", sqlite, *given, "--yes"], io.StringIO()) == 0
    done = effects("settle", sqlite, EFFECT, "--no-effect", "--note", "n", "--yes", *(given if signed else []))
    assert done[0] == 0, done[1]
    for since in (["--signed-since", "2020-01-01"], ["--signed-since", "2020-01-01T08:00:00+02:00"]):
        out = io.StringIO()
        assert audit_command(["verify", sqlite, *given, *since], out) == (0 if signed else 1), out.getvalue()
        assert ("signature" in out.getvalue()) is not signed


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=4), st.data())
def test_a_tag_is_of_its_key_and_of_the_parts_as_they_were_cut(parts: list[bytes], data: st.DataObject) -> None:
    keys = SigningKeys([KEY])
    tag = keys.tagger(*parts[:-1])(parts[-1])
    assert keys.has_tag(tag, *parts)
    assert SigningKeys([NEW, KEY]).has_tag(tag, *parts)
    assert not SigningKeys([NEW]).has_tag(tag, *parts)
    assert not keys.has_tag(tag, *parts, b"")
    place = data.draw(st.integers(0, len(tag) - 1))
    assert not keys.has_tag(f"{tag[:place]}{'0' if tag[place] != '0' else '1'}{tag[place + 1 :]}", *parts)
