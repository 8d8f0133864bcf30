"""Jobs under many at once, and with operations that fail, the same on every store that keeps them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import pytest

from callgate.errors import StoreError
from callgate.providers.stores.base import AuditRow, Store
from callgate.providers.stores.jobs import Job, JobState
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.providers.stores.backends import Backend, made
from tests.providers.stores.job_rows import CANCELLED, DONE, QUEUED, RUNNING, found_in, job, kept

Take: TypeAlias = Callable[..., Awaitable[tuple[str, Job] | None]]
SHARED_SQL = pytest.mark.parametrize("durable", ["sqlite-file", "postgresql"], indirect=True)


@asynccontextmanager
async def two(queue: Backend) -> AsyncGenerator[list[Store], None]:
    """The store, and another one on the same database."""
    other = made(queue.kind, queue.address, queue.prefix, queue.now)
    await other.open()
    try:
        yield [queue.store, other]
    finally:
        await other.close()


async def taken_by(takers: Sequence[Take], queue: Backend, **more: Any) -> Counter[str]:
    """Return the number of takes of each job with concurrent workers; each take is recorded."""
    now = queue.now()
    told = await asyncio.gather(*(take(str(n), now, now + 60.0, **more) for n, take in enumerate(takers)))
    return Counter(found[1].id for found in told if found is not None)


async def test_of_fifty_who_take_the_next_job_each_gets_another(queue: Backend) -> None:
    """Contract I4."""
    for number in range(40):
        await queue.store.jobs.add(queue.tenant, job(queue.now(), str(number), queue=f"q{number % 3}"))
    assert await taken_by([queue.store.jobs.take] * 50, queue) == Counter(str(number) for number in range(40))
    assert {row.token for _, row in await queue.store.jobs.list(queue.tenant)} == {1}


@SHARED_SQL
async def test_of_fifty_in_two_stores_on_one_database_each_gets_another(queue: Backend) -> None:
    """Contract I4."""
    async with two(queue) as stores:
        for round_ in range(3):
            ids = [f"{round_} {number}" for number in range(40)]
            for number, id in enumerate(ids):
                await queue.store.jobs.add(queue.tenant, job(queue.now(), id, priority=number % 2))
            takers = [store.jobs.take for store in stores] * 25
            assert await taken_by(takers, queue, queues=["default"] if round_ else []) == Counter(ids)


@SHARED_SQL
async def test_of_fifty_in_two_stores_who_take_one_job_whose_worker_died_one_has_it(queue: Backend) -> None:
    """Contract I4. Workers that know its id, and workers that take the next job."""
    async with two(queue) as stores:
        takers = [store.jobs.take for store in stores] * 25
        which: list[dict[str, Any]] = [{"id": "j"}, {}, {"queues": ["default"]}]
        for round_, more in enumerate(which):
            old = await kept(queue, RUNNING, lease=0.0) if round_ == 0 else await found_in(queue)
            assert await taken_by(takers, queue, **more) == {"j": 1}
            assert (await found_in(queue)).token == old.token + 1
            queue.now.move(60.0)


async def test_a_taking_that_looks_first_and_writes_then_is_found_out(queue: Backend) -> None:
    """The control: two steps in the place of one."""
    jobs, looked = queue.store.jobs, asyncio.Barrier(50)

    async def get_then_put(owner: str, now: float, until: float) -> tuple[str, Job] | None:
        found = await jobs.list(None, state=QUEUED, limit=1)
        await looked.wait()
        if not found:
            return None
        await jobs.take(owner, now, until, id=found[0][1].id)
        return found[0]

    for number in range(40):
        await jobs.add(queue.tenant, job(queue.now(), str(number)))
    assert max((await taken_by([get_then_put] * 50, queue)).values()) == 50


async def test_of_fifty_who_add_one_id_one_does_and_all_are_told_of_that_job(queue: Backend) -> None:
    """Contract I4."""
    told = await asyncio.gather(
        *(queue.store.jobs.add(queue.tenant, job(queue.now(), mac=str(number))) for number in range(50))
    )
    assert {each.mac for each in told} == {(await found_in(queue)).mac}


async def test_of_many_who_end_put_back_or_lose_a_job_at_once_one_does(queue: Backend) -> None:
    """Contract I4."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for round_ in range(3):
        id = str(round_)
        await kept(queue, RUNNING, id, lease=0.0)
        ends = [jobs.end(tenant, id, 1, DONE, at=now, result=None, reason=str(n)) for n in range(7)]
        backs = [jobs.put_back(tenant, id, 1, run_at=now + 9.0, reason=str(n)) for n in range(7)]
        takes = [jobs.take(str(n), now, now + 9.0, id=id) for n in range(7)]
        told = await asyncio.gather(*ends, *backs, *takes)
        assert sum(bool(each) for each in told) == 1
        assert (await found_in(queue, id)).state is [DONE, QUEUED, RUNNING][
            [bool(each) for each in told].index(True) // 7
        ]


