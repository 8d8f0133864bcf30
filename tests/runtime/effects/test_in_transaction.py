"""The application's own transaction carries the outcome of the effect: nothing is ever unknown."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from callgate import EffectClaim, Gate, Hook, Outcome, Provide, Scoped, ToolCall, tool
from callgate.errors import StoreError
from callgate.hooks import Audit, verify_audit
from callgate.hooks.effects import AWAITED
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.sql.store import SqlStore
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place
from tests.runtime.effects.carried_scene import ANN, COMMITTED_AT, POINTS, Claim, ask, driver, make_table, rows, shop
from tests.runtime.effects.kill_worker import Ahead

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("sqlite-file", "postgresql")
HOW = ("async session", "async connection", "sync session")


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (found, _):
        yield found


async def found_in(gate: Gate) -> dict[str, tuple[EffectState, bytes | None]]:
    """The state and receipt of each order."""
    listed = await gate.store.effects.list(None, limit=1000)
    return {str(row.request_id): (row.state, row.receipt) for _, row in listed}


async def state_of(gate: Gate) -> EffectState:
    """The state of the only effect."""
    ((_, row),) = await gate.store.effects.list(None)
    return row.state


@pytest.mark.parametrize("how", HOW)
async def test_the_outcome_is_committed_with_the_rows_and_a_repeat_gets_the_output(address: str, how: str) -> None:
    """Issue 15 E."""
    await make_table(address)
    async with shop(address, how) as gate:
        first, again = await ask(gate, "a"), await ask(gate, "a")
        assert (first.outcome, first.output) == (Outcome.SUCCESS, "ordered a")
        assert (again.replayed, again.output) == (True, "ordered a")
        broken = await ask(gate, "broken")
        assert broken.error.code == "tool_failed"
        assert (await ask(gate, "broken")).replayed is False  # it had no effect, so it ran again
        found = [row.state for _, row in await gate.store.effects.list(None)]
        assert sorted(found) == [EffectState.COMMITTED, EffectState.NO_EFFECT]
    assert await rows(address) == {"a": 1}


async def test_calls_at_once_under_one_key_write_one_row(address: str) -> None:
    await make_table(address)
    async with shop(address, "async session") as one, shop(address, "async session") as other:
        results = await asyncio.gather(*(ask(gate, "a") for gate in (one, other) * 10))
        assert {result.outcome for result in results} <= {Outcome.SUCCESS, Outcome.IN_FLIGHT}
        assert sum(not result.replayed for result in results if result.outcome is Outcome.SUCCESS) == 1
    assert await rows(address) == {"a": 1}


# Kill tests at every point


async def killed_at_every_point(address: str, how: str, carries: str) -> None:
    """A process for each point, killed there by its own hand."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.runtime.effects.carried_scene", address, how, carries),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert told.decode().splitlines() == [f"{point} True" for point in POINTS]


@pytest.mark.parametrize("how", HOW)
async def test_a_process_that_is_killed_at_any_point_leaves_the_truth(address: str, how: str) -> None:
    """Issue 15 E: nothing is ever unknown, nothing is there twice, and a repeat ends well."""
    await killed_at_every_point(address, how, "carries")
    there = await rows(address)
    async with shop(address, how, clock=Ahead(60.0)) as gate:
        await gate.maintain()
        states = {row.state for _, row in await gate.store.effects.list(None, limit=100)}
        assert states == {EffectState.COMMITTED, EffectState.NO_EFFECT}
        assert there == dict.fromkeys(POINTS[COMMITTED_AT:], 1)
        for point in POINTS:
            result = await ask(gate, point)
            committed = POINTS.index(point) >= COMMITTED_AT
            lost = committed and point != POINTS[-1]  # the receipt is written last
            assert (result.outcome, result.error and result.error.code) == (
                (Outcome.ERROR, "output_lost") if lost else (Outcome.SUCCESS, None)
            )
            assert result.replayed is committed
    assert await rows(address) == dict.fromkeys(POINTS, 1)


