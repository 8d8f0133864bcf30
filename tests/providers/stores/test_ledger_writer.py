"""Group commit on real databases: many callers at once, changes that are wrong, rows that are locked, lost connections."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from callgate.errors import StoreError
from callgate.hooks import verify_audit
from callgate.hooks.stock.records.audit_chain import Chain, micros
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.ledger_writes import Settlement, append
from callgate.providers.stores.sql import batches as sql_batches
from callgate.providers.stores.sql import batches_lite as sql_batches_lite
from callgate.providers.stores.sql.ledger import SqlLedgerWriter
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Backend, opened, place
from tests.providers.stores.ledger import COMMITTED, RUNNING, effect

CALLERS = 64


class Desk:
    """A store, the writer of its ledger, and chains of audit rows."""

    def __init__(self, backend: Backend, chains: int = 2) -> None:
        assert isinstance(backend.store, SqlStore)
        assert backend.store.ledger is not None
        self.backend, self.store = backend, backend.store
        self.writer: SqlLedgerWriter = backend.store.ledger
        self.chains = [self._chain() for _ in range(chains)]

    def _chain(self) -> Chain:
        audit = self.store.audit
        return Chain(audit.append, audit.anchor, self.backend.now, in_place=False, limit=60.0, every=1000)

    def rows(self, kind: str, number: int, **more: Any) -> list[tuple[Chain, Mapping[str, Any]]]:
        """A row in each chain."""
        body = {
            "kind": kind,
            "number": number,
            "tenant": self.backend.tenant,
            "at_us": micros(self.backend.now()),
            **more,
        }
        return [(chain, {**body, "chain": place}) for place, chain in enumerate(self.chains)]

    async def claim(self, number: int, **more: Any) -> Any:
        """Claim the key of a number."""
        one = effect(self.backend.now(), f"k{number}", request_id=f"r{number}")
        return await self.writer.claim(self.backend.tenant, one, self.rows("intent", number, **more), retry=False)

    async def settle(self, number: int, **more: Any) -> bool:
        """Commit the effect of a number."""
        outcome = Settlement(
            f"k{number}", 1, COMMITTED, self.backend.now(), b'{"n":%d}' % number, recorded=(COMMITTED,)
        )
        return await self.writer.settle(self.backend.tenant, outcome, self.rows("outcome", number, **more))

    async def bodies(self) -> list[tuple[str, int, int]]:
        """The rows in the log, after the chains have been verified."""
        report = await verify_audit(self.store.audit)
        assert report.ok, str(report)
        found = [row.body async for row in self.store.audit.read(self.backend.tenant)]
        return sorted((body["kind"], body["number"], body["chain"]) for body in found)

    async def states(self, count: int) -> list[EffectState | None]:
        """The states of the first effects."""
        found = [await self.store.effects.get(self.backend.tenant, f"k{number}") for number in range(count)]
        return [None if one is None else one.state for one in found]


@pytest.fixture(params=["sqlite-file", "postgresql"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Desk, None]:
    with place(request.param, tmp_path) as where:
        async with opened(request.param, where) as backend:
            yield Desk(backend)


def expected(numbers: Any, kinds: tuple[str, ...] = ("intent", "outcome")) -> list[tuple[str, int, int]]:
    return sorted((kind, number, chain) for kind in kinds for number in numbers for chain in (0, 1))


async def test_each_of_many_callers_has_its_own_outcome_and_its_own_rows(desk: Desk) -> None:
    """Issue 16 A2. Two callers ask for each key; one of them has it."""

    async def caller(number: int) -> bool:
        mine, found = await desk.claim(number)
        assert found.key == f"k{number}"
        return mine and await desk.settle(number)

    told = await asyncio.gather(*(caller(number % CALLERS) for number in range(2 * CALLERS)))
    assert sum(told) == CALLERS
    assert set(await desk.states(CALLERS)) == {COMMITTED}
    found = await desk.store.effects.get(desk.backend.tenant, "k7")
    assert found is not None
    assert found.receipt == b'{"n":7}'
    assert await desk.bodies() == expected(range(CALLERS))


async def test_a_row_that_cannot_be_written_fails_alone(desk: Desk) -> None:
    """Issue 16 A2: in the prototype a failing call took its batch along."""
    wrong: dict[int, dict[str, Any]] = {3: {"value": math.nan}, 5: {"value": object()}}
    told = await asyncio.gather(
        *(desk.claim(number, **wrong.get(number, {})) for number in range(8)), return_exceptions=True
    )
    assert [number for number, one in enumerate(told) if isinstance(one, StoreError)] == [3, 5]
    assert await desk.states(8) == [None if number in wrong else RUNNING for number in range(8)]
    assert await desk.bodies() == expected(set(range(8)) - set(wrong), ("intent",))


async def test_a_text_that_the_database_refuses_fails_alone(desk: Desk) -> None:
    """Issue 16 A2. PostgreSQL keeps no NUL, and no database an unpaired surrogate."""
    new = effect(desk.backend.now(), "k1", tool="\ud800")
    told = await asyncio.gather(
        desk.claim(0),
        desk.writer.claim(desk.backend.tenant, new, desk.rows("intent", 1), retry=False),
        desk.claim(2),
        return_exceptions=True,
    )
    assert [isinstance(one, StoreError) for one in told] == [False, True, False]
    assert "\ud800" not in str(told[1])
    assert await desk.bodies() == expected([0, 2], ("intent",))


async def test_an_outcome_that_is_told_twice_has_one_row_and_a_lost_claim_is_audited(desk: Desk) -> None:
    """Contract I3, I4: a store may report an error after a successful write, so the ledger tells it again."""
    await desk.claim(0)
    assert [await desk.settle(0), await desk.settle(0)] == [True, True]
    await desk.claim(1)
    stale = Settlement("k1", 7, COMMITTED, desk.backend.now(), recorded=(COMMITTED,))
    assert not await desk.writer.settle(desk.backend.tenant, stale, desk.rows("lost", 1))
    assert await desk.states(2) == [COMMITTED, RUNNING]
    assert await desk.bodies() == sorted(
        expected([0, 1], ("intent",)) + expected([0], ("outcome",)) + expected([1], ("lost",))
    )


async def test_a_chain_that_two_ways_write_to_has_no_gap(desk: Desk) -> None:
    """Contract I3: a transaction of its own, as that of an approval, and group commit take turns at each chain."""

    async def alone(number: int) -> None:
        async with AsyncExitStack() as chains, desk.store.transaction() as written:
            await append(written, desk.backend.tenant, desk.rows("alone", number), chains)

    await asyncio.gather(*(work(number) for number in range(20) for work in (desk.claim, alone)))
    assert await desk.bodies() == expected(range(20), ("intent", "alone"))


async def test_who_waits_for_a_row_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 A2: a transaction of the application holds the row of an effect, and does not end."""
    monkeypatch.setattr(sql_batches, "LOCK_WAIT_MS", 50)
    with place("postgresql", tmp_path) as where:
        async with opened("postgresql", where) as backend:
            desk = Desk(backend)
            await desk.claim(0)
            async with desk.store.transaction() as held:
                assert await held.effects.settle(backend.tenant, "k0", 1, COMMITTED, at=backend.now())
                waits = asyncio.ensure_future(desk.settle(0))
                told = await asyncio.gather(*(desk.claim(number) for number in range(1, 9)))
                assert [mine for mine, _ in told] == [True] * 8
                assert not waits.done()
            assert await waits
            assert await desk.bodies() == expected(range(9), ("intent",))


