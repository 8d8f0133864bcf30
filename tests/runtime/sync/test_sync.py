"""``gate.sync()``: one portal for any number of threads; calls, streams, life, and what interrupts a waiting thread."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callgate import GateClosed, Invalid, InvokeContext, Outcome, ToolCall, ToolContext, tool
from callgate.errors import ProviderError
from callgate.runtime.gate.sync import SyncGate
from callgate.runtime.pipeline.streams import Partial, Progress, Result
from tests.runtime.gate.making import gate_of
from tests.runtime.hosts.making import ANN, TRACE, Desk, Places

ADD = ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2})
WAIT = ToolCall(id="c1", name="wait", arguments={})


def until(true: Callable[[], Any]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come about")


def portal_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio-portal")]


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=300)


def test_what_the_gate_does_it_does_for_a_plain_thread() -> None:
    """Design 4: ``invoke``, ``call``, ``call_many``, ``stream`` and ``definitions``, without an await."""
    desk = Desk()
    with desk.gate.sync() as tools:
        assert tools.invoke("add", {"a": 1, "b": 2}, user=ANN) == 3
        assert tools.call(ADD, user=ANN).output == 3
        many = [ToolCall(id=f"c{n}", name="add", arguments={"a": n}) for n in range(5)]
        assert [result.output for result in tools.call_many(many, user=ANN)] == [1, 2, 3, 4, 5]
        assert tools.call(tools.hydrate(ADD), user=ANN).output == 3
        with pytest.raises(Invalid):
            tools.invoke("add", {"a": "x"}, user=ANN)
        assert tools.call(ToolCall(id="c", name="none"), user=ANN).outcome is Outcome.INVALID
        traced = tools.call(ADD, user=ANN, trace=True)
        assert traced.trace
    assert "secret" not in [definition.name for definition in tools.definitions(user=ANN)]
    assert desk.places.held == 0


def test_a_typed_tool_gives_its_own_type() -> None:
    """Design 4."""

    @tool(effect="read")
    async def halves(n: int) -> float:
        """Half of it."""
        return n / 2

    with gate_of([halves]).sync() as tools:
        half: float = tools.invoke(halves, {"n": 3})
    assert half == 1.5


def test_events_come_in_order_and_the_result_last() -> None:
    """Design 4: a stream is a plain iterator."""
    with Desk().gate.sync() as tools:
        events = list(tools.stream(ToolCall(id="c", name="count", arguments={"upto": 2}), user=ANN))
    assert events[:-1] == [
        Progress("count", 0, 2),
        Partial("count", {"n": 0}),
        Progress("count", 1, 2),
        Partial("count", {"n": 1}),
    ]
    assert isinstance(events[-1], Result)
    assert events[-1].result.output == [{"n": 0}, {"n": 1}]


def test_a_reader_that_stops_early_ends_the_call() -> None:
    """Contract I1."""
    desk = Desk()

    with desk.gate.sync() as tools:
        with tools.stream(ToolCall(id="c", name="count", arguments={"upto": 50}), user=ANN) as events:
            assert next(events) == Progress("count", 0, 50)
        assert desk.places.held == 0
        assert list(events) == []
        abandoned = tools.stream(ToolCall(id="c", name="count", arguments={"upto": 50}), user=ANN)
        next(abandoned)
    assert desk.places.held == 0  # the portal closed it
    with pytest.raises(GateClosed):  # cut off is not over
        next(abandoned)


def test_before_the_start_and_after_the_end_calls_are_refused() -> None:
    """Design 4: with what to do about it."""
    tools = Desk().gate.sync()
    work: list[Callable[[], Any]] = [
        lambda: tools.call(ADD),
        lambda: tools.invoke("add", {"a": 1}),
        lambda: tools.call_many([ADD]),
        lambda: tools.stream(ADD),
    ]
    for refused in work:
        with pytest.raises(GateClosed, match=r"call open\(\) as the process starts"):
            refused()
    with tools:
        tools.call(ADD)
    for refused in work:
        with pytest.raises(GateClosed):
            refused()
    assert not tools.is_open


def test_whoever_enters_while_it_is_open_shares_the_one_portal() -> None:
    """Design 4: one portal, closed by the last who leaves; ``open`` and ``close`` may be said twice."""
    gate = Desk().gate
    before = len(portal_threads())
    tools = gate.sync()
    assert gate.sync() is tools
    tools.open()
    assert tools.open().is_open
    with gate.sync() as inner:
        assert in_thread(lambda: gate.sync().__enter__().call(ADD, user=ANN).output) == 3
        assert len(portal_threads()) == before + 1
        tools.close()
        assert inner.call(ADD).output == 3
    assert tools.is_open  # the thread has not left
    tools.__exit__()
    tools.close()
    assert not tools.is_open
    assert len(portal_threads()) == before
    with tools:
        assert tools.call(ADD).output == 3


def test_a_gate_that_cannot_open_says_why_and_leaves_nothing_behind() -> None:
    """Design 4."""
    ready = False

    def connect() -> str:
        if not ready:
            raise OSError("no database")
        return "db"

    before = len(portal_threads())
    tools = gate_of([], provide={"db": connect}).sync()
    for _ in range(2):
        with pytest.raises(ProviderError, match="OSError"):
            tools.open()
    assert (len(portal_threads()), tools.is_open) == (before, False)
    ready = True
    tools.open().close()


def test_fifty_threads_with_twenty_calls_each_leave_nothing_held() -> None:
    """Contract I1: and each gets its own answer."""
    desk = Desk()
    start = threading.Barrier(50)

    def work(thread: int) -> list[Any]:
        start.wait()
        return [
            tools.call(ToolCall(id=f"{thread}", name="add", arguments={"a": thread, "b": n}), user=ANN).output
            for n in range(20)
        ]

    with desk.gate.sync() as tools, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(work, range(50)))
    assert answers == [[thread + n for n in range(20)] for thread in range(50)]
    assert (desk.places.taken, desk.places.held) == (1000, 0)
    assert desk.places.most > 1


def test_what_is_not_given_back_would_be_seen() -> None:
    """The control to the test above, and to those of clients that leave."""

    class Forgetful(Places):
        async def did_release_quota(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0)

    places = Forgetful()
    with gate_of(Desk().tools(), places).sync() as tools:
        tools.call_many([ADD] * 20, user=ANN)
    assert places.held == 20


def test_a_call_sees_the_context_variables_of_its_thread() -> None:
    """Design 4."""
    desk = Desk()
    desk.go.set()

    def work(name: str) -> None:
        TRACE.set(name)
        tools.call(WAIT, user=ANN)

    with desk.gate.sync() as tools:
        for name in "ab":
            contextvars.copy_context().run(work, name)
        tools.call(WAIT, user=ANN)
    assert [seen[-1] for seen in desk.seen] == ["a", "b", "none"]


async def test_a_thread_that_runs_a_loop_is_refused() -> None:
    """Design 4: it would stand still, and so would the loop."""
    tools = Desk().gate.sync()
    with pytest.raises(RuntimeError, match="await"):
        tools.open()
    with pytest.raises(RuntimeError, match="await"):
        tools.call(ADD)
    await asyncio.to_thread(tools.open)
    try:
        assert (await asyncio.to_thread(tools.call, ADD)).output == 3
    finally:
        await asyncio.to_thread(tools.close)


def test_a_plain_tool_may_come_back_through_the_portal() -> None:
    """Design 4: its thread is not the portal's."""

    @tool(effect="read")
    def outer(n: int) -> int:
        """Asks another tool."""
        return int(tools.invoke("inner", {"n": n})) + 1

    @tool(effect="read")
    async def inner(n: int) -> int:
        """Doubles."""
        return 2 * n

    @tool(effect="read")
    async def mistaken(n: int) -> int:
        """Blocks the portal itself."""
        return int(tools.invoke("inner", {"n": n}))

    with gate_of([outer, inner, mistaken]).sync() as tools:
        assert tools.invoke("outer", {"n": 3}) == 7
        assert tools.call(ToolCall(id="c", name="mistaken", arguments={"n": 3})).outcome is Outcome.ERROR


