"""What the ledger says of a unit of work whose provider hides an error; the rows that were committed are the oracle."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from callgate import EffectClaim, Gate, Outcome, Provide, Scoped, ToolCall, tool
from callgate.providers.exits import Exit
from callgate.runtime.pipeline.transaction_claim import TransactionClaim
from tests.harness.gate_options import gate_options
from tests.runtime.effects.carried_scene import Claim, driver
from tests.runtime.effects.scene_desk import ANN, states

COMMITTED, NO_EFFECT, UNKNOWN = "committed", "no_effect", "unknown"
ENDINGS = {
    ("nowhere", "commits"): (COMMITTED, 1),
    ("enter", "raises"): (NO_EFFECT, 0),
    ("enter", "swallows"): (COMMITTED, 1),
    ("body", "raises"): (NO_EFFECT, 0),
    ("body", "swallows"): (UNKNOWN, 1),
    ("exit", "raises"): (UNKNOWN, 0),
    ("exit", "commits"): (UNKNOWN, 1),
    ("exit", "swallows"): (COMMITTED, 1),
}
"""Where an error is raised and what the provider does about it: what the ledger says, and the rows that are there."""


class Broken(Exception):
    """The error of a body or provider."""


class Unit:
    """A transaction of a file; *at* and *way* say where an error is raised, and how the provider deals with it."""

    def __init__(self, path: Path, at: str, way: str) -> None:
        self.at, self.way = at, way
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def enter(self) -> None:
        """Begin the transaction."""
        self.db.execute("BEGIN")
        if (self.at, self.way) == ("enter", "raises"):
            self.db.close()
            raise Broken

    def put(self) -> None:
        """Write a row, and fail if the body is to fail."""
        self.db.execute("INSERT INTO rows VALUES (1)")
        if self.at == "body":
            raise Broken

    def leave(self, error: BaseException | None) -> bool:
        """End the transaction; return True to hide the error."""
        try:
            if (error is not None and self.way != "swallows") or (self.at, self.way) == ("exit", "raises"):
                self.db.execute("ROLLBACK")
            else:
                self.db.execute("COMMIT")
        finally:
            self.db.close()
        if self.at == "exit" and self.way != "swallows":
            raise Broken
        return error is not None and self.way == "swallows"


class PlainUnit(Unit):
    """A plain context manager."""

    def __enter__(self) -> Unit:
        self.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        return self.leave(error)


class AsyncUnit(Unit):
    """An asynchronous context manager."""

    async def __aenter__(self) -> Unit:
        self.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        return self.leave(error)


def plain_unit(path: Path, at: str, way: str) -> Iterator[Unit]:
    """A plain generator."""
    unit = Unit(path, at, way)
    unit.enter()
    try:
        yield unit
    except BaseException as error:
        if not unit.leave(error):
            raise
    else:
        unit.leave(None)


async def async_unit(path: Path, at: str, way: str) -> AsyncIterator[Unit]:
    """An asynchronous generator."""
    unit = Unit(path, at, way)
    unit.enter()
    try:
        yield unit
    except BaseException as error:
        if not unit.leave(error):
            raise
    else:
        unit.leave(None)


FORMS: dict[str, Callable[..., Any]] = {
    "plain generator": plain_unit,
    "plain manager": PlainUnit,
    "async generator": async_unit,
    "async manager": AsyncUnit,
}
Held = Annotated[Unit, Provide[Unit]]


@tool(name="put", effect="irreversible")
async def async_put(*, unit: Held) -> str:
    """Put a row."""
    unit.put()
    return "put"


@tool(name="put", effect="irreversible")
def plain_put(*, unit: Held) -> str:
    """Put a row, in a thread."""
    unit.put()
    return "put"


TOOLS = {"plain tool": plain_put, "async tool": async_put}


def oracle(path: Path) -> int:
    """The rows that were committed."""
    with sqlite3.connect(path) as db:
        return int(db.execute("SELECT count(*) FROM rows").fetchone()[0])


def table(path: Path) -> Path:
    """Make an empty table."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE rows (id INTEGER)")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return table(tmp_path / "rows.db")


