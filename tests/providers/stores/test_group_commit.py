"""Group commit: each change has its own outcome, in order, whatever happens to the others of its transaction."""

from __future__ import annotations

import asyncio
import gc
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores import group_commit
from callgate.providers.stores.group_commit import GroupCommit, RolledBack


@dataclass(eq=False)
class Database:
    """Commits names. ``wrong`` fail, ``locked`` wait for a row, and ``lost`` is the commit of which nobody hears."""

    wrong: frozenset[str] = frozenset()
    locked: frozenset[str] = frozenset()
    lost: int | None = None
    batches: list[list[str]] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    unlock: asyncio.Event = field(default_factory=asyncio.Event)
    stays: bool = False
    aside_batches: list[list[str]] = field(default_factory=list)
    waiting: int = 0

    async def write(self, names: Sequence[str]) -> list[str]:
        """One transaction; it waits for ``gate``."""
        self.batches.append(list(names))
        await self.gate.wait()
        if self.locked.intersection(names):
            raise RolledBack(StoreError("a row is locked"), waited=True)
        if self.wrong.intersection(names):
            raise RolledBack(StoreConflict(f"{len(names)} changes"))
        self.committed += names
        if len(self.batches) - 1 == self.lost:
            raise StoreError("the connection is lost")
        return [f"did {name}" for name in names]

    async def aside(self, names: Sequence[str]) -> list[str]:
        """One transaction on another connection; it waits for ``unlock``, and in vain where the row stays locked."""
        self.aside_batches.append(list(names))
        self.waiting += 1
        await self.unlock.wait()
        self.waiting -= 1
        if self.stays:
            raise RolledBack(StoreError("a row is locked"), waited=True)
        self.committed += names
        return [f"did {name}" for name in names]

    def group(self, limit: int = 256) -> GroupCommit[str]:
        return GroupCommit(self.transact, limit=limit)

    async def transact(self, names: Sequence[str], wait: int) -> list[str]:
        return await (self.aside if wait == group_commit.ASIDE_WAIT_MS else self.write)(names)


async def written(group: GroupCommit[str], name: str, key: str, **how: Any) -> Any:
    """A caller, which waits for its change."""
    return await group.put(name, key, **how)


def put(group: GroupCommit[str], name: str, key: str | None = None, *, withdraw: bool = False) -> asyncio.Task[Any]:
    return asyncio.create_task(written(group, name, key or name, withdraw=withdraw))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_arrives_during_a_transaction_is_the_next_one_in_order() -> None:
    """Issue 16 A2: a batch waits for nobody."""
    database = Database()
    group = database.group()
    first = put(group, "a")
    await turns()
    assert database.batches == [["a"]]
    others = [put(group, name) for name in "bcd"]
    await turns()
    database.gate.set()
    assert await asyncio.gather(first, *others) == ["did a", "did b", "did c", "did d"]
    assert database.batches == [["a"], ["b", "c", "d"]]


async def test_a_batch_has_a_limit_and_the_order_stays() -> None:
    """Issue 16 A2: order is kept."""
    database = Database()
    database.gate.set()
    group = database.group(limit=2)
    assert await asyncio.gather(*(put(group, name) for name in "abcde")) == [f"did {name}" for name in "abcde"]
    assert database.batches == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize("withdraw", [True, False], ids=["claims", "outcomes"])
async def test_the_callers_of_a_transaction_go_on_a_few_at_a_time(withdraw: bool) -> None:
    """Issue 34, 5: what follows a claim is a tool and its output; 200 in one turn stopped the loop for seconds."""
    database, number = Database(), 200
    group, gone_on = database.group(), list[int]()

    async def caller(name: str) -> None:
        await group.put(name, name, withdraw=withdraw)
        gone_on[-1] += 1

    callers = [asyncio.ensure_future(caller(f"n{each}")) for each in range(number)]
    await turns()
    database.gate.set()
    while not all(one.done() for one in callers):
        gone_on.append(0)
        await asyncio.sleep(0)
    assert sum(gone_on) == number
    assert max(gone_on) <= 16


