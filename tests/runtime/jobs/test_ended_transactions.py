"""Transactions that the server ends because of others run again; jobs beside a locked row do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from callgate import Approve, Gate
from callgate.errors import StoreError
from callgate.providers.stores import group_commit
from callgate.providers.stores.sql.database import states as sql_states
from callgate.providers.stores.sql.store import SqlStore
from callgate.stores import JobState
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import ANN, BOB, call, states
from tests.runtime.jobs.test_input_required import approved_desk, handle_of, suspended

ENDINGS = ("40001", "40P01")
"""A serialization failure, and a deadlock."""


class Ending(SqlStore):
    """A store whose *n*-th transaction is ended by the server: it is rolled back after all that its body did.

    Its views, such as the signed one of a gate, count together.
    """

    def __init__(self, address: str, at: int | None = None, code: str | None = None) -> None:
        self.at, self.code, self.counted = at, code, [0]
        super().__init__(address)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any, None]:
        """See ``Store``."""
        async with super().transaction() as within:
            yield within
            self.counted[0] += 1
            if self.counted[0] == self.at:
                raise StoreError("ended because of others", sqlstate=self.code)


async def story(store: Ending) -> tuple[Any, ...]:
    """Submit, submit many, suspend, approve, run and cancel jobs, with all transactions of them. Return what is seen."""
    desk, processes = approved_desk(store)
    async with processes.gate() as gate:
        approved = await suspended(gate, key="a")
        await gate.resume(await handle_of(approved), Approve(), approver=BOB, deadline=0.0)
        assert await gate.jobs.run_invocation() is JobState.DONE
        cancelled = await suspended(gate, key="b")
        await cancelled.cancel()
        many = await gate.submit_many([call(1), call(2)], user=ANN)
        for _ in many:
            assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
        for job in many:
            await job.cancel()
        seen = [(await job.status()).state for job in (approved, cancelled, *many)]
        return seen, (await approved).output, desk.paid, await states(gate), await gate.waits.pending(BOB)


async def stories(codes: Sequence[str], folder: Path, kind: str) -> tuple[int, list[Any]]:
    """Tell the story once for each of its transactions, which the server ends. Return their number and what failed."""
    with place(kind, folder) as (address, _):
        plain = Ending(address)
        expected = await story(plain)
    wrong: list[Any] = []
    for number in range(1, plain.counted[0] + 1):
        with place(kind, folder / str(number)) as (address, _):
            (folder / str(number)).mkdir(exist_ok=True)
            store = Ending(address, number, codes[number % len(codes)])
            try:
                if (seen := await story(store)) != expected:
                    wrong.append(seen)
            except (StoreError, AssertionError) as error:
                wrong.append(error)
    return plain.counted[0], wrong


async def test_a_transaction_that_the_server_ends_costs_no_job(tmp_path: Path) -> None:
    """Issue 34, 2: each transaction of jobs and approvals in turn."""
    number, wrong = await stories(ENDINGS, tmp_path, "postgresql")
    assert number >= 10
    assert wrong == []


async def test_transactions_that_do_not_run_again_are_found_out(tmp_path: Path) -> None:
    """The control: an error that no other attempt mends."""
    number, wrong = await stories(("22000",), tmp_path, "sqlite-file")
    assert len(wrong) >= number / 2


async def test_a_body_that_is_ended_each_time_fails_in_the_end(tmp_path: Path) -> None:
    """The number of attempts is limited."""
    began = 0
    store = SqlStore(f"sqlite:///{tmp_path}/store.db")
    await store.open()

    async def fails(_within: Any) -> None:
        nonlocal began
        began += 1
        raise StoreError("ended because of others", sqlstate="40001")

    try:
        with pytest.raises(StoreError, match="because of others"):
            await sql_states.in_transaction(store, fails)
    finally:
        await store.close()
    assert began == 5


# ---------------------------------------------------------------------- a locked row


async def submitted_beside_a_lock(address: str, gate: Gate) -> set[int]:
    """Submit ten jobs while another transaction has submitted the first of them. Return those that did not wait."""
    own = create_async_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    async with own.begin() as other:
        await gate.submit(call(0), user=ANN, key="0", within=other)
        jobs = [asyncio.create_task(gate.submit(call(n), user=ANN, key=str(n))) for n in range(10)]
        await asyncio.wait(jobs[1:], timeout=3.0)
        free = {n for n, job in enumerate(jobs) if job.done()}
        assert (await other.execute(text("SELECT 1"))).scalar() == 1
    await asyncio.gather(*jobs)
    await own.dispose()
    return free


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control without a limit"])
async def test_jobs_beside_a_locked_one_are_submitted(
    limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 5: an open transaction that had submitted a job kept all submitters of its key, and then all others."""
    if not limited:
        for name in ("LOCK_WAIT_MS", "RETRY_WAIT_MS", "ASIDE_WAIT_MS"):
            monkeypatch.setattr(group_commit, name, 0)
    with place("postgresql", tmp_path) as (address, _):
        _, processes = approved_desk(address)
        async with processes.gate() as gate:
            free = await submitted_beside_a_lock(address, gate)
            assert free == (set(range(1, 10)) if limited else set())
            assert len(await gate.store.jobs.list(None)) == 10
