"""Calls that wait outlive their process; a changed tool, policy, key or role is noticed when they go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Gate, Hook, InvokeContext, Outcome, User
from callgate.errors import RegistrationError, Stale
from callgate.hooks import RequireApproval
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import (
    ANN,
    BOB,
    CID,
    EVE,
    KEY,
    LEAD,
    ONE_AND_THE_SAME,
    Desk,
    asked,
    call,
    code,
    gate_of,
    handle_of,
    refused,
    states,
)

OLD, NEW = "an old key of 16 bytes", "a new key of 16 bytes"


# ---------------------------------------------------------------------- another process


@asynccontextmanager
async def process(at: Path | str, desk: Desk, *, hooks: Any = (), **options: Any) -> AsyncGenerator[Gate, None]:
    """A gate on one database, as each process of a service has it: at an address, or in a folder."""
    tools = options.pop("tools", None) or [desk.tool(requires_approval=LEAD)]
    store = at if isinstance(at, str) else f"sqlite:///{at}/store.db"
    settings: dict[str, Any] = {"signing_keys": [KEY], "open": True, "store": store, **options}
    async with Gate(tools, hooks, **gate_options(**settings)) as gate:
        yield gate


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_any_process_with_the_key_goes_on_with_what_waits(kind: str, tmp_path: Path) -> None:
    """I16: the one that asked is gone; two others compete."""
    desk = Desk()
    with place(kind, tmp_path) as (address, _):
        async with process(address, desk) as first:
            handle = handle_of(await first.call(call(7), user=ANN, idempotency_key="k", session_id="s", request_id="r"))
        async with process(address, desk) as second, process(address, desk) as third:
            assert [one.text for one in await second.waits.pending(BOB)] == ['pay(cents=7, how="ok")']
            told = await asyncio.gather(
                *(gate.resume(handle, Approve(), approver=who) for gate, who in ((second, BOB), (third, CID)) * 4),
                return_exceptions=True,
            )
            assert sum(not isinstance(one, BaseException) for one in told) == 1
            replay = await third.call(call(7), user=ANN, idempotency_key="k")
            assert (replay.output, replay.replayed) == ("paid 1", True), "the ledger answers before anybody is asked"
    assert desk.paid == [7]


async def test_keys_can_be_changed_and_what_a_removed_one_signed_is_no_more(tmp_path: Path) -> None:
    """I5."""
    desk = Desk()
    two = [desk.tool(requires_approval=Approval(roles={"lead"}, quorum=2))]
    async with process(tmp_path, desk, tools=two, signing_keys=[OLD]) as gate:
        one, other = await asked(gate), await asked(gate)
    async with process(tmp_path, desk, tools=two, signing_keys=[NEW, OLD]) as gate:
        assert len(await gate.waits.pending(BOB)) == 2
        await gate.resume(one, Approve(), approver=BOB)
        renewed = next(each.handle for each in await gate.waits.pending(BOB) if each.approvals)
    async with process(tmp_path, desk, tools=two, signing_keys=[NEW]) as gate:
        for handle in (one, other):
            assert await refused(gate.resume(handle, Approve(), approver=CID)) == ONE_AND_THE_SAME
        assert [each.handle for each in await gate.waits.pending(BOB)] == [renewed], "what was signed anew"
        assert (await gate.resume(renewed, Approve(), approver=CID)).ok
    async with process(tmp_path, desk, tools=two, signing_keys=["somebody else's key"]) as gate:
        assert await gate.waits.pending(BOB) == []
    assert desk.paid == [5]


@pytest.mark.parametrize("asks", ["tool", "callable", "hook", "no schema"])
async def test_a_durable_store_wants_a_lasting_key_where_approval_is_asked_for(tmp_path: Path, asks: str) -> None:
    """Design 8; I16: what waits could not be resumed after a restart."""
    desk = Desk()
    tools: dict[str, Any] = {
        "tool": desk.tool(requires_approval=LEAD),
        "callable": desk.tool(requires_approval=lambda arguments: False),
        "hook": desk.tool(),
        "no schema": desk.tool(parameters=None, allow_no_schema=True, no_schema_mode="human-approval"),
    }
    hooks = [RequireApproval(LEAD)] if asks == "hook" else []
    with pytest.raises(RegistrationError, match="signing_keys"):
        async with process(tmp_path, desk, tools=[tools[asks]], hooks=hooks, signing_keys=[]):
            pass
    async with process(tmp_path, desk, tools=[tools[asks]], hooks=hooks):
        pass
    async with process(tmp_path, desk, tools=[desk.tool()], signing_keys=[]):
        pass
    async with gate_of(tools[asks], hooks, signing_keys=[]) as gate:  # in memory nothing outlives the key
        assert (await gate.call(call(), user=ANN)).outcome in {Outcome.SUSPENDED, Outcome.SUCCESS}


@pytest.mark.parametrize("key", ["", "short", b"15 bytes it is", 7, None])
def test_a_key_that_is_none_is_refused(key: Any) -> None:
    with pytest.raises(RegistrationError):
        gate_of(Desk().tool(), signing_keys=[key])


# ---------------------------------------------------------------------- tools, policies, people


class Policy(Hook):
    """Authorises, and says which version of the policies it is."""

    def __init__(self, version: str = "") -> None:
        self.policy_version = version

    def will_authorize(self, ctx: InvokeContext) -> None:
        if "clerk" not in ctx.user.roles:
            ctx.abort("no clerk", code="role_lost")


class Another(Policy):
    """A further policy."""


SAME: dict[str, Any] = {"tools": [{}], "hooks": [Policy("1")], "policy_version": "p"}
CHANGES: dict[str, dict[str, Any]] = {
    "version of the tool": {"tools": [{"version": "2"}]},
    "effect of the tool": {"tools": [{"effect": "idempotent"}]},
    "roles of the tool": {"tools": [{"allowed_roles": ["clerk"]}]},
    "no such tool": {"tools": [{"name": "other"}]},
    "word of the application": {"policy_version": "q"},
    "version of a policy": {"hooks": [Policy("2")]},
    "one policy more": {"hooks": [Policy("1"), Another()]},
    "one policy less": {"hooks": []},
    "approval by one more": {"hooks": [Policy("1"), RequireApproval(LEAD)]},
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_process_with_another_version_refuses_a_decision_and_leaves_it_to_one_that_fits(
    tmp_path: Path, change: str
) -> None:
    """I5: tool version, policy version. Issue 16 B4: during a deployment, an old process voided the approval."""
    desk = Desk()

    def settings(**changed: Any) -> dict[str, Any]:
        told = {**SAME, **changed}
        options: list[dict[str, Any]] = [{"requires_approval": LEAD, **one} for one in told.pop("tools")]
        return {**told, "tools": [desk.tool(**one) for one in options]}

    async with process(tmp_path, desk, **settings()) as gate:
        handle = await asked(gate)
    async with process(tmp_path, desk, **settings(**CHANGES.get(change, {}))) as gate:
        for _ in range(2):  # it keeps waiting
            with pytest.raises(Stale) as stale:
                await gate.resume(handle, Approve(), approver=BOB)
            assert stale.value.code == "stale"
        assert await gate.resolution(handle, ANN) is None
        assert desk.paid == []
    async with process(tmp_path, desk, **settings()) as gate:
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
    assert desk.paid == [5]


@pytest.mark.parametrize("ended", ["denied", "withdrawn", "expired"])
async def test_a_call_ends_in_any_process_by_an_explicit_act_or_in_time(tmp_path: Path, ended: str) -> None:
    """Issue 16 B4: a process with another definition runs nothing, but it can end the call."""
    desk, clock = Desk(), FakeClock()
    newer = [desk.tool(requires_approval=LEAD, version="2")]
    async with process(tmp_path, desk, clock=clock) as gate:
        handle = await asked(gate)
    async with process(tmp_path, desk, tools=newer, clock=clock) as gate:
        if ended == "denied":
            assert code(await gate.resume(handle, Deny(), approver=BOB)) == "declined"
        elif ended == "withdrawn":
            await gate.waits.withdraw(handle, ANN)
        else:
            clock.advance(86_400.0)
            await gate.maintain()
    async with process(tmp_path, desk, clock=clock) as gate:
        assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
    assert desk.paid == []


def parameters(**more: Any) -> dict[str, Any]:
    """The schema of ``pay(cents)``; *more* is said about the argument."""
    return {"type": "object", "properties": {"cents": {"type": "integer", **more}}, "required": ["cents"]}


TEXTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "description": {"description": "Pay an account."},
    "title": {"title": "Payment"},
    "examples": {"examples": [{"cents": 1}]},
    "description of an argument": {"parameters": parameters(description="in cents")},
}


@pytest.mark.parametrize("change", TEXTS)
async def test_a_changed_text_alone_is_no_other_tool(tmp_path: Path, change: str) -> None:
    """Issue 16 B4: a description binds no approval."""
    desk = Desk()
    before: dict[str, Any] = {"parameters": parameters(), "requires_approval": LEAD}
    async with process(tmp_path, desk, tools=[desk.tool(**before)]) as gate:
        handle = await asked(gate)
    async with process(tmp_path, desk, tools=[desk.tool(**{**before, **TEXTS[change]})]) as gate:
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
    assert desk.paid == [5]


@pytest.mark.parametrize("effect", ["irreversible", "read"])
async def test_a_tool_that_is_replaced_while_its_user_is_looked_up_does_not_run(effect: str) -> None:
    """I5: between the decision and the run. Issue 16 B4: the approval is not used up, also that of a read."""
    desk, gates, versions = Desk(), list[Gate](), ["1", "2"]

    async def slow(user: User) -> User:
        gates[0].add(desk.tool(effect=effect, requires_approval=LEAD, version=versions.pop()), replace=True)
        return user

    async with gate_of(desk.tool(effect=effect, requires_approval=LEAD), refresh_user=slow) as gate:
        gates.append(gate)
        handle = await asked(gate)
        with pytest.raises(Stale):
            await gate.resume(handle, Approve(), approver=BOB)
        assert desk.paid == []
        gate.add(desk.tool(effect=effect, requires_approval=LEAD), replace=True)
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        assert desk.paid == [5]


@pytest.mark.parametrize("is_async", [False, True])
async def test_who_has_lost_a_role_since_is_refused_and_may_have_it_back(is_async: bool) -> None:
    """I5, I16: authorised anew on resume, for the user as they are now."""
    desk, now = Desk(), dict[str, User | None]()

    def plainly(user: User) -> User | None:
        return now.get(user.id, user)

    async def slowly(user: User) -> User | None:
        return plainly(user)

    refresh: Any = slowly if is_async else plainly
    async with gate_of(desk.tool(requires_approval=LEAD), [Policy()], refresh_user=refresh) as gate:
        handle = await asked(gate)
        told = {"role_lost": User("ann", "acme"), "no_user": None}
        for expected, user in told.items():
            now["ann"] = user
            result = await gate.resume(handle, Approve(), approver=BOB)
            assert (result.outcome, code(result)) == (Outcome.DENIED, expected)
        for impostor in (User("amy", "acme", {"clerk"}), User("ann", "rival", {"clerk"}), User("ann", None, {"clerk"})):
            now["ann"] = impostor
            assert code(await gate.resume(handle, Approve(), approver=BOB)) == "no_user"
        assert desk.paid == []
        assert await states(gate) == []
        now["ann"] = ANN
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        assert desk.paid == [5]


@pytest.mark.parametrize("effect", ["irreversible", "read"])
async def test_a_look_up_that_fails_lets_nothing_run(effect: str) -> None:
    """I6: a policy that fails to run denies. Issue 16 B4: the approval is not used up, also that of a read."""
    desk = Desk()

    def broken(user: User) -> User:
        raise ConnectionError("the directory is down")

    async with gate_of(desk.tool(effect=effect, requires_approval=LEAD), refresh_user=broken) as gate:
        handle = await asked(gate)
        with pytest.raises(ConnectionError):
            await gate.resume(handle, Approve(), approver=BOB)
        assert desk.paid == []
        assert [one.handle for one in await gate.waits.pending(EVE)] == []
        assert [one.handle for one in await gate.waits.pending(BOB)] == [handle]
