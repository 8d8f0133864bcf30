"""A tool that calls another: through the same gate, for the same user, in the same time, not for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate import Denied, Hook, Invalid, InvokeContext, Outcome, ToolContext, UnknownTool, tool
from callgate.runtime.pipeline.nesting import MAX_DEPTH
from callgate.runtime.pipeline.streams import Partial, Progress, Result
from tests.runtime.gate.making import USER, Seeing, call, gate_of, made


def through(to: str, log: list[Any] | None = None) -> Any:
    """A tool that calls another one and gives back what that gives."""

    async def work(n: int, ctx: Any) -> Any:
        if log is not None:
            log.append((ctx.user, ctx.session_id, ctx.request_id, ctx.depth))
        return await ctx.call(to, {"n": n})

    return made(work, context_parameter="ctx")


def inner(log: list[Any]) -> Any:
    async def leaf(n: int, ctx: Any) -> int:
        log.append((ctx.user, ctx.session_id, ctx.request_id, ctx.depth))
        return n + 1

    return made(leaf, "inner", context_parameter="ctx")


async def test_a_nested_call_is_for_the_same_user_session_and_request() -> None:
    """Contract 84, 87."""
    log: list[Any] = []
    async with gate_of([through("inner", log), inner(log)]) as gate:
        assert (await gate.call(call(), user=USER, session_id="s", request_id="r")).output == 3
    assert log == [(USER, "s", "r", 0), (USER, "s", "r", 1)]


async def test_a_nested_call_passes_the_same_gate() -> None:
    """Contract 44, 96, I6, I7."""
    ran: list[Any] = []

    class Refusing(Hook):
        tools = ("inner",)

        def will_authorize(self, ctx: InvokeContext) -> None:
            raise Denied("no")

    seeing = Seeing()
    async with gate_of([through("inner"), inner(ran)], Refusing(), seeing) as gate:
        assert (await gate.call(call(), user=USER)).outcome is Outcome.DENIED
    assert not ran
    assert [outcome for outcome, _ in seeing.audited] == ["denied", "denied"]


async def test_arguments_of_a_nested_call_are_validated_and_its_failure_can_be_handled() -> None:
    """Contract 44, I2."""
    seen: list[type[BaseException]] = []

    @tool(effect="read")
    async def handling(ctx: ToolContext) -> str:
        for name, arguments in (("inner", {"n": "x"}), ("inner", {"m": 1}), ("nope", {})):
            try:
                await ctx.call(name, arguments)
            except Invalid as error:
                seen.append(type(error))
        return "handled"

    async with gate_of([handling, inner([])]) as gate:
        assert await gate.invoke("handling", user=USER) == "handled"
    assert seen == [Invalid, Invalid, UnknownTool]


async def test_a_tool_object_can_be_called_from_within() -> None:
    """Contract 83."""

    @tool(effect="read")
    async def leaf(n: int) -> int:
        return n + 1

    @tool(effect="read")
    async def outer(ctx: ToolContext) -> Any:
        return await ctx.call(leaf, {"n": 1})

    async with gate_of([leaf, outer]) as gate:
        assert await gate.invoke(outer, user=USER) == 2


async def test_calls_that_nest_too_deep_are_denied() -> None:
    """Contract 80, I12."""
    log: list[Any] = []
    async with gate_of([through("work", log)]) as gate:
        result = await gate.call(call(), user=USER)
    assert result.outcome is Outcome.DENIED
    assert result.error is not None
    assert result.error.code == "too_deep"
    assert [depth for *_, depth in log] == list(range(MAX_DEPTH + 1))


@pytest.mark.parametrize("own", [None, 1000.0])
async def test_a_nested_call_has_what_is_left_of_the_outer_deadline(own: float | None) -> None:
    """Contract 77, C14, I12."""
    left: list[float | None] = []

    async def leaf(n: int, ctx: Any) -> int:
        left.append(ctx.remaining())
        return n

    tools = [through("inner"), made(leaf, "inner", context_parameter="ctx", deadline=own)]
    async with gate_of(tools) as gate:
        assert (await gate.call(call(), user=USER, deadline=100)).ok
    assert left[0] is not None
    assert 90 < left[0] <= 100


async def test_a_deadline_ends_the_outer_call_while_the_inner_one_waits() -> None:
    """Contract 77, C14, I12."""
    ended: list[str] = []

    async def leaf(n: int) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("inner")
        return n

    async with gate_of([through("inner"), made(leaf, "inner")]) as gate:
        result = await gate.call(call(), user=USER, deadline=0.1)
    assert result.error is not None
    assert result.error.code == "deadline_exceeded"
    assert ended == ["inner"]


async def test_a_deadline_of_the_inner_tool_ends_the_inner_call_alone() -> None:
    """Contract 77, C14, I12."""

    async def leaf(n: int) -> int:
        await asyncio.Event().wait()
        return n

    async def work(n: int, ctx: Any) -> str:
        try:
            await ctx.call("inner", {"n": n})
        except TimeoutError:
            return "went on"
        return "never"

    tools = [made(work, context_parameter="ctx"), made(leaf, "inner", deadline=0.01)]
    async with gate_of(tools) as gate:
        assert (await gate.call(call(), user=USER, deadline=100)).output == "went on"


async def test_cancelling_the_outer_call_cancels_the_inner_one() -> None:
    """Contract C1d, I1."""
    inside, seeing = asyncio.Event(), Seeing()

    async def leaf(n: int) -> int:
        inside.set()
        await asyncio.Event().wait()
        return n

    async with gate_of([through("inner"), made(leaf, "inner")], seeing) as gate:
        running = asyncio.ensure_future(gate.call(call(), user=USER))
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [outcome for outcome, _ in seeing.audited] == ["cancelled", "cancelled"]


async def test_nested_progress_reaches_the_reader_under_the_inner_name() -> None:
    """Contract 70."""

    async def leaf(n: int, ctx: Any) -> int:
        ctx.progress(n)
        return n

    async with gate_of([through("inner"), made(leaf, "inner", context_parameter="ctx")]) as gate:
        events = [event async for event in gate.stream(call(), user=USER)]
    assert events[0] == Progress("inner", 2)


async def test_an_error_inside_reaches_the_caller_without_internals() -> None:
    """Contract C12, I9."""

    async def leaf(n: int) -> int:
        raise LookupError("SECRET")

    async with gate_of([through("inner"), made(leaf, "inner")]) as gate:
        result = await gate.call(call(), user=USER)
    assert result.outcome is Outcome.ERROR
    assert "SECRET" not in f"{result}"


@pytest.mark.parametrize("how", ["a task is left", "a body is abandoned"])
async def test_a_nested_call_that_is_over_sends_no_more_parts_and_no_progress(how: str) -> None:
    """Its parts went on into the stream of the outer call, after its error, and kept the idle limit of that call away."""
    left: list[asyncio.Task[None]] = []

    async def send(ctx: ToolContext) -> None:
        for n in range(60):
            await ctx.send(n)
            ctx.progress(n)
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @tool(effect="read", hard_deadline=True, deadline=0.05 if how == "a body is abandoned" else None)
    async def leave(ctx: ToolContext) -> None:
        """End while parts are still sent."""
        left.append(asyncio.ensure_future(send(ctx)))
        if how == "a body is abandoned":
            await send(ctx)
        ctx.abort("not today")

    @tool(effect="read", idle=0.2)
    async def outer(ctx: ToolContext) -> None:
        """Wait after the other tool has ended."""
        await asyncio.gather(ctx.call("leave"), return_exceptions=True)
        await ctx.send("it is over")
        await asyncio.sleep(60)

    async with gate_of([leave, outer]) as gate:
        told = [event async for event in gate.stream("outer", user=USER)]
    for task in left:
        task.cancel()
    assert isinstance(told[-1], Result)
    assert told[-1].result.error is not None
    assert told[-1].result.error.code == "idle_timeout"
    assert told[-2] == Partial("outer", "it is over")