async def test_callers_whose_changes_are_written_hear_it_also_when_the_writer_is_stopped() -> None:
    """A result that is known is never lost between two turns."""
    database = Database()
    group = database.group()
    puts = [put(group, f"n{each}") for each in range(100)]
    await turns()
    database.gate.set()
    await puts[0]
    assert not puts[-1].done()
    writer = group._task
    assert writer is not None
    writer.cancel()
    assert await asyncio.gather(*puts) == [f"did n{each}" for each in range(100)]


async def test_changes_of_one_key_are_never_in_one_transaction_and_stay_in_order() -> None:
    """Issue 16 A2: PostgreSQL refuses a statement that changes a row twice."""
    database = Database()
    database.gate.set()
    group = database.group()
    pairs = [("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a"), ("c1", "c"), ("b2", "b")]
    await asyncio.gather(*(put(group, name, key) for name, key in pairs))
    assert database.batches == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


async def test_a_change_that_fails_takes_no_other_along() -> None:
    """Issue 16 A2: a failed batch is retried one by one."""
    database = Database(wrong=frozenset("c"))
    database.gate.set()
    group = database.group()
    told = await asyncio.gather(*(put(group, name) for name in "abcd"), return_exceptions=True)
    assert (told[0], told[1], told[3]) == ("did a", "did b", "did d")
    assert isinstance(told[2], StoreConflict)
    assert str(told[2]) == "1 changes"
    assert Counter(database.committed) == Counter("abd")


async def test_a_change_that_waits_for_a_row_lets_the_others_pass() -> None:
    """Issue 16 A2: it is written on a connection of its own."""
    database = Database(locked=frozenset("b"))
    database.gate.set()
    group = database.group()
    tasks = [put(group, name) for name in "abc"]
    assert [await tasks[0], await tasks[2]] == ["did a", "did c"]
    assert await group.put("d", "d", withdraw=False) == "did d"
    assert not tasks[1].done()
    database.unlock.set()
    assert await tasks[1] == "did b"


