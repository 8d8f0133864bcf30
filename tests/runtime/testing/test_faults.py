"""``Faulty`` and ``FaultyStore``: the n-th call fails, the others do not, and isinstance and signatures stay the same."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import Gate, Provide, tool
from callgate.errors import ProviderError
from callgate.stores import MemoryStore
from callgate.testing import Faulty, FaultyStore, InjectedFault, VirtualTime, faults_of, run_virtual, trace


class Db:
    """Something to provide."""

    size = 3

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get(self, key: str) -> str:
        self.asked.append(key)
        return key.upper()

    def plain(self, key: str) -> str:
        self.asked.append(key)
        return key

    async def rows(self, n: int) -> AsyncIterator[int]:
        for row in range(n):
            yield row

    def __len__(self) -> int:
        return self.size


@tool(effect="read")
async def look_up(key: str, db: Annotated[Db, Provide[Db]]) -> str:
    """Look a key up."""
    return await db.get(key)


# ---------------------------------------------------------------------- instances


def test_the_calls_named_fail_and_nothing_of_the_target_runs() -> None:
    async def run() -> None:
        db = Db()
        faulty = Faulty(db, fails_at=[2, 3])
        assert await faulty.get("a") == "A"
        for _ in range(2):
            with pytest.raises(InjectedFault, match=r"\(get\) fails on purpose"):
                await faulty.get("b")
        assert faulty.plain("c") == "c"
        assert db.asked == ["a", "c"]
        assert (faults_of(faulty).log, faults_of(faulty).injected) == (["get", "get", "get", "plain"], [2, 3])

    run_virtual(run())


def test_plain_methods_and_generators_fail_too() -> None:
    async def run() -> None:
        faulty = Faulty(Db(), fails_at=[1, 3])
        with pytest.raises(InjectedFault):
            faulty.plain("a")
        assert [row async for row in faulty.rows(2)] == [0, 1]
        with pytest.raises(InjectedFault):
            [row async for row in faulty.rows(2)]

    run_virtual(run())


def test_a_call_is_slow_hangs_or_raises_what_it_is_told(virtual_time: VirtualTime) -> None:
    async def run() -> None:
        slow = Faulty(Db(), fails_at=1, delay=30.0)
        assert await slow.get("a") == "A"
        assert virtual_time.elapsed == pytest.approx(30, abs=0.1)
        hangs = Faulty(Db(), every=1, hang=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hangs.get("a"), 60)
        with pytest.raises(TypeError, match="cannot hang"):
            hangs.plain("a")
        for error in KeyError("k"), KeyError, lambda: KeyError("k"):
            with pytest.raises(KeyError):
                await Faulty(Db(), fails_at=1, error=error).get("a")

    virtual_time.run(run())


def test_only_the_methods_named_are_counted() -> None:
    async def run() -> None:
        faulty = Faulty(Db(), every=1, only={"get"})
        assert faulty.plain("a") == "a"
        with pytest.raises(InjectedFault):
            await faulty.get("a")
        assert faults_of(faulty).calls == 1

    run_virtual(run())


def test_to_everybody_else_it_is_the_target() -> None:
    db = Db()
    faulty = Faulty(db)
    assert isinstance(faulty, Db)
    assert (faulty.size, len(faulty), faulty == db, hash(faulty) == hash(db)) == (3, 3, True, True)
    faulty.size = 5
    assert db.size == 5
    assert inspect.iscoroutinefunction(faulty.get)
    assert inspect.isfunction(Faulty(lambda: 1))
    assert inspect.isclass(Faulty(Db))
    assert str(inspect.signature(Faulty(make_db))) == str(inspect.signature(make_db))
    assert "faulty" in repr(faulty)
    with pytest.raises(TypeError, match="not made by"):
        faults_of(db)


@pytest.mark.parametrize("options", [{"fails_at": 0}, {"fails_at": [1, -1]}, {"every": 0}])
def test_calls_are_counted_from_one(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="1"):
        Faulty(Db(), **options)


@given(st.sets(st.integers(1, 12)), st.none() | st.integers(1, 5))
def test_exactly_the_calls_that_were_asked_for_fail(at: set[int], every: int | None) -> None:
    faulty = Faulty(Db(), fails_at=at, every=every)
    failed = set()
    for number in range(1, 13):
        try:
            faulty.plain("x")
        except InjectedFault:
            failed.add(number)
    assert failed == at | ({n for n in range(1, 13) if n % every == 0} if every else set())


# ---------------------------------------------------------------------- factories


def make_db() -> Db:
    return Db()


async def make_db_later() -> Db:
    return Db()


def open_db() -> Iterator[Db]:
    yield Db()


async def connect_db() -> AsyncIterator[Db]:
    yield Db()


@asynccontextmanager
async def managed_db() -> AsyncGenerator[Db, None]:
    yield Db()


FACTORIES: list[Callable[[], Any]] = [make_db, make_db_later, open_db, connect_db, managed_db, Db]


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
async def test_a_gate_takes_a_faulty_factory_of_any_kind_for_the_factory(factory: Callable[[], Any]) -> None:
    """Contract 85; design 3."""
    faulty = Faulty(factory, fails_at=1)
    gate = Gate([look_up], provide={Db: faulty})
    with pytest.raises(ProviderError) as failed:
        await gate.__aenter__()
    assert isinstance(failed.value.__cause__, InjectedFault)
    async with gate:  # the second time it is well
        assert (await trace(gate, look_up, {"key": "a"})).output == "A"
    assert faults_of(faulty).calls == 2


async def test_a_faulty_instance_fails_a_call_and_not_the_next() -> None:
    db = Faulty(Db(), fails_at=1)
    async with Gate([look_up], provide={Db: db}) as gate:
        failed = await trace(gate, look_up, {"key": "a"})
        assert failed.error is not None
        assert isinstance(failed.error.__cause__, InjectedFault)
        assert (await trace(gate, look_up, {"key": "a"})).output == "A"


# ---------------------------------------------------------------------- stores


class Transaction:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.pending: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self.store.open += 1
        return self

    async def put(self, key: str, n: int) -> None:
        self.pending[key] = n

    async def __aexit__(self, *error: object) -> None:
        self.store.open -= 1
        if error[0] is None:
            self.store.rows.update(self.pending)


class Store:
    """Rows in memory."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.open = 0

    async def add(self, key: str, n: int) -> int:
        await asyncio.sleep(0)
        self.rows[key] += n
        return self.rows[key]

    def later(self, key: str) -> Any:
        """Plain, and gives something to await."""
        return self.add(key, 1)

    async def scan(self) -> AsyncIterator[str]:
        for key in list(self.rows):
            yield key

    def transaction(self) -> Transaction:
        return Transaction(self)

    def name(self) -> str:
        return "rows"