async def test_without_it_a_killed_process_leaves_effects_unknown(address: str) -> None:
    """The control: the same provider, whose transaction does not carry the outcome."""
    points = [point for point in POINTS if point not in {"after begin", "before the outcome"}]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.runtime.effects.carried_scene", address, "async session", "not"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert {line for line in told.decode().splitlines() if line.endswith("True")} == {
        f"{point} True" for point in points
    }
    async with shop(address, "async session", carries=False, clock=Ahead(60.0)) as gate:
        await gate.maintain()
        states = [row.state for _, row in await gate.store.effects.list(None, limit=100)]
        assert states.count(EffectState.UNKNOWN) >= 5


# A commit whose answer is lost


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_commit_whose_answer_is_lost_is_looked_up(address: str, arrived: bool) -> None:
    """The ledger is in the same transaction, so its row tells whether the commit took place."""
    await make_table(address)

    async def lose(session: AsyncSession) -> None:
        if arrived:
            await session.commit()
        raise ConnectionError("the line went down")

    async with shop(address, "async session", on=lose) as gate:
        result = await ask(gate, "a")
        assert result.outcome == (Outcome.SUCCESS if arrived else Outcome.ERROR)
        assert await state_of(gate) == (EffectState.COMMITTED if arrived else EffectState.NO_EFFECT)
        assert (await ask(gate, "a")).replayed is arrived
    assert await rows(address) == ({"a": 1} if arrived else {})


async def test_a_transaction_with_a_failed_statement_is_no_success(tmp_path: Path) -> None:
    """PostgreSQL rolls back at its commit, without an error; the outcome cannot be written before it."""
    with place("postgresql", tmp_path) as (address, _):
        await make_table(address)

        async def hides(session: AsyncSession) -> None:
            with contextlib.suppress(DBAPIError):
                await session.execute(text("SELECT 1 / 0"))

        async with shop(address, "async session", at_begin=hides) as gate:
            assert (await ask(gate, "a")).outcome is Outcome.ERROR
            assert await state_of(gate) is EffectState.NO_EFFECT
        assert await rows(address) == {}


async def test_an_order_that_outlives_its_lease_cannot_commit(address: str) -> None:
    """A process that was thought dead: its transaction finds that the claim is another's, and rolls back."""
    await make_table(address)
    go_on, waits = asyncio.Event(), asyncio.Event()

    class Late(Ahead):
        """A clock that is put forward."""

    clock = Late()

    @tool(name="order", effect="irreversible", key=("id",))
    async def slow(id: str, *, db: Annotated[AsyncSession, Provide[AsyncSession]]) -> str:
        """Order slowly."""
        waits.set()
        await go_on.wait()
        await db.execute(text("INSERT INTO orders VALUES (:id)"), {"id": id})
        return "slow"

    engine = create_async_engine(driver(address, is_async=True))

    async def session(effects: Claim) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as held, held.begin():
            effects.in_transaction(held)
            yield held

    provide = {AsyncSession: Scoped("execution", session)}
    async with Gate([slow], provide=provide, store=address, **gate_options(open=True, clock=clock)) as first:
        running = asyncio.ensure_future(ask(first, "a"))
        await waits.wait()
        async with shop(address, "async session", clock=Ahead(3600.0)) as other:
            assert (await ask(other, "a")).output == "ordered a"
        go_on.set()
        result = await running
        assert result.outcome is Outcome.ERROR
        assert await state_of(first) is EffectState.COMMITTED
    assert await rows(address) == {"a": 1}
    await engine.dispose()


async def test_a_repeat_waits_for_the_receipt_of_a_process_that_lives(address: str) -> None:
    await make_table(address)
    async with shop(address, "async session") as gate:
        await ask(gate, "a")
        ((tenant, row),) = await gate.store.effects.list(None)
        await gate.store.effects.settle(
            tenant, row.key, row.token, EffectState.COMMITTED, at=1.0, receipt=AWAITED, of=[EffectState.COMMITTED]
        )
        assert (await ask(gate, "a")).outcome is Outcome.IN_FLIGHT
    async with shop(address, "async session", clock=Ahead(60.0)) as gate:
        result = await ask(gate, "a")
        assert (result.error.code, result.replayed) == ("output_lost", True)
        assert "Do not repeat it" in result.error.public


async def test_rows_of_the_audit_are_as_whole_as_ever(address: str) -> None:
    await make_table(address)
    async with shop(address, "async session", hooks=[Audit()]) as gate:
        await ask(gate, "a")
        await ask(gate, "broken")
        kinds = [row.body["kind"] async for row in gate.store.audit.read(None)]
        assert kinds.count("intent") == 2
        assert (await verify_audit(gate.store.audit)).ok


