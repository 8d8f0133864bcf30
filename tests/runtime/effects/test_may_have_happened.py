"""What a model and an author are told about effects that nothing keeps from a second run."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from callgate import Denied, Effects, Gate, Hook, ToolCall, ToolContext, ToolError, User, tool
from callgate.errors import InvocationError, RetryLater
from callgate.runtime.models.wire.result_text import result_text

ANN = User("ann", tenant="acme")
TEXT = "It may have taken effect"


class Late(Hook):
    """Fails once the body has returned."""

    def did_execute(self, ctx: Any) -> None:
        if ctx.input["how"] == "late":
            raise ValueError("no")


async def act(how: str, ctx: ToolContext) -> Any:
    """End in one of many ways."""
    match how:
        case "raise":
            raise ConnectionError
        case "deny":
            raise Denied("no")
        case "later":
            raise RetryLater(5)
        case "group":
            raise ExceptionGroup("odd", [ValueError(), KeyError()])
        case "hang":
            await asyncio.Event().wait()
        case "long":
            raise Denied("no", public="x" * 5_000)
        case "crash":
            raise SystemExit
        case "answer":
            raise ToolError("The bank says no.")
        case "nothing":
            raise ToolError("Nothing was done.", no_effect=True)
        case "abort":
            ctx.abort("no")
        case "bad":
            return object()
        case _:
            pass
    return "done"


OPEN = ("raise", "deny", "later", "group", "hang", "long", "crash", "bad", "late")
CLEAR = ("answer", "nothing", "abort", "good")


def tools() -> list[Any]:
    """Irreversible tools without a key and with one, and a tool of another effect."""
    return [
        tool(name="bare", effect="irreversible")(act),
        tool(name="keyed", effect="irreversible", key=("how",))(act),
        tool(name="repeated", effect="irreversible", dedupe="arguments", within=60)(act),
        tool(name="other", effect="idempotent")(act),
    ]


@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
async def test_the_failure_of_an_irreversible_tool_without_a_key_says_that_it_may_have_taken_effect(store: str) -> None:
    """I4: the model reads it in the result, the caller in the error."""
    read: dict[tuple[str, str], tuple[bool, bool]] = {}
    options: Any = {"effects": Effects(durable=False), "allow_unguarded": True, "store": store}
    async with Gate(tools=tools(), hooks=[Late()], **options) as gate:
        for name, how in itertools.product(("bare", "keyed", "repeated", "other"), (*OPEN, *CLEAR)):
            asked = ToolCall(name=name, arguments={"how": how})
            result = await gate.call(asked, user=ANN, deadline=0.1 if how == "hang" else None)
            raised = ""
            try:
                await gate.invoke(name, {"how": how}, user=User("bob"), deadline=0.1 if how == "hang" else None)
            except InvocationError as error:
                raised = error.public
            read[name, how] = (TEXT in result_text(result), TEXT in raised)
            assert len(result_text(result).encode()) <= 2048
    assert {case for case, told in read.items() if told == (True, True)} == {("bare", how) for how in OPEN}
    assert all(told in ((True, True), (False, False)) for told in read.values())


async def test_a_failure_before_the_body_says_nothing_of_an_effect() -> None:
    """I4: the text is no habit."""

    class Refusing(Hook):
        def will_authorize(self, ctx: Any) -> None:
            raise Denied("no")

    async with Gate(tools=tools(), hooks=[Refusing()], effects=Effects(durable=False)) as gate:
        for arguments in ({"how": "raise"}, {"how": 5}):
            assert TEXT not in result_text(await gate.call("bare", arguments, user=ANN))


async def test_of_calls_cancelled_together_those_that_began_may_have_taken_effect() -> None:
    """I4: a tool that cancels the task it runs in."""

    @tool(effect="irreversible")
    async def cancelling() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with Gate(tools=[cancelling], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        results = await gate.call_many([ToolCall(name="cancelling"), ToolCall(name="cancelling")], user=ANN)
    assert [TEXT in result_text(one) for one in results] == [True, True]


# ---------------------------------------------------------------------- the linter

NAME = "pay"


@tool(effect="irreversible", key=("n",))
async def pay(n: int) -> int:
    return n


@tool(effect="read")
async def reads(n: int) -> int:
    return n


@tool(effect="read")
async def by_name(ctx: ToolContext) -> Any:
    return await ctx.call("pay", {"n": 1})


@tool(effect="read")
async def by_variable(ctx: ToolContext) -> Any:
    return await ctx.call(NAME, {"n": 1})


@tool(effect="read")
async def by_object(ctx: ToolContext) -> Any:
    return await asyncio.wait_for(ctx.call(pay, {"n": 1}), 5)


@tool(effect="read")
def plain(ctx: ToolContext) -> Any:
    return ctx.call("pay", {"n": 1})


@tool(effect="read", name="of_a_class", parameters={"type": "object"})
class OfAClass:
    """Calls from its method."""

    def __init__(self, given: dict[str, Any], ctx: ToolContext) -> None:
        self.ctx, self.given = ctx, given

    async def run(self) -> Any:
        return await self.ctx.call("pay", self.given)


@tool(effect="read")
async def through(ctx: ToolContext) -> Any:
    return await ctx.call("by_name")


@tool(effect="read")
async def harmless(ctx: ToolContext) -> Any:
    return await ctx.call("reads", {"n": 1})


@tool(effect="idempotent")
async def honest(ctx: ToolContext) -> Any:
    return await ctx.call("pay", {"n": 1})


@tool(effect="read")
async def by_chance(name: str, ctx: ToolContext) -> Any:
    return await ctx.call(name, {"n": 1} if name == "pay" else {})


@tool(effect="irreversible")
async def unkeyed() -> None: ...


async def test_the_linter_names_reads_that_call_effects_and_irreversible_tools_without_a_key() -> None:
    """I4, I6: by their source, and what the source does not show once it has happened."""
    callers = [by_name, by_variable, by_object, plain, OfAClass, through]
    async with Gate(
        tools=[pay, reads, *callers, harmless, honest, by_chance, unkeyed],
        allow_unguarded=True,
        effects=Effects(durable=False),
    ) as gate:
        found = {"by_name", "by_variable", "by_object", "plain", "of_a_class", "through"}
        assert {one.tool for one in gate.lint() if one.rule == "read_calls_effect"} == found
        await gate.invoke("by_chance", {"name": "harmless"}, user=ANN)
        assert {one.tool for one in gate.lint() if one.rule == "read_calls_effect"} == found
        await gate.invoke("by_chance", {"name": "pay"}, user=ANN)
        told = {one.tool: one.advice for one in gate.lint() if one.rule == "read_calls_effect"}
        assert set(told) == {*found, "by_chance"}
        assert all("pay" in advice for advice in told.values())
        assert [one.tool for one in gate.lint() if one.rule == "irreversible_without_key"] == ["unkeyed"]