def ledger(kind: str, tmp_path: Path) -> dict[str, Any]:
    """The options of a gate for its ledger."""
    options: dict[str, Any] = {"open": True, "durable": False} if kind == "memory" else {"open": True}
    return gate_options(**options) | ({} if kind == "memory" else {"store": f"sqlite:///{tmp_path}/ledger.db"})


async def three_calls(gate: Gate) -> list[Any]:
    """One call and two repeats."""
    return [await gate.call(ToolCall(id="c", name="put"), user=ANN, idempotency_key="k") for _ in range(3)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", TOOLS)
async def test_the_ledger_never_says_no_effect_of_rows_that_were_committed(
    code: str, form: str, kind: str, tmp_path: Path
) -> None:
    """Each place of an error, and each way of the provider with it."""
    for number, ((at, way), expected) in enumerate(ENDINGS.items()):
        file = table(tmp_path / f"{number}.db")
        (place := tmp_path / str(number)).mkdir()
        provide = {Unit: Scoped("execution", FORMS[form], file, at, way)}
        async with Gate([TOOLS[code]], provide=provide, **ledger(kind, place)) as gate:
            results = await three_calls(gate)
            assert (await states(gate), oracle(file)) == ([expected[0]], expected[1]), (at, way)
            assert [one.replayed for one in results[1:]] == [expected[0] == COMMITTED] * 2


async def test_without_what_an_exit_hides_the_ledger_lies(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: each repeat commits again."""
    hides = Exit.hides

    async def forgetful(self: Exit, error: BaseException | None) -> bool:
        await hides(self, error)
        return False

    monkeypatch.setattr(Exit, "hides", forgetful)
    provide = {Unit: Scoped("execution", plain_unit, path, "body", "swallows")}
    async with Gate([plain_put], provide=provide, **ledger("memory", tmp_path)) as gate:
        await three_calls(gate)
        assert (await states(gate), oracle(path)) == ([NO_EFFECT], 3)


class Savepoint:
    """A unit inside another."""


@pytest.mark.parametrize("code", TOOLS)
@pytest.mark.parametrize("inner_hides", [False, True])
@pytest.mark.parametrize("outer_hides", [False, True])
async def test_of_nested_units_one_that_hides_the_error_leaves_the_effect_unknown(
    outer_hides: bool, inner_hides: bool, code: str, path: Path, tmp_path: Path
) -> None:
    def savepoint(unit: Held) -> Iterator[Savepoint]:
        try:
            yield Savepoint()
        except Broken:
            if not inner_hides:
                raise

    async def body(*, unit: Held, inner: Annotated[Savepoint, Provide[Savepoint]]) -> str:
        unit.put()
        return "put"

    def plain(*, unit: Held, inner: Annotated[Savepoint, Provide[Savepoint]]) -> str:
        unit.put()
        return "put"

    put = tool(name="put", effect="irreversible")(plain if code == "plain tool" else body)
    outer = Scoped("execution", plain_unit, path, "body", "swallows" if outer_hides else "raises")
    provide = {Unit: outer, Savepoint: Scoped("execution", savepoint)}
    async with Gate([put], provide=provide, **ledger("memory", tmp_path)) as gate:
        await three_calls(gate)
        assert await states(gate) == [UNKNOWN if outer_hides or inner_hides else NO_EFFECT]
        assert oracle(path) == int(outer_hides)


async def test_an_error_that_is_hidden_before_the_body_began_leaves_no_effect(path: Path, tmp_path: Path) -> None:
    def fails() -> Savepoint:
        raise Broken

    @tool(effect="irreversible")
    async def put(*, unit: Held, inner: Annotated[Savepoint, Provide[Savepoint]]) -> str:
        """Never begin."""
        raise AssertionError

    provide = {
        Unit: Scoped("execution", plain_unit, path, "body", "swallows"),
        Savepoint: Scoped("execution", fails),
    }
    async with Gate([put], provide=provide, **ledger("memory", tmp_path)) as gate:
        await three_calls(gate)
        assert (await states(gate), oracle(path)) == ([NO_EFFECT], 0)


# ---------------------------------------------------------------------- in_transaction


async def async_hiding(address: str, effects: Claim, ends: str) -> AsyncIterator[Any]:
    """A session whose provider hides the error, and commits itself or at the end of its block."""
    engine = create_async_engine(driver(address, is_async=True))
    async with AsyncSession(engine) as held, held.begin() if ends == "block" else nullcontext():
        effects.in_transaction(held)
        with suppress(Broken):
            yield held
        if ends == "itself":
            await held.commit()
    await engine.dispose()


def plain_hiding(address: str, effects: Claim, ends: str) -> Iterator[Any]:
    """The same, plain."""
    engine = create_engine(driver(address, is_async=False))
    with Session(engine) as held, held.begin() if ends == "block" else nullcontext():
        effects.in_transaction(held)
        with suppress(Broken):
            yield held
        if ends == "itself":
            held.commit()
    engine.dispose()


class Hiding:
    """A context manager that hides every error, and commits."""

    def __init__(self, address: str, effects: EffectClaim) -> None:
        self.engine = create_engine(driver(address, is_async=False))
        self.effects = effects

    def __enter__(self) -> Any:
        self.connection = self.engine.connect()
        self.connection.begin()
        self.effects.in_transaction(self.connection)
        return self.connection

    def __exit__(self, *error: object) -> bool:
        self.connection.commit()
        self.connection.close()
        self.engine.dispose()
        return True


INSERT = text("INSERT INTO rows VALUES (1)")


@tool(name="put", effect="irreversible")
async def async_order(fails: bool, *, db: Annotated[Any, Provide["db"]]) -> str:
    """Put a row."""
    await db.execute(INSERT)
    if fails:
        raise Broken
    return "put"


@tool(name="put", effect="irreversible")
def plain_order(fails: bool, *, db: Annotated[Any, Provide["db"]]) -> str:
    """Put a row, in a thread."""
    db.execute(INSERT)
    if fails:
        raise Broken
    return "put"


HIDING: dict[str, tuple[Callable[[str, Any], Any], Any]] = {
    "async, its block commits": (partial(async_hiding, ends="block"), async_order),
    "async, commits itself": (partial(async_hiding, ends="itself"), async_order),
    "plain, its block commits": (partial(plain_hiding, ends="block"), plain_order),
    "plain, commits itself": (partial(plain_hiding, ends="itself"), plain_order),
    "a context manager": (Hiding, plain_order),
}


async def failed_twice(name: str, path: Path) -> list[tuple[str, int]]:
    """What the ledger says, and the rows, after two calls that fail and one that succeeds."""
    address = f"sqlite:///{path}"
    make, put = HIDING[name]

    def provider(effects: Claim) -> Any:
        return make(address, effects)

    found = []
    provide = {"db": Scoped("execution", provider)}
    async with Gate([put], provide=provide, store=address, **gate_options(open=True)) as gate:
        for fails in (True, True, False):
            given = ToolCall(id="c", name="put", arguments={"fails": fails})
            result = await gate.call(given, user=ANN, idempotency_key=f"fails: {fails}")
            assert result.outcome is (Outcome.ERROR if fails else Outcome.SUCCESS)
            found.append(((await states(gate))[-1], oracle(path)))
    return found


@pytest.mark.parametrize("name", HIDING)
async def test_in_transaction_commits_nothing_of_a_failed_body_though_its_provider_hides_the_error(
    name: str, path: Path
) -> None:
    assert await failed_twice(name, path) == [(NO_EFFECT, 0), (NO_EFFECT, 0), (COMMITTED, 1)]


async def test_without_the_rollback_a_failed_body_is_committed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""

    async def nothing(self: TransactionClaim) -> None:
        """Leave the transaction as it is."""

    monkeypatch.setattr(TransactionClaim, "undo", nothing)
    assert (await failed_twice("plain, commits itself", path))[1][1] == 2
