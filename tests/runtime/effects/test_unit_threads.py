"""A plain tool and its plain providers: one thread and one context for each attempt."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Annotated, Any, Self

import pytest

from callgate import Gate, Hook, Outcome, Provide, Scoped, ToolCall, ToolContext, tool
from callgate.hooks import Retry
from callgate.runtime.pipeline.threads import threads_of
from tests.harness.gate_options import gate_options
from tests.runtime.effects.scene_desk import ANN, states

TENANT: ContextVar[str] = ContextVar("tenant", default="none")
OTHER: ContextVar[str] = ContextVar("other", default="none")
WAIT = 10.0


class Unit:
    """A connection that belongs to a thread, and a context variable; it notes where its code runs."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> Self:
        self.db = sqlite3.connect(":memory:")
        self.token: Token[str] = TENANT.set("acme")
        self.note("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self.db.close()
        TENANT.reset(self.token)
        self.note("exit")

    def note(self, what: str) -> None:
        """Note where this runs."""
        self.log.append((what, threading.get_ident(), TENANT.get()))


def generator(log: list[Any]) -> Generator[Unit]:
    """A generator."""
    with Unit(log) as unit:
        yield unit


def made(log: list[Any]) -> Unit:
    """A function that returns a context manager."""
    return Unit(log)


FORMS: dict[str, Callable[..., Any]] = {
    "generator": generator,
    "contextmanager": contextmanager(generator),
    "class": Unit,
    "function": made,
}
Held = Annotated[Unit, Provide[Unit]]


@tool(effect="irreversible", max_threads=2)
def work(fails: bool = False, *, unit: Held) -> str:
    """Use the connection in the thread of the tool."""
    unit.db.execute("SELECT 1")
    unit.note("body")
    if fails:
        raise ValueError
    return TENANT.get()


def gate_of(tools: Any, provide: dict[Any, Any], *hooks: Any) -> Gate:
    """A gate on a store in memory."""
    return Gate([tools] if callable(tools) else tools, hooks, provide=provide, **gate_options(open=True, durable=False))


async def ask(gate: Gate, name: str = "work", **more: Any) -> Any:
    """One call."""
    return await gate.call(ToolCall(id="c", name=name, arguments=more.pop("arguments", {})), user=ANN, **more)


def threads_in(log: list[Any]) -> list[int]:
    """The threads that a log names."""
    return list(dict.fromkeys(thread for _, thread, _ in log))


def given_back(*tools: Any) -> bool:
    """Whether no attempt holds a thread of these tools; the thread itself has a moment to see it."""
    ticks = threading.Event()
    return any(not any(threads_of(one.record).busy() for one in tools) or ticks.wait(0.01) for _ in range(1000))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_enter_body_and_exit_share_one_thread_and_one_context(form: str, fails: bool) -> None:
    log: list[Any] = []
    async with gate_of(work, {Unit: Scoped("execution", FORMS[form], log)}) as gate:
        result = await ask(gate, arguments={"fails": fails})
        assert result.output == (None if fails else "acme")
        assert await states(gate) == ["no_effect" if fails else "committed"]
    assert [(what, tenant) for what, _, tenant in log] == [("enter", "acme"), ("body", "acme"), ("exit", "none")]
    assert len(threads_in(log)) == 1
    assert threading.get_ident() not in threads_in(log)
    assert TENANT.get() == "none"
    assert given_back(work)


@pytest.mark.parametrize("plain_first", [False, True])
async def test_plain_and_async_providers_mix(plain_first: bool) -> None:
    """What an asynchronous provider sets is seen by the body, also after the thread was taken."""
    log: list[Any] = []

    async def later() -> AsyncIterator[str]:
        token = OTHER.set("later")
        yield "later"
        OTHER.reset(token)
        log.append(("async exit", threading.get_ident(), TENANT.get()))

    @tool(effect="read")
    def mixed(
        *, first: Annotated[Any, Provide["first"]], unit: Held, second: Annotated[Any, Provide["second"]]
    ) -> list[str]:
        """Use all of them."""
        unit.db.execute("SELECT 1")
        unit.note("body")
        return [TENANT.get(), OTHER.get()]

    plain, asynchronous = Scoped("execution", generator, log), Scoped("execution", later)
    first, second = (plain, asynchronous) if plain_first else (asynchronous, plain)
    provide = {"first": first, Unit: Scoped("execution", generator, log), "second": second}
    async with gate_of(mixed, provide) as gate:
        result = await ask(gate, "mixed")
        assert (result.output, result.error) == (["acme", "later"], None)
    plain_ones = [row for row in log if row[0] != "async exit"]
    assert [what for what, _, _ in plain_ones] == ["enter", "enter", "body", "exit", "exit"]
    assert len(threads_in(plain_ones)) == 1


async def test_each_attempt_of_a_retry_has_a_context_of_its_own() -> None:
    log: list[Any] = []
    tries: list[str] = []

    @tool(effect="idempotent")
    def flaky(*, unit: Held) -> str:
        """Fail twice."""
        tries.append(OTHER.get())
        OTHER.set("left over")
        unit.db.execute("SELECT 1")
        if len(tries) < 3:
            raise OSError
        return TENANT.get()

    retry = Retry(3, on=OSError, wait=lambda _: 0.0)
    async with gate_of(flaky, {Unit: Scoped("execution", generator, log)}, retry) as gate:
        assert (await ask(gate, "flaky")).output == "acme"
    assert tries == ["none"] * 3
    assert [what for what, _, _ in log] == ["enter", "exit"] * 3
    assert given_back(flaky)


async def test_with_inline_and_for_async_tools_all_of_it_runs_on_the_loop() -> None:
    log: list[Any] = []

    @tool(effect="read", inline=True)
    def inline(*, unit: Held) -> str:
        """Use it on the loop."""
        unit.note("body")
        return TENANT.get()

    @tool(effect="read")
    async def asynchronous(*, unit: Held) -> str:
        """Use it on the loop."""
        unit.note("body")
        return TENANT.get()

    async with gate_of([inline, asynchronous], {Unit: Scoped("execution", generator, log)}) as gate:
        for name in ("inline", "asynchronous"):
            assert (await ask(gate, name)).output == "acme"
    assert threads_in(log) == [threading.get_ident()]


async def test_attempts_beyond_the_limit_wait_before_they_enter() -> None:
    """With one thread, no attempt enters before the one before it has ended."""
    log: list[Any] = []

    @tool(effect="read", max_threads=1)
    def alone(*, unit: Held) -> str:
        """Use it alone."""
        unit.note("body")
        return TENANT.get()

    async with gate_of(alone, {Unit: Scoped("execution", generator, log)}) as gate:
        results = await asyncio.gather(*(ask(gate, "alone") for _ in range(5)))
        assert {one.output for one in results} == {"acme"}
    assert [what for what, _, _ in log] == ["enter", "body", "exit"] * 5
    assert given_back(alone)


async def test_a_call_that_ends_while_it_waits_for_a_thread_has_entered_nothing() -> None:
    log: list[Any] = []
    began, go_on = threading.Event(), threading.Event()

    @tool(effect="irreversible", max_threads=1)
    def slow(*, unit: Held) -> str:
        """Take its time."""
        began.set()
        go_on.wait(WAIT)
        return "done"

    async with gate_of(slow, {Unit: Scoped("execution", generator, log)}) as gate:
        first = asyncio.ensure_future(ask(gate, "slow"))
        await asyncio.to_thread(began.wait, WAIT)
        second = await ask(gate, "slow", deadline=0.02)
        assert second.error.code == "deadline_exceeded"
        go_on.set()
        assert (await first).output == "done"
        assert sorted(await states(gate)) == ["committed", "no_effect"]
    assert [what for what, _, _ in log] == ["enter", "exit"]
    assert given_back(slow)


async def test_an_abandoned_body_keeps_its_thread_and_its_providers_end_there() -> None:
    log: list[Any] = []
    go_on = threading.Event()

    @tool(effect="irreversible")
    def slow(*, unit: Held) -> str:
        """Outlive the deadline."""
        go_on.wait(WAIT)
        unit.db.execute("SELECT 1")
        unit.note("body")
        return "done"

    async with gate_of(slow, {Unit: Scoped("execution", generator, log)}) as gate:
        assert (await ask(gate, "slow", deadline=0.3)).outcome is Outcome.UNKNOWN
        assert [what for what, _, _ in log] == ["enter"]
        go_on.set()
    assert [(what, tenant) for what, _, tenant in log] == [("enter", "acme"), ("body", "acme"), ("exit", "none")]
    assert len(threads_in(log)) == 1
    assert given_back(slow)


async def test_a_provider_that_is_cancelled_as_it_enters_is_closed_on_its_thread_with_the_others() -> None:
    log: list[Any] = []
    began, go_on = threading.Event(), threading.Event()

    def hangs(unit: Held) -> Iterator[str]:
        began.set()
        go_on.wait(WAIT)
        try:
            yield "late"
        finally:
            unit.note("closed")

    @tool(effect="irreversible")
    def never(*, late: Annotated[str, Provide["late"]]) -> str:
        """Never begin."""
        raise AssertionError

    provide = {Unit: Scoped("execution", generator, log), "late": Scoped("execution", hangs)}
    async with gate_of(never, provide) as gate:
        running = asyncio.ensure_future(ask(gate, "never"))
        await asyncio.to_thread(began.wait, WAIT)
        running.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await states(gate) == ["no_effect"]
    assert [what for what, _, _ in log] == ["enter", "closed", "exit"]
    assert len(threads_in(log)) == 1
    assert given_back(never)


async def test_a_nested_call_has_a_thread_and_a_context_of_its_own() -> None:
    log: list[Any] = []

    @tool(effect="irreversible")
    def outer(ctx: ToolContext, *, unit: Held) -> Any:
        """Call another tool, which is awaited on the loop."""
        unit.note("outer")
        OTHER.set("outer")
        return ctx.call("work", {})

    async with gate_of([work, outer], {Unit: Scoped("execution", generator, log)}) as gate:
        assert (await ask(gate, "outer")).output == "acme"
    assert [what for what, _, _ in log] == ["enter", "outer", "enter", "body", "exit", "exit"]
    assert {log[0][1]} == {log[1][1], log[5][1]}
    assert len({log[2][1], log[3][1], log[4][1]}) == 1
    assert log[0][1] != log[2][1]
    assert given_back(work, outer)


async def test_nested_calls_of_one_tool_get_threads_beyond_its_limit_and_end() -> None:
    """The outer attempts hold their threads until their providers end; the nested ones would wait for them for ever."""
    log: list[Any] = []

    @tool(effect="read", max_threads=1)
    def deeper(levels: int, ctx: ToolContext, *, unit: Held) -> Any:
        """Call itself."""
        unit.db.execute("SELECT 1")
        return ctx.call("deeper", {"levels": levels - 1}) if levels else TENANT.get()

    async with gate_of(deeper, {Unit: Scoped("execution", generator, log)}) as gate:
        async with asyncio.timeout(WAIT):
            found = await asyncio.gather(*(ask(gate, "deeper", arguments={"levels": 3}) for _ in range(3)))
        assert [one.output for one in found] == ["acme"] * 3
    assert [what for what, _, _ in log].count("exit") == 12
    assert given_back(deeper)


async def test_a_body_and_a_hook_that_ask_for_a_provider_get_it_on_the_same_thread() -> None:
    log: list[Any] = []

    @tool(effect="read")
    def asks(ctx: ToolContext) -> str:
        """Ask in the body."""
        unit: Unit = ctx.get(Unit)
        unit.db.execute("SELECT 1")
        unit.note("body")
        return TENANT.get()

    class Early(Hook):
        def __init__(self, *, early: bool) -> None:
            self.early = early

        async def around_execute(self, ctx: Any, next: Any) -> Any:
            if self.early:
                await ctx.resolve(Unit)
            return await next()

    for early in (False, True):
        log.clear()
        async with gate_of([work, asks], {Unit: Scoped("execution", generator, log)}, Early(early=early)) as gate:
            assert (await ask(gate, "asks")).output == "acme"
        assert [what for what, _, _ in log] == ["enter", "body", "exit"]
        assert len(threads_in(log)) == 1


@pytest.mark.parametrize("at", ["enter", "exit"])
async def test_a_plain_provider_that_raises_stop_iteration_ends_its_call(at: str) -> None:
    class Stops(Unit):
        def __enter__(self) -> Self:
            super().__enter__()
            if at == "enter":
                raise StopIteration
            return self

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            raise StopIteration

    async with gate_of(work, {Unit: Scoped("execution", Stops, [])}) as gate:
        result = await asyncio.wait_for(ask(gate), WAIT)
        assert result.outcome is Outcome.ERROR
    assert given_back(work)
