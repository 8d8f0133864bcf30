"""Time at the edges of a call: deadlines that are past, values that are no time, and what a call leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

import pytest

from callgate import (
    CallgateError,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Provide,
    Scoped,
    Stage,
    ToolContext,
    User,
    invoke_tool,
    on,
    tool,
)
from callgate.hooks.stock.resilience.timeout import Deadline, Timeout
from callgate.jobs import Schedule
from callgate.providers.clock import FakeClock
from tests.harness.gate_options import gate_options

USER = User("u", tenant="t")


class Db:
    """A dependency of the tool."""


BODIES: dict[str, Callable[[list[str]], Any]] = {}


def body(make: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    BODIES[make.__name__] = make
    return make


@body
def coroutine(ran: list[str]) -> Any:
    async def work(n: int) -> int:
        ran.append("body")
        return n

    return work


@body
def supplied(ran: list[str]) -> Any:
    async def work(n: int, *, db: Annotated[Db, Provide[Db]]) -> int:
        ran.append("body")
        return n

    return work


@body
def plain(ran: list[str]) -> Any:
    def work(n: int) -> int:
        ran.append("body")
        return n

    return work


@body
def generator(ran: list[str]) -> Any:
    async def work(n: int) -> AsyncIterator[int]:
        ran.append("body")
        yield n

    return work


EFFECTS: dict[str, dict[str, Any]] = {
    "read": {"effect": "read"},
    "idempotent": {"effect": "idempotent"},
    "irreversible": {"effect": "irreversible", "key": ("n",)},
}
BEFORE = ("will_create_invoke_context", "will_authorize", "will_authorize_input", "will_read_cache")
"""Stages that run before an effect is claimed."""
AFTER = ("around_execute", "will_execute")


class Slow(Hook):
    """Block the event loop for 10 seconds in one stage: the clock goes on, and no timer fires."""

    guards = True

    def __init__(self, clock: FakeClock, stage: str) -> None:
        self.clock = clock
        self.leaves_out = frozenset({*map(Stage, (*BEFORE, *AFTER))} - {Stage(stage)})

    async def will_create_invoke_context(self, ctx: InvokeContext) -> None:
        self.clock.advance(10)

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.clock.advance(10)

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        self.clock.advance(10)

    def will_read_cache(self, ctx: InvokeContext) -> None:
        self.clock.advance(10)

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self.clock.advance(10)
        return await next()

    def will_execute(self, ctx: InvokeContext) -> None:
        self.clock.advance(10)


def gate_of(made: Any, clock: FakeClock, *hooks: Any, **options: Any) -> Gate:
    return Gate([made], hooks, **gate_options(clock=clock, allow_unguarded=True, durable=False, **options))


@pytest.mark.parametrize("stage", [*BEFORE, *AFTER, None])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("kind", BODIES)
async def test_no_body_begins_after_its_deadline_and_nothing_is_claimed(
    kind: str, effect: str, stage: str | None
) -> None:
    """No body begins, and no effect is claimed, once a hook that blocked the loop has used up the time."""
    ran: list[str] = []
    clock = FakeClock()
    made = tool(name="work", **EFFECTS[effect])(BODIES[kind](ran))
    hooks = [] if stage is None else [Slow(clock, stage)]
    async with gate_of(made, clock, *hooks, provide={Db: Db()}) as gate:
        late = await gate.call("work", {"n": 1}, user=USER, deadline=0 if stage is None else 5)
        assert (late.outcome, late.error and late.error.code) == (Outcome.ERROR, "deadline_exceeded")
        assert ran == []
        claims = await gate.store.effects.list("t")
        assert {found.state.value for _, found in claims} <= {"no_effect"}
        if stage not in AFTER:
            assert not claims
        good = await gate.call("work", {"n": 1}, user=USER, deadline=50)
        assert good.outcome is Outcome.SUCCESS
        assert not good.replayed
        assert ran == ["body"]


@pytest.mark.parametrize("effect", EFFECTS)
async def test_no_body_begins_after_a_provider_used_up_the_time(effect: str) -> None:
    """A provider of the tool runs after the claim: the claim says that there was no effect."""
    ran: list[str] = []
    clock = FakeClock()
    slow = [10.0]

    def make() -> Db:
        clock.advance(slow.pop() if slow else 0.0)
        return Db()

    made = tool(name="work", **EFFECTS[effect])(supplied(ran))
    async with gate_of(made, clock, provide={Db: Scoped("request", make)}) as gate:
        late = await gate.call("work", {"n": 1}, user=USER, deadline=5)
        assert (late.outcome, late.error and late.error.code) == (Outcome.ERROR, "deadline_exceeded")
        assert ran == []
        assert (await gate.call("work", {"n": 1}, user=USER, deadline=5)).outcome is Outcome.SUCCESS
        assert ran == ["body"]


async def test_a_nested_call_does_not_begin_after_the_deadline_of_its_outer_call() -> None:
    """The body of a nested call does not begin once the outer body has used up the time."""
    ran: list[str] = []
    clock = FakeClock()

    made = tool(name="work", effect="read")(coroutine(ran))

    @tool(effect="read")
    async def outside(*, ctx: ToolContext) -> int:
        clock.advance(10)
        answer: int = await ctx.call("work", {"n": 1})
        return answer

    async with Gate([made, outside], **gate_options(clock=clock)) as gate:
        late = await gate.call("outside", {}, user=USER, deadline=5)
        assert late.error is not None
        assert late.error.code == "deadline_exceeded"
        assert ran == []


# ---------------------------------------------------------------------- values that are no time


WRONG = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.5,
    True,
    False,
    "5",
    "",
    b"5",
    [5],
    timedelta(seconds=5),
    Decimal(5),
    Fraction(5, 2),
    10**400,
    2j,
]
"""Values that are no number of seconds: each is refused wherever a deadline is given."""


async def _work(n: int = 1) -> int:
    return n


def _class_of(value: Any) -> type:
    return type("Limited", (Hook,), {"timeout": value, "will_execute": lambda self, ctx: None})


REGISTERED: dict[str, Callable[[Any], Any]] = {
    "gate": lambda value: Gate([], deadline=value),
    "tool": lambda value: tool(effect="read", deadline=value)(_work),
    "hook": lambda value: Gate([], [_class_of(value)()]),
    "hook class": lambda value: Gate([], [_class_of(value)]),
    "stock hook": lambda value: Gate([], [Deadline(5.0, timeout=value)]),
    "Timeout": Timeout,
    "Deadline": Deadline,
    "schedule": lambda value: Schedule(tool="work", cron="0 3 * * *", deadline=value),
}


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("place", REGISTERED)
def test_a_deadline_that_is_no_time_is_refused_where_it_is_declared(place: str, value: Any) -> None:
    """The error says where the value stands, and asks for seconds."""
    with pytest.raises(CallgateError, match=r"(?s)second"):
        REGISTERED[place](value)


def _work_gate() -> Gate:
    return Gate([tool(effect="read", name="work")(_work)])


@pytest.mark.parametrize("value", WRONG, ids=repr)
async def test_a_deadline_that_is_no_time_is_refused_at_the_call(value: Any) -> None:
    """Every way to make a call refuses the value; no body begins."""
    ran: list[str] = []
    made = tool(effect="read", name="work", run_on="worker")(coroutine(ran))
    options: Any = {"deadline": value}
    async with Gate([made]) as gate:
        results = [
            await gate.call("work", {"n": 1}, user=USER, **options),
            (await gate.call_many([("work", {"n": 1})], user=USER, **options))[0],
            [event async for event in gate.stream("work", {"n": 1}, user=USER, **options)][-1].result,  # type: ignore[union-attr]
        ]
        for result in results:
            assert (result.outcome, result.error and result.error.code) == (Outcome.INVALID, "bad_call")
            assert result.error is not None
            assert "deadline" in result.error.public
        for attempt in (
            lambda: gate.invoke("work", {"n": 1}, user=USER, **options),
            lambda: gate.submit("work", {"n": 1}, user=USER, **options),
            lambda: gate.submit_many([("work")], user=USER, **options),
            lambda: invoke_tool(made, {"n": 1}, **options),
        ):
            with pytest.raises(TypeError, match=r"deadline .*seconds"):
                await attempt()
    assert ran == []


@pytest.mark.parametrize("value", [1, 0.5, 3600, None])
async def test_a_deadline_in_seconds_is_accepted_everywhere(value: Any) -> None:
    """The control of the tests above."""
    for place, declare in REGISTERED.items():
        if value is not None or place not in {"Timeout", "Deadline"}:
            declare(value)
    async with _work_gate() as gate:
        assert (await gate.call("work", {}, user=USER, deadline=value)).outcome is Outcome.SUCCESS


# ---------------------------------------------------------------------- context variables


WITH_DEFAULT: ContextVar[str | None] = ContextVar("with_default", default="nobody")
WITHOUT: ContextVar[str | None] = ContextVar("without")


class Unequal:
    """A value that refuses to be compared, as an array does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("compare each element")

    __hash__ = None  # type: ignore[assignment]


