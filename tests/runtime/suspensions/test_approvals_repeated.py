"""The repeat of a call that was approved and has ended: the ledger answers it as it answers a call that nobody approved."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import Approval, Approve, Effects, Gate, ToolCall, ToolContext, ToolError, ToolResult, User, tool
from callgate.errors import StoreError

ANN, BOB = User("ann", "acme", {"clerk"}), User("bob", "acme", {"lead"})
ENDINGS = ("output", "tool_error", "denied", "retry_later", "invalid_output", "crash", "damaged", "outage")
CASES = [(ending, "sqlite://") for ending in ENDINGS] + [
    (ending, "memory://") for ending in ENDINGS if ending != "outage"
]
Shown = tuple[str, str | None, Any, bool]


def gate_for(ending: str, store: str, *, approval: bool) -> Gate:
    """A gate with one tool, which ends as it is told once it has taken effect."""

    async def pay(cents: int, ctx: ToolContext) -> int:
        if ending == "tool_error":
            raise ToolError("The card was refused.")
        if ending == "crash":
            raise RuntimeError("broken")
        if ending == "denied":
            ctx.abort("not today")
        if ending == "retry_later":
            ctx.retry_after(5)
        return "text" if ending == "invalid_output" else cents  # type: ignore[return-value]

    rules: dict[str, Any] = {"requires_approval": Approval(roles={"lead"})} if approval else {}
    made = tool(effect="irreversible", description="Pay.", **rules)(pay)
    return Gate([made], store=store, signing_keys=["k" * 32], effects=Effects(durable=False), allow_unguarded=True)


def shown(result: ToolResult) -> Shown:
    """What a caller reads of a result."""
    return result.outcome.value, result.error.code if result.error else None, result.output, result.replayed


async def asked(gate: Gate) -> ToolResult:
    """Ask for the one call, under its one key."""
    return await gate.call(ToolCall(id="c1", name="pay", arguments={"cents": 5}), user=ANN, idempotency_key="order-5")


async def repeated(ending: str, store: str, monkeypatch: pytest.MonkeyPatch, *, approval: bool) -> Shown:
    """Run the call once, have the store fail where the ending says so, and ask for it again."""
    async with gate_for(ending, store, approval=approval) as gate:
        first = await asked(gate)
        if first.pending is not None:
            await gate.resume(first.pending.handle, Approve(), approver=BOB)
        effects: Any = type(gate.store.effects)
        with monkeypatch.context() as patched:
            if ending == "damaged":
                patched.setattr("callgate.runtime.effects.steps.answer_from", damaged)
            if ending == "outage":
                for name in ("get", "claim", "refused"):
                    patched.setattr(effects, name, outage, raising=False)
            return shown(await asked(gate))


def damaged(receipt: bytes | None) -> None:
    raise StoreError("the receipt is damaged")


async def outage(*_: Any, **__: Any) -> None:
    raise StoreError("the server has gone away")


@pytest.mark.parametrize(("ending", "store"), CASES)
async def test_the_ledger_answers_a_repeat_alike_with_and_without_approval(
    ending: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I16: a recorded error is the tool's error; it is never told as a refusal by the policy that asked the ledger."""
    plain = await repeated(ending, store, monkeypatch, approval=False)
    approved = await repeated(ending, store, monkeypatch, approval=True)
    if ending in {"denied", "retry_later"}:  # no effect: the call runs again, or waits for approval again
        assert (plain[0], approved[0]) == (ending, "suspended")
        return
    assert approved == plain
    assert approved[0] == {"output": "success", "crash": "unknown"}.get(ending, "error")