@pytest.mark.parametrize("size", [2, 3, 64, 200])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
async def test_a_failed_batch_is_halved_until_only_the_change_at_fault_is_left(size: int, place: str) -> None:
    """Issue 34, 5: one caller with a NUL must not cost the others a transaction each."""
    names = [f"n{number}" for number in range(size)]
    wrong = names[{"first": 0, "middle": size // 2, "last": -1}[place]]
    database = Database(wrong=frozenset([wrong]))
    database.gate.set()
    group = database.group()
    told = await asyncio.gather(*(put(group, name) for name in names), return_exceptions=True)
    assert [name for name, one in zip(names, told, strict=True) if isinstance(one, StoreError)] == [wrong]
    assert Counter(database.committed) == Counter(set(names) - {wrong})
    assert len(database.batches) <= 1 + 2 * math.ceil(math.log2(size))


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([3, 3, 3, 3], [["0", "1"], ["2", "3"]]),
        ([7, 7, 7], [["0"], ["1"], ["2"]]),
        ([99, 1, 1, 99, 99], [["0"], ["1", "2"], ["3"], ["4"]]),
        ([0] * 5, [["0", "1", "2", "3", "4"]]),
    ],
)
async def test_a_batch_has_a_limit_in_bytes(
    sizes: list[int], batches: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 5: 200 outputs of 1 MB were one statement of 400 MB. A change above the limit is written alone."""
    monkeypatch.setattr(group_commit, "MAX_BYTES", 8)
    database = Database()
    database.gate.set()
    group = GroupCommit[str](database.transact, size=lambda name: sizes[int(name)])
    names = [str(number) for number in range(len(sizes))]
    assert await asyncio.gather(*(put(group, name) for name in names)) == [f"did {name}" for name in names]
    assert database.batches == batches


async def test_repeats_of_a_locked_row_wait_with_it_and_meet_no_batch() -> None:
    """Issue 34, 5: each repeat in a batch would make all its other changes wait for the row."""
    database = Database(locked=frozenset({"b0", "b1", "b2", "b3"}))
    database.gate.set()
    group = database.group()
    before = [put(group, name, "b") for name in ("b0", "b1")]
    assert await put(group, "a") == "did a"
    await turns(20)
    during = [put(group, name, "b") for name in ("b2", "b3")]
    others = [put(group, name) for name in "cde"]
    assert await asyncio.gather(*others) == ["did c", "did d", "did e"]
    assert [one for batch in database.batches for one in batch if one != "b0" and one[0] == "b"] == []
    database.unlock.set()
    assert await asyncio.gather(*before, *during) == [f"did b{number}" for number in range(4)]
    assert database.committed[-4:] == ["b0", "b1", "b2", "b3"], "in order of arrival"
    database.locked = frozenset()
    assert await group.put("b4", "b", withdraw=False) == "did b4"
    assert database.batches[-1] == ["b4"], "a free row is written with the others again"


async def test_a_row_that_stays_locked_fails_those_that_wait_and_the_next_do_not_try_a_batch() -> None:
    """Issue 34, 5: one wait for all of them, and not one after another."""
    database = Database(locked=frozenset({"b0", "b1", "b2"}), stays=True)
    database.gate.set()
    group = database.group()
    tasks = [put(group, name, "b") for name in ("b0", "b1")]
    await turns(20)
    database.unlock.set()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(one) for one in told] == ["a row is locked"] * 2
    assert database.aside_batches == [["b0"]]
    tried = len(database.batches)
    assert isinstance((await asyncio.gather(put(group, "b2", "b"), return_exceptions=True))[0], StoreError)
    assert len(database.batches) == tried
    database.stays = False
    assert await put(group, "b3", "b") == "did b3"
    database.locked = frozenset()
    assert await put(group, "b4", "b") == "did b4"
    assert database.batches[-1] == ["b4"]


async def test_many_locked_rows_take_a_limited_number_of_connections() -> None:
    """Issue 34, 5."""
    names = [f"n{number}" for number in range(40)]
    database = Database(locked=frozenset(names))
    database.gate.set()
    group = database.group()
    tasks = [put(group, name) for name in names]
    await turns(300)
    assert database.waiting == group_commit.MAX_ASIDE
    assert await put(group, "free") == "did free"
    database.unlock.set()
    assert await asyncio.gather(*tasks) == [f"did {name}" for name in names]


async def test_changes_of_one_locked_row_that_may_share_a_transaction_share_it() -> None:
    """Issue 34, 5: as the requests to one rate limit."""
    database = Database(locked=frozenset({"q0", "q1", "q2"}))
    database.gate.set()
    group = database.group()
    tasks = [asyncio.ensure_future(group.put(f"q{n}", n, row="quota", withdraw=False)) for n in range(3)]
    assert await put(group, "a") == "did a"
    await turns(20)
    tasks += [asyncio.ensure_future(group.put(f"q{n}", n, row="quota", withdraw=False)) for n in range(3, 6)]
    database.unlock.set()
    assert await asyncio.gather(*tasks) == [f"did q{n}" for n in range(6)]
    assert len(database.aside_batches) <= 2


async def test_after_a_lost_commit_nothing_is_tried_again() -> None:
    """Issue 16 A2: it is unknown whether the changes are written, and they must not be doubled."""
    database = Database(lost=0)
    database.gate.set()
    group = database.group()
    told = await asyncio.gather(*(put(group, name) for name in "abc"), return_exceptions=True)
    assert [str(one) for one in told] == ["the connection is lost"] * 3
    assert len({id(one) for one in told}) == 3, "one exception for each caller"
    assert database.batches == [["a", "b", "c"]]
    assert await group.put("d", "d", withdraw=False) == "did d"


@pytest.mark.parametrize("withdraw", [True, False])
async def test_a_cancelled_caller_takes_a_claim_back_and_nothing_else(withdraw: bool) -> None:
    """Issue 16 A2: a cancelled caller neither loses nor doubles its row."""
    database = Database()
    group = database.group()
    under_way = put(group, "under way", withdraw=withdraw)
    await turns()
    waiting = put(group, "waiting", withdraw=withdraw)
    other = put(group, "other")
    await turns()
    for task in (under_way, waiting):
        task.cancel()
    await asyncio.wait([under_way, waiting])
    assert under_way.cancelled()
    assert waiting.cancelled()
    database.gate.set()
    assert await other == "did other"
    await group.close()
    assert database.committed == (["under way", "other"] if withdraw else ["under way", "waiting", "other"])


@pytest.mark.parametrize("is_taken", [True, False], ids=["in the transaction", "in the queue"])
@pytest.mark.parametrize("wrong", [False, True], ids=["", "wrong"])
@pytest.mark.parametrize("abandon", [True, False])
@pytest.mark.parametrize("way", ["cancelled", "closed", "cancelled as the answer comes"])
async def test_a_change_that_is_not_withdrawn_is_written_however_its_caller_ends(
    way: str, abandon: bool, wrong: bool, is_taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller that was cancelled can still hear of the result, unless the change had it already."""
    database = Database(wrong=frozenset("a" if wrong else ""))
    group = GroupCommit(database.transact, abandon=abandon)
    before = None if is_taken else put(group, "before")
    await turns()
    told: list[tuple[str, asyncio.Future[Any]]] = []
    caller = written(group, "a", "a", withdraw=False, late=lambda *told_late: told.append(told_late))
    task = None if way == "closed" else asyncio.ensure_future(caller)
    if task is None:
        asyncio.get_running_loop().call_soon(caller.send, None)
    await turns()
    if way == "cancelled as the answer comes":
        database.gate.set()
        await (before or turns(1))
    if task is None:
        caller.close()
    else:
        task.cancel()
        await asyncio.wait([task])
    database.gate.set()
    await group.close()
    assert database.committed.count("a") == (not wrong)
    for name, done in told:
        assert name == "a"
        assert isinstance(done.exception(), StoreConflict) if wrong else done.result() == "did a"
    assert len(told) in {"cancelled": [1], "closed": [0]}.get(way, [0, 1])
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("abandon", [True, False])
async def test_a_transaction_that_nobody_waits_for_gives_its_connection_up_to_the_next(abandon: bool) -> None:
    """A connection that does not answer: the callers give up, and those that come next must not wait on it as well."""
    database = Database()
    group = GroupCommit(database.transact, abandon=abandon)
    first = [put(group, "a", withdraw=True)]
    await turns()
    first += [put(group, name, withdraw=True) for name in "bc"]
    await turns()
    first[0].cancel()
    await turns(20)
    assert len(database.batches) == (2 if abandon else 1)
    first[1].cancel()
    await turns(20)
    assert len(database.batches) == (2 if abandon else 1), "one caller of the second transaction is left"
    database.gate.set()
    assert await first[2] == "did c"
    await group.close()
    assert database.committed == (["b", "c"] if abandon else ["a", "c"])


async def test_a_failure_that_no_caller_waits_for_is_no_message_of_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    database = Database(wrong=frozenset("a"))
    group = database.group()
    caller = put(group, "a")
    await turns()
    caller.cancel()
    await asyncio.wait([caller])
    del caller
    database.gate.set()
    await group.close()
    gc.collect()
    assert not caplog.records


async def test_closing_waits_for_what_is_left() -> None:
    """Issue 16 A2."""
    database = Database(locked=frozenset("b"))
    group = database.group()
    tasks = [put(group, name) for name in "ab"]
    await turns()
    closing = asyncio.ensure_future(group.close())
    database.gate.set()
    await turns(20)
    assert not closing.done()
    database.unlock.set()
    await closing
    assert [task.result() for task in tasks] == ["did a", "did b"]


async def test_a_writer_that_is_stopped_leaves_no_caller_waiting() -> None:
    """Issue 16 A2: as at the end of an event loop."""
    database = Database()
    group = database.group()
    tasks = [put(group, name) for name in "ab"]
    await turns()
    late = put(group, "c")
    await turns()
    assert group._task is not None
    group._task.cancel()
    told = await asyncio.gather(*tasks, late, return_exceptions=True)
    assert [type(one) for one in told] == [StoreError] * 3
    assert "was stopped" in str(told[2])


def test_an_event_loop_that_ended_in_the_middle_keeps_nothing_from_the_next_one() -> None:
    """Issue 16 A2: the task of the first one never ends, and what waited there is not written twice."""
    database = Database()
    group = database.group()
    first = asyncio.new_event_loop()
    old = [first.create_task(written(group, name, name, withdraw=False)) for name in "ab"]
    first.run_until_complete(turns())
    database.gate = asyncio.Event()
    database.gate.set()
    assert asyncio.run(written(group, "c", "c", withdraw=False)) == "did c"
    assert database.committed == ["c"]
    asyncio.run(group.close())
    for task in (*old, *asyncio.all_tasks(first)):
        task.cancel()
    first.run_until_complete(turns())
    first.close()


# ---------------------------------------------------------------------- programs


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef"), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(False)),
        st.tuples(st.just("turns"), st.integers(1, 6), st.just(False)),
    ),
    max_size=30,
)