async def test_a_connection_that_was_cut_while_idle_costs_nothing(tmp_path: Path) -> None:
    """Issue 16 B1: a server that was restarted between two calls."""
    with place("postgresql", tmp_path) as where:
        async with opened("postgresql", where) as backend:
            desk = Desk(backend)
            await desk.claim(0)
            batches: Any = desk.writer._batches
            await backend.store._database.rows(  # type: ignore[attr-defined]
                text("SELECT pg_terminate_backend(:pid)"), {"pid": batches._connection.info.backend_pid}
            )
            assert (await desk.claim(1))[0]
            assert await desk.settle(0)
            assert await desk.bodies() == sorted(expected([0, 1], ("intent",)) + expected([0], ("outcome",)))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whether_a_lost_commit_took_place_is_unknown_to_all_of_it_and_no_number_is_used_twice(
    desk: Desk, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 A2, contract I3: nothing is tried again, and the chains go on in new segments."""
    await desk.claim(0)
    lost = iter([True])

    def losing(commit: Any, self: Any, given: Any) -> Generator[Any, None, None]:
        if not (is_lost := next(lost, False)) or when == "after":
            yield commit(self, *given)
        if is_lost:
            self.committing = True
            raise ConnectionError("nobody hears")

    commit_now, commit = sql_batches_lite.LiteBatches._commit_now, sql_batches._PostgresBatch._commit

    def losing_now(self: Any) -> None:  # in the thread of SQLite
        list(losing(commit_now, self, ()))

    async def losing_later(self: Any, *given: Any) -> None:
        for step in losing(commit, self, given):
            await step

    monkeypatch.setattr(sql_batches_lite.LiteBatches, "_commit_now", losing_now)
    monkeypatch.setattr(sql_batches._PostgresBatch, "_commit", losing_later)
    told = await asyncio.gather(*(desk.claim(number) for number in range(1, 5)), return_exceptions=True)
    struck = [number for number, one in enumerate(told, 1) if isinstance(one, StoreError)]
    assert bool(struck) is not (desk.store.name == "sqlite" and when == "before"), "SQLite says that it rolled back"
    done = [number for number in range(5) if number not in struck or when == "after"]
    assert await desk.states(5) == [RUNNING if number in done else None for number in range(5)]
    await desk.claim(5)
    assert await desk.bodies() == expected([*done, 5], ("intent",))
