"""Jobs for workers, the same on every store that keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from callgate.errors import StoreConflict
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState, free_at
from tests.providers.stores.backends import Backend
from tests.providers.stores.job_rows import (
    CANCELLED,
    DEAD,
    DONE,
    FOREVER,
    INPUT_REQUIRED,
    QUEUED,
    RUNNING,
    found_in,
    job,
    kept,
)


async def taken(queue: Backend, *, until: float = FOREVER, queues: Collection[str] = ()) -> list[str]:
    """The ids of all that may be taken now, in the order in which they are."""
    ids: list[str] = []
    while (found := await queue.store.jobs.take("o", queue.now(), until, queues=queues)) is not None:
        ids.append(found[1].id)
    return ids


def free_since(state: JobState, at: float) -> dict[str, Any]:
    """Return the times of a job in that state."""
    name = {QUEUED: "run_at", RUNNING: "lease_until", INPUT_REQUIRED: "run_at"}.get(state, "ended_at")
    return {"state": state, "run_at": at - 9.0, name: at}


# ---------------------------------------------------------------------- what is kept


async def test_what_is_queued_for_a_user_is_counted_up_to_a_limit(queue: Backend) -> None:
    """Queued jobs of this user and tenant only."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for number in range(4):
        await jobs.add(tenant, replace(job(now, f"j{number}"), user="eve"))
    for state in (RUNNING, INPUT_REQUIRED, *FINAL_STATES):
        await jobs.add(tenant, replace(job(now, f"{state}"), user="eve", **free_since(state, now)))
    await jobs.add(tenant, replace(job(now, "other user"), user="ann"))
    await jobs.add(tenant + "2", replace(job(now, "other tenant"), user="eve"))
    assert [await jobs.count_queued(tenant, "eve", limit) for limit in (10, 3)] == [4, 3]
    assert await jobs.count_queued(tenant, "ann", 10) == 1


