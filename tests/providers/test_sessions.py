"""Sessions: owners, shared instances, ends, and isolation of users."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated, Any

import pytest

from callgate import (
    Denied,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Provide,
    Scoped,
    Sessions,
    ToolCall,
    ToolContext,
    User,
    tool,
)
from callgate.providers.registry import MISSING, ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.runtime.lifespan.background import TASKS
from callgate.runtime.testing.virtual_time import LoopClock, StepLoop
from tests.harness.gate_options import gate_options
from tests.harness.steploop import on_virtual_time

ANN, BEN = User("ann", tenant="acme"), User("ben", tenant="acme")


class Shop:
    """A gate with one session provider, and what happened to its instances."""

    def __init__(self, **options: Any) -> None:
        self.log: list[str] = []
        self.made = 0
        shop = self

        async def basket() -> AsyncIterator[str]:
            shop.made += 1
            name = f"basket {shop.made}"
            shop.log.append(f"+{name}")
            await asyncio.sleep(0)
            try:
                yield name
            except BaseException as error:
                shop.log.append(f"{name} saw {type(error).__name__}")
                raise
            finally:
                await asyncio.sleep(0)
                shop.log.append(f"-{name}")

        @tool(effect="read")
        async def look(wait: float = 0.0, *, basket: Annotated[str, Provide["basket"]]) -> str:
            await asyncio.sleep(wait)
            assert f"-{basket}" not in shop.log, "it is used, so it must be open"
            return basket

        @tool(effect="read")
        async def fail(*, basket: Annotated[str, Provide["basket"]]) -> str:
            raise ValueError(basket)

        self.look = look
        self.gate = Gate([look, fail], provide={"basket": Scoped("session", basket)}, **gate_options(**options))

    async def see(self, session: str | None, user: User = ANN, wait: float = 0.0) -> Any:
        return await self.gate.invoke("look", {"wait": wait}, user=user, session_id=session)

    @property
    def closed(self) -> list[str]:
        return [line[1:] for line in self.log if line[0] == "-"]


async def settle() -> None:
    """Let what runs in the background get on; no time passes."""
    for _ in range(10):
        await asyncio.sleep(0)


# ---------------------------------------------------------------------- what calls share


async def test_calls_of_a_session_share_what_is_made_for_it_until_it_ends() -> None:
    """Contract 84, C26."""
    shop = Shop()
    async with shop.gate as gate:
        assert [await shop.see(name) for name in ("a", "b", "a")] == ["basket 1", "basket 2", "basket 1"]
        assert not shop.closed
        await gate.end_session("a")
        assert shop.closed == ["basket 1"]
        assert await shop.see("a") == "basket 3"
        await gate.end_session("never began")
    assert sorted(shop.closed) == ["basket 1", "basket 2", "basket 3"]


async def test_a_session_does_not_see_the_error_of_one_of_its_calls() -> None:
    """Contract 84."""
    shop = Shop()
    async with shop.gate as gate:
        result = await gate.call(ToolCall(id="c", name="fail"), user=ANN, session_id="a")
        assert result.outcome is Outcome.ERROR
        assert await shop.see("a") == "basket 1"
        assert (await gate.call(ToolCall(id="c", name="fail"), user=ANN)).outcome is Outcome.ERROR
    assert not [line for line in shop.log if "saw" in line]


@pytest.mark.parametrize("anonymous", [None, ""])
async def test_calls_without_a_session_have_one_of_their_own_each(anonymous: str | None) -> None:
    """Contract C26, I8."""
    shop = Shop()
    async with shop.gate as gate:
        calls = [ToolCall(id=str(n), name="look") for n in range(50)]
        results = await gate.call_many(calls, user=ANN, session_id=anonymous)
        assert len({result.output for result in results}) == 50
        assert len(shop.closed) == 50, "each is closed with its call"
        assert not len(gate.providers.sessions)


async def test_fifty_calls_at_once_make_the_sessions_instance_once() -> None:
    """Contract 84, C26."""
    shop = Shop()
    async with shop.gate as gate:
        results = await gate.call_many([ToolCall(id=str(n), name="look") for n in range(50)], user=ANN, session_id="a")
        assert {result.output for result in results} == {"basket 1"}


# ---------------------------------------------------------------------- a thousand at once, with canaries

SESSIONS = 1000


def canary_gate(seen: list[Any]) -> Gate:
    """A gate whose every provider and binding carries the session that it was made for."""

    async def of_session(who: Annotated[str, Provide["who"]]) -> AsyncGenerator[dict[str, str], None]:
        await asyncio.sleep(0)
        yield {"canary": who}

    async def of_request(
        basket: Annotated[dict[str, str], Provide["session"]],
    ) -> AsyncGenerator[tuple[str, str], None]:
        await asyncio.sleep(0)
        yield (basket["canary"], basket["canary"])

    class Binding(Hook):
        binds = ("who", "note")

        async def will_bind_providers(self, ctx: InvokeContext) -> None:
            assert ctx.session_id is not None
            ctx.bind_provider("who", ctx.session_id)
            await asyncio.sleep(0)
            ctx.session.setdefault("note", ctx.session_id)

    @tool(effect="read")
    async def inner(mine: str, *, request: Annotated[tuple[str, str], Provide["request"]], ctx: ToolContext) -> str:
        held: Any = ctx
        await asyncio.sleep(0)
        seen.append((mine, request[0], held.get("note"), (await held.resolve("session"))["canary"]))
        return request[0]

    @tool(effect="read")
    async def outer(mine: str, *, request: Annotated[tuple[str, str], Provide["request"]], ctx: ToolContext) -> str:
        held: Any = ctx
        await asyncio.sleep(0)
        nested = await asyncio.gather(*(held.call("inner", {"mine": mine}) for _ in range(2)))
        seen.append((mine, request[1], *nested, held.session["note"]))
        return request[0]

    providers = {"session": Scoped("request", of_session), "request": Scoped("request", of_request)}
    return Gate([inner, outer], [Binding()], provide=providers, allow_unguarded=True)


def session_gate(seen: list[Any]) -> Gate:
    """Like ``canary_gate``, with a session provider proper: its canary is written by the first call that gets it."""
    made = iter(range(10**6))

    async def of_session() -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.sleep(0)
        yield {"number": next(made)}

    async def of_request(
        session: Annotated[dict[str, Any], Provide["session"]],
    ) -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.sleep(0)
        yield {"session": session}

    class Binding(Hook):
        async def will_bind_providers(self, ctx: InvokeContext) -> None:
            ctx.session.setdefault("note", ctx.session_id)
            await asyncio.sleep(0)

    @tool(effect="read")
    async def inner(mine: str, *, request: Annotated[Any, Provide["request"]], ctx: ToolContext) -> str:
        held: Any = ctx
        await asyncio.sleep(0)
        canary: str = request["session"].setdefault("canary", mine)
        seen.append((mine, canary, held.get("note")))
        return canary

    @tool(effect="read")
    async def outer(
        mine: str,
        *,
        session: Annotated[Any, Provide["session"]],
        request: Annotated[Any, Provide["request"]],
        ctx: ToolContext,
    ) -> str:
        held: Any = ctx
        assert request["session"] is session
        canary: str = session.setdefault("canary", mine)
        owner: str = request.setdefault("owner", mine)
        await asyncio.sleep(0)
        nested = await asyncio.gather(*(held.call("inner", {"mine": mine}) for _ in range(2)))
        seen.append((mine, canary, owner, *nested, held.session["note"]))
        return canary

    providers = {"session": Scoped("session", of_session), "request": Scoped("request", of_request)}
    return Gate([inner, outer], [Binding()], provide=providers)


async def strangers(make: Callable[[list[Any]], Gate]) -> list[Any]:
    """Return the foreign instances that any of a thousand concurrent sessions saw."""
    seen: list[Any] = []
    async with make(seen) as gate:

        async def converse(number: int) -> None:
            name, user = f"session {number}", User(f"user {number}")
            async with gate.session(name, user=user) as bound:
                calls = [ToolCall(id=f"{n}", name="outer", arguments={"mine": name}) for n in range(2)]
                results = await bound.call_many(calls)
                assert all(result.ok for result in results), results
                seen.append((name, *(result.output for result in results)))

        order = list(range(SESSIONS))
        random.Random(7).shuffle(order)
        await asyncio.gather(*map(converse, order))
    assert len(seen) == SESSIONS * 7
    return [row for row in seen if len(set(row)) > 1]


@pytest.mark.parametrize("make", [canary_gate, session_gate])
async def test_a_thousand_sessions_at_once_never_see_anothers_value(make: Callable[[list[Any]], Gate]) -> None:
    """Contract 84, C26, I8: session and request providers, bound values, nested calls, batches."""
    assert await strangers(make) == []


async def test_sessions_that_share_by_mistake_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract C26: the control. Every tenth session id is mistaken for another one."""
    real = ProviderRegistry.request

    def confused(self: ProviderRegistry, session_id: str | None = None, owner: Any = None) -> ProviderScope:
        name = (session_id or "")[:-1] if (session_id or "").endswith("7") else session_id
        return real(self, name, None)

    monkeypatch.setattr(ProviderRegistry, "request", confused)
    assert await strangers(session_gate) != []


