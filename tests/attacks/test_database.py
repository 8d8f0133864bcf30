"""Who writes the database but has no signing key can do no more than destroy. Issue 38, 4."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from callgate import Approval, Approve, Deny, Gate, ToolError, User, tool
from callgate.errors import NotPending, StoreError
from callgate.providers.stores.address import in_namespace, signed_by
from callgate.providers.stores.base import Grant
from callgate.providers.stores.effects import EffectRecord, Pin
from callgate.providers.stores.sql.database.clock import _elapsed
from callgate.providers.stores.sql.store import SqlStore
from callgate.providers.stores.sql.versions import SqlVersions
from callgate.runtime.commands.stores import main as stores_command
from callgate.runtime.effects.ledger import ASK_AT_ONCE
from callgate.tools.client.pinning import ToolPins
from tests.attacks.database_rows import (
    COLUMNS,
    KEY,
    KINDS,
    OTHER,
    REMOVABLE,
    UNSIGNED,
    Kind,
    RedisRows,
    Rows,
    World,
    accepted,
)
from tests.providers.stores.audit_log import chained, forge
from tests.providers.stores.backends import Backend, opened, place

REDIS_KINDS = ("cached", "consent")
CASES = [
    *((store, kind) for store in ("sqlite-file", "postgresql") for kind in KINDS),
    *(("redis", kind) for kind in REDIS_KINDS),
]
TAMPERING = ("changed", "unsigned", "other key", "copied to another key", "copied to another tenant", "put back")


@pytest_asyncio.fixture
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Backend, None]:
    """A store that is open."""
    with place(request.param, tmp_path) as at:
        async with opened(request.param, at) as found:
            yield found


async def tampered(kind: Kind, world: World, how: str) -> tuple[World, str]:
    """Tamper with a row of a tenant of its own, and return where it is to be read."""
    world, key = replace(world, tenant=f"{world.tenant}-{how.replace(' ', '-')}"), f"key-{how.replace(' ', '-')}"
    rows = (RedisRows if world.backend.kind == "redis" else Rows)(kind, world)
    if how == "other key":
        await kind.write(replace(world, store=signed_by(world.backend.store, OTHER), keys=OTHER), key)
        return world, key
    await kind.write(world, key)
    assert await accepted(kind, world, key), "the row is good before"
    world.backend.now.move(1.0)
    if how == "changed":
        await rows.change(key)
    elif how == "unsigned":
        await rows.unsign(key)
    elif how == "copied to another key":
        await rows.copy(key, f"{key}-2")
        key = f"{key}-2"
    elif how == "copied to another tenant":
        await rows.move(key, f"{world.tenant}-2")
        world = replace(world, tenant=f"{world.tenant}-2")
    else:
        old = await rows.take(key)
        await kind.replace(world, key)
        await rows.put(old)
    return world, key


@pytest.mark.parametrize(("backend", "name"), CASES, indirect=["backend"])
async def test_no_row_that_was_changed_without_the_key_is_accepted(backend: Backend, name: str) -> None:
    """I5. The control is a store that checks no signatures: it accepts each of them."""
    kind, found = KINDS[name], list[str]()
    for how in TAMPERING:
        world, key = await tampered(kind, World(signed_by(backend.store, KEY), KEY, backend, backend.tenant), how)
        if await accepted(kind, world, key):
            found.append(how)
        assert await accepted(kind, replace(world, store=backend.store, keys=None), key), f"the control: {how}"
    assert not found


def other(value: Any) -> Any:
    """Return another value of the type of a column."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case bytes() | memoryview():
            return bytes(value) + b" "
        case str():
            return f"{value}x"
        case _:
            return None


COLUMN_CASES = [(store, kind) for store in ("sqlite-file", "postgresql") for kind in COLUMNS]


@pytest.mark.parametrize(("backend", "name"), COLUMN_CASES, indirect=["backend"])
async def test_no_column_of_a_signed_row_can_be_changed(backend: Backend, name: str) -> None:
    """The columns are those of the tables, so a new column is signed, or ``UNSIGNED`` says why not.

    A value that is missing is set to each value that fits the column. The control is a store without keys.
    """
    kind, world = COLUMNS[name], World(signed_by(backend.store, KEY), KEY, backend, backend.tenant)
    rows, key, found, seen = Rows(kind, world), f"key-{name.replace(' ', '-')}", set[str](), set[str]()
    await kind.write(world, key)
    row = await rows.take(key)
    for column, value in row.items():
        if column in {"tenant", kind.key} or (column == kind.mac and value is None):  # copied rows are another test
            continue
        changes: list[object] = ["x", b"x", 1.0, True] if value is None else [other(value)]
        if value is not None and column != kind.mac:
            changes.append(None)
        for change in changes:
            try:
                await rows.put(row, **{column: change})
            except Exception:  # noqa: BLE001  (the table refuses such a value)
                await rows.put(row)
                continue
            if await accepted(kind, world, key) and (change is not None or (kind.table, column) not in REMOVABLE):
                found.add(column)
            if await accepted(kind, replace(world, store=backend.store, keys=None), key):
                seen.add(column)
    await rows.put(row)
    assert await accepted(kind, world, key), "the row is good again"
    assert {one for one in found if (kind.table, one) not in UNSIGNED} == set()
    assert seen - found, "the control"