async def test_every_fact_of_a_job_comes_back(queue: Backend) -> None:
    """Contract I3."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    plain = job(now, "plain")
    full = Job(
        "full'\"; --",
        "tööl",
        "ann:\U0001f600",
        bytes(range(256)),
        "mac",
        now,
        now + 0.5,
        "qüeue'",
        -7,
        3,
        RUNNING,
        4,
        2**40,
        "owner",
        now + 10.25,
        now + 1.5,
        True,
        b"0.5",
        now + 2.5,
        b"\x00{}",
        "a reason",
    )
    for new in (plain, full):
        assert await jobs.get(tenant, new.id) is None
        assert await jobs.add(tenant, new) is new
        assert await jobs.get(tenant, new.id) == new
    assert await jobs.get(tenant, "another") is None
    assert await jobs.get(tenant + "2", "plain") is None


async def test_a_job_whose_id_is_known_is_not_added_and_the_one_that_is_there_is_told(queue: Backend) -> None:
    """Contract I4. Whatever has become of it."""
    for state in JobState:
        old = await kept(queue, state, state)
        assert await queue.store.jobs.add(queue.tenant, job(queue.now(), state, body=b"other", priority=9)) == old
        assert await found_in(queue, state) == old


async def test_an_id_of_another_tenants_job_is_refused_and_tells_nothing_of_it(queue: Backend) -> None:
    """Contract I8."""
    old = await kept(queue, QUEUED)
    with pytest.raises(StoreConflict) as refused:
        await queue.store.jobs.add(queue.tenant + "2", job(queue.now(), body=b"other"))
    assert queue.tenant not in str(refused.value)
    assert await queue.store.jobs.list(None) == [(queue.tenant, old)]


# ---------------------------------------------------------------------- taking

FREE = [  # its state, when it was free or will be, whether it may be taken then
    (QUEUED, -1.0, True),
    (QUEUED, 0.0, True),
    (QUEUED, 0.5, False),
    (RUNNING, -1.0, True),
    (RUNNING, 0.0, True),
    (RUNNING, 0.5, False),
    (DONE, -1.0, False),
    (DEAD, -1.0, False),
    (CANCELLED, -1.0, False),
    (INPUT_REQUIRED, -1.0, False),
]


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_job_is_taken_when_its_time_has_come_or_the_lease_of_who_had_it_is_over(
    queue: Backend, by_id: bool
) -> None:
    """Contract I3."""
    jobs, now = queue.store.jobs, queue.now()
    for number, (state, since, free) in enumerate(FREE):
        times = free_since(state, now + since)
        old = job(now, str(number), token=3, attempts=2, owner="before", sent_at=now, reason="r", **times)
        await jobs.add(queue.tenant, old)
        found = await jobs.take("me", now, now + 60.0, id=old.id if by_id else None)
        if free:
            got = replace(old, state=RUNNING, owner="me", lease_until=now + 60.0, attempts=3, token=4)
            assert found == (queue.tenant, got), (state, since)
        else:
            assert found is None, (state, since)
        assert await found_in(queue, old.id) == (found[1] if found else old)
        may = free_at(old)
        assert (may is not None and may <= now) is free


async def test_nothing_is_taken_that_is_not_there(queue: Backend) -> None:
    assert await queue.store.jobs.take("o", queue.now(), FOREVER) is None
    assert await queue.store.jobs.take("o", queue.now(), FOREVER, id="j") is None
    assert await queue.store.jobs.take("o", queue.now(), FOREVER, queues=["default"]) is None


async def test_the_highest_priority_is_first_then_what_may_be_taken_for_longest_then_the_oldest(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    expected: list[str] = []
    for priority, ago, age in itertools.product([9, 0, -9], [5.0, 1.0, 0.0], [7.0, 6.0]):
        expected.append(f"{priority} {ago} {age}")
    for number, id in enumerate(sorted(expected)):  # in another order
        at, since, age = (float(part) for part in id.split())
        facts: dict[str, Any] = {"made_at": now - age, "priority": int(at), "queue": "ab"[int(since) % 2]}
        if number % 2:
            await jobs.add(queue.tenant, job(now, id, run_at=now - since, **facts))
        else:
            held = {"state": RUNNING, "owner": "dead", "lease_until": now - since}
            await jobs.add(queue.tenant, job(now, id, **held, **facts))
        await jobs.add(queue.tenant, job(now, f"{id} later", **facts | {"priority": 99}, run_at=now + 1.0))
    assert await taken(queue) == expected


async def test_a_worker_of_some_queues_takes_from_these_and_one_that_is_told_an_id_takes_it(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    names = ["", "a", "A", "a b", "ä", "\U0001f600", "'; --", '"', "%", "[]"]
    for number, name in enumerate(names):
        await jobs.add(queue.tenant, job(now, name, queue=name, priority=number))
    for name in names[::-1][2:5]:
        assert await taken(queue, queues=[name, name, "another"]) == [name]
    assert await taken(queue, queues={"another"}) == []
    assert await taken(queue, queues=("", "a", "%", "[]")) == ["[]", "%", "a", ""], "as their priorities say"
    assert await jobs.take("o", now, FOREVER, id="A", queues=["another"]) is not None
    assert await taken(queue) == ["ä", "a b"]


async def test_a_worker_takes_for_all_tenants_and_is_told_for_whom(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    tenants = ["", queue.tenant, queue.tenant + "2"]
    for number, tenant in enumerate(tenants):
        await jobs.add(tenant, job(now, str(number), made_at=now + number))
    for number, tenant in enumerate(tenants):
        found = await jobs.take("o", now, FOREVER)
        assert found is not None
        assert (found[0], found[1].id) == (tenant, str(number))


# ---------------------------------------------------------------------- ending, putting back, cancelling


async def test_an_end_is_written_with_result_and_reason(queue: Backend) -> None:
    """Contract I3."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state, result, reason in itertools.product(FINAL_STATES, [None, b"\x00{}"], [None, "why"]):
        id = f"{state} {result!r} {reason}"
        old = await kept(queue, RUNNING, id, reason="before")
        assert await jobs.end(tenant, id, 1, state, at=now + 0.5, result=result, reason=reason)
        over = replace(old, state=state, lease_until=None, ended_at=now + 0.5, result=result, reason=reason)
        assert await found_in(queue, id) == over
        assert not await jobs.end(tenant, id, 1, DONE, at=now, result=None, reason=None), "it has ended"
        assert not await jobs.put_back(tenant, id, 1, run_at=now, reason=None)
    queue.now.move(1e6)
    assert await taken(queue) == []


