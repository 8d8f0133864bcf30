"""``invoke_tool`` without a gate: what would have to wait is denied, because nothing could resume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from callgate import (
    Approval,
    Denied,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Stage,
    Suspended,
    ToolCall,
    ToolContext,
    ToolRecord,
    configure_logging,
    hydrate_without_gate,
    invoke_tool,
    tool,
)
from callgate.hooks import Consent, RequireApproval
from callgate.runtime.pipeline import failure
from tests.hooks.making import USER, at, record

RAN: list[int] = []


async def double(n: int) -> int:
    RAN.append(n)
    return 2 * n


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


async def of_two_people(ctx: InvokeContext) -> Approval:
    return Approval(quorum=2)


@tool(effect="read", resumable=True)
async def asks_within(n: int, ctx: ToolContext) -> int:
    """Ask in the body."""
    return int(ctx.suspend("input", "How many?"))


def asking(stage: Stage, kind: str) -> ToolRecord:
    return record(double, hooks=[at(stage, lambda ctx: ctx.suspend(kind, "May it?"))])


APPROVALS: Mapping[str, ToolRecord] = {
    "the tool": record(double, requires_approval=True),
    "a rule of the tool": record(double, requires_approval=Approval(roles={"lead"})),
    "a function of the tool": record(double, requires_approval=lambda arguments: arguments["n"] == 1),
    "a hook": record(double, hooks=[RequireApproval()]),
    "an asynchronous rule of a hook": record(double, hooks=[RequireApproval(when=of_two_people)]),
    "a hook's own question": asking(Stage.WILL_AUTHORIZE, "approval"),
}
QUESTIONS: Mapping[str, Any] = {
    "before the arguments are parsed": asking(Stage.WILL_AUTHORIZE, "input"),
    "after they are frozen": asking(Stage.WILL_AUTHORIZE_INPUT, "input"),
    "a consent": record(double, hooks=[Consent(ask="suspend")]),
    "in the body": asks_within,
}


@pytest.mark.parametrize("asker", APPROVALS)
async def test_a_bare_call_that_needs_approval_is_denied_with_what_to_do(asker: str) -> None:
    """Contract C9, 83."""
    with pytest.raises(Denied, match=r"Gate\(\[the_tool\], store=...\)") as denied:
        await invoke_tool(APPROVALS[asker], {"n": 1}, user=USER)
    assert (denied.value.code, denied.value.no_effect) == ("approval_required", True)
    assert not RAN


@pytest.mark.parametrize("asker", APPROVALS)
async def test_the_same_call_waits_in_a_gate(asker: str) -> None:
    """The control: a gate can resume it."""
    async with Gate([APPROVALS[asker]], allow_unguarded=True) as gate:
        result = await gate.call("double", {"n": 1}, user=USER)
    assert result.outcome is Outcome.SUSPENDED
    assert result.pending.handle
    assert not RAN


@pytest.mark.parametrize("asker", QUESTIONS)
async def test_a_bare_call_that_asks_a_question_is_denied_with_what_to_do(asker: str) -> None:
    """Contract C9, 83."""
    with pytest.raises(Denied, match=r"cannot wait for it.*Gate\(\[the_tool\], store=...\)") as denied:
        await invoke_tool(QUESTIONS[asker], {"n": 1}, user=USER)
    assert (denied.value.code, denied.value.no_effect) == ("no_gate", True)
    assert not RAN


async def test_a_call_within_a_bare_call_is_denied_as_well() -> None:
    """Contract C9."""

    @tool(effect="read")
    async def outer(ctx: ToolContext) -> Any:
        """Call another."""
        return await ctx.call(APPROVALS["the tool"], {"n": 1})

    with pytest.raises(Denied) as denied:
        await invoke_tool(outer, {}, user=USER)
    assert denied.value.code == "approval_required"
    assert not RAN


async def test_a_repaired_call_that_the_tool_wants_approved_is_denied_as_well() -> None:
    """Contract 49, C9, C10c."""
    guarded = APPROVALS["the tool"]
    found = await hydrate_without_gate(
        guarded, ToolCall(name="double", arguments='{"n": "x"}'), repair=lambda *_: {"n": 1}
    )
    assert found.success
    with pytest.raises(Denied) as denied:
        await invoke_tool(guarded, found, user=USER)
    assert denied.value.code == "approval_required"
    assert not RAN


async def test_a_denied_question_gives_back_what_the_call_holds_and_is_observed_as_a_denial() -> None:
    """Contract 101, 104, C1."""
    seen: list[str] = []

    class Holds(Hook):
        async def will_acquire_quota(self, ctx: InvokeContext) -> None:
            seen.append("taken")

        async def did_release_quota(self, ctx: InvokeContext) -> None:
            seen.append("given back")

        async def on_error(self, ctx: InvokeContext) -> None:
            seen.append(f"{ctx.error.code} {ctx.outcome}")
            assert ctx.pending is None

    class Asks(Hook):
        async def will_authorize_input(self, ctx: InvokeContext) -> None:
            ctx.suspend("input", "How many?")

    events: list[dict[str, Any]] = []
    configure_logging(events.append)
    try:
        with pytest.raises(Denied):
            await invoke_tool(record(double, hooks=[Holds(), Asks()]), {"n": 1}, user=USER)
    finally:
        configure_logging()
    assert seen == ["taken", "no_gate denied", "given back"]
    assert [one["event"] for one in events if one["event"] in {"call.suspended", "call.refused"}] == ["call.refused"]


async def test_the_control_suspends_without_a_handle_if_the_check_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sabotaged gate-less call waits where nothing can resume it; the tests above would find it."""

    async def without_check(ctx: Any, asked: Any) -> None:
        ctx.run.pending, ctx.run.error, ctx.run.outcome = asked.pending, Suspended(asked.pending), Outcome.SUSPENDED

    monkeypatch.setattr(failure, "_suspend", without_check)
    with pytest.raises(Suspended) as suspended:
        await invoke_tool(APPROVALS["the tool"], {"n": 1}, user=USER)
    assert suspended.value.handle is None