def test_closing_lets_calls_under_way_end() -> None:
    """Design 4: new ones are refused meanwhile."""
    desk = Desk()
    tools = desk.gate.sync().open()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(tools.call, WAIT, user=ANN)
        until(lambda: desk.seen)
        loop = tools._portal.loop
        assert loop is not None
        closing = pool.submit(tools.close)
        until(lambda: not tools.is_open)
        with pytest.raises(GateClosed):
            tools.call(ADD)
        loop.call_soon_threadsafe(desk.go.set)
        assert waiting.result(timeout=300).output == "done"
        closing.result(timeout=300)
    assert desk.places.held == 0


def test_closing_cancels_calls_that_do_not_end() -> None:
    """Contract I1: whoever waits is told, and what was held is given back."""
    desk = Desk(drain=0.05)
    tools = desk.gate.sync().open()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tools.call, WAIT, user=ANN)
        until(lambda: desk.seen)
        tools.close()
        with pytest.raises(GateClosed, match="cancelled"):
            waiting.result(timeout=300)
    assert (desk.places.held, desk.cancelled) == (0, 1)


class Struck(Exception):
    """What a time limit raises in the waiting thread."""


@pytest.mark.parametrize("what", [KeyboardInterrupt, Struck])
@pytest.mark.parametrize("streamed", [False, True])
def test_what_strikes_the_waiting_thread_cancels_its_call(what: type[BaseException], streamed: bool) -> None:
    """Contract I1: Ctrl-C, or the time limit of a worker; the portal goes on."""
    desk = Desk()

    def strike(*_: object) -> None:
        raise what

    @tool(effect="read")
    async def stuck(ctx: ToolContext) -> str:
        """Has its caller struck while it waits."""
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(3600)
        return ""

    desk.gate.add(stuck)
    known = signal.signal(signal.SIGINT, strike)
    try:
        with desk.gate.sync() as tools:
            call = ToolCall(id="c", name="stuck", arguments={})
            with pytest.raises(what):
                list(tools.stream(call)) if streamed else tools.call(call)
            assert desk.places.held == 0
            assert tools.call(ADD).output == 3
    finally:
        signal.signal(signal.SIGINT, known)


