"""Jobs against a model of them: whatever is done in whatever order, both say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from tests.providers.stores.backends import opened, place
from tests.providers.stores.job_rows import DONE, FOREVER, INPUT_REQUIRED, QUEUED, RUNNING, Model, clear, job

EXAMPLES = {"memory": 50, "sqlite-memory": 12, "sqlite-file": 8, "postgresql": 8}
SOAK = {"memory": 500, "sqlite-memory": 75, "sqlite-file": 50, "postgresql": 50}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

TENANTS = st.sampled_from(["", "acme"])
IDS = st.sampled_from("abc")
OWNERS = st.sampled_from(["one", "other"])
QUEUES = st.sampled_from(["default", "slow"])
SECONDS = st.sampled_from([-1.0, 0.0, 0.5, 5.0, 20.0])
BACK = st.sampled_from([0, 0, 1, -1])
THEIR_OWN = st.sampled_from([True, True, True, False])


class Machine(RuleBasedStateMachine):
    """A store, and the model beside it; *sabotage* takes the place of the store's jobs."""

    runner: asyncio.Runner
    store: Store
    jobs: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.model = Model()
        self.highest: dict[str, int] = {}  # token of each, since it was last forgotten
        self.did(clear(self.store))

    def did(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def held(self, id: str, own: bool, back: int = 0) -> tuple[str, str, int]:
        """The tenant, id and token of a job, or wrong ones."""
        tenant, found = self.model.rows.get(id, ("", job(0.0, token=1)))
        return tenant if own else f"not {tenant}", id, found.token - back

    @initialize()
    def some_are_there(self) -> None:
        for id, tenant, owner in (("a", "", "one"), ("b", "acme", "other"), ("c", "acme", "one")):
            self.did(self.store.jobs.add(tenant, job(self.now, id)))
            self.model.rows[id] = tenant, job(self.now, id)
            self.take(owner, 5.0, id)
        self.end("c", True, 0, INPUT_REQUIRED, None, None)  # rare otherwise

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds  # clocks of machines differ: it may be earlier to the next

    @rule(
        tenant=TENANTS,
        id=IDS,
        queue=QUEUES,
        priority=st.sampled_from([0, 0, 7]),
        age=SECONDS,
        wait=SECONDS,
        within=st.booleans(),
    )
    def add(self, tenant: str, id: str, queue: str, priority: int, age: float, wait: float, within: bool) -> None:
        new = job(self.now - age, id, queue=queue, priority=priority, run_at=self.now + wait)

        async def add() -> Job:
            if not within:
                return await self.jobs.add(tenant, new)  # type: ignore[no-any-return]
            async with self.store.transaction() as transaction:
                return await transaction.jobs.add(tenant, new)

        if id in self.model.rows and self.model.of(tenant, id) is None:
            with pytest.raises(StoreConflict):
                self.did(add())
            return
        self.model.rows.setdefault(id, (tenant, new))
        assert self.did(add()) == self.model.of(tenant, id)

    @rule(owner=OWNERS, lease=SECONDS, queues=st.sets(QUEUES))
    def take_next(self, owner: str, lease: float, queues: Collection[str]) -> None:
        may = self.model.next(self.now, queues)
        self.taken(may, self.did(self.jobs.take(owner, self.now, self.now + lease, queues=queues)), owner, lease)

    @rule(owner=OWNERS, lease=SECONDS, id=IDS)
    def take(self, owner: str, lease: float, id: str) -> None:
        may = {id} if id in self.model.rows and self.model.may_be_taken(id, self.now) is not None else set[str]()
        self.taken(may, self.did(self.jobs.take(owner, self.now, self.now + lease, id=id)), owner, lease)

    def taken(self, may: set[str], found: tuple[str, Job] | None, owner: str, lease: float) -> None:
        assert (found is None) is (not may)
        if found is not None:
            assert found[1].id in may
            assert found == self.model.take(found[1].id, owner, self.now + lease)
            assert found[1].token > self.highest.get(found[1].id, 0), "tokens grow with every taking"

    @rule(
        id=IDS,
        own=THEIR_OWN,
        back=BACK,
        state=st.sampled_from([*FINAL_STATES, INPUT_REQUIRED]),
        result=st.sampled_from([None, b"{}"]),
        reason=st.sampled_from([None, "why"]),
    )
    def end(self, id: str, own: bool, back: int, state: JobState, result: Any, reason: Any) -> None:
        at = None if state is INPUT_REQUIRED else self.now
        facts: dict[str, Any] = {"at": at, "result": result, "reason": reason}
        held = self.held(id, own, back)
        done = self.did(self.jobs.end(*held, state, **facts))
        assert done is self.model.end(*held, state, **facts)
        assert not (done and (back or not own)), "only the last token ends it"

    @rule(id=IDS, own=THEIR_OWN, back=BACK, wait=SECONDS, reason=st.sampled_from([None, "why"]))
    def put_back(self, id: str, own: bool, back: int, wait: float, reason: Any) -> None:
        held = self.held(id, own, back)
        done = self.did(self.jobs.put_back(*held, run_at=self.now + wait, reason=reason))
        assert done is self.model.put_back(*held, self.now + wait, reason)
        assert not (done and (back or not own)), "only the last token puts it back"

    @rule(id=IDS, own=THEIR_OWN)
    def cancel(self, id: str, own: bool) -> None:
        tenant, *_ = self.held(id, own)
        assert self.did(self.jobs.cancel(tenant, id, self.now)) is self.model.cancel(tenant, id, self.now)

    @rule(id=IDS, own=THEIR_OWN, wait=SECONDS)
    def wake(self, id: str, own: bool, wait: float) -> None:
        tenant, *_ = self.held(id, own)
        assert self.did(self.jobs.wake(tenant, id, self.now + wait)) is self.model.wake(tenant, id, self.now + wait)

    @rule(owners=st.sets(OWNERS))
    def stopped(self, owners: set[str]) -> None:
        assert sorted(self.did(self.jobs.stopped(owners))) == sorted(self.model.stopped(owners))

    @rule(id=IDS, own=THEIR_OWN, back=BACK, progress=st.sampled_from([b"1", b"2"]))
    def tell(self, id: str, own: bool, back: int, progress: bytes) -> None:
        held = self.held(id, own, back)
        told = self.did(self.jobs.record_progress(*held, progress))
        assert told is self.model.record_progress(*held, progress)
        assert not (told and (back or not own)), "only the last token says how far it is"

    @rule(id=IDS, own=THEIR_OWN, wait=SECONDS)
    def revive(self, id: str, own: bool, wait: float) -> None:
        tenant, *_ = self.held(id, own)
        assert self.did(self.jobs.revive(tenant, id, self.now + wait)) is self.model.revive(tenant, id, self.now + wait)

    @rule(id=IDS, own=THEIR_OWN, back=BACK, queue=QUEUES, wait=SECONDS, within=st.booleans())
    def replace(self, id: str, own: bool, back: int, queue: str, wait: float, within: bool) -> None:
        tenant, _, token = self.held(id, own, back)
        new = job(self.now, id, queue=queue, run_at=self.now + wait, mac="new", token=token + 1)

        async def replaced() -> bool:
            if not within:
                return await self.jobs.replace(tenant, new)  # type: ignore[no-any-return]
            async with self.store.transaction() as transaction:
                return await transaction.jobs.replace(tenant, new)

        done = self.did(replaced())
        assert done is self.model.replace(tenant, new)
        assert not (done and (back or not own)), "only the last token is replaced"

    @rule(owner=OWNERS, seconds=SECONDS)
    def renew(self, owner: str, seconds: float) -> None:
        told = self.did(self.jobs.renew([owner], self.now + seconds))
        assert sorted(told) == sorted(self.model.renew([owner], self.now + seconds))

    @rule(ids=st.sets(IDS), ago=SECONDS)
    def sent(self, ids: set[str], ago: float) -> None:
        self.did(self.jobs.mark_sent(ids, self.now - ago))
        for id in ids & set(self.model.rows):
            self.model.change(id, sent_at=self.now - ago)

    @rule(ago=SECONDS, limit=st.sampled_from([1, 2, 100]))
    def unsent(self, ago: float, limit: int) -> None:
        found = self.did(self.jobs.unsent(self.now, self.now - ago, limit=limit))
        assert [*found] == self.model.unsent(self.now, self.now - ago)[:limit]

    @rule(seconds=SECONDS)
    def prune(self, seconds: float) -> None:
        assert self.did(self.jobs.prune(self.now - seconds)) == self.model.prune(self.now - seconds)
        self.highest = {id: token for id, token in self.highest.items() if id in self.model.rows}

    @rule(tenant=st.none() | TENANTS, state=st.none() | st.sampled_from(JobState), limit=st.sampled_from([1, 2, 100]))
    def list(self, tenant: str | None, state: JobState | None, limit: int) -> None:
        found = [row for row in self.model.list(tenant) if state in {None, row[1].state}]
        assert [*self.did(self.jobs.list(tenant, state=state, limit=limit))] == found[:limit]

    @rule(queues=st.sets(QUEUES))
    def count(self, queues: set[str]) -> None:
        states = [row.state for _, row in self.model.rows.values() if not queues or row.queue in queues]
        assert self.did(self.jobs.count(queues)) == {state: states.count(state) for state in JobState}

    @rule(tenant=TENANTS, id=IDS)
    def get(self, tenant: str, id: str) -> None:
        assert self.did(self.jobs.get(tenant, id)) == self.model.of(tenant, id)

    @rule(tenant=TENANTS, id=IDS, owner=OWNERS)
    def take_back(self, tenant: str, id: str, owner: str) -> None:
        """A transaction that fails changes nothing."""

        async def fail() -> None:
            async with self.store.transaction() as within:
                for new in (job(self.now, "new"), job(self.now, "newer", priority=99)):
                    assert await within.jobs.add(tenant, new) is new
                    assert await within.jobs.get(tenant, new.id) == new, "it is there, within"
                await within.jobs.cancel(tenant, id, self.now)
                await within.jobs.mark_sent([id, "new"], self.now)
                await within.jobs.revive(tenant, id, self.now)
                known = await within.jobs.get(tenant, id)
                if known is not None:
                    await within.jobs.replace(tenant, job(self.now, id, mac="new", token=known.token + 1))
                for which in (id, None):
                    taken = await within.jobs.take(owner, self.now, self.now + 50.0, id=which)
                    assert taken is not None or which is not None
                    if taken is not None:
                        of, found = taken
                        assert await within.jobs.put_back(of, found.id, found.token, run_at=self.now, reason="r")
                await within.jobs.renew([owner], self.now + 50.0)
                taken = await within.jobs.take(owner, self.now, self.now + 50.0)
                assert taken is not None
                of, found = taken
                assert await within.jobs.record_progress(of, found.id, found.token, b"0.5")
                assert await within.jobs.end(of, found.id, found.token, DONE, at=self.now, result=None, reason=None)
                await within.jobs.prune(FOREVER)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.did(fail())

    @invariant()
    def both_are_the_same(self) -> None:
        assert [*self.did(self.store.jobs.list(None))] == self.model.list(None)
        self.highest |= {id: row.token for id, (_, row) in self.model.rows.items()}


def search(kind: str, at: tuple[str, str], examples: int, sabotage: Any = None) -> None:
    """Look for steps after which a store and the model differ."""
    with asyncio.Runner() as runner:
        manager = opened(kind, at)
        backend = runner.run(manager.__aenter__())
        jobs = backend.store.jobs if sabotage is None else sabotage(backend.store.jobs)
        try:
            made = type("Made", (Machine,), {"runner": runner, "store": backend.store, "jobs": jobs})
            run_state_machine_as_test(
                made,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=SLOW,
                    database=None,
                    phases=[Phase.generate] if sabotage else [Phase.generate, Phase.shrink],
                    report_multiple_bugs=False,
                ),
            )
        finally:
            runner.run(manager.__aexit__(None, None, None))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_jobs_do_what_their_model_does_whatever_the_order(kind: str, tmp_path: Path) -> None:
    """Contract I4, I20."""
    with place(kind, tmp_path) as at:
        search(kind, at, EXAMPLES[kind])