async def test_a_job_that_is_put_back_waits_for_its_time_and_its_attempt_counts_where_there_is_a_reason(
    queue: Backend,
) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    old = await kept(queue, RUNNING, sent_at=now)
    assert await jobs.put_back(tenant, "j", 1, run_at=now + 5.0, reason="it failed")
    back = replace(old, state=QUEUED, lease_until=None, run_at=now + 5.0, reason="it failed")
    assert await found_in(queue) == back
    assert await taken(queue) == []
    queue.now.move(5.0)
    assert await jobs.take("other", queue.now(), now + 60.0) is not None
    assert await jobs.put_back(tenant, "j", 2, run_at=now, reason=None)
    assert await found_in(queue) == replace(back, owner="other", run_at=now, token=2), "one attempt, and why it failed"
    assert await taken(queue) == ["j"]


async def test_nothing_is_written_but_with_the_last_token_of_a_job_that_runs(queue: Backend) -> None:
    """Contract I4. A worker that slept while another took its job."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state in JobState:
        await kept(queue, state, state)
    queue.now.move(10.0)
    assert await jobs.take("next", queue.now(), FOREVER, id=RUNNING) is not None
    before = await jobs.list(None)
    attempts: list[tuple[str, str, int]] = [(tenant, state, token) for state in JobState for token in (0, 1, 3)]
    attempts += [(tenant, state, 2) for state in JobState if state is not RUNNING]
    attempts += [(tenant + "2", RUNNING, 2), (tenant, "another", 2)]
    for of, id, token in attempts:
        assert not await jobs.end(of, id, token, DONE, at=now, result=b"1", reason="r")
        assert not await jobs.put_back(of, id, token, run_at=now, reason=None)
    assert await jobs.list(None) == before
    assert await jobs.end(tenant, RUNNING, 2, DONE, at=now, result=b"1", reason=None)


async def test_what_is_queued_is_cancelled_what_runs_is_to_stop_and_the_rest_stays(queue: Backend) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state in JobState:
        old = await kept(queue, state, state)
        assert await jobs.cancel(tenant + "2", state, now) is None
        told = await jobs.cancel(tenant, state, now + 0.5)
        if state in {QUEUED, INPUT_REQUIRED}:
            assert told is CANCELLED
            assert await found_in(queue, state) == replace(old, state=CANCELLED, ended_at=now + 0.5)
        else:
            assert told is state
            assert await found_in(queue, state) == replace(old, stop=state is RUNNING)
    assert await jobs.cancel(tenant, "another", now) is None
    queue.now.move(1.0)
    assert await taken(queue) == []


async def test_a_worker_is_told_which_of_those_it_runs_are_to_stop(queue: Backend) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for id in ("one", "two", "three"):
        await kept(queue, RUNNING, id, owner=f"runs {id}")
    for id in ("one", "three"):
        await jobs.cancel(tenant, id, now)
    assert await jobs.stopped(["runs one", "runs two", "another"]) == ["runs one"]
    assert await jobs.put_back(tenant, "one", 1, run_at=now, reason=None)
    assert await jobs.stopped(["runs one"]) == []
    assert (await found_in(queue, "one")).stop, "the next worker has to end it"


async def test_only_what_is_dead_is_queued_again_as_if_no_worker_had_taken_it(queue: Backend) -> None:
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state in JobState:
        old = await kept(queue, state, state)
        assert await jobs.revive(tenant + "2", state, now) is False
        assert await jobs.revive(tenant, state, now + 0.5) is (state is DEAD)
        if state is DEAD:
            old = replace(old, state=QUEUED, run_at=now + 0.5, attempts=0, ended_at=None, result=None)
        assert await found_in(queue, state) == old


async def test_how_far_it_is_is_written_by_whoever_runs_it(queue: Backend) -> None:
    jobs, tenant = queue.store.jobs, queue.tenant
    await kept(queue, RUNNING)
    assert not await jobs.record_progress(tenant, "j", 2, b"1")
    assert not await jobs.record_progress(tenant + "2", "j", 1, b"1")
    assert await jobs.record_progress(tenant, "j", 1, b"0.5")
    assert (await found_in(queue)).progress == b"0.5"


# ---------------------------------------------------------------------- leases, engines


async def test_a_worker_that_lives_renews_all_that_it_holds_and_is_told_what_that_is(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    for state in JobState:
        await kept(queue, state, f"mine {state}", owner="me")
        await kept(queue, state, f"other {state}", owner="other")
    await jobs.add(queue.tenant + "2", job(now, "elsewhere"))
    assert await jobs.take("me, too", now, now + 10.0, id="elsewhere") is not None
    queue.now.move(10.0)  # the lease has ended and no other worker took the job
    assert sorted(await jobs.renew(["me", "me, too"], now + 99.5)) == ["elsewhere", "mine running"]
    for _, row in await jobs.list(None):
        renewed = row.id in {"elsewhere", "mine running"}
        assert row.lease_until == (now + 99.5 if renewed else now + 10.0 if row.state is RUNNING else None), row
        assert row.token == (row.state not in {QUEUED, CANCELLED})
    assert await jobs.renew(["no one"], now) == []


async def test_a_worker_that_lost_a_job_is_not_told_that_it_holds_it(queue: Backend) -> None:
    """Contract I4."""
    jobs = queue.store.jobs
    await kept(queue, RUNNING, owner="me", lease=-1.0)
    assert await jobs.take("other", queue.now(), queue.now() + 10.0) is not None
    assert await jobs.renew(["me"], FOREVER) == []
    assert (await found_in(queue)).lease_until == queue.now() + 10.0


async def test_what_no_engine_was_told_of_for_long_is_found_if_it_may_be_taken(queue: Backend) -> None:
    """Contract I3. Whatever an engine lost."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    sent = {"never": None, "early": now - 9.0, "late": now - 5.0, "just now": now}
    for (name, at), (state, since, _) in itertools.product(sent.items(), FREE):
        await jobs.add(tenant, job(now, f"{name} {state} {since}", sent_at=at, **free_since(state, now + since)))
    free = [f"{state} {since}" for since in (-1.0, 0.0) for state in (QUEUED, RUNNING)]
    for before, names in ((now + 1.0, sent), (now - 4.0, ["never", "early", "late"]), (now - 5.0, ["never", "early"])):
        found = await jobs.unsent(now, before)
        assert [row.id for _, row in found] == [f"{name} {each}" for name in names for each in free]
        assert all([row == await found_in(queue, row.id) for _, row in found])
    everything = await jobs.unsent(now, now + 1.0)
    assert list(await jobs.unsent(now, now + 1.0, limit=6)) == list(everything)[:6]
    assert list(await jobs.unsent(now - 99.0, now)) == []