WRONG_TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "effect, a number for bytes": ("effect", {"receipt": 10**12}),  # ``bytes`` of it would take a terabyte
    "effect, an unknown state": ("effect", {"state": "x"}),
    "effect, a text for the version": ("effect", {"version": "x"}),
    "job, a text for a time": ("job", {"run_at": "x"}),
    "job, a text for the token": ("job", {"token": "x"}),
    "job, a signature of digits": ("job", {"result_mac": "9" * 5_000 + ":"}),
    "cached, a number for bytes": ("cached", {"value": 10**12}),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
@pytest.mark.parametrize("backend", ["sqlite-file"], indirect=True)
async def test_a_value_of_another_type_is_an_error_of_the_store(backend: Backend, case: str) -> None:
    """SQLite stores any type in a column."""
    (name, changed), key = WRONG_TYPES[case], "k"
    kind, world = KINDS[name], World(signed_by(backend.store, KEY), KEY, backend, backend.tenant)
    rows = Rows(kind, world)
    await kind.write(world, key)
    await rows.put(await rows.take(key), **changed)
    assert not await accepted(kind, world, key)  # which lets no other error through


@pytest.mark.parametrize("backend", ["sqlite-file"], indirect=True)
async def test_a_log_with_a_body_that_is_no_json_cannot_be_read(backend: Backend) -> None:
    await backend.store.audit.append("t", chained(1))
    await forge(backend, "UPDATE callgate_audit SET body = '{'")
    with pytest.raises(StoreError):
        _ = [row async for row in backend.store.audit.read("t")]


@pytest.mark.parametrize("offset", ["x", b"x", "nan", "1e300", "-1e9"])
async def test_a_clock_in_the_file_that_is_none_changes_no_time(offset: object, tmp_path: Path) -> None:
    """The control is a clock that is an hour late: the file has the time of the processes that have it open."""
    found = list[float]()
    for given in (offset, repr(time.time() - 3_600.0 - _elapsed())):
        address = f"sqlite:///{tmp_path}/{len(found)}.db"
        async with Gate([], allow_unguarded=True, store=address) as gate:
            found.append(gate.store.time() - time.time())  # type: ignore[attr-defined]
            await sql(gate, "UPDATE callgate_versions SET latest = :latest WHERE kind = 'clock'", latest=given)
            async with Gate([], allow_unguarded=True, store=address) as second:
                found.append(second.store.time() - time.time())  # type: ignore[attr-defined]
    assert [round(one / 60) for one in found] == [0, 0, 0, -60]


# ---------------------------------------------------------------------- through a gate

ANN, BOB = User("ann", tenant="acme"), User("bob", tenant="acme", roles=["lead"])
SQL = pytest.mark.parametrize("at", ["sqlite-file", "postgresql"], indirect=True)


@pytest.fixture
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """The address of an empty database."""
    with place(request.param, tmp_path) as (address, _):
        yield address


@dataclass
class Bank:
    """A tool with an effect, which fails without an effect as long as it is ``closed``."""

    paid: list[int] = field(default_factory=list)
    closed: bool = False

    def gate(self, address: str, *, signed: bool = True, approval: bool = False) -> Gate:
        """Make a gate with the tool; without keys it is the control."""

        @tool(effect="keyed", key=("order",), requires_approval=Approval(roles={"lead"}) if approval else False)
        async def pay(order: int) -> str:
            """Pay."""
            if self.closed:
                raise ToolError("closed", no_effect=True)
            self.paid.append(order)
            return "paid"

        keys = ["the key of the service"] if signed else []
        return Gate([pay], allow_unguarded=True, store=address, signing_keys=keys, mode="development")


async def sql(gate: Gate, statement: str, **values: Any) -> list[Any]:
    """Run a statement of the actor."""
    store = gate.store
    assert isinstance(store, SqlStore)
    async with store._database.writing() as connection:
        done = await connection.execute(text(statement), values)
        return list(done.mappings()) if done.returns_rows else []