# ---------------------------------------------------------------------- whose it is


async def test_another_users_use_of_a_session_id_is_refused() -> None:
    """Contract C26, I8."""
    shop = Shop()
    async with shop.gate as gate:
        assert await shop.see("a") == "basket 1"
        for stranger in (BEN, User("ann", tenant="other"), User("ann")):
            result = await gate.call(ToolCall(id="c", name="look"), user=stranger, session_id="a")
            assert result.outcome is Outcome.DENIED
            assert "basket" not in f"{result}"
            with pytest.raises(Denied, match="another user"):
                async with gate.session("a", user=stranger):
                    raise AssertionError("it let them in")
        assert await shop.see("a") == "basket 1"
        await gate.end_session("a")
        assert (await gate.call(ToolCall(id="c", name="look"), user=BEN, session_id="a")).output == "basket 2"


async def test_a_session_that_the_application_fills_belongs_to_the_first_user_of_it() -> None:
    """Contract 84, I8."""
    shop = Shop()
    async with shop.gate as gate:
        gate.providers.register_session_providers("a", {"basket": "given"})
        assert await shop.see("a") == "given"
        assert (await gate.call(ToolCall(id="c", name="look"), user=BEN, session_id="a")).outcome is Outcome.DENIED
        assert not shop.log


# ---------------------------------------------------------------------- gate.session


