"""Questions of a server up to version 2025-11-25, in the middle of a call: its request stays open while the call waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from callgate import Deny, Outcome, Respond, ToolContext, invoke_tool, tool
from callgate.errors import Invalid
from callgate.runtime.remote.mcp import under_way
from tests.runtime.hosts.serving import until
from tests.runtime.remote.mcp.test_mounted import ANN, BOB, gate_with
from tests.runtime.remote.mcp.test_server_asks import asking

pytestmark = pytest.mark.timeout(120)
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "stdio"])


def name(value: str) -> Respond:
    return Respond({"name": value})


@TRANSPORTS
async def test_a_question_suspends_the_call_and_its_answer_goes_on_with_it(transport: str) -> None:
    """One after another; a wrong answer is refused, and the tool runs once."""
    async with asking(transport, legacy=True) as (toy, gate):
        result = await gate.call("toy_form", {"times": 3}, user=ANN)
        for number in range(3):
            assert result.outcome is Outcome.SUSPENDED
            assert result.pending.prompt == f"The server toy asks: Name {number}?"
            with pytest.raises(Invalid, match="expected string"):
                await gate.resume(result.pending.handle, Respond({"name": 1}), approver=ANN)
            result = await gate.resume(result.pending.handle, name(f"n{number}"), approver=ANN)
        assert result.output == "n0, n1, n2"
        assert transport == "stdio" or toy.calls == ["form"]


async def test_a_user_who_gives_no_answer_has_declined() -> None:
    """The server hears it, and ends the call in its own way."""
    async with asking(legacy=True) as (_, gate):
        result = await gate.call("toy_form", {"times": 2}, user=ANN)
        result = await gate.resume(result.pending.handle, Respond(error="no answer"), approver=ANN)
        result = await gate.resume(result.pending.handle, name("Ann"), approver=ANN)
        assert result.output == "decline, Ann"


async def test_another_process_answers(tmp_path: Any) -> None:
    """It records the answer, and the process that holds the open request goes on."""
    store = f"sqlite:///{tmp_path}/gate.db"
    async with (
        asking(legacy=True, gate=gate_with(store=store)) as (toy, gate),
        asking(legacy=True, gate=gate_with(store=store)) as (elsewhere, other),
    ):
        handle = (await gate.call("toy_form", {}, user=ANN)).pending.handle
        await other.resume(handle, name("Ann"), approver=ANN, here=False)
        assert (await gate.proceed(handle, user=ANN)).output == "Ann"
        assert (toy.calls, elsewhere.calls) == (["form"], [])


async def test_a_process_without_the_open_request_does_not_run_the_tool_again(tmp_path: Any) -> None:
    """It may have had an effect: its outcome is unknown."""
    store = f"sqlite:///{tmp_path}/gate.db"
    async with (
        asking(legacy=True, gate=gate_with(store=store)) as (toy, gate),
        asking(legacy=True, gate=gate_with(store=store)) as (elsewhere, other),
    ):
        handle = (await gate.call("toy_form", {}, user=ANN)).pending.handle
        result = await other.resume(handle, name("Ann"), approver=ANN)
        assert result.outcome in (Outcome.UNKNOWN, Outcome.ERROR)
        assert result.error is not None
        assert "no longer waits" in result.error.public
        assert (toy.calls, elsewhere.calls) == (["form"], [])


@pytest.mark.parametrize("how", ["too late", "denied", "closed"])
async def test_an_open_request_ends_when_its_question_cannot_be_answered_any_more(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is told; it does not wait for good."""
    monkeypatch.setattr(under_way, "HELD", 0.05 if how != "closed" else 540.0)
    async with asking(legacy=True) as (toy, gate):
        handle = (await gate.call("toy_form", {}, user=ANN)).pending.handle
        if how == "closed":
            await gate.close()
        elif how == "denied":
            await gate.resume(handle, Deny("no"), approver=ANN)
        await until(lambda: toy.asked != [])
        assert toy.asked in (["cancel"], ["cancelled"], ["refused: Connection closed"])
        if how == "too late":
            result = await gate.resume(handle, name("Ann"), approver=ANN)
            assert not result.ok
            assert toy.calls == ["form"]


async def test_each_question_is_asked_of_the_user_of_its_call() -> None:
    """Over HTTP, the server asks in the response to a call."""
    async with asking(legacy=True) as (_, gate):
        users = [ANN, BOB] * 3
        asked = await asyncio.gather(
            *(gate.call("toy_form", {"of": f"{number} "}, user=user) for number, user in enumerate(users))
        )
        for number, (user, one) in enumerate(zip(users, asked, strict=True)):
            done = await gate.resume(one.pending.handle, name(user.id), approver=user)
            assert done.output == f"{number} {user.id}"


async def test_a_question_that_may_be_of_several_calls_is_refused() -> None:
    """Over stdio, a question names no call: a user would answer for another one. The control: the call alone."""
    async with asking("stdio", legacy=True) as (_, gate):
        waiting = await gate.call("toy_form", {"of": "first "}, user=ANN)
        second = await gate.call("toy_form", {"of": "second "}, user=BOB)
        assert second.output.startswith("second refused: ")
        assert (await gate.resume(waiting.pending.handle, name("Ann"), approver=ANN)).output == "first Ann"
        assert (await gate.call("toy_form", {}, user=BOB)).outcome is Outcome.SUSPENDED


async def test_the_calls_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of one more learns that there is no answer, and its call goes on."""
    monkeypatch.setattr(under_way, "MAX_HELD", 1)
    async with asking(legacy=True) as (_, gate):
        waiting = await gate.call("toy_form", {"of": "a "}, user=ANN)
        assert (await gate.call("toy_form", {"of": "b "}, user=ANN)).output == "b cancel"
        assert (await gate.resume(waiting.pending.handle, name("Ann"), approver=ANN)).output == "a Ann"


async def test_a_call_that_cannot_be_suspended_goes_on_without_an_answer() -> None:
    """Within another call, or without a gate."""

    @tool(effect="read")
    async def outer(*, ctx: ToolContext) -> str:
        """Call another tool."""
        return f"nested {await ctx.call('toy_form', {})}"

    async with asking(legacy=True, gate=gate_with(tools=[outer])) as (_, gate):
        assert (await gate.call("outer", {}, user=ANN)).output == "nested cancel"
        assert await invoke_tool(gate.registry.get("toy_form"), {}) == "cancel"