@SQL
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "control without keys"])
@pytest.mark.parametrize(
    "change",
    [
        "state = 'no_effect'",
        "state = 'claimed', lease_until = 0",
        "state = 'claimed', lease_until = 0, receipt = NULL, ended_at = NULL",
        "expires_at = 1",
        'receipt = CAST(\'{"outcome": "found", "output": "nothing was paid"}\' AS {bytes})',
    ],
)
async def test_an_effect_does_not_run_again_when_its_row_is_freed(at: str, change: str, signed: bool) -> None:
    """I4. The repeat ends with an error, under the declared key and under the key of the caller."""
    bank = Bank()
    async with bank.gate(at, signed=signed) as gate:
        first = await gate.call("pay", {"order": 1}, user=ANN, idempotency_key="k")
        assert first.ok
        kind = "bytea" if at.startswith("postgresql") else "blob"
        await sql(gate, f"UPDATE callgate_effects SET {change.replace('{bytes}', kind)}")
        for key in ("k", None):
            repeat = await gate.call("pay", {"order": 1}, user=ANN, idempotency_key=key)
            if signed:
                assert repeat.error is not None
                assert (repeat.ok, repeat.error.code) == (False, "not_recorded")
    assert signed is (bank.paid == [1]) or change.startswith("receipt")


@SQL
async def test_a_failed_attempt_that_is_put_back_frees_no_key(at: str) -> None:
    """I4: an attempt that had no effect was signed. The counter names the later claim."""
    bank = Bank(closed=True)
    async with bank.gate(at) as gate:
        assert not (await gate.call("pay", {"order": 1}, user=ANN, idempotency_key="k")).ok
        old = await sql(gate, "SELECT * FROM callgate_effects")
        assert {row["state"] for row in old} == {"no_effect"}
        bank.closed = False
        assert (await gate.call("pay", {"order": 1}, user=ANN, idempotency_key="k")).ok, "it may run again"
        assert (await gate.call("pay", {"order": 1}, user=ANN)).replayed
        await sql(gate, "DELETE FROM callgate_effects")
        for row in old:
            names = list(row)
            await sql(gate, f"INSERT INTO callgate_effects ({', '.join(names)}) VALUES (:{', :'.join(names)})", **row)
        assert not (await gate.call("pay", {"order": 1}, user=ANN, idempotency_key="k")).ok
        assert bank.paid == [1]


@SQL
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "control without the counter"])
async def test_a_denied_call_that_is_put_back_is_not_approved(
    at: str, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the row of the backup has a valid signature; the counter of the call says that it was denied."""
    bank = Bank()
    if not checked:

        async def nothing(*_: object, **__: object) -> None:
            return None

        monkeypatch.setattr(SqlVersions, "find", nothing)
    async with bank.gate(at, approval=True) as gate:
        asked = await gate.call("pay", {"order": 1}, user=ANN)
        assert asked.pending is not None
        old = (await sql(gate, "SELECT * FROM callgate_waits WHERE state = 'waiting'"))[0]
        await gate.resume(asked.pending.handle, Deny(), approver=BOB)
        names = list(old)
        await sql(gate, "DELETE FROM callgate_waits")
        await sql(gate, f"INSERT INTO callgate_waits ({', '.join(names)}) VALUES (:{', :'.join(names)})", **old)
        if checked:
            with pytest.raises(NotPending):
                await gate.resume(asked.pending.handle, Approve(), approver=BOB)
        else:
            await gate.resume(asked.pending.handle, Approve(), approver=BOB)
    assert bank.paid == ([] if checked else [1])


@SQL
async def test_rows_from_before_the_keys_are_refused_until_an_operator_signs_them(at: str, tmp_path: Path) -> None:
    """A gate that gets keys later fails closed."""
    bank, keys = Bank(), tmp_path / "keys"
    keys.write_text("the-key-of-the-service")
    pin = Pin("crm", "find", "digest", 1.0)
    async with bank.gate(at, signed=False) as gate:
        await gate.call("pay", {"order": 1}, user=ANN, idempotency_key="k")
        await gate.store.consents.grant("acme", Grant("ann", "pay", "all", 1.0, None))
        await gate.store.pins.add("acme", pin)

    async def answers() -> list[Any]:
        async with Gate([], allow_unguarded=True, store=at, signing_keys=["the-key-of-the-service"]) as gate:
            store = gate.store
            found: list[Any] = [await store.consents.find("acme", "ann", "pay", "all") is not None]
            effects = [row["key"] for row in await sql(gate, "SELECT key FROM callgate_effects")]
            assert len(effects) == 2, "both identities"
            for read in (*(store.effects.get("acme", key) for key in effects), store.pins.find("acme", "crm", "find")):
                try:
                    found.append(await read is not None)
                except StoreError as error:
                    found.append("callgate stores sign" not in str(error))
            return found

    assert await answers() == [False] * 4
    out = StringIO()
    command = ["sign", "--store", at, "--signing-keys", str(keys), "--yes"]
    assert await asyncio.to_thread(stores_command, command, out) == 0
    assert [line.split()[-1] for line in out.getvalue().splitlines()] == ["2", "0", "0", "1", "1"]
    assert await answers() == [True] * 4


class Asked:
    """A hook that looks for the outcomes of unknown effects, and finds none."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def reconcile(self, _tenant: str, effect: EffectRecord) -> None:
        self.keys.append(effect.key)


@SQL
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "control without keys"])
async def test_forged_unknown_effects_reach_no_hook_and_hide_no_other(at: str, signed: bool) -> None:
    """A round asks about 100 effects. There are more forged ones, and all are older than the real one."""

    @tool(effect="keyed", key=("order",))
    async def pay(order: int) -> None:
        """Fail as a payment whose end nobody knows."""
        raise RuntimeError(order)

    asked, keys = Asked(), ["the key of the service"] if signed else []
    async with Gate([pay], [asked], allow_unguarded=True, store=at, signing_keys=keys, mode="development") as gate:
        await gate.call("pay", {"order": 1}, user=ANN)
        (row,) = await sql(gate, "SELECT * FROM callgate_effects")
        for number in range(ASK_AT_ONCE + 1):
            forged = {**row, "key": f"forged {number}", "began_at": row["began_at"] - 1000.0 + number}
            await sql(
                gate, f"INSERT INTO callgate_effects ({', '.join(forged)}) VALUES (:{', :'.join(forged)})", **forged
            )
        await gate.maintain()
        await gate.maintain()
    if signed:
        assert asked.keys == [row["key"]]
    else:
        assert len(asked.keys) == ASK_AT_ONCE + 2