async def test_a_session_lasts_as_long_as_its_async_with() -> None:
    """Contract C26."""
    shop = Shop()
    async with shop.gate as gate:
        async with gate.session("a", user=ANN) as session:
            assert [await session.invoke("look"), await session.invoke(shop.look)] == ["basket 1"] * 2
            assert (session.session_id, session.user) == ("a", ANN)
            assert await shop.see("a") == "basket 1"
        assert shop.closed == ["basket 1"]
        async with gate.session(user=ANN) as one, gate.session(user=ANN) as other:
            assert one.session_id != other.session_id
            assert await one.invoke("look") != await other.invoke("look")
        assert len(shop.closed) == 3


async def test_a_session_that_is_entered_twice_ends_with_the_last_who_leaves() -> None:
    """Contract C26."""
    shop = Shop()
    async with shop.gate as gate:
        async with gate.session("a", user=ANN) as outer:
            async with gate.session("a", user=ANN) as inner:
                assert await inner.invoke("look") == "basket 1"
            assert await outer.invoke("look") == "basket 1"
            assert not shop.closed
        assert shop.closed == ["basket 1"]


@on_virtual_time
async def test_sessions_that_overlap_in_tasks_end_with_the_last(loop: StepLoop) -> None:
    """Contract C26."""
    shop = Shop()

    async def visit(begins: float, lasts: float) -> str:
        await asyncio.sleep(begins)
        async with gate.session("a", user=ANN) as session:
            await asyncio.sleep(lasts)
            found: str = await session.invoke("look")
            return found

    async with shop.gate as gate:
        assert set(await asyncio.gather(visit(0, 3), visit(1, 5), visit(2, 0.5))) == {"basket 1"}
        assert shop.closed == ["basket 1"]
        assert await visit(0, 0) == "basket 2"