async def live(steps: Sequence[Any], database: Database, limit: int, group: GroupCommit[str]) -> None:
    """Run the steps, and compare what callers were told with what was committed."""
    tasks: dict[str, tuple[asyncio.Task[Any], bool]] = {}
    arrived = set[str]()
    database.gate.set()

    async def arrive(name: str, key: str, withdraw: bool) -> Any:
        arrived.add(name)
        return await written(group, name, key, withdraw=withdraw)

    for kind, what, withdraw in steps:
        if kind == "put":
            name = f"{what}{len(tasks)}"
            tasks[name] = asyncio.ensure_future(arrive(name, what, withdraw)), withdraw
        elif kind == "cancel" and tasks:
            list(tasks.values())[what % len(tasks)][0].cancel()
        elif kind == "turns":
            await turns(what)
    database.unlock.set()
    await asyncio.gather(*(task for task, _ in tasks.values()), return_exceptions=True)
    await group.close()
    done = Counter(database.committed)
    assert max(done.values(), default=0) <= 1, "a change was written twice"
    assert all(len(batch) <= limit for batch in database.batches)
    for batch in database.batches:
        assert len({name[0] for name in batch}) == len(batch), "one key twice in a transaction"
    for name, (task, withdraw) in tasks.items():
        if task.cancelled():
            assert withdraw or name not in arrived or name[0] in database.wrong or done[name] == 1, "a row was lost"
        elif task.exception() is not None:
            assert name[0] in database.wrong, "a change paid for another one"
            assert not done[name]
        else:
            assert task.result() == f"did {name}"
            assert done[name] == 1
    for key in "abcdef":
        if key not in database.locked:
            order = [name for name in database.committed if name[0] == key]
            assert order == sorted(order, key=lambda name: int(name[1:])), "the order of a key"


