"""Settings that a role, a database or the environment has for its sessions: no row is lost, and none seems to be changed."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from callgate import Gate, ToolCall, User, tool
from callgate.errors import StoreError
from callgate.hooks import Audit, Cache, Quota
from callgate.providers.stores.sql.database import engines as sql_engines
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import schema

ANN = User("änn €")
TEXT = "x\\y'é\u2028€"
SETTINGS = {
    "extra_float_digits": ["0", "-15"],
    "client_encoding": ["LATIN1", "SQL_ASCII"],
    "bytea_output": ["escape"],
    "standard_conforming_strings": ["off"],
    "DateStyle": ["German"],
    "TimeZone": ["Asia/Kathmandu"],
    "statement_timeout": ["30s"],
    "idle_session_timeout": ["100ms"],
    "default_transaction_deferrable": ["on"],
    "row_security": ["off"],
    "session_replication_role": ["replica"],
}
RAN: list[str] = []


@tool(effect="irreversible", key=("order",))
async def refund(order: str) -> str:
    """Refund."""
    RAN.append(order)
    return TEXT


@tool(effect="read")
async def look(order: str) -> str:
    """Look."""
    RAN.append(order)
    return TEXT


async def problems(address: str) -> list[object]:
    """What is not as it should be in a service with signed rows: effects, cached outputs, quotas, audit rows and jobs."""
    RAN.clear()
    hooks = [Audit(), Cache(60.0, tools=["look"]), Quota("100/minute")]
    async with Gate([refund, look], hooks, store=address, signing_keys=["k" * 32], allow_unguarded=True) as gate:
        calls = [ToolCall(name="refund", arguments={"order": f"{TEXT}{n % 3}"}) for n in range(9)]
        calls += [ToolCall(name="look", arguments={"order": "one"})]
        results = [*await gate.call_many(calls, user=ANN), await gate.call(calls[-1], user=ANN)]
        results.append(await (await gate.submit(ToolCall(name="refund", arguments={"order": "job"}), user=ANN)))
    found: list[object] = [one for one in results if one.output != TEXT]
    return found + [order for order in set(RAN) if RAN.count(order) != 1]


@pytest.mark.parametrize(("setting", "value"), [(name, value) for name in SETTINGS for value in SETTINGS[name]])
async def test_no_setting_of_a_session_changes_what_the_store_keeps(setting: str, value: str) -> None:
    """Without digits enough the server rounded times, and each signed row seemed to be changed."""
    with schema() as address:
        assert await problems(f"{address}%20-c{setting}%3D{quote(value, '')}") == []


async def test_the_encoding_of_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with schema() as address:
        assert await problems(address) == []


async def test_control_without_the_settings_of_the_store_rows_seem_to_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sql_engines, "_POSTGRES_SETTINGS", sql_engines._POSTGRES_SETTINGS[:2])
    with schema() as address, pytest.raises(StoreError, match="a row of kind job was changed"):
        await problems(f"{address}%20-cextra_float_digits%3D0")


async def test_a_session_behind_a_pooler_that_rounds_times_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads set nothing there, so each signed row would seem to be changed."""
    monkeypatch.setattr(sql_engines, "is_pooled", lambda *given: True)
    with schema() as address, pytest.raises(StoreError, match="SET extra_float_digits = 1"):
        await SqlStore(f"{address}%20-cextra_float_digits%3D0").open()