async def test_a_session_is_closed_when_its_block_raises() -> None:
    """Contract C26."""
    shop = Shop()
    async with shop.gate as gate:
        with pytest.raises(KeyError):
            async with gate.session("a", user=ANN) as session:
                await session.invoke("look")
                raise KeyError
        assert shop.log == ["+basket 1", "-basket 1"]


@on_virtual_time
async def test_a_session_that_ends_during_a_call_is_closed_by_the_last_call(loop: StepLoop) -> None:
    """Contract C26: what is in use is not closed."""
    shop = Shop()
    async with shop.gate as gate:
        calls = [asyncio.ensure_future(shop.see("a", wait=seconds)) for seconds in (5, 10)]
        await asyncio.sleep(1)
        await gate.end_session("a")
        assert not shop.closed
        assert await shop.see("a") == "basket 2", "a new session begins under the id"
        assert await calls[0] == "basket 1"
        assert not shop.closed
        assert await calls[1] == "basket 1"
        assert shop.closed == ["basket 1"]


@on_virtual_time
async def test_a_block_that_is_left_during_a_call_leaves_the_closing_to_the_call(loop: StepLoop) -> None:
    """Contract C26."""
    shop = Shop()
    async with shop.gate as gate:
        async with gate.session("a", user=ANN) as session:
            call = asyncio.ensure_future(session.invoke("look", {"wait": 5.0}))
            await asyncio.sleep(1)
        assert not shop.closed
        assert await call == "basket 1"
        assert shop.closed == ["basket 1"]


# ---------------------------------------------------------------------- time and room


@on_virtual_time
async def test_a_session_that_nobody_used_for_its_time_ends(loop: StepLoop) -> None:
    """Contract C26: by itself, without another call."""
    shop = Shop(session_ttl=60.0, clock=LoopClock(loop))
    async with shop.gate as gate:
        await shop.see("a")
        await asyncio.sleep(50)
        await shop.see("b")
        await shop.see("a")
        await asyncio.sleep(50)
        assert not shop.closed
        await shop.see("b")
        await asyncio.sleep(30)
        assert shop.closed == ["basket 1"]
        assert "b" in gate.providers.sessions
        await asyncio.sleep(60)
        assert not len(gate.providers.sessions)


@on_virtual_time
async def test_a_session_in_use_outlives_its_time(loop: StepLoop) -> None:
    """Contract C26."""
    shop = Shop(session_ttl=60.0, clock=LoopClock(loop))
    async with shop.gate as gate:
        assert await shop.see("a", wait=1000) == "basket 1"
        await asyncio.sleep(50)
        assert await shop.see("a") == "basket 1", "its time begins with the end of the last use"
        async with gate.session("a", user=ANN):
            await asyncio.sleep(1000)
            assert not shop.closed
    assert shop.closed == ["basket 1"]


def test_a_stale_session_is_not_given_out_before_it_is_swept() -> None:
    """Contract C26."""
    now = [0.0]
    registry = ProviderRegistry(now=lambda: now[0], session_ttl=10.0)
    registry.session_map("a")["secret"] = 1
    now[0] = 10.1
    assert registry.session_map("a") == {}
    registry.session_map("a")["secret"] = 1
    now[0] = 30.0
    assert registry.request("a", "eve").bound("secret") is MISSING
    assert "a" not in registry.sessions
    assert registry.sessions.sweep() == 0


