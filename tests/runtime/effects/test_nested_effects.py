"""Effects of tools that a tool calls: each attempt of the outer tool makes the same effects, and pays once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callgate import Effects, Gate, Outcome, ToolCall, ToolContext, User, tool
from callgate.errors import StageError
from callgate.hooks import Retry

ANN = User("ann", tenant="acme")
EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])
Body = Callable[[ToolContext, "Shop"], Awaitable[None]]


class Shop:
    """Counts what was paid, apart from the gate; ``attempts`` are those of the outer tool so far."""

    def __init__(self, seed: int = 0) -> None:
        self.paid: Counter[str] = Counter()
        self.random = random.Random(seed)
        self.attempts = 0
        self.left: list[asyncio.Future[None]] = []


def inner_tools(shops: list[Shop]) -> list[Any]:
    """Return the tools that outer tools call: an effect in the last of *shops*, a read, and a read that pays."""

    @tool(effect="irreversible")
    async def pay(to: str) -> str:
        await asyncio.sleep(0)
        shops[-1].paid[to] += 1
        return f"{to} is paid"

    @tool(effect="read")
    async def look(n: int) -> int:
        for _ in range(n):
            await asyncio.sleep(0)
        return n

    @tool(effect="read")
    async def pay_through(to: str, ctx: ToolContext) -> Any:
        await ctx.call("look", {"n": 0})
        return await ctx.call("pay", {"to": to})

    return [pay, look, pay_through]


def gate_of(tools: list[Any], store: str) -> Gate:
    return Gate(
        tools=tools,
        hooks=[Retry(5, wait=lambda _: 0.0)],
        store=store,
        allow_unguarded=True,
        effects=Effects(durable=False),
    )


async def in_order(ctx: ToolContext, shop: Shop) -> None:
    for _ in range(shop.attempts):  # another number of reads in each attempt
        await ctx.call("look", {"n": 1})
    await ctx.call("pay", {"to": "a"})
    await ctx.call("look", {"n": shop.attempts})
    await ctx.call("pay", {"to": "b"})


async def the_same_twice(ctx: ToolContext, shop: Shop) -> None:
    await ctx.call("pay", {"to": "a"})
    await ctx.call("pay", {"to": "a"})


async def through_a_read_tool(ctx: ToolContext, shop: Shop) -> None:
    for to in ("a", "b"):
        await ctx.call("pay_through", {"to": to})


async def branch(ctx: ToolContext, shop: Shop, to: str) -> None:
    await ctx.call("look", {"n": shop.random.randrange(5)})
    await ctx.call("pay", {"to": to})


async def gathered(ctx: ToolContext, shop: Shop) -> None:
    await asyncio.gather(*(ctx.call("pay", {"to": to}) for to in "abca"))


async def gathered_branches(ctx: ToolContext, shop: Shop) -> None:
    await asyncio.gather(*(branch(ctx, shop, to) for to in "abca"))


async def in_a_group(ctx: ToolContext, shop: Shop) -> None:
    async with asyncio.TaskGroup() as group:
        for to in "abca":
            group.create_task(branch(ctx, shop, to))
            group.create_task(ctx.call("pay_through", {"to": to}))


BODIES: dict[str, tuple[Body, dict[str, int]]] = {
    "in order": (in_order, {"a": 1, "b": 1}),
    "the same twice": (the_same_twice, {"a": 2}),
    "through a read tool": (through_a_read_tool, {"a": 1, "b": 1}),
    "gathered": (gathered, {"a": 2, "b": 1, "c": 1}),
    "gathered branches": (gathered_branches, {"a": 2, "b": 1, "c": 1}),
    "in a group": (in_a_group, {"a": 4, "b": 2, "c": 2}),
}


def outer_tool(name: str, effect: Any, kind: str, body: Body, shop: Shop) -> Any:
    """Return an outer tool of one kind of body, which fails twice after all its calls."""

    async def work(n: int, ctx: ToolContext) -> str:
        shop.attempts += 1
        await body(ctx, shop)
        if shop.attempts < 3:
            raise ConnectionError("too late")
        return "done"

    def plain(n: int, ctx: ToolContext) -> Any:
        return work(n, ctx)

    options: dict[str, Any] = {"inline": {"inline": True}, "hard": {"hard_deadline": True}}.get(kind, {})
    key: dict[str, Any] = {"key": ("n",)} if effect == "keyed" else {}
    return tool(effect=effect, name=name, **options, **key)(plain if kind in ("plain", "inline") else work)


@pytest.mark.parametrize(
    ("effect", "store", "kinds"),
    [
        ("idempotent", "memory://", ("async", "plain", "inline", "hard")),
        ("read", "memory://", ("async", "hard")),
        ("keyed", "sqlite://", ("plain",)),
    ],
)
async def test_attempts_of_a_tool_make_each_nested_effect_once(effect: Any, store: str, kinds: tuple[str, ...]) -> None:
    """I4, I6; design 7."""
    shops = {(body, kind): Shop() for body in BODIES for kind in kinds}
    now: list[Shop] = []
    outer = [
        outer_tool(f"outer_{n}", effect, kind, BODIES[body][0], shop)
        for n, ((body, kind), shop) in enumerate(shops.items())
    ]
    ended = {}
    async with gate_of([*inner_tools(now), *outer], store) as gate:
        for n, (case, shop) in enumerate(shops.items()):
            now[:] = [shop]
            result = await gate.call(ToolCall(id="c", name=f"outer_{n}", arguments={"n": 1}), user=ANN)
            ended[case] = (result.ok, shop.attempts, shop.paid)
    assert ended == {(body, kind): (True, 3, BODIES[body][1]) for body, kind in shops}


async def branches_of_an_earlier_attempt(ctx: ToolContext, shop: Shop) -> None:
    """Leave branches behind, which pay while the next attempt pays, too."""
    branches = [asyncio.ensure_future(branch(ctx, shop, to)) for to in "ab"]
    shop.left += branches
    if shop.attempts < 3:
        raise ConnectionError
    await asyncio.gather(*branches)


@pytest.mark.parametrize("seed", range(5))
async def test_a_branch_that_outlives_its_attempt_pays_for_that_attempt(seed: int) -> None:
    """I4, I6: the calls of a branch count to the attempt that began it, whenever it makes them."""
    shop = Shop(seed)
    tools = [*inner_tools([shop]), outer_tool("outer", "idempotent", "async", branches_of_an_earlier_attempt, shop)]
    async with gate_of(tools, "memory://") as gate:
        assert (await gate.call(ToolCall(id="c", name="outer", arguments={"n": 1}), user=ANN)).ok
        await asyncio.wait(shop.left)
    assert shop.paid == {"a": 1, "b": 1}


@EVERY_STORE
async def test_other_arguments_at_the_same_place_are_a_conflict(store: str) -> None:
    """I4: an attempt that pays another sum in place of an earlier one pays nothing."""

    async def paying_more(ctx: ToolContext, shop: Shop) -> None:
        await ctx.call("pay", {"to": f"a{shop.attempts}"})

    shop = Shop()
    tools = [*inner_tools([shop]), outer_tool("outer", "idempotent", "async", paying_more, shop)]
    async with gate_of(tools, store) as gate:
        result = await gate.call(ToolCall(id="c", name="outer", arguments={"n": 1}), user=ANN)
    assert result.outcome is Outcome.CONFLICT
    assert shop.paid == {"a1": 1}


async def test_repeats_of_a_read_call_make_its_effects_once_and_other_calls_their_own() -> None:
    """I4: without an outer effect, the caller's call identifies a nested one."""
    shop = Shop()
    asked = ToolCall(id="c", name="pay_through", arguments={"to": "a"})
    async with gate_of(inner_tools([shop]), "memory://") as gate:
        for _ in range(2):
            await gate.call(asked, user=ANN, request_id="r")
            await gate.call("pay_through", {"to": "b"}, user=ANN, idempotency_key="k")
            await gate.call("pay_through", {"to": "c"}, user=ANN, request_id="r")
    assert shop.paid == {"a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize("scope", ["tenant", "global"])
async def test_another_user_who_runs_an_outer_effect_again_makes_no_nested_effect_again(scope: Any) -> None:
    """I4: the nested effects belong to the outer one, whoever runs it; the receipts stay with their user."""
    shop = Shop()
    users = [ANN, User("bob", tenant="acme"), User("ann", tenant="umbrella" if scope == "global" else "acme")]

    @tool(effect="idempotent", key=("n",), key_scope=scope)
    async def outer(n: int, ctx: ToolContext) -> Any:
        shop.attempts += 1
        told = await asyncio.gather(ctx.call("pay", {"to": "a"}), branch(ctx, shop, "b"), return_exceptions=True)
        if shop.attempts < 3:
            raise ConnectionError
        return [type(one).__name__ for one in told]

    async with Gate(tools=[*inner_tools([shop]), outer], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        for user in users:
            await gate.call("outer", {"n": 1}, user=user)
    assert (shop.attempts, shop.paid) == (3, {"a": 1, "b": 1})


@pytest.mark.parametrize("kind", ["task", "coroutine", "nested task"])
@pytest.mark.parametrize("effect", ["irreversible", "read"])
async def test_a_call_that_is_over_calls_no_more_tools(effect: Any, kind: str) -> None:
    """A task that a tool had left behind paid after its call had ended as denied, without an effect."""
    shop, over, left = Shop(), asyncio.Event(), list[Awaitable[Any]]()

    async def pay_later(ctx: ToolContext) -> None:
        await over.wait()
        await ctx.call("pay", {"to": "a"})

    @tool(effect=effect)
    async def leave(ctx: ToolContext) -> str:
        later = ctx.call("pay", {"to": "a"}) if kind == "coroutine" else asyncio.ensure_future(pay_later(ctx))
        left.append(later)
        ctx.abort("not today")

    @tool(effect=effect)
    async def outer(ctx: ToolContext) -> str:
        await asyncio.gather(ctx.call("leave"), return_exceptions=True)
        over.set()
        with pytest.raises(StageError, match="the call is over"):
            await left[0]
        return "done"

    async with gate_of([*inner_tools([shop]), leave, outer], "memory://") as gate:
        if kind == "nested task":
            assert (await gate.call("outer", user=ANN)).output == "done"
        else:
            assert (await gate.call("leave", user=ANN)).outcome is Outcome.DENIED
            over.set()
            with pytest.raises(StageError, match="it calls no more tools"):
                await left[0]
    assert shop.paid == {}
