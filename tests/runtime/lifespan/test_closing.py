"""Closing drains: no new call begins, calls under way end or are cancelled, and only then the providers close."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Outcome, Provide, ToolCall, ToolContext, tool
from callgate.errors import GateClosed, RegistrationError, ToolFailed
from callgate.runtime.conversation.converse import converse
from callgate.runtime.options.gate import Options
from callgate.runtime.pipeline.streams import Result
from callgate.runtime.pipeline.under_way import UnderWay
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.conversation.conversing import FakeModel, asks, says
from tests.runtime.gate.making import double, gate_of, made

DRAIN = 5.0


class Db:
    """A provider that notes when it closes."""

    def __init__(self) -> None:
        self.open = True


async def connect() -> AsyncIterator[Db]:
    db = Db()
    yield db
    db.open = False


class Desk:
    """A gate with a tool that waits until the test lets it go on, and then uses its provider."""

    def __init__(self) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.used: list[bool] = []

        @tool(effect="read")
        async def waits(n: int = 0, *, db: Annotated[Db, Provide[Db]]) -> int:
            """Wait, then use the database."""
            self.began.set()
            try:
                await self.go_on.wait()
            finally:
                self.used.append(db.open)
            return n

        @tool(effect="read")
        async def nests(ctx: ToolContext) -> Any:
            """Wait, then call another tool."""
            self.began.set()
            await self.go_on.wait()
            return await ctx.call("waits", {"n": 7})

        @tool(effect="read")
        async def calls_out() -> Any:
            """Wait, then call through the gate."""
            self.began.set()
            await self.go_on.wait()
            return await self.gate.invoke("waits", {"n": 7})

        @tool(effect="read")
        def blocks() -> int:
            """Wait in a thread."""
            loop.call_soon_threadsafe(self.began.set)
            assert self.door.wait(10)
            return 7

        loop, self.door = asyncio.get_running_loop(), threading.Event()
        self.gate = gate_of([waits, nests, calls_out, blocks], provide={Db: connect}, drain=DRAIN)


async def streams(gate: Gate) -> Any:
    events = [event async for event in gate.stream("waits", {"n": 7})]
    assert isinstance(events[-1], Result)
    return events[-1].result.output


async def many(gate: Gate) -> Any:
    """The second call begins only when the first has ended."""
    results = await gate.call_many([("waits", {"n": 7}), ("waits", {"n": 7})], at_once=1)
    assert [result.ok for result in results] == [True, True]
    return results[1].output


async def session(gate: Gate) -> Any:
    async with gate.session() as bound:
        await bound.invoke("waits", {"n": 1})
        return await asyncio.gather(bound.invoke("waits", {"n": 7}))  # a call of a task that the block started


async def generator(gate: Gate) -> Any:
    """A call inside an async generator, as an agent that streams makes it."""

    async def agent() -> AsyncGenerator[Any]:
        yield await gate.invoke("waits", {"n": 7})

    return [part async for part in agent()]


async def jobs(gate: Gate) -> Any:
    return (await (await gate.submit("waits", {"n": 7}))).output


async def conversation(gate: Gate) -> Any:
    """The second round begins after the gate has begun to close."""
    calls = [asks(ToolCall(id=id, name="waits", arguments={"n": 7})) for id in ("a", "b")]
    done = await converse(FakeModel(*calls, says("done")), gate, "hello")
    assert [one.result.output for one in done.calls] == [7, 7]
    return done.calls[1].result.output


KINDS: dict[str, Callable[[Gate], Awaitable[Any]]] = {
    "invoke": lambda gate: gate.invoke("waits", {"n": 7}),
    "call": lambda gate: gate.call("waits", {"n": 7}, trace=True),
    "nested call": lambda gate: gate.invoke("nests"),
    "call inside a tool": lambda gate: gate.invoke("calls_out"),
    "stream": streams,
    "call_many": many,
    "session": session,
    "conversation": conversation,
    "generator": generator,
    "job": jobs,
}


def seven(found: Any) -> bool:
    return found in (7, [7]) or found.output == 7


@pytest.mark.parametrize("kind", KINDS)
@on_virtual_time
async def test_what_is_under_way_ends_before_the_providers_close(loop: StepLoop, kind: str) -> None:
    desk = Desk()
    await desk.gate.open()
    running = asyncio.ensure_future(KINDS[kind](desk.gate))
    await desk.began.wait()
    closing = asyncio.ensure_future(desk.gate.close())
    await asyncio.sleep(1)
    assert not closing.done()
    assert not desk.gate.is_open
    with pytest.raises(GateClosed, match="closing"):
        await desk.gate.invoke("waits")
    with pytest.raises(GateClosed, match="closing"):
        await desk.gate.call("waits")
    desk.go_on.set()
    assert seven(await running)
    await closing
    assert set(desk.used) == {True}
    with pytest.raises(GateClosed, match="not open"):
        await desk.gate.call("waits")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "job"])
@on_virtual_time
async def test_what_does_not_end_in_time_is_cancelled_before_the_providers_close(loop: StepLoop, kind: str) -> None:
    desk = Desk()
    await desk.gate.open()
    running = asyncio.ensure_future(KINDS[kind](desk.gate))
    await desk.began.wait()
    began = loop.time()
    await desk.gate.close()
    assert DRAIN <= loop.time() - began < DRAIN + 1
    await asyncio.wait([running])
    assert running.cancelled()
    assert set(desk.used) <= {True}
    assert not desk.gate._services.under_way


@on_virtual_time
async def test_the_probe_finds_a_gate_that_does_not_drain(loop: StepLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without draining, the provider closes under the running call."""

    async def drain(_self: UnderWay, *_seconds: float) -> int:
        return 0

    monkeypatch.setattr(UnderWay, "drain", drain)
    desk = Desk()
    await desk.gate.open()
    running = asyncio.ensure_future(desk.gate.invoke("waits"))
    await desk.began.wait()
    await desk.gate.close()
    desk.go_on.set()
    await asyncio.wait([running])
    assert desk.used == [False]