# What cannot work is refused


async def test_what_is_no_transaction_of_the_stores_database_is_refused(tmp_path: Path) -> None:
    with place("sqlite-file", tmp_path) as (address, _):
        await make_table(address)
        elsewhere = create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
        given: list[Any] = [object(), Session(elsewhere)]

        def make(held: Any) -> Gate:
            async def session(effects: Claim) -> AsyncIterator[Any]:
                effects.in_transaction(held)
                yield held

            @tool(name="order", effect="irreversible", key=("id",))
            async def order(id: str, *, db: Annotated[Session, Provide[Session]]) -> str:
                """Order."""
                return id

            return Gate([order], provide={Session: Scoped("execution", session)}, store=address, allow_unguarded=True)

        errors: list[Any] = []
        for held in given:
            async with make(held) as gate:
                result = await gate.call(ToolCall(id="c", name="order", arguments={"id": "a"}), user=ANN)
                errors.append(result.outcome)
                assert await state_of(gate) is EffectState.NO_EFFECT
        assert errors == [Outcome.ERROR, Outcome.ERROR]
        with pytest.raises(StoreError, match="in_transaction takes a Session, AsyncSession"):
            SqlStore(address).effects_in(object())
        elsewhere.dispose()


async def test_a_factory_that_takes_the_claim_and_does_not_use_it_stops_the_call_before_the_tool(address: str) -> None:
    ran: list[str] = []

    async def session(effects: Claim) -> AsyncIterator[int]:
        yield 1

    @tool(name="order", effect="irreversible", key=("id",))
    async def order(id: str, *, db: Annotated[int, Provide[int]]) -> str:
        """Order."""
        ran.append(id)
        return id

    async with Gate([order], provide={int: Scoped("execution", session)}, store=address, allow_unguarded=True) as gate:
        assert (await ask(gate, "a")).outcome is Outcome.ERROR
        assert (ran, await state_of(gate)) == ([], EffectState.NO_EFFECT)


@pytest.mark.parametrize("stage", ["around_execute", "will_execute"])
async def test_a_hook_that_answers_in_place_of_the_tool_leaves_no_effect(address: str, stage: str) -> None:
    """No body ran, so there is no outcome for the transaction to carry."""
    await make_table(address)

    class Instead(Hook):
        def answers(self, ctx: Any, *_: Any) -> None:
            ctx.respond("answered")

    setattr(Instead, stage, Instead.answers)
    async with shop(address, "async session", hooks=[Instead()]) as gate:
        result = await ask(gate, "a")
        assert (result.outcome, result.output) == (Outcome.SUCCESS, "answered")
        assert await state_of(gate) is EffectState.NO_EFFECT
    assert await rows(address) == {}


async def test_a_test_may_put_another_session_in_its_place(tmp_path: Path) -> None:
    with place("sqlite-file", tmp_path) as (address, _):
        await make_table(address)

        class Fake:
            async def execute(self, *_: Any) -> None:
                """Do nothing."""

        async with shop(address, "async session") as gate:
            with gate.override({AsyncSession: Fake()}):
                assert (await ask(gate, "a")).outcome is Outcome.SUCCESS
            assert await state_of(gate) is EffectState.COMMITTED


async def test_tools_without_an_effect_and_stores_in_memory_take_the_same_provider() -> None:
    seen: list[EffectClaim] = []

    async def session(effects: Claim) -> AsyncIterator[int]:
        effects.in_transaction(seen)
        seen.append(effects)
        yield 1

    @tool(effect="read")
    async def look(*, db: Annotated[int, Provide[int]]) -> int:
        """Look."""
        return db

    @tool(effect="irreversible")
    async def write(*, db: Annotated[int, Provide[int]]) -> int:
        """Write."""
        return db

    provide = {int: Scoped("execution", session)}
    async with Gate([look, write], provide=provide, **gate_options(open=True, durable=False)) as gate:
        for name in ("look", "write"):
            result = await gate.call(ToolCall(id="c", name=name, arguments={}), user=ANN, idempotency_key=name)
            assert result.output == 1
    assert len(seen) == 2
