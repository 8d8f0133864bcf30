"""A model that calls again with the same arguments, as the text of a suspended call says, pays once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client

import callgate.mcp
from callgate import Approval, Approve, Deny, Effects, Gate, Hook, InvokeContext, Options, Respond, tool
from callgate.errors import StoreError
from callgate.hooks import Authorize, Consent, permit
from callgate.providers.principal import ANONYMOUS
from callgate.runtime.hosts.mcp import call as calls
from callgate.runtime.suspensions.repeats import KNOWN_FOR
from callgate.testing import FakeClock
from callgate.tools.approval import DAY
from callgate.tools.definition import Effect
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, client_of, server_of, text_of

ANN, LEA = PEOPLE["ann"], PEOPLE["lea"]
LEAD = Approval(roles={"lead"}, reason="A lead decides.")
pytestmark = pytest.mark.timeout(120)
BOTH_ERAS = pytest.mark.parametrize("era", ERAS)


class LeadsApproveAll(Hook):
    """Requires the approval of a lead, which no declaration of the tool shows."""

    def approval_for(self, _ctx: InvokeContext) -> Approval:
        """Require it."""
        return LEAD


class Bank:
    """Tools without a key, each with another reason to wait; ``ran`` lists what they did."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def gate(self, kind: str = "declared", **more: Any) -> Gate:
        async def pay(cents: int) -> str:
            """Pay."""
            self.ran.append(cents)
            return f"paid {cents}, number {len(self.ran)}"

        read = Effect.READ if kind.startswith("read") else Effect.IRREVERSIBLE
        effect = Effect.IDEMPOTENT if kind == "idempotent" else read
        declared = kind in {"declared", "idempotent", "read"}
        made = tool(effect=effect, requires_approval=LEAD if declared else False, resumable=kind == "consent")(pay)
        hooks: list[Any] = [Authorize(permit("all"))]
        hooks += [LeadsApproveAll()] if kind in {"hook", "read by a hook"} else []
        hooks += [Consent("pay", ask="suspend")] if kind == "consent" else []
        given: dict[str, Any] = {"signing_keys": ["k" * 32], "effects": Effects(durable=False), **more}
        return Gate([made], hooks, **given)


KINDS = ["declared", "idempotent", "hook", "read", "read by a hook"]


async def pay(client: Client, cents: int = 5) -> types.CallToolResult:
    return await client.call_tool("pay", {"cents": cents})


def handle_of(result: types.CallToolResult) -> str:
    assert result.is_error
    handle = (result.meta or {})["callgate/handle"]
    assert isinstance(handle, str)
    return handle


async def paid_again(bank: Bank, gate: Gate, client: Client, *, here: bool = True) -> None:
    """Call, let a lead approve, and call again as the text says."""
    handle = handle_of(await pay(client))
    assert handle_of(await pay(client)) == handle
    await gate.resume(handle, Approve(), approver=LEA, here=here)
    assert text_of(await pay(client)) == "paid 5, number 1"
    assert bank.ran == [5]
    assert await gate.waits.pending(LEA) == []


