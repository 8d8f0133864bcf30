"""A gate whose event loop was closed opens again in another one, as with one ``asyncio.run`` for each request."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest

from callgate import Effects, Gate, GateClosed, Provide, Scoped, configure_logging, tool
from callgate.stores import store_at
from tests.providers.stores.backends import POSTGRES, place

KINDS = ("memory", "sqlite-memory", "sqlite-file", "postgresql", "redis")
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Connection:
    """An instance that knows the event loop that it was made in."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()


class Visit(Connection):
    """The same, of a session."""


async def connection() -> AsyncGenerator[Connection]:
    yield Connection()


async def visit() -> AsyncGenerator[Visit]:
    yield Visit()


@tool(effect="keyed", key=("order",))
async def pay(
    order: str, *, by: Annotated[Connection, Provide[Connection]], to: Annotated[Visit, Provide[Visit]]
) -> bool:
    """Pay with instances; True if they belong to the running loop."""
    return by.loop is to.loop is asyncio.get_running_loop()


@tool(effect="read")
async def hang() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def cancelled_at_the_end(work: Coroutine[Any, Any, Any]) -> Any:
    """As Django does for an async view under WSGI."""
    return asyncio.run(work)


def closed_at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """As some test runners do: tasks that are under way never end."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
        gc.collect()  # the tasks that never end go here, and not within another test


@pytest.fixture
def logged() -> Generator[list[Any]]:
    found: list[Any] = []
    configure_logging(found.append)
    yield found
    configure_logging()


def make(address: str) -> Gate:
    return Gate(
        [pay, hang, add],
        allow_unguarded=True,
        store=address,
        signing_keys=["k" * 32],
        effects=Effects(durable=False),
        provide={Connection: connection, Visit: Scoped("session", visit)},
    )


async def request(gate: Gate, order: str, *, jobs: bool) -> list[Any]:
    """Open the gate, use all that it has, and leave calls under way."""
    await gate.open()
    found = [await gate.invoke(pay, {"order": order}, session_id="s")]
    if jobs:
        job = await gate.submit(add, {"a": 1, "b": 2})
        found.append((await job.result()).output == 3)
    hanging = asyncio.ensure_future(gate.call(hang, {}))
    await asyncio.sleep(0)
    assert not hanging.done()
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("kind", "run"),
    [
        *((kind, cancelled_at_the_end) for kind in KINDS),
        # The thread of a connection to SQLite reports to its loop, and raises if that is closed.
        *((kind, closed_at_once) for kind in KINDS if not kind.startswith("sqlite")),
    ],
)
def test_a_gate_opens_again_after_its_loop_was_closed(kind: str, run: Run, tmp_path: Path, logged: list[Any]) -> None:
    with place(kind, tmp_path) as (address, _):
        name = f"closed-loops-{uuid.uuid4().hex}"  # another run of this test may be under way
        at = f"{address}&application_name={name}" if kind == "postgresql" else address
        gate, earlier, now = make(at), set[int](), set[int]()
        for number in range(3):
            assert set(run(request(gate, f"{number}", jobs=kind != "redis"))) == {True}
            assert not gate.is_open
            if kind == "postgresql" and run is cancelled_at_the_end:  # else a task that never ends may hold one
                for _ in range(500):  # the server ends a closed connection a little later
                    if not (now := connected(name)) & earlier:
                        break
                assert not now & earlier, "connections of the earlier loop are left"
                earlier = now
        dropped = [one for one in logged if one["event"] == "gate.loop_closed"]
        assert [(one["instances"] > 0, one["level"]) for one in dropped] == [(True, "warning")] * 2

        async def last() -> None:
            async with gate:
                assert await gate.invoke(add, {"a": 1, "b": 2}) == 3

        asyncio.run(last())
        assert not gate.is_open
        gc.collect()


def connected(name: str) -> set[int]:
    """The processes of PostgreSQL that serve the gate of this name."""
    with psycopg.connect(POSTGRES) as server:
        found = server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name])
        return {row[0] for row in found}


def test_a_call_after_the_loop_was_closed_is_answered_with_the_line_to_write() -> None:
    gate = make("memory://")
    asyncio.run(request(gate, "1", jobs=False))
    with pytest.raises(GateClosed, match="open it again in this one"):
        asyncio.run(gate.invoke(add, {"a": 1, "b": 2}))
    with gate.sync() as tools:
        assert tools.invoke(add, {"a": 1, "b": 2}) == 3


def test_a_gate_whose_loop_is_not_closed_is_refused_elsewhere() -> None:
    """The control: another thread would use the connections of a loop that goes on."""
    gate = make("memory://")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(gate.open())
    with pytest.raises(GateClosed, match="another event loop"):
        asyncio.run(gate.open())
    assert gate.is_open
    loop.run_until_complete(gate.close())
    loop.close()


def test_gates_that_share_a_store_each_open_again(tmp_path: Path) -> None:
    store = store_at(f"sqlite:///{tmp_path}/shared.db")
    first, second = (Gate([add], allow_unguarded=True, store=store, signing_keys=["k" * 32]) for _ in range(2))

    async def leave_open() -> None:
        await first.open()
        await second.open()

    async def use() -> None:
        await first.open()
        await second.open()
        for gate in (first, second):
            assert (await (await gate.submit(add, {"a": 1, "b": 2})).result()).output == 3
        await first.close()
        assert (await (await second.submit(add, {"a": 1, "b": 2})).result()).output == 3
        await second.close()

    asyncio.run(leave_open())
    asyncio.run(use())
