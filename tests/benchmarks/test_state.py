"""The benchmark of state: its file has the promised keys, what is absent is said, and its parts count and chain rightly."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import state, state_fair, state_hand, state_place, state_way, workers_place
from benchmarks.state_place import Load, places, store_of, switches
from callgate.hooks.stock.records.audit_verify import verify_audit
from callgate.providers.stores.effects import EffectRecord, EffectState
from callgate.providers.stores.sql.ledger import SqlLedgerWriter

FEW = Load(4, 4, 8, 1)
TINY = state.Effort((0.1, 1), FEW, FEW, FEW, FEW, FEW, FEW, FEW, (1, 4))
ON_SQLITE = [
    "audit_sqlite_x_before",
    "audit_sqlite_one_caller_x_before",
    "audit_sqlite_x_by_hand",
    "hooks_sqlite_x_before",
    "signed_hooks_sqlite_cpu_x",
    "signed_effect_sqlite_cpu_x",
]


def test_a_quick_run_on_sqlite_yields_all_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 16: ``benchmarks/out/state.json``. Nothing here looks at how long anything takes."""
    monkeypatch.setattr(state, "QUICK", TINY)
    path = tmp_path / "deep" / "state.json"
    assert state.main(["--quick", "--on", "sqlite", "--json", str(path)]) == 0
    written = json.loads(path.read_text("utf-8"))
    assert list(written) == [*ON_SQLITE, "more"]
    keys = {row.key for row in state.ROWS if "sqlite" in row.key}
    assert keys <= {*written, *written["more"]}
    out = capsys.readouterr().out
    for part in state.PARTS:
        assert (f"left out: {part.title}: {part.kind} was not asked for" in out) == (part.kind != "sqlite")


def test_absent_servers_are_named_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16: the benchmark leaves out what needs a server that is absent, and says which."""
    monkeypatch.setattr(workers_place, "POSTGRES", "postgresql://ann:pa55@127.0.0.1:1/none")
    monkeypatch.setattr(state_place, "REDIS", "redis://ann:pa55@127.0.0.1:1/0")
    with places(list(state_place.OPENERS)) as (found, absent):
        assert list(found) == ["sqlite"]
    assert absent["postgresql"].startswith("no PostgreSQL at postgresql://ann:***@127.0.0.1:1/none")
    assert absent["redis"].startswith("no Redis at redis://127.0.0.1:1 ")
    assert "pa55" not in str(absent)


async def test_the_state_before_has_no_group_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16: a switch sets an attribute of the store or of a part of it; a store without it stays as it is."""
    address = f"sqlite:///{tmp_path}/store.db"
    assert isinstance(store_of(address).ledger, SqlLedgerWriter)
    assert isinstance(store_of(address, before=True).ledger, state_place.Apart)
    assert store_of("redis://127.0.0.1:1/0")._connection.shared is not None
    assert store_of("redis://127.0.0.1:1/0", before=True)._connection.shared is None
    monkeypatch.setattr(
        state_place, "BEFORE", dict.fromkeys(("quotas._database", "quotas.none", "none.here"), lambda store: 1)
    )
    store = store_of(address)
    assert switches(store) == [(store.quotas, "_database", 1)]


async def test_calls_by_hand_write_what_callgate_writes(tmp_path: Path) -> None:
    """Issue 16: the same tables and values, and a hash chain that ``verify_audit`` accepts."""
    address = f"sqlite:///{tmp_path}/store.db"
    example = await state_hand.Example.read(address)
    async with state_hand.lite(address) as commit:
        hand = state_hand.Hand(commit, example)
        await asyncio.gather(*(hand.call() for _ in range(5)))
    store = store_of(address)
    await store.open()
    try:
        report = await verify_audit(store.audit)
        effects = [effect for _, effect in await store.effects.list(None)]
        bodies = [row.body async for row in store.audit.read(None)]
    finally:
        await store.close()
    assert (report.ok, report.rows) == (True, 12)
    assert [one.state for one in effects] == [EffectState.COMMITTED] * 6
    assert len({frozenset(body) for body in bodies if body["kind"] == "outcome"}) == 1


async def test_calls_by_hand_that_write_nothing_stop_the_benchmark() -> None:
    """Issue 16: no figure of a side that does not do its work."""

    async def commit(claims: object, outcomes: object, rows: object) -> int:
        return 0

    values = {**dict.fromkeys(state_hand.SETTLED), "tenant": "acme"}
    hand = state_hand.Hand(commit, state_hand.Example(values, values, values))
    with pytest.raises(RuntimeError, match="of 1 changes by hand 0 were written"):
        await hand.call()


def test_lost_leases_are_counted() -> None:
    """Issue 16: an effect whose lease ended is unknown, or was settled or claimed again with a higher token."""
    fine = EffectRecord("k", "pay", "1", "ann", "h", "r", "o", 1.0, 0.0, EffectState.COMMITTED)
    lost = [replace(fine, state=EffectState.UNKNOWN, token=2), replace(fine, token=3)]
    assert state_fair.starved([fine, *lost, fine]) == 2


def test_bytes_keep_their_order_on_the_delayed_way() -> None:
    """Issue 16: the way delays what it carries, and changes nothing else."""
    text = b"".join(b"%06d" % number for number in range(20_000))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with state_way.delayed(f"postgresql://ann@127.0.0.1:{port}/test?application_name=x", 0.001) as address:
            assert address.startswith("postgresql://ann@127.0.0.1:")
            assert address.endswith("/test?application_name=x")
            way = int(address.partition("127.0.0.1:")[2].partition("/")[0])
            with socket.create_connection(("127.0.0.1", way)) as client:
                there, _ = server.accept()
                with there, there.makefile("rb") as received:
                    client.sendall(text)
                    client.shutdown(socket.SHUT_WR)
                    assert received.read() == text