@pytest.mark.soak
@pytest.mark.parametrize("kind", SOAK)
def test_jobs_do_what_their_model_does_over_many_more_orders(kind: str, tmp_path: Path) -> None:
    """Contract I4, I20."""
    with place(kind, tmp_path) as at:
        search(kind, at, SOAK[kind])


class Sabotaged:
    """Jobs with one promise broken."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class IgnoresTokens(Sabotaged):
    async def end(self, tenant: str, id: str, token: int, *rest: Any, **more: Any) -> bool:
        found = await self.inner.get(tenant, id)
        return bool(await self.inner.end(tenant, id, found.token if found else token, *rest, **more))


class KeepsTokens(Sabotaged):
    async def take(self, *args: Any, **more: Any) -> Any:
        taken = await self.inner.take(*args, **more)
        if taken is not None and taken[1].token > 1:
            taken = taken[0], replace(taken[1], token=taken[1].token - 1)
            self.inner._write(taken[1].id, taken)
        return taken


class TakesWhatIsLeased(Sabotaged):
    async def take(self, owner: str, now: float, until: float, **more: Any) -> Any:
        return await self.inner.take(owner, now + 3.0, until, **more)


class CountsWhatIsHandedBack(Sabotaged):
    async def put_back(self, *args: Any, run_at: float, reason: Any) -> bool:
        return bool(await self.inner.put_back(*args, run_at=run_at, reason=reason or "none"))


class ForgetsWhatWaits(Sabotaged):
    async def prune(self, before: float) -> int:
        for _, row in await self.inner.list(None, state=QUEUED):
            del self.inner._jobs[row.id]
        return int(await self.inner.prune(before))


class RenewsAll(Sabotaged):
    async def renew(self, owners: Collection[str], until: float) -> Any:
        await self.inner.renew(["one"], until)
        return await self.inner.renew(owners, until)


class WakesWithoutReset(Sabotaged):
    async def wake(self, tenant: str, id: str, at: float) -> Any:
        before = await self.inner.get(tenant, id)
        state = await self.inner.wake(tenant, id, at)
        if state is QUEUED:
            self.inner._write(id, (tenant, replace(self.inner._jobs[id][1], attempts=before.attempts)))
        return state


class ReplacesWhatRuns(Sabotaged):
    async def replace(self, tenant: str, job: Job) -> bool:
        await self.inner.end(tenant, job.id, job.token - 1, DONE, at=0.0, result=None, reason=None)
        return bool(await self.inner.replace(tenant, job))


class CancelsWhatRuns(Sabotaged):
    async def cancel(self, tenant: str, id: str, at: float) -> Any:
        found = await self.inner.get(tenant, id)
        if found is not None and found.state is RUNNING:
            await self.inner.put_back(tenant, id, found.token, run_at=at, reason=None)
        return await self.inner.cancel(tenant, id, at)


BROKEN = [
    IgnoresTokens,
    KeepsTokens,
    TakesWhatIsLeased,
    CountsWhatIsHandedBack,
    ForgetsWhatWaits,
    RenewsAll,
    CancelsWhatRuns,
    WakesWithoutReset,
    ReplacesWhatRuns,
]


@pytest.mark.parametrize("sabotage", BROKEN)
def test_jobs_that_break_one_promise_are_found_out(sabotage: Any, tmp_path: Path) -> None:
    """The control of the test above."""
    with place("memory", tmp_path) as at, pytest.raises((AssertionError, StoreError)):
        search("memory", at, 1000, sabotage)