class Names(Database):
    """A database of names whose first letter is the key."""

    async def write(self, names: Sequence[str]) -> list[str]:
        await asyncio.sleep(0)
        keys = {name[0] for name in names}
        self.batches.append(list(names))
        if keys & self.locked:
            raise RolledBack(StoreError("a row is locked"), waited=True)
        if keys & self.wrong:
            raise RolledBack(StoreConflict("wrong"))
        self.committed += names
        return [f"did {name}" for name in names]


@settings(max_examples=200, deadline=None)
@given(STEPS, st.frozensets(st.sampled_from("abc")), st.frozensets(st.sampled_from("cde")), st.integers(1, 4))
def test_whatever_arrives_fails_and_is_cancelled_each_change_has_its_own_outcome(
    steps: Any, wrong: frozenset[str], locked: frozenset[str], limit: int
) -> None:
    """Issue 16 A2."""

    async def run() -> None:
        database = Names(wrong - locked, locked)
        await live(steps, database, limit, database.group(limit))

    asyncio.run(run())


class Repeats(Names):
    """The control: it says that it was rolled back, and was not."""

    async def write(self, names: Sequence[str]) -> list[str]:
        done = await super().write(names)
        if len(names) > 1:
            raise RolledBack(StoreError("rolled back"))
        return done


class Mixes(Names):
    """The control: it answers in another order."""

    async def write(self, names: Sequence[str]) -> list[str]:
        return (await super().write(names))[::-1]


class Forgets(Names):
    """The control: it writes all but the last."""

    async def write(self, names: Sequence[str]) -> list[str]:
        done = await super().write(names)
        self.committed.pop()
        return done


@pytest.mark.parametrize("kind", [Repeats, Mixes, Forgets])
async def test_a_database_that_lies_is_found_out(kind: type[Names]) -> None:
    """The controls."""
    database = kind()
    with pytest.raises(AssertionError):
        await live([("put", "a", False), ("put", "b", False), ("put", "c", False)], database, 4, database.group(4))