@pytest.mark.parametrize("method", ["add", "later"])
def test_before_means_that_it_did_not_happen_and_after_that_its_answer_is_lost(method: str) -> None:
    def add(store: Store, key: str) -> Any:
        return store.add(key, 1) if method == "add" else store.later(key)

    async def run() -> None:
        before, after = Store(), Store()
        store = FaultyStore(before, 2)
        assert await add(store, "a") == 1
        with pytest.raises(InjectedFault):
            await add(store, "a")
        assert await add(store, "a") == 2
        store = FaultyStore(after, fail_at=2, when="after")
        assert await add(store, "a") == 1
        with pytest.raises(InjectedFault):
            await add(store, "a")
        assert await add(store, "a") == 3
        assert before.rows["a"] == 2
        assert after.rows["a"] == 3

    run_virtual(run())


def test_what_is_not_awaited_is_not_an_operation() -> None:
    async def run() -> None:
        store = FaultyStore(Store(), every=1)
        assert store.name() == "rows"
        assert faults_of(store).calls == 0
        with pytest.raises(InjectedFault):
            [key async for key in store.scan()]
        assert faults_of(store).log == ["scan"]

    run_virtual(run())


def test_without_a_number_it_counts() -> None:
    async def run() -> list[str]:
        store = FaultyStore(Store())
        await store.add("a", 1)
        async with store.transaction() as rows:
            await rows.put("b", 2)
        return faults_of(store).log

    assert run_virtual(run()) == ["add", "transaction.enter", "transaction.put", "transaction.exit"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_transaction_fails_at_each_of_its_operations_and_is_never_left_open(n: int, when: Any) -> None:
    async def run() -> None:
        inner = Store()
        store = FaultyStore(inner, n, when=when)
        with pytest.raises(InjectedFault):
            async with store.transaction() as rows:
                await rows.put("b", 2)
        committed = (n, when) == (3, "after")
        assert inner.rows == ({"b": 2} if committed else {})
        assert not inner.open, "also where it was entered and the caller does not know"

    run_virtual(run())


def test_a_store_that_waits_is_slow_only_at_its_faults(virtual_time: VirtualTime) -> None:
    async def run() -> None:
        store = FaultyStore(Store(), 2, delay=5.0)
        for _ in range(3):
            await store.add("a", 1)

    virtual_time.run(run())
    assert virtual_time.elapsed == pytest.approx(5, abs=0.1)


def test_a_fault_at_another_moment_is_refused() -> None:
    """``when="during"`` failed before the operation, so a test of a lost result tried something else."""
    other: Any = "during"
    with pytest.raises(ValueError, match="when is 'during'; give 'before' or 'after'"):
        FaultyStore(object(), 1, when=other)


@pytest.mark.parametrize("wrong", [{"fail_at": [1.5]}, {"fail_at": ["claim"]}, {"fail_at": True}, {"every": 2.0}])
def test_a_number_that_is_none_is_refused(wrong: Any) -> None:
    """No call would have had a fault, so the test of it passed."""
    with pytest.raises(TypeError, match="calls have numbers from 1"):
        FaultyStore(MemoryStore(), **wrong)
