"""Shared parts of the job tests: jobs, an empty store, and a model of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import Job, JobState
from tests.providers.stores.backends import Backend

QUEUED, RUNNING, INPUT_REQUIRED, DONE, DEAD, CANCELLED = JobState
FOREVER = float("inf")


def job(now: float, id: str = "j", **more: Any) -> Job:
    """A job that may run from now on."""
    facts: dict[str, Any] = {"tool": "refund", "user": "ann", "body": b"{}", "mac": "m", "made_at": now, "run_at": now}
    return Job(id=id, **facts | more)


async def clear(store: Store) -> None:
    """Forget what other tests have left."""
    while (taken := await store.jobs.take("no worker", FOREVER, FOREVER)) is not None:
        tenant, found = taken
        await store.jobs.end(tenant, found.id, found.token, DEAD, at=0.0, result=None, reason=None)
    for tenant, found in await store.jobs.list(None, state=INPUT_REQUIRED, limit=10_000):
        await store.jobs.cancel(tenant, found.id, 0.0)
    await store.jobs.prune(FOREVER)


async def kept(backend: Backend, state: JobState, id: str = "j", lease: float = 10.0, **facts: Any) -> Job:
    """A job of the test's tenant in that state, taken and ended now."""
    jobs, tenant, now, owner = backend.store.jobs, backend.tenant, backend.now(), facts.pop("owner", "o")
    await jobs.add(tenant, job(now, id, **facts))
    if state is CANCELLED:
        assert await jobs.cancel(tenant, id, now) is CANCELLED
    elif state is not QUEUED:
        assert await jobs.take(owner, now, now + lease, id=id) is not None
        if state is not RUNNING:
            at = None if state is INPUT_REQUIRED else now
            assert await jobs.end(tenant, id, 1, state, at=at, result=b"{}", reason=None)
    return await found_in(backend, id)


async def found_in(backend: Backend, id: str = "j") -> Job:
    found = await backend.store.jobs.get(backend.tenant, id)
    assert found is not None
    return found


class Model:
    """A model of ``JobStore`` over a dict."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, Job]] = {}

    def of(self, tenant: str, id: str) -> Job | None:
        owner, found = self.rows.get(id, (None, None))
        return found if owner == tenant else None

    def change(self, id: str, **values: Any) -> None:
        tenant, found = self.rows[id]
        self.rows[id] = tenant, replace(found, **values)

    def may_be_taken(self, id: str, now: float) -> float | None:
        """Since when; None when it may not."""
        found = self.rows[id][1]
        since = {QUEUED: found.run_at, RUNNING: found.lease_until}.get(found.state)
        return since if since is not None and since <= now else None

    def next(self, now: float, queues: Collection[str]) -> set[str]:
        """Which of them may be the next."""
        free = [
            (-found.priority, since, found.queue, found.made_at, id)
            for id, (_, found) in self.rows.items()
            if (since := self.may_be_taken(id, now)) is not None and (not queues or found.queue in queues)
        ]
        first = [each for each in free if each[:2] == min(free)[:2]]
        oldest = {queue: min(made_at for _, _, of, made_at, _ in first if of == queue) for _, _, queue, _, _ in first}
        return {id for _, _, queue, made_at, id in first if made_at == oldest[queue]}

    def take(self, id: str, owner: str, until: float) -> tuple[str, Job]:
        found = self.rows[id][1]
        self.change(
            id, state=RUNNING, owner=owner, lease_until=until, attempts=found.attempts + 1, token=found.token + 1
        )
        return self.rows[id]

    def holds(self, tenant: str, id: str, token: int) -> bool:
        found = self.of(tenant, id)
        return found is not None and found.state is RUNNING and found.token == token

    def end(self, tenant: str, id: str, token: int, state: JobState, at: float | None, **facts: Any) -> bool:
        held = self.holds(tenant, id, token)
        if held:
            self.change(id, state=state, lease_until=None, ended_at=at, **facts)
        return held

    def put_back(self, tenant: str, id: str, token: int, run_at: float, reason: str | None) -> bool:
        held = self.holds(tenant, id, token)
        if held:
            found = self.rows[id][1]
            self.change(id, state=QUEUED, lease_until=None, run_at=run_at, reason=reason or found.reason)
            self.change(id, attempts=found.attempts - (reason is None))
        return held

    def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        found = self.of(tenant, id)
        if found is not None and found.state in {QUEUED, INPUT_REQUIRED}:
            self.change(id, state=CANCELLED, ended_at=at)
        if found is not None and found.state is RUNNING:
            self.change(id, stop=True)
        return None if found is None else self.rows[id][1].state

    def wake(self, tenant: str, id: str, at: float) -> JobState | None:
        found = self.of(tenant, id)
        if found is None or found.state not in {RUNNING, INPUT_REQUIRED}:
            return None
        if found.state is INPUT_REQUIRED:
            self.change(id, state=QUEUED, run_at=at, sent_at=at, attempts=0)
        return self.rows[id][1].state

    def stopped(self, owners: Collection[str]) -> list[str]:
        return [
            found.owner
            for _, found in self.rows.values()
            if found.stop and found.state is RUNNING and found.owner is not None and found.owner in owners
        ]

    def record_progress(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        held = self.holds(tenant, id, token)
        if held:
            self.change(id, progress=progress)
        return held

    def revive(self, tenant: str, id: str, run_at: float) -> bool:
        found = self.of(tenant, id)
        dead = found is not None and found.state is DEAD
        if dead:
            nothing = dict.fromkeys(("ended_at", "sent_at", "result", "reason"))
            self.change(id, state=QUEUED, run_at=run_at, attempts=0, stop=False, **nothing)
        return dead

    def replace(self, tenant: str, new: Job) -> bool:
        found = self.of(tenant, new.id)
        ended = found is not None and found.state in {DONE, DEAD, CANCELLED} and found.token + 1 == new.token
        if ended:
            self.rows[new.id] = tenant, new
        return ended

    def renew(self, owners: Collection[str], until: float) -> list[str]:
        held = [id for id, (_, found) in self.rows.items() if found.state is RUNNING and found.owner in owners]
        for id in held:
            self.change(id, lease_until=until)
        return held

    def unsent(self, now: float, before: float) -> list[tuple[str, Job]]:
        found = [
            (found.sent_at is not None, found.sent_at or 0.0, since, id)
            for id, (_, found) in self.rows.items()
            if (since := self.may_be_taken(id, now)) is not None and (found.sent_at is None or found.sent_at < before)
        ]
        return [self.rows[id] for *_, id in sorted(found)]

    def list(self, tenant: str | None) -> list[tuple[str, Job]]:
        chosen = [row for row in self.rows.values() if tenant in {None, row[0]}]
        return sorted(chosen, key=lambda row: (row[1].made_at, row[1].id), reverse=True)

    def prune(self, before: float) -> int:
        old = [id for id, (_, found) in self.rows.items() if found.ended_at is not None and found.ended_at < before]
        for id in old:
            del self.rows[id]
        return len(old)