def test_a_session_whose_time_is_over_denies_nobody() -> None:
    """Contract C26, I8: what is left of it is no one's; a live one is its owner's still."""
    now = [0.0]
    registry = ProviderRegistry(now=lambda: now[0], session_ttl=10.0)
    registry.sessions.open("a", "ann").scope.bindings["secret"] = 1
    now[0] = 10.0
    with pytest.raises(Denied):
        registry.sessions.open("a", "bob")
    now[0] = 20.1
    taken = registry.sessions.open("a", "bob")
    assert (taken.owner, dict(taken.scope.bindings)) == ("bob", {})


@on_virtual_time
async def test_a_session_that_is_only_looked_at_is_in_use_as_well(loop: StepLoop) -> None:
    """Contract C26."""
    shop = Shop(session_ttl=60.0, clock=LoopClock(loop))
    async with shop.gate as gate:
        gate.providers.register_session_providers("a", {"basket": "given"})
        for _ in range(5):
            assert await shop.see("a") == "given"
            await asyncio.sleep(50)
    assert not shop.log


async def test_the_least_recently_used_session_ends_for_a_new_one() -> None:
    """Contract C26."""
    shop = Shop(max_sessions=2)
    async with shop.gate as gate:
        for name in ("a", "b", "a", "c"):
            await shop.see(name)
        await settle()
        assert shop.closed == ["basket 2"]
        assert [name in gate.providers.sessions for name in "abc"] == [True, False, True]


@on_virtual_time
async def test_sessions_in_use_are_spared_and_the_number_comes_down_again(loop: StepLoop) -> None:
    """Contract C26."""
    shop = Shop(max_sessions=1)
    async with shop.gate as gate:
        calls = [
            asyncio.ensure_future(shop.see(name, wait=seconds)) for name, seconds in (("a", 9), ("b", 5), ("c", 7))
        ]
        await asyncio.sleep(1)
        assert len(gate.providers.sessions) == 3
        assert len(set(await asyncio.gather(*calls))) == 3
        await settle()
        assert len(gate.providers.sessions) == 1
        assert "a" in gate.providers.sessions, "the last used session"
        assert shop.closed == ["basket 2", "basket 3"]


# ---------------------------------------------------------------------- the end


@on_virtual_time
async def test_the_gate_closes_all_sessions_and_its_upkeep_ends(loop: StepLoop) -> None:
    """Contract C26."""
    shop = Shop(session_ttl=60.0, clock=LoopClock(loop))
    before = asyncio.all_tasks()
    async with shop.gate:
        await asyncio.gather(*(shop.see(name) for name in "abcdef"))
        chores = sorted(f"{TASKS}{chore.name}" for chore in shop.gate._lifespan.background.tasks)
        assert f"{TASKS}sessions" in chores
        assert sorted(task.get_name() for task in asyncio.all_tasks() - before) == chores, "one task for each, no more"
        assert not shop.closed
    assert len(shop.closed) == 6
    assert asyncio.all_tasks() == before


@on_virtual_time
async def test_sessions_are_closed_when_the_closing_of_the_gate_is_cancelled(loop: StepLoop) -> None:
    """Contract C26, C1d."""
    log: list[str] = []

    async def stubborn(*, basket: Annotated[str, Provide["basket"]]) -> str:
        while True:
            try:
                await asyncio.sleep(30)
                return basket
            except asyncio.CancelledError:
                pass

    async def opened() -> AsyncIterator[str]:
        yield "basket"
        log.append("basket closed")

    async def base() -> AsyncIterator[str]:
        yield "base"
        log.append("base closed")

    gate = Gate(
        [tool(effect="read", hard_deadline=True)(stubborn)],
        provide={"base": base, "basket": Scoped("session", opened)},
    )

    async def serve() -> None:
        async with gate:
            gate.providers.session_map("a")
            scope = gate.providers.request("b")
            await scope.provide(gate.providers.recipes.of("basket"))
            for left in scope.leave():
                await left.leave()
            await gate.call(ToolCall(id="c", name="stubborn"), session_id="a", deadline=1.0)

    serving = asyncio.ensure_future(serve())
    await asyncio.sleep(3)
    serving.cancel()
    await asyncio.wait([serving])
    assert "basket closed" in log
    assert log[-1] == "base closed"
    await asyncio.sleep(60)


