"""Calls that wait outlive their process; a changed tool, policy, key or role is noticed when they go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Approve, Gate, Hook, InvokeContext, Outcome, User
from callgate.errors import RegistrationError, Stale
from callgate.hooks import RequireApproval
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
            assert [one.text for one in await second.waits.pending(BOB)] == ["pay(cents=7)"]
            told = await asyncio.gather(
                *(gate.resume(handle, Approve(), approver=who) for gate, who in ((second, BOB), (third, CID)) * 4),
                return_exceptions=True,
            )
            assert sum(not isinstance(one, BaseException) for one in told) == 1
            repeat = await third.call(call(7), user=ANN, idempotency_key="k")
            assert repeat.outcome is Outcome.SUSPENDED, "a repeat needs approval, too"
            replay = await second.resume(repeat.pending.handle, Approve(), approver=BOB)
            assert (replay.output, replay.replayed) == ("paid 1", True)
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
    "description of the tool": {"tools": [{"description": "Pay somebody."}]},
    "effect of the tool": {"tools": [{"effect": "idempotent"}]},
    "no such tool": {"tools": [{"name": "other"}]},
    "word of the application": {"policy_version": "q"},
    "version of a policy": {"hooks": [Policy("2")]},
    "one policy more": {"hooks": [Policy("1"), Another()]},
    "one policy less": {"hooks": []},
    "approval by one more": {"hooks": [Policy("1"), RequireApproval(LEAD)]},
}


@pytest.mark.parametrize("change", [*CHANGES, "nothing"])
async def test_what_a_call_was_decided_on_may_not_have_changed(tmp_path: Path, change: str) -> None:
    """I5: tool version, policy version."""
    desk = Desk()

    def settings(**changed: Any) -> dict[str, Any]:
        told = {**SAME, **changed}
        options: list[dict[str, Any]] = [{"requires_approval": LEAD, **one} for one in told.pop("tools")]
        return {**told, "tools": [desk.tool(**one) for one in options]}

    async with process(tmp_path, desk, **settings()) as gate:
        handle = await asked(gate)
    async with process(tmp_path, desk, **settings(**CHANGES.get(change, {}))) as gate:
        if change == "nothing":
            assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        else:
            with pytest.raises(Stale) as stale:
                await gate.resume(handle, Approve(), approver=BOB)
            assert stale.value.code == "stale"
    async with process(tmp_path, desk, **settings()) as gate:  # and not when it is as it was, either
        assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
    assert desk.paid == ([5] if change == "nothing" else [])


async def test_a_tool_that_is_replaced_while_its_user_is_looked_up_does_not_run() -> None:
    """I5: between the decision and the run."""
    desk, gates = Desk(), list[Gate]()

    async def slow(user: User) -> User:
        gates[0].add(desk.tool(requires_approval=LEAD, version="2"), replace=True)
        return user

    async with gate_of(desk.tool(requires_approval=LEAD), refresh_user=slow) as gate:
        gates.append(gate)
        handle = await asked(gate)
        with pytest.raises(Stale):
            await gate.resume(handle, Approve(), approver=BOB)
        assert desk.paid == []


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


async def test_a_look_up_that_fails_lets_nothing_run() -> None:
    """I6: a policy that fails to run denies."""
    desk = Desk()

    def broken(user: User) -> User:
        raise ConnectionError("the directory is down")

    async with gate_of(desk.tool(requires_approval=LEAD), refresh_user=broken) as gate:
        handle = await asked(gate)
        with pytest.raises(ConnectionError):
            await gate.resume(handle, Approve(), approver=BOB)
        assert desk.paid == []
        assert [one.handle for one in await gate.waits.pending(EVE)] == []
        assert [one.handle for one in await gate.waits.pending(BOB)] == [handle]
