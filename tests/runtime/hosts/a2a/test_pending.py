"""The core that both dialects stand on: tasks that wait, in a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import User
from callgate.errors import NotPending, StoreConflict
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.suspensions.pending import LONGEST_WAIT, Answer, PendingTask, PendingTasks, Wanted
from callgate.stores import MemoryStore

ANN, BEN, EVE = User("ann", "acme"), User("ben", "acme"), User("ann", "other")
KEYS = SigningKeys(["a signing key for tests"])


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def wanted(call_id: str, **more: Any) -> Wanted:
    return Wanted(call_id, "search", "client_tool", f"handle of {call_id}", {"n": 2**70}, "Run it.", **more)


def task(*ids: str, **more: Any) -> PendingTask:
    state = {"messages": [{"role": "user"}]}
    return PendingTask("t1", "ctx", "ann", "acme", tuple(map(wanted, ids)), state, [{"name": "search"}], **more)


@asynccontextmanager
async def stores(kind: str, folder: Path) -> AsyncGenerator[Any, None]:
    store: Any = MemoryStore() if kind == "memory" else SqlStore(f"sqlite:///{folder / 'pending.db'}")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Any, None]:
    async with stores(request.param, tmp_path) as opened:
        yield opened


def tasks_in(store: Any, clock: Any = None, keys: SigningKeys = KEYS) -> PendingTasks:
    return PendingTasks(lambda: store.suspensions, keys, clock or Clock())


async def test_a_task_comes_back_as_it_was_kept_in_any_process(store: Any) -> None:
    """Contract 40, C8, I16."""
    kept = await tasks_in(store).hold(task("c1", "c2"))
    found = await tasks_in(store).find(ANN, "t1")
    assert found == kept
    assert found is not None
    assert found.wanted[0].arguments == {"n": 2**70}


@pytest.mark.parametrize("who", [BEN, EVE, User("ann")])
async def test_nobody_else_finds_a_task(store: Any, who: User) -> None:
    """B6, I8."""
    tasks = tasks_in(store)
    await tasks.hold(task("c1"))
    assert await tasks.find(who, "t1") is None
    assert await tasks.find(ANN, "t2") is None


async def test_an_answer_counts_once(store: Any) -> None:
    """Contract 40, C8."""
    tasks = tasks_in(store)
    kept = await tasks.hold(task("c1", "c2"))
    after = await tasks.answer(kept, {"c1": Answer({"n": 1}, tool="search")})
    assert [one.call_id for one in after.open(Clock.now)] == ["c2"]
    for known, refused in ((kept, StoreConflict), (after, NotPending)):
        with pytest.raises(refused):
            await tasks.answer(known, {"c1": Answer(2)})
    found = await tasks.find(ANN, "t1")
    assert found is not None
    assert found.wanted[0].answer == Answer({"n": 1}, tool="search")


@pytest.mark.parametrize(
    "answers",
    [
        {"c9": Answer(1)},
        {"c1": Answer(1), "c9": Answer(1)},
        {"c1": Answer(1, tool="refund")},
    ],
)
async def test_an_answer_to_a_call_that_does_not_wait_changes_nothing(store: Any, answers: Any) -> None:
    """Contract 40, C8."""
    tasks = tasks_in(store)
    kept = await tasks.hold(task("c1"))
    with pytest.raises(NotPending):
        await tasks.answer(kept, answers)
    assert await tasks.find(ANN, "t1") == kept


async def test_of_two_answers_at_once_one_counts(store: Any) -> None:
    """Contract 40, I16."""
    tasks = tasks_in(store)
    kept = await tasks.hold(task("c1"))
    ended = await asyncio.gather(
        *(tasks.answer(kept, {"c1": Answer(number)}) for number in range(8)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in ended) == ["PendingTask"] + ["StoreConflict"] * 7


async def test_a_task_is_taken_once_and_then_by_nobody_else(store: Any) -> None:
    """C8, I16."""
    tasks = tasks_in(store)
    kept = await tasks.answer(await tasks.hold(task("c1")), {"c1": Answer(1)})
    ended = await asyncio.gather(*(tasks.take(kept) for _ in range(8)), return_exceptions=True)
    taken = [one for one in ended if isinstance(one, PendingTask)]
    assert len(taken) == 1
    assert await tasks.find(ANN, "t1") is None
    held = await tasks.hold(replace(taken[0], wanted=(wanted("c2"),)))
    assert await tasks.find(ANN, "t1") == held
    assert held.taken_at is None


async def test_a_task_that_is_over_takes_nothing_any_more(store: Any) -> None:
    """Contract 40: late results."""
    tasks = tasks_in(store)
    kept = await tasks.hold(task("c1"))
    assert await tasks.end(kept)
    assert not await tasks.end(kept)
    assert await tasks.find(ANN, "t1") is None
    for late in (tasks.answer(kept, {"c1": Answer(1)}), tasks.take(kept), tasks.hold(kept), tasks.hold(task("c1"))):
        with pytest.raises(StoreConflict):
            await late


async def test_what_is_late_is_not_wanted(store: Any) -> None:
    """Contract 40, C8: expiry."""
    clock = Clock()
    tasks = tasks_in(store, clock)
    pending = replace(task(), wanted=(wanted("c1", expires_at=clock.now + 60), wanted("c2")))
    kept = await tasks.hold(pending)
    clock.now += 60
    assert [one.call_id for one in kept.open(clock.now)] == ["c2"]
    with pytest.raises(NotPending):
        await tasks.answer(kept, {"c1": Answer(1)})
    clock.now += LONGEST_WAIT
    assert await tasks.find(ANN, "t1") is None


async def test_a_decided_call_is_settled_once(store: Any) -> None:
    """I5, I16."""
    tasks = tasks_in(store)
    kept = await tasks.settle(await tasks.hold(task("c1", "c2")), "c1", {"outcome": "success"})
    assert [one.call_id for one in kept.open(Clock.now)] == ["c2"]
    with pytest.raises(NotPending):
        await tasks.settle(kept, "c1", {"outcome": "denied"})
    with pytest.raises(NotPending):
        await tasks.settle(kept, "c9", {"outcome": "denied"})


CHANGES: dict[str, Any] = {
    "id": "task:t2",
    "kind": "approval",
    "tool": "refund",
    "user": "ben",
    "made_at": 1.0,
    "expires_at": None,
    "body": b"{}",
    "mac": "0" * 64,
    "state": SuspensionState.USED,
    "number": 7,
}


@pytest.mark.parametrize("field", [one.name for one in fields(SuspensionRecord)])
async def test_a_record_that_anybody_changed_is_not_there(field: str) -> None:
    """B8, T7: each field."""
    store = MemoryStore()
    tasks = tasks_in(store)
    await tasks.hold(task("c1"))
    (at,) = store.suspensions._suspensions
    changed = replace(store.suspensions._suspensions[at], **{field: CHANGES[field]})
    for place in (at, ("acme", "task:t2")):
        store.suspensions._suspensions[place] = changed
        assert await tasks.find(ANN, place[1].removeprefix("task:")) is None
        assert await tasks.find(BEN, place[1].removeprefix("task:")) is None


@given(st.data())
async def test_no_bit_of_a_record_can_be_turned(data: Any) -> None:
    """B8, T7: each byte."""
    store = MemoryStore()
    tasks = tasks_in(store)
    await tasks.hold(task("c1"))
    (at,) = store.suspensions._suspensions
    body = bytearray(store.suspensions._suspensions[at].body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    store.suspensions._suspensions[at] = replace(store.suspensions._suspensions[at], body=bytes(body))
    assert await tasks.find(ANN, "t1") is None


async def test_without_its_mac_a_changed_record_would_be_believed() -> None:
    """B8: the control of the two above."""

    class Gullible(SigningKeys):
        def verify(self, mac: str, *parts: bytes) -> bool:
            return True

    store = MemoryStore()
    await tasks_in(store).hold(task("c1"))
    (at,) = store.suspensions._suspensions
    store.suspensions._suspensions[at] = replace(store.suspensions._suspensions[at], user="ben")
    assert await tasks_in(store).find(BEN, "t1") is None
    assert await tasks_in(store, keys=Gullible()).find(BEN, "t1") is not None


async def test_another_key_reads_nothing() -> None:
    """B8."""
    store = MemoryStore()
    await tasks_in(store).hold(task("c1"))
    assert await tasks_in(store, keys=SigningKeys(["another key for tests"])).find(ANN, "t1") is None