async def test_what_an_engine_was_told_of_is_written_down(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    for number, id in enumerate(["a", "'; --", "c"]):
        await jobs.add(queue.tenant + str(number), job(now + number, id))
    await jobs.mark_sent(["a", "'; --", "unknown"], now + 0.5)
    await jobs.mark_sent([], now + 9.0)
    told = [(row.id, row.sent_at) for _, row in await jobs.list(None)]
    assert told == [("c", None), ("'; --", now + 0.5), ("a", now + 0.5)]
    assert [row.id for _, row in await jobs.unsent(now + 9.0, now + 0.5)] == ["c"]


# ---------------------------------------------------------------------- looking, forgetting


async def test_a_job_that_waits_for_input_is_queued_again_and_no_other(queue: Backend) -> None:
    """Issue 16 B2. It keeps its result, which names its suspension; its attempts begin anew."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state in JobState:
        old = await kept(queue, state, state)
        assert await jobs.wake(tenant + "2", state, now) is None
        told = await jobs.wake(tenant, state, now + 0.5)
        if state is INPUT_REQUIRED:
            assert told is QUEUED
            queued = replace(old, state=QUEUED, run_at=now + 0.5, sent_at=now + 0.5, attempts=0)
            assert await found_in(queue, state) == queued
            assert queued.result == b"{}"
        else:
            assert told is (RUNNING if state is RUNNING else None)
            assert await found_in(queue, state) == old
    queue.now.move(1.0)
    assert sorted(await taken(queue)) == sorted([INPUT_REQUIRED, QUEUED])
    assert (await found_in(queue, INPUT_REQUIRED)).token == 2


async def test_jobs_are_counted_by_state_of_all_tenants_and_of_some_queues(queue: Backend) -> None:
    jobs = queue.store.jobs
    assert await jobs.count() == dict.fromkeys(JobState, 0)
    for number, state in enumerate(JobState):
        for more in range(number + 1):
            await kept(queue, state, f"{state} {more}", queue="even" if more % 2 == 0 else "odd")
    await jobs.add(queue.tenant + "2", job(queue.now(), "elsewhere", queue="other"))
    assert await jobs.count() == {QUEUED: 2, RUNNING: 2, INPUT_REQUIRED: 3, DONE: 4, DEAD: 5, CANCELLED: 6}
    odd = {QUEUED: 0, RUNNING: 1, INPUT_REQUIRED: 1, DONE: 2, DEAD: 2, CANCELLED: 3}
    assert await jobs.count(["odd", "none"]) == odd
    assert await jobs.count({"odd", "other"}) == {**odd, QUEUED: 1}
    assert await jobs.count(["none"]) == dict.fromkeys(JobState, 0)


async def test_jobs_are_listed_the_newest_first_by_tenant_and_state(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    tenants = [queue.tenant, queue.tenant + "2"]
    rows: list[tuple[str, Job]] = []
    for number, state in enumerate([*JobState, *JobState]):
        new = job(now + number // 2, f"j{number}", **free_since(state, now))
        await jobs.add(tenants[number % 2], new)
        rows.append((tenants[number % 2], new))
    newest = sorted(rows, key=lambda row: (row[1].made_at, row[1].id), reverse=True)
    for tenant, state, limit in itertools.product([None, *tenants], [None, *JobState], [100, 2]):
        chosen = [row for row in newest if tenant in {None, row[0]} and state in {None, row[1].state}]
        assert list(await jobs.list(tenant, state=state, limit=limit)) == chosen[:limit]
    assert list(await jobs.list("no one")) == []


async def test_only_what_ended_and_is_old_is_forgotten(queue: Backend) -> None:
    """Contract I3."""
    jobs, now = queue.store.jobs, queue.now()
    for age in (2.0, 1.0):
        for state in JobState:
            new = job(now - 9.0, f"{state} {age}", **free_since(state, now - age))
            await jobs.add(queue.tenant if age == 2.0 else queue.tenant + "2", new)
    assert await jobs.prune(now - 2.0) == 0
    assert await jobs.prune(now - 1.0) == 3
    assert await jobs.prune(FOREVER) == 3
    left = {row.id for _, row in await jobs.list(None)}
    assert left == {f"{state} {age}" for state in (QUEUED, RUNNING, INPUT_REQUIRED) for age in (1.0, 2.0)}
    new = job(now, f"{DONE} 2.0")
    assert await jobs.add(queue.tenant, new) is new, "an id that was forgotten is new"