ROOT = Path(__file__).resolve().parents[3]
FORKING = """
import os, sys
from callgate import Gate, GateClosed, ToolCall, tool

@tool(effect="read")
async def add(a: int) -> int:
    "Adds."
    return a + 1

tools = Gate([add]).sync()
CALL = ToolCall(id="c", name="add", arguments={"a": 1})

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)

def refused():
    for use in (lambda: tools.call(CALL), tools.open, tools.__enter__, lambda: tools.stream(CALL)):
        try:
            use()
            print("used")
        except GateClosed as error:
            print("open it after the fork" in str(error))
    tools.close()  # the parent's: not touched

def works():
    with tools:
        print(tools.call(CALL).output)

def leaves():
    sys.exit  # the ordinary way out runs what was registered for it
    import atexit
    atexit._run_exitfuncs()
    print("left")

child(works)
tools.open()
child(refused)
child(leaves)
print(tools.call(CALL).output)
tools.close()
child(works)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="NO FORK on this system: nothing to refuse")
def test_a_portal_from_before_a_fork_is_refused_in_the_child_and_never_hangs() -> None:
    """Design 4: the message says what to do; one that was not open, or no more, may be opened in the child."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert run.stderr == ""
    assert run.stdout.split() == ["2", *["True"] * 4, "left", "2", "2"]


LEAVING = """
from callgate import Gate, ToolCall, tool

def db():
    print("opened")
    yield "db"
    print("closed")

@tool(effect="read")
async def add(a: int) -> int:
    "Adds."
    return a + 1

tools = Gate([add], provide={"db": db}).sync()
tools.open()
print(tools.call(ToolCall(id="c", name="add", arguments={"a": 1})).output)
"""


def test_a_process_that_ends_closes_what_it_opened() -> None:
    """Design 4."""
    run = subprocess.run(
        [sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert (run.stdout.split(), run.stderr) == (["opened", "2", "closed"], "")


def test_a_portal_is_reached_from_many_short_threads_while_it_opens_and_closes() -> None:
    """Design 4: each call is answered, or refused as closed; none hangs."""
    tools: SyncGate = Desk().gate.sync()
    outcomes: Counter[str] = Counter()

    def work(_: int) -> str:
        try:
            with tools:
                return str(tools.call(ADD, user=ANN).output)
        except GateClosed:
            return "closed"

    with ThreadPoolExecutor(8) as pool:
        outcomes.update(pool.map(work, range(100)))
    assert outcomes == {"3": 100}
    assert not tools.is_open


def test_a_call_that_cancels_itself_does_not_say_that_the_gate_was_closed() -> None:
    """Such as by a library with a fault in its timeouts. A host took it for the end of the process."""

    @tool(effect="read")
    async def stop() -> None:
        """Cancel the task of the call."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(5)

    with gate_of([stop]).sync() as tools:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cancelled from inside"):
                tools.call("stop", {}, user=ANN)
        assert tools.is_open