async def test_a_failing_close_of_a_session_spares_the_others_and_changes_nothing() -> None:
    """Contract C1c, C26."""
    log: list[str] = []

    async def opened(name: str) -> AsyncIterator[str]:
        yield name
        log.append(name)
        raise ValueError(name)

    @tool(effect="read")
    async def take(*, one: Annotated[str, Provide["one"]], two: Annotated[str, Provide["two"]]) -> str:
        return one + two

    async def one() -> AsyncIterator[str]:
        async for name in opened("one"):
            yield name

    async def two() -> AsyncIterator[str]:
        async for name in opened("two"):
            yield name

    async with Gate([take], provide={"one": Scoped("session", one), "two": Scoped("session", two)}) as gate:
        async with gate.session("a", user=ANN) as session:
            assert await session.invoke("take") == "onetwo"
        assert log == ["two", "one"]
        assert (await gate.call(ToolCall(id="c", name="take"), user=ANN)).ok, (
            "and where the call closes its own session"
        )
    assert log == ["two", "one"] * 2


# ---------------------------------------------------------------------- threads


@pytest.mark.parametrize("most", [None, 1])
async def test_plain_tools_in_threads_share_a_session_and_end_others(most: int | None) -> None:
    """Contract 84, C26: a generator that a thread's session crowds out is closed on the event loop."""
    made: list[str] = []
    closed: list[str] = []

    def basket(who: Annotated[str, Provide["who"]]) -> Any:
        made.append(who)
        yield who
        asyncio.get_running_loop()
        closed.append(who)

    class Who(Hook):
        binds = ("who",)

        def will_bind_providers(self, ctx: InvokeContext) -> None:
            ctx.session["who"] = ctx.session_id

    @tool(effect="read")
    def look(ctx: ToolContext) -> str:
        held: Any = ctx
        return f"{held.get('basket')}"

    @tool(effect="read")
    def lone(ctx: ToolContext) -> str:
        held: Any = ctx
        held.session["who"] = "lone"
        return f"{held.get('basket')}"

    sessions = {"who": "nobody", "basket": Scoped("session", basket)}
    gate = Gate([look, lone], [Who()], provide=sessions, sessions=Sessions(maximum=most))
    async with gate:
        results = await asyncio.gather(*(gate.invoke("look", user=ANN, session_id=f"s{n % 4}") for n in range(4)))
        assert sorted(results) == ["s0", "s1", "s2", "s3"]
        assert await gate.invoke("lone", user=ANN, session_id="s9") in ("lone", "s9")
    assert sorted(made) == sorted(closed)


async def test_two_threads_that_ask_at_once_get_one_instance() -> None:
    """Contract 84: at most once a scope, for threads, too."""
    made: list[object] = []
    barrier = threading.Barrier(4)
    entered = threading.Event()

    def slowly() -> object:
        made.append(object())
        entered.set()
        for _ in range(2000):
            time.sleep(0)
        return made[-1]

    @tool(effect="read", max_threads=8)
    def look(ctx: ToolContext) -> int:
        held: Any = ctx
        barrier.wait(5)
        return id(held.get("slow"))

    async with Gate([look], provide={"slow": Scoped("session", slowly)}) as gate:
        found = await asyncio.gather(*(gate.invoke("look", user=ANN, session_id="a") for _ in range(4)))
    assert set(found) == {id(made[0])}
    assert len(made) == 1