async def test_a_job_is_cancelled_or_taken_and_never_both(queue: Backend) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for number in range(20):
        id = str(number)
        await jobs.add(tenant, job(now, id))
        both: list[Awaitable[Any]] = [jobs.take("o", now, now + 9.0, id=id), jobs.cancel(tenant, id, now)]
        taken, told = await asyncio.gather(*both)
        assert told is (CANCELLED if taken is None else RUNNING)
        assert (await found_in(queue, id)).state is told


async def test_never_do_two_run_one_job_and_every_taking_has_a_higher_token(queue: Backend) -> None:
    """Contract I4. Takers, renewals, what is handed back and what is told to an engine, all at once."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    inside, tokens, over = Counter[str](), Counter[str](), asyncio.Event()
    for number in range(3):
        await jobs.add(tenant, job(now, str(number)))

    async def work(owner: str) -> None:
        while max(tokens.values(), default=0) < 20:
            taken = await jobs.take(owner, now, now + 60.0)
            if taken is None:
                await asyncio.sleep(0)
                continue
            found = taken[1]
            inside[found.id] += 1
            assert inside[found.id] == 1
            assert found.token == tokens[found.id] + 1
            tokens[found.id] = found.token
            assert found.id in await jobs.renew([owner], now + 90.0)
            await asyncio.sleep(0)
            inside[found.id] -= 1
            assert await jobs.put_back(tenant, found.id, found.token, run_at=now, reason=None)

    async def sweep() -> None:
        while not over.is_set():
            await jobs.mark_sent([row.id for _, row in await jobs.unsent(now, now + 1.0)], now)
            await jobs.prune(now)
            await asyncio.sleep(0)  # in memory nothing else waits

    sweeper = asyncio.create_task(sweep())
    await asyncio.gather(*(work(str(owner)) for owner in range(8)))
    over.set()
    await sweeper
    assert {row.attempts for _, row in await jobs.list(tenant)} == {0}


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)  # SQLite has one writer at a time
async def test_what_somebody_is_just_changing_is_left_to_him_and_nobody_waits(queue: Backend) -> None:
    """Contract I3. Two that change many rows can never wait for each other."""
    store, tenant, now = queue.store, queue.tenant, queue.now()
    for id in ("ends late", "next", "after"):
        await kept(queue, RUNNING, id, lease=0.0)
    await kept(queue, DONE, "over")

    async def others() -> None:
        taken = [await store.jobs.take("o", now, now + 9.0) for _ in range(3)]
        assert [found and found[1].id for found in taken] == ["after", "next", None]
        await store.jobs.mark_sent(["ends late", "next"], now)
        assert await store.jobs.prune(now + 1.0) == 0

    async with store.transaction() as within:
        assert await within.jobs.end(tenant, "ends late", 1, DONE, at=now, result=None, reason=None)
        await within.jobs.mark_sent(["over"], now)
        await asyncio.create_task(others())
    assert {row.id: row.sent_at for _, row in await store.jobs.list(tenant)} == {
        "ends late": None,
        "next": now,
        "after": None,
        "over": now,
    }
    assert await store.jobs.take("o", now, now + 9.0) is None


# ---------------------------------------------------------------------- faults


class Life:
    """A job that is asked for, with a record of that, and run by workers whose store fails now and then."""

    def __init__(self, queue: Backend, name: str) -> None:
        self.queue, self.tenant = queue, f"{queue.tenant}-{name}"
        self.id = f"job of {self.tenant}"
        self.ran: list[int] = []
        self.ended: list[int] = []

    async def submit(self, store: Any) -> None:
        for _ in range(3):
            try:
                async with store.transaction() as within:
                    await within.jobs.add(self.tenant, job(self.queue.now(), self.id))
                    await within.audit.append(self.tenant, [AuditRow(self.id, 1, 1.0, {}, "", "")])
                return
            except (InjectedFault, StoreError):
                continue  # a conflict: it is in, and only the answer was lost

    async def work(self, store: Any, owner: str) -> None:
        try:
            now = self.queue.now()
            taken = await store.jobs.take(owner, now, now + 10.0)
            if taken is None:
                return
            tenant, found = taken
            self.ran.append(found.token)
            await store.jobs.renew([owner], now + 10.0)
            if len(self.ran) == 1:
                await store.jobs.put_back(tenant, found.id, found.token, run_at=now + 1.0, reason="again")
            elif await store.jobs.end(
                tenant, found.id, found.token, DONE, at=now, result=b"%d" % found.token, reason=None
            ):
                self.ended.append(found.token)
        except (InjectedFault, StoreError):
            pass

    async def run(self, store: Any) -> None:
        await self.submit(store)
        for number in range(5):
            await self.work(store, str(number))
            self.queue.now.move(10.0)

    async def hold(self) -> None:
        found = await self.queue.store.jobs.get(self.tenant, self.id)
        recorded = [row.segment async for row in self.queue.store.audit.read(self.tenant)]
        assert found is not None
        assert recorded == [self.id], "there with its record"
        assert found.state is DONE, "it was lost"
        assert len(self.ended) <= 1, "it ended twice"
        assert self.ended in ([], [found.token])
        assert found.result == b"%d" % self.ran[-1], "of the last run, and of no other"
        assert self.ran == sorted(set(self.ran)), "no token is given out twice"
        assert found.attempts == found.token >= len(self.ran) >= 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whichever_operation_fails_no_job_is_lost_or_ends_twice(
    queue: Backend, when: Literal["before", "after"]
) -> None:
    """Contract I3, I4, I20."""
    names = set[str]()
    n = 0
    while True:
        n += 1
        life = Life(queue, f"j{n}")
        faulty = FaultyStore(queue.store, n, when=when)
        await life.run(faulty)
        await life.hold()
        names |= set(faults_of(faulty).log)
        if not faults_of(faulty).injected:
            break
    assert n > 10
    assert names == {
        "transaction.enter",
        "transaction.jobs.add",
        "transaction.audit.append",
        "transaction.exit",
        "jobs.take",
        "jobs.renew",
        "jobs.put_back",
        "jobs.end",
    }


@pytest.mark.parametrize("seed", range(3))
async def test_workers_that_are_cancelled_anywhere_lose_no_job(queue: Backend, seed: int) -> None:
    """Contract I3. Each is cancelled after so many turns of the loop."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for number in range(12):
        await jobs.add(tenant, job(now, str(number)))

    async def work(owner: str) -> None:
        while (taken := await jobs.take(owner, now, now + 10.0)) is not None:
            await jobs.end(tenant, taken[1].id, taken[1].token, DONE, at=now, result=None, reason=None)

    tasks = [asyncio.create_task(work(str(number))) for number in range(6)]
    for number, task in enumerate(tasks):
        for _ in range(seed * 7 + number * 3):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    queue.now.move(10.0)
    while (taken := await jobs.take("last", queue.now(), queue.now() + 10.0)) is not None:
        assert await jobs.end(tenant, taken[1].id, taken[1].token, DONE, at=now, result=None, reason=None)
    assert await jobs.count() == {state: 12 * (state is DONE) for state in JobState}
