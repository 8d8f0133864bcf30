"""What the scenarios share: people, a desk whose tools note what they did, and gates over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from callgate import Approval, Gate, Outcome, ToolCall, ToolContext, ToolError, ToolResult, User, tool
from callgate.errors import InvocationError, NotPending
from callgate.providers.principal import ANONYMOUS
from callgate.providers.stores.effects import EffectState
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options

ANN = User("ann", "acme", {"clerk"})
AMY = User("amy", "acme", {"clerk"})
BOB, CID = User("bob", "acme", {"lead"}), User("cid", "acme", {"lead"})
DAN, EVE = User("dan", "acme", {"boss"}), User("eve", "acme")
RAE, ROB = User("ann", "rival", {"clerk"}), User("rob", "rival", {"lead", "boss"})
NOBODY = User(ANONYMOUS.id, "acme", {"lead", "boss"})

LEAD = Approval(roles={"lead"})
KEY = "a signing key of at least 16 bytes"
ONE_AND_THE_SAME = (NotPending, "not_pending", "Nothing waits under this handle.", 404, None)
"""What everybody is told for whom nothing waits under a handle: type, code, public text, status, correlation id."""


class Desk:
    """Tools that note what they did in ``paid``; a call's ``how`` says how its body ends."""

    def __init__(self) -> None:
        self.paid: list[Any] = []
        self.tokens: list[Any] = []
        self.keys: list[Any] = []

    def tool(self, name: str = "pay", *, effect: str | None = "irreversible", **options: Any) -> Any:
        """``pay(cents, how="ok")``, with these options."""

        async def pay(cents: int, ctx: ToolContext, how: str = "ok") -> str:
            self.keys.append(ctx.idempotency_key)
            self.tokens.append(ctx.fencing_token)
            if how == "abort":
                ctx.abort("not today")
            if how == "later":
                ctx.retry_after(5)
            if how == "no_effect":
                raise ToolError("Not now.", no_effect=True)
            self.paid.append(cents)
            if how == "tool_error":
                raise ToolError("No such account.")
            if how == "responds":
                ctx.respond(f"responded {len(self.paid)}")
            if how == "raise":
                raise RuntimeError("the line is dead")
            return f"paid {len(self.paid)}"

        return tool(name=name, **cast("Any", {"description": "Pay.", "effect": effect, **options}))(pay)


def gate_of(tools: Any, hooks: Iterable[Any] = (), **options: Any) -> Gate:
    """A gate in memory that asks for no other guard."""
    told: dict[str, Any] = {"open": True, "durable": False, "signing_keys": [KEY], "clock": FakeClock(), **options}
    return Gate(tools if isinstance(tools, list) else [tools], hooks, **gate_options(**told))


def call(cents: int = 5, tool: str = "pay", id: str = "c1", **more: Any) -> ToolCall:
    return ToolCall(id=id, name=tool, arguments={"cents": cents, **more})


async def asked(gate: Gate, user: User = ANN, wanted: ToolCall | None = None, **options: Any) -> str:
    """The handle of a call that waits now."""
    result = await gate.call(wanted or call(), user=user, **options)
    return handle_of(result)


def handle_of(result: ToolResult) -> str:
    """The handle of a call that waits."""
    assert result.outcome is Outcome.SUSPENDED, result
    assert result.error is not None
    assert result.error.code == "suspended"
    handle: str = result.pending.handle
    return handle


def code(result: ToolResult) -> str | None:
    return None if result.error is None else result.error.code


async def refused(work: Any) -> tuple[Any, ...]:
    """The error that was raised: type, code, public text, status, correlation id."""
    try:
        told = await work
    except InvocationError as error:
        return type(error), error.code, error.public, error.http_status, error.correlation_id
    raise AssertionError(f"nobody refused: {told}")


async def states(gate: Gate) -> list[str]:
    """How the effects in the ledger stand, the oldest first."""
    found = await gate.store.effects.list(None, limit=1000)
    assert all(effect.state not in {EffectState.RUNNING, EffectState.CLAIMED} for _, effect in found)
    return [effect.state.value for _, effect in reversed(found)]