@on_virtual_time
async def test_a_task_that_closes_the_gate_within_its_own_session_does_not_wait_for_itself(loop: StepLoop) -> None:
    desk = Desk()
    await desk.gate.open()
    began = loop.time()
    async with desk.gate.session():
        await desk.gate.close()
    assert loop.time() - began < 1


@pytest.mark.parametrize("where", ["tool", "hook"])
@on_virtual_time
async def test_a_call_whose_coroutine_is_closed_does_not_count(loop: StepLoop, where: str) -> None:
    class Waits(Hook):
        async def will_authorize(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(1)

    desk = Desk()
    async with desk.gate as gate:
        if where == "hook":
            gate.use(Waits())
        running = gate.invoke("waits")
        running.send(None)
        assert gate._services.under_way
        with suppress(ToolFailed):
            running.close()
        assert not gate._services.under_way


async def test_after_many_calls_nothing_counts_as_under_way() -> None:
    async def fails(n: int) -> int:
        raise ValueError

    async with gate_of([made(double), made(fails, "fails")]) as gate:
        for name in ("work", "fails", "wrok"):
            assert (await gate.call(name, {"n": 1})).outcome in set(Outcome)
        assert (await gate.call("work", {"n": "x"})).outcome is Outcome.INVALID
        running = asyncio.ensure_future(gate.call("work", {"n": 1}))
        running.cancel()
        await asyncio.wait([running])
        assert not gate._services.under_way


@pytest.mark.parametrize("name", ["drain", "closing"])
def test_the_times_to_drain_and_to_close_are_checked(name: str) -> None:
    with pytest.raises(RegistrationError, match=f"{name} is -1"):
        Options(**{name: -1})  # type: ignore[arg-type]  # a name that the test chose


# ---------------------------------------------------------------------- one loop, one process


def test_a_gate_belongs_to_the_loop_that_opened_it() -> None:
    gate = gate_of([made(double)])
    first = asyncio.new_event_loop()
    first.run_until_complete(gate.open())

    async def elsewhere() -> None:
        for use in (gate.invoke("work", {"n": 1}), gate.call("work", {"n": 1}), gate.open(), gate.close()):
            with pytest.raises(GateClosed, match="another event loop"):
                await use

    asyncio.run(elsewhere())
    assert first.run_until_complete(gate.invoke("work", {"n": 1})) == 2
    with pytest.raises(RegistrationError, match="open already"):
        first.run_until_complete(gate.open())
    first.run_until_complete(gate.close())
    first.close()


def test_a_gate_that_was_opened_before_a_fork_is_refused_in_the_child() -> None:
    gate = gate_of([made(double)])
    loop = asyncio.new_event_loop()
    loop.run_until_complete(gate.open())
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = []
        for use in (gate.invoke("work", {"n": 1}), gate.call("work", {"n": 1}), gate.open(), gate.close()):
            try:
                asyncio.run(use)
            except GateClosed as error:
                said.append("forked" in str(error))
        os.write(writer, repr(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() == "[True, True, True, True]"
    os.close(reader)
    os.close(writer)
    assert loop.run_until_complete(gate.invoke("work", {"n": 1})) == 2
    loop.run_until_complete(gate.close())
    loop.close()


async def test_a_callback_without_a_task_may_drive_a_call_of_an_open_gate() -> None:
    async with gate_of([made(double)]) as gate:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def drive() -> None:
            try:
                gate.invoke("work", {"n": 1}).send(None)
            except StopIteration as stop:
                done.set_result(stop.value)
            except Exception as error:  # noqa: BLE001  (the test gets it)
                done.set_exception(error)

        loop.call_soon(drive)
        assert await done == 2


async def test_a_child_that_was_forked_in_a_call_has_the_task_of_its_parent_and_begins_no_call() -> None:
    async with gate_of([made(double)]) as gate:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                gate.invoke("work", {"n": 1}).send(None)
            except BaseException as error:  # noqa: BLE001  (the child must not return into the tests of its parent)
                os.write(writer, type(error).__name__.encode())
            os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222  (the child ends at once)
        os.close(writer)
        assert os.read(reader, 100) in (b"GateClosed", b"RuntimeError")
        os.close(reader)
        assert await gate.invoke("work", {"n": 1}) == 2


def test_a_closed_gate_can_be_opened_in_another_loop() -> None:
    gate = gate_of([made(double)])

    async def use() -> Any:
        async with gate:
            return await gate.invoke("work", {"n": 1})

    assert [asyncio.run(use()), asyncio.run(use())] == [2, 2]