@pytest.mark.parametrize("backend", ["sqlite-file"], indirect=True)
@pytest.mark.parametrize("how", ["changed", "deleted"])
async def test_a_forged_or_deleted_pin_stops_its_tool_until_a_person_approves_it(backend: Backend, how: str) -> None:
    """A tool without a pin would get a new one, so a missing pin is an error, too."""
    world = World(signed_by(backend.store, KEY), KEY, backend, backend.tenant)
    rows, pins = Rows(KINDS["pin"], world), world.store.pins
    await KINDS["pin"].write(world, "find")
    if how == "changed":
        await rows.change("find")
    else:
        await rows.run("DELETE FROM callgate_pins")
    with pytest.raises(StoreError):
        await pins.add(world.tenant, Pin("crm", "find", "evil", 1.0))
    await ToolPins(pins).approve(world.tenant, "crm", "find", by="bob", digest="reviewed")
    found = await pins.find(world.tenant, "crm", "find")
    assert found is not None
    assert found.digest == "reviewed"


@pytest.mark.parametrize("backend", ["sqlite-file"], indirect=True)
@pytest.mark.parametrize("how", ["changed", "deleted"])
async def test_control_without_a_key_a_forged_or_deleted_pin_stops_nothing(backend: Backend, how: str) -> None:
    world = World(backend.store, None, backend, backend.tenant)
    rows, pins = Rows(KINDS["pin"], world), world.store.pins
    await KINDS["pin"].write(world, "find")
    if how == "changed":
        await rows.run("UPDATE callgate_pins SET digest = 'evil'")
    else:
        await rows.run("DELETE FROM callgate_pins")
    await pins.add(world.tenant, Pin("crm", "find", "evil", 1.0))
    found = await pins.find(world.tenant, "crm", "find")
    assert found is not None
    assert found.digest == "evil"


@pytest.mark.parametrize("backend", ["sqlite-file", "postgresql"], indirect=True)
async def test_the_counter_of_an_effect_is_deleted_with_it(backend: Backend) -> None:
    """Retention: only of this namespace, and only where the effect is gone."""
    for namespace in ("", "other"):
        store = signed_by(in_namespace(backend.store, namespace), KEY)
        world = World(store, KEY, backend, backend.tenant)
        await KINDS["effect"].write(world, f"key-{namespace}")
        await KINDS["effect"].replace(world, f"key-{namespace}")
    backend.now.move(100.0)
    rows = Rows(KINDS["effect"], World(backend.store, None, backend, backend.tenant))
    count = "SELECT count(*) AS n FROM callgate_versions"
    left = [(await rows.run(count))[0]["n"]]
    for namespace in ("", "other"):
        effects = signed_by(in_namespace(backend.store, namespace), KEY).effects
        assert (await effects.prune(backend.now() - 200.0), await effects.prune(backend.now() - 50.0)) == (0, 1)
        left.append((await rows.run(count))[0]["n"])
    assert left == [2, 1, 0]