class Sets(Hook):
    """Set the variables in one stage and never reset them."""

    guards = True

    def __init__(self, stage: str, value: Any) -> None:
        self.value = value
        self.leaves_out = frozenset({*map(Stage, ("will_authorize", "around_execute", "did_audit"))} - {Stage(stage)})

    def _set(self) -> None:
        WITH_DEFAULT.set(self.value)
        WITHOUT.set(self.value)

    async def will_authorize(self, ctx: InvokeContext) -> None:
        self._set()

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self._set()
        return await next()

    async def did_audit(self, ctx: InvokeContext) -> None:
        self._set()


class Only(Sets):
    """The same for some tools."""

    def __init__(self, stage: str, value: Any, tools: set[str]) -> None:
        super().__init__(stage, value)
        self.tools = tools


async def _sets_variables() -> AsyncIterator[Db]:
    WITH_DEFAULT.set("provider")
    WITHOUT.set("provider")
    yield Db()


@pytest.mark.parametrize("value", ["acme", Unequal()], ids=["text", "unequal"])
@pytest.mark.parametrize("before", [None, "before"])
@pytest.mark.parametrize("end", ["success", "error", "denied", "cancelled"])
@pytest.mark.parametrize("place", ["will_authorize", "around_execute", "did_audit", "provider"])
async def test_what_hooks_and_providers_set_in_context_variables_ends_with_the_call(
    place: str, end: str, before: str | None, value: Any
) -> None:
    """The tool sees the value; neither the caller nor the next call in its task does, however the call ends."""
    seen: list[Any] = []
    if before is not None:
        WITH_DEFAULT.set(before)
        WITHOUT.set(before)
    outside = (WITH_DEFAULT.get(), WITHOUT.get(None))

    @tool(effect="read")
    async def work(end: str, *, db: Annotated[Db, Provide[Db]]) -> int:
        seen.append(WITH_DEFAULT.get())
        if end == "error":
            raise ValueError("no")
        if end == "cancelled":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return 1

    def refuses(ctx: InvokeContext) -> None:
        if ctx.input["end"] == "denied":
            ctx.abort("no")

    hooks: list[Any] = [on("will_authorize_input")(refuses)]
    provide: dict[Any, Any] = {Db: Db()}
    if place == "provider":
        provide, value = {Db: Scoped("request", _sets_variables)}, "provider"
    else:
        hooks.append(Sets(place, value))

    async def run(gate: Gate, way: str) -> None:
        with contextlib.suppress(CallgateError, asyncio.CancelledError):
            match way:
                case "call":
                    await gate.call("work", {"end": end}, user=USER)
                case "invoke":
                    await gate.invoke(work, {"end": end}, user=USER)
                case "batch":
                    await gate.call_many([("work", {"end": end})], user=USER)
                case "stream":
                    async for _ in gate.stream("work", {"end": end}, user=USER):
                        pass
                case _:
                    async with gate.session("s", user=USER) as bound:
                        await bound.call("work", {"end": end})

    async with Gate([work], hooks, provide=provide, **gate_options(durable=False)) as gate:
        for way in ("call", "invoke", "batch", "stream", "session"):
            await run(gate, way)
            current = asyncio.current_task()
            assert current is not None
            while current.cancelling():
                current.uncancel()
            assert WITH_DEFAULT.get() is outside[0]
            assert WITHOUT.get(None) is outside[1]
    wanted = outside[0] if place == "did_audit" else value
    assert all(one is wanted or one == wanted for one in seen)
    assert len(seen) == (0 if end == "denied" else 5)


async def test_a_nested_call_leaves_the_variables_of_its_outer_call() -> None:
    """What hooks of the nested call set ends with it; what those of the outer call set stays until its end."""
    seen: list[Any] = []

    @tool(effect="read")
    async def outer(*, ctx: ToolContext) -> int:
        seen.append(WITH_DEFAULT.get())
        await ctx.call("inner")
        seen.append(WITH_DEFAULT.get())
        return 1

    @tool(effect="read", hooks=[Sets("will_authorize", "inner")])
    async def inner() -> int:
        seen.append(WITH_DEFAULT.get())
        return 1

    async with Gate([outer, inner], [Only("around_execute", "outer", {"outer"})]) as gate:
        assert (await gate.call("outer", {}, user=USER)).outcome is Outcome.SUCCESS
    assert seen == ["outer", "inner", "outer"]
    assert WITH_DEFAULT.get() == "nobody"