@BOTH_ERAS
@pytest.mark.parametrize("here", [True, False], ids=["run by the approver", "recorded by the approver"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_call_after_the_approval_gets_its_outcome(kind: str, here: bool, era: str) -> None:
    """It makes no second request and no second payment, whatever made it wait."""
    bank = Bank()
    async with bank.gate(kind) as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        await paid_again(bank, gate, client, here=here)


@BOTH_ERAS
async def test_the_control_without_the_look_up_pays_twice(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scene, with a second approval of what is a second call then."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(calls, "find_repeated", nothing)
    bank = Bank()
    async with bank.gate() as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        first = handle_of(await pay(client))
        await gate.resume(first, Approve(), approver=LEA)
        second = handle_of(await pay(client))
        assert second != first
        await gate.resume(second, Approve(), approver=LEA)
    assert bank.ran == [5, 5]


@BOTH_ERAS
@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_call_after_its_outcome_was_given_is_a_new_one(kind: str, era: str) -> None:
    """The outcome is given once: a second payment is asked for again."""
    bank = Bank()
    async with bank.gate(kind) as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        await paid_again(bank, gate, client)
        new = handle_of(await pay(client))
        await gate.resume(new, Approve(), approver=LEA)
        assert text_of(await pay(client)) == "paid 5, number 2"
        assert handle_of(await pay(client)) != new


async def by_the_handle(client: Client, handle: str) -> types.CallToolResult:
    meta: Any = {"callgate/handle": handle}
    return await client.call_tool("pay", {}, meta=meta)


@BOTH_ERAS
async def test_an_outcome_that_was_taken_by_the_handle_is_given(era: str) -> None:
    """The same call is then a new one, too."""
    bank = Bank()
    async with bank.gate() as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        handle = handle_of(await pay(client))
        await gate.resume(handle, Approve(), approver=LEA)
        assert text_of(await by_the_handle(client, handle)) == "paid 5, number 1"
        assert handle_of(await pay(client)) != handle


@BOTH_ERAS
async def test_a_consent_that_is_remembered_does_not_let_the_repeat_pay(era: str) -> None:
    """The hook asks once, so a repeat would run at once as a new call."""
    bank = Bank()
    async with bank.gate("consent") as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        handle = handle_of(await pay(client))
        await gate.resume(handle, Respond({"granted": True}), approver=ANN)
        assert text_of(await pay(client)) == "paid 5, number 1"
        assert bank.ran == [5]
        assert text_of(await pay(client)) == "paid 5, number 2"


@BOTH_ERAS
async def test_a_declined_call_is_told_once(era: str) -> None:
    """The next one is a new request."""
    bank = Bank()
    async with bank.gate() as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        handle = handle_of(await pay(client))
        await gate.resume(handle, Deny("no", "Not today."), approver=LEA)
        assert "Not today." in text_of(await pay(client))
        assert handle_of(await pay(client)) != handle
        assert bank.ran == []


async def test_calls_at_once_share_one_request() -> None:
    """One approval, one payment, and all of the callers may get the outcome."""
    bank = Bank()
    async with bank.gate() as gate, client_of(server_of(gate, "memory"), "memory", "modern") as client:
        handles = {handle_of(one) for one in await asyncio.gather(*(pay(client) for _ in range(10)))}
        (handle,) = handles
        await gate.resume(handle, Approve(), approver=LEA)
        results = [text_of(one) for one in await asyncio.gather(*(pay(client) for _ in range(10)))]
        assert results.count("paid 5, number 1") >= 1
        assert bank.ran == [5]


async def test_others_and_other_arguments_share_nothing() -> None:
    """Another user, another tenant, another amount: each has a request of its own, and gets no outcome of Ann's."""
    bank = Bank()
    async with bank.gate() as gate:
        seen = dict[str, str]()
        for name in ("ann", "lea", "eve"):
            async with client_of(server_of(gate, "memory", user=PEOPLE[name]), "memory", "modern") as client:
                seen[name] = handle_of(await pay(client))
                seen[f"{name} 6"] = handle_of(await pay(client, 6))
        assert len(set(seen.values())) == len(seen)
        await gate.resume(seen["ann"], Approve(), approver=LEA)
        async with client_of(server_of(gate, "memory", user=LEA), "memory", "modern") as client:
            assert handle_of(await pay(client)) == seen["lea"]


async def test_another_process_gives_the_outcome(tmp_path: Path) -> None:
    """The look-up is in the store: a host that was started again takes the call up."""
    bank, store = Bank(), {"store": f"sqlite:///{tmp_path}/bank.db"}
    async with bank.gate(**store) as gate, client_of(server_of(gate, "memory"), "memory", "modern") as client:
        handle = handle_of(await pay(client))
    async with bank.gate(**store) as gate:
        await gate.resume(handle, Approve(), approver=LEA)
    async with bank.gate(**store) as gate, client_of(server_of(gate, "memory"), "memory", "modern") as client:
        assert text_of(await pay(client)) == "paid 5, number 1"
    assert bank.ran == [5]


@pytest.mark.parametrize(("later", "told"), [(DAY + 1, True), (DAY + KNOWN_FOR + 1, False)])
async def test_an_old_outcome_is_not_that_of_a_new_call(later: float, told: bool) -> None:
    """A day after the call expired, the same call is a new one, also if nothing has asked for its outcome."""
    bank, clock = Bank(), FakeClock()
    options = Options(clock=clock)
    async with bank.gate(options=options) as gate, client_of(server_of(gate, "memory"), "memory", "modern") as client:
        handle = handle_of(await pay(client))
        await gate.resume(handle, Approve(), approver=LEA)
        clock.advance(later)
        again = await pay(client)
        assert (text_of(again) == "paid 5, number 1") is told
        assert bank.ran == [5]


@BOTH_ERAS
async def test_the_text_says_where_and_by_whom_to_approve(era: str) -> None:
    """The page and the roles; what a model reads is the text only."""
    bank = Bank()
    url = "https://desk.example/wait/{handle}"
    async with bank.gate() as gate, client_of(server_of(gate, "memory", approvals_url=url), "memory", era) as client:
        result = await pay(client)
        shown = text_of(result)
        assert url.replace("{handle}", handle_of(result)) in shown
        assert "one person with one of the roles lead" in shown
        assert "call the tool again with the same arguments" in shown


async def test_an_anonymous_caller_is_not_told_to_call_again() -> None:
    """Two anonymous callers are not the same user, so the same call again would be a new one."""
    bank = Bank()
    async with bank.gate() as gate:
        server = callgate.mcp.server(gate, user=ANONYMOUS)
        async with client_of(server, "memory", "modern") as client:
            result = await pay(client)
            assert "has not run" in text_of(result)
            assert "call the tool again" not in text_of(result)
            assert handle_of(await pay(client)) != handle_of(result)


@BOTH_ERAS
async def test_a_call_that_cannot_be_looked_up_does_not_run(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome may be there: the model is told to try later."""

    async def fails(*_: object, **__: object) -> None:
        raise StoreError("gone")

    monkeypatch.setattr(calls, "find_repeated", fails)
    bank = Bank()
    async with bank.gate("idempotent") as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        result = await pay(client)
        assert result.is_error
        assert "retry_later" in text_of(result)
        assert await gate.waits.pending(LEA) == []
    assert bank.ran == []


@BOTH_ERAS
async def test_an_outcome_is_given_also_if_that_cannot_be_noted(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given again then, and nothing runs again."""
    bank = Bank()
    async with bank.gate() as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        handle = handle_of(await pay(client))
        await gate.resume(handle, Approve(), approver=LEA)

        async def fails(*_: object) -> None:
            raise StoreError("gone")

        monkeypatch.setattr(gate.waits.store().suspensions, "put", fails)
        for _ in range(2):
            assert text_of(await pay(client)) == "paid 5, number 1"
    assert bank.ran == [5]
