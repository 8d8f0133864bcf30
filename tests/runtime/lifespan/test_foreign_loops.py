"""A gate or a store that is open in one event loop, used from another: it is refused, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Denied, Effects, Gate, GateClosed, ToolCall, User, tool
from callgate.errors import StoreError
from callgate.providers.stores.base import Limit
from callgate.stores import store_at
from tests.providers.stores.backends import place

KEY = "a key of the tests, long enough"
ANN, LEA = User("ann", "acme"), User("lea", "acme")
LONG = 20.0
"""Seconds that no refusal takes."""


@tool(effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


@tool(effect="irreversible", key=("n",), requires_approval=True)
async def send(n: int) -> int:
    """Send."""
    return n


ASK = ToolCall(id="c1", name="look", arguments={"n": 1})


async def events_of(events: Any) -> list[Any]:
    return [event async for event in events]


async def in_session(gate: Gate) -> None:
    async with gate.session("s1", user=ANN) as bound:
        await bound.invoke("look", {"n": 1})


USES: dict[str, Callable[[Gate, str, str], Any]] = {
    "call": lambda gate, handle, job: gate.call(ASK),
    "call_many": lambda gate, handle, job: gate.call_many([ASK]),
    "call_many in a worker": lambda gate, handle, job: gate.call_many([ASK], run_on="worker"),
    "invoke": lambda gate, handle, job: gate.invoke(look, {"n": 1}),
    "stream": lambda gate, handle, job: events_of(gate.stream(look, {"n": 1})),
    "would": lambda gate, handle, job: gate.would(look, {"n": 1}),
    "refuse": lambda gate, handle, job: gate.refuse(ASK, Denied("late")),
    "record_elsewhere": lambda gate, handle, job: gate.record_elsewhere(ASK),
    "submit": lambda gate, handle, job: gate.submit(look, {"n": 1}, user=ANN),
    "submit_many": lambda gate, handle, job: gate.submit_many([ASK], user=ANN),
    "job.status": lambda gate, handle, job: gate.job(job, user=ANN).status(),
    "job.result": lambda gate, handle, job: gate.job(job, user=ANN).result(),
    "job.settled": lambda gate, handle, job: gate.job(job, user=ANN).settled(),
    "job.events": lambda gate, handle, job: events_of(gate.job(job, user=ANN).events()),
    "job.cancel": lambda gate, handle, job: gate.job(job, user=ANN).cancel(),
    "jobs.run_invocation": lambda gate, handle, job: gate.jobs.run_invocation(job),
    "resume": lambda gate, handle, job: gate.resume(handle, "approve", approver=LEA),
    "resume elsewhere": lambda gate, handle, job: gate.resume(handle, "approve", approver=LEA, here=False),
    "resume with a denial": lambda gate, handle, job: gate.resume(handle, "deny", approver=LEA),
    "proceed": lambda gate, handle, job: gate.proceed(handle, user=ANN),
    "proceed_stream": lambda gate, handle, job: events_of(gate.proceed_stream(handle, user=ANN)),
    "repeat_read": lambda gate, handle, job: gate.repeat_read(handle, ANN, deadline=None),
    "resolution": lambda gate, handle, job: gate.resolution(handle, ANN),
    "outcome": lambda gate, handle, job: gate.outcome(handle, user=ANN),
    "waits.pending": lambda gate, handle, job: gate.waits.pending(LEA),
    "waits.look": lambda gate, handle, job: gate.waits.look(handle, LEA),
    "waits.withdraw": lambda gate, handle, job: gate.waits.withdraw(handle, ANN),
    "session": lambda gate, handle, job: in_session(gate),
    "end_session": lambda gate, handle, job: gate.end_session("s1"),
    "maintain": lambda gate, handle, job: gate.maintain(),
    "open": lambda gate, handle, job: gate.open(),
    "close": lambda gate, handle, job: gate.close(),
}
NEED_NO_LOOP = {"mount", "pick", "repair", "replay"}
"""Methods that wait, and use neither the store nor an instance: ``mount`` opens a connection of its own here."""


@contextmanager
def open_elsewhere(store: Any) -> Generator[tuple[Gate, str, str]]:
    """A gate that is open in an event loop that goes on, with a suspended call and a job that is not due."""
    gate = Gate([look, send], allow_unguarded=True, store=store, signing_keys=[KEY], effects=Effects(durable=False))
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[str, str]:
        await gate.open()
        waits = (await gate.call(ToolCall(id="c2", name="send", arguments={"n": 2}), user=ANN)).pending
        assert waits is not None
        assert waits.handle is not None
        return waits.handle, (await gate.submit(look, {"n": 3}, user=ANN, delay=3_600.0)).id

    try:
        handle, job = loop.run_until_complete(begin())
        yield gate, handle, job
        waiting = loop.run_until_complete(gate.waits.pending(LEA))
        assert [one.handle for one in waiting] == [handle], "nothing was decided"
        assert loop.run_until_complete(gate.invoke(look, {"n": 4})) == 4, "its own loop goes on"
        loop.run_until_complete(gate.close())
    finally:
        loop.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
def test_each_use_of_a_gate_is_refused_in_another_event_loop(kind: str, tmp_path: Path) -> None:
    """A request to a connection of another loop waited for ever, and a job ran in a loop that was about to end."""
    with place(kind, tmp_path) as (where, _), open_elsewhere(where) as (gate, handle, job):
        refused = dict.fromkeys(USES, False)

        async def elsewhere(use: Callable[[Gate, str, str], Any]) -> None:
            async with asyncio.timeout(LONG):
                await use(gate, handle, job)

        for name, use in USES.items():
            try:
                asyncio.run(elsewhere(use))
            except GateClosed as error:
                refused[name] = "another event loop" in str(error)
        assert [name for name, is_refused in refused.items() if not is_refused] == []


def test_the_uses_are_all_that_a_gate_has() -> None:
    """The control: a new method that waits belongs to one of the two lists."""
    methods = ((name, one) for name, one in inspect.getmembers(Gate, inspect.isfunction) if name[0] != "_")
    kinds = ("Coroutine", "AsyncGenerator", "AsyncContextManager")
    waiting = {
        name
        for name, one in methods
        if inspect.iscoroutinefunction(one) or any(kind in str(inspect.signature(one)) for kind in kinds)
    }
    assert len(waiting) > len(NEED_NO_LOOP)
    assert waiting - NEED_NO_LOOP <= set(USES)


@pytest.mark.parametrize("kind", ["sqlite-memory", "sqlite-file", "postgresql", "redis"])
def test_a_store_that_is_open_in_an_event_loop_is_refused_in_another(kind: str, tmp_path: Path) -> None:
    """Two gates share it, or a hook is asked outside of a call, such as ``Consent.grant``."""
    with place(kind, tmp_path) as (where, _):
        store = store_at(where) if isinstance(where, str) else where
        loop, tenant = asyncio.new_event_loop(), uuid.uuid4().hex

        async def read() -> Any:
            async with asyncio.timeout(LONG):
                return await store.cache.get(tenant, "a key")

        async def write() -> Any:
            async with asyncio.timeout(LONG):
                return await store.quotas.take(tenant, "a key", Limit(5, 60.0))

        async def enter() -> None:
            async with asyncio.timeout(LONG):
                await store.open()

        loop.run_until_complete(store.open())
        for use in read, write, enter:
            with pytest.raises(StoreError, match="another event loop"):
                asyncio.run(use())
        assert loop.run_until_complete(read()) is None
        assert loop.run_until_complete(write()).remaining == 4, "nothing was written elsewhere"
        loop.run_until_complete(store.close())
        loop.close()

        async def again() -> None:
            await enter()
            await store.close()

        asyncio.run(again())  # it belongs to no loop any more
