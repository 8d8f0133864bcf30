"""Decisions on one suspended call at the same time: each counts, and none approves arguments that it was not given for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Edit, Gate, Hook, InvokeContext, Outcome, User
from callgate.errors import InvocationError
from callgate.hooks import RequireApproval
from tests.runtime.effects.scene_desk import (
    ANN,
    BOB,
    CID,
    DAN,
    LEAD,
    ONE_AND_THE_SAME,
    Desk,
    asked,
    gate_of,
    refused,
    states,
)

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])
TWO = Approval(roles={"lead"}, quorum=2)


def read_at_once(monkeypatch: pytest.MonkeyPatch, gate: Gate, number: int) -> None:
    """Let the next *number* readers of a suspended call all read the same version; the last of them writes first."""
    part = type(gate.store.suspensions)
    real, all_have_read, readers = part.get, asyncio.Event(), [0]

    async def get(self: Any, tenant: str, id: str) -> Any:
        found = await real(self, tenant, id)
        readers[0] += 1
        if readers[0] >= number:
            all_have_read.set()
        await all_have_read.wait()
        return found

    monkeypatch.setattr(part, "get", get)


@EVERY_STORE
@pytest.mark.parametrize("number", [2, 10])
@pytest.mark.parametrize("effect", ["irreversible", "read"])
async def test_votes_at_once_all_count(store: str, number: int, effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 B3: two approvers at once lost a vote."""
    desk = Desk()
    people = [User(f"lead {each}", "acme", {"lead"}) for each in range(number)]
    rule = Approval(roles={"lead"}, quorum=number)
    async with gate_of(desk.tool(effect=effect, requires_approval=rule), store=store) as gate:
        handle = await asked(gate)
        read_at_once(monkeypatch, gate, number)
        results = await asyncio.gather(*(gate.resume(handle, Approve(), approver=person) for person in people))
        outcomes = sorted(result.outcome for result in results)
        assert outcomes == sorted([Outcome.SUCCESS, *[Outcome.SUSPENDED] * (number - 1)])
        assert desk.paid == [5]


@EVERY_STORE
@pytest.mark.parametrize("first", ["vote", "deny"])
async def test_a_denial_counts_whatever_vote_is_quicker(
    store: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 B3: a denial that lost the race against a vote was lost, too."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=TWO), store=store) as gate:
        handle = await asked(gate)
        read_at_once(monkeypatch, gate, 2)
        decisions = [gate.resume(handle, Approve(), approver=BOB), gate.resume(handle, Deny(), approver=CID)]
        await asyncio.gather(*(decisions if first == "vote" else reversed(decisions)), return_exceptions=True)
        assert await gate.waits.pending(BOB) == []
        assert await refused(gate.resume(handle, Approve(), approver=CID)) == ONE_AND_THE_SAME
        assert desk.paid == []


@EVERY_STORE
async def test_a_caller_can_withdraw_while_an_approver_votes(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 B3: a withdrawal that lost the race against a vote was lost, too."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=TWO), store=store) as gate:
        handle = await asked(gate)
        read_at_once(monkeypatch, gate, 2)
        await asyncio.gather(gate.waits.withdraw(handle, ANN), gate.resume(handle, Approve(), approver=BOB))
        assert await refused(gate.resume(handle, Approve(), approver=CID)) == ONE_AND_THE_SAME
        assert desk.paid == []


@EVERY_STORE
async def test_an_approval_does_not_count_for_arguments_that_were_edited_at_once(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 B3, I5: only the approver of the old arguments is told to look again."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=TWO), store=store) as gate:
        handle = await asked(gate)
        read_at_once(monkeypatch, gate, 2)
        told: Any = await asyncio.gather(
            gate.resume(handle, Approve(), approver=CID),
            gate.resume(handle, Edit({"cents": 6}), approver=BOB),
            return_exceptions=True,
        )
        approved, edited = told
        assert not isinstance(edited, BaseException)
        assert edited.outcome is Outcome.SUSPENDED
        assert isinstance(approved, InvocationError)
        assert approved.code == "not_pending"
        shown = await gate.waits.look(handle, CID)
        assert (shown.text, shown.approvals) == ('pay(cents=6, how="ok")', ("bob",))
        assert (await gate.resume(handle, Approve(), approver=CID)).ok
        assert desk.paid == [6]


@EVERY_STORE
async def test_the_last_approval_counts_though_another_vote_comes_before_its_claim(store: str) -> None:
    """Issue 16 B3: the record changes between the last approval and the claim of the effect."""
    desk, gates, interruptions = Desk(), list[Gate](), list[str]()

    class Interrupts(Hook):
        """Lets another approver vote while the call is authorised."""

        async def will_authorize(self, ctx: InvokeContext) -> None:
            if interruptions:
                fay = User("fay", "acme", {"boss"})
                result = await gates[0].resume(interruptions.pop(), Approve(), approver=fay)
                assert result.outcome is Outcome.SUSPENDED

    rules = [RequireApproval(Approval(roles={"boss"})), RequireApproval(TWO)]
    async with gate_of(desk.tool(), [Interrupts(), *rules], store=store) as gate:
        gates.append(gate)
        handle = await asked(gate)
        for person in (BOB, DAN):
            assert (await gate.resume(handle, Approve(), approver=person)).outcome is Outcome.SUSPENDED
        interruptions.append(handle)
        assert (await gate.resume(handle, Approve(), approver=CID)).ok
        assert desk.paid == [5]
        assert await states(gate) == ["committed"]


async def test_a_record_that_cannot_be_replaced_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 B3: the repetition ends where no other decision was quicker."""
    desk, tried = Desk(), list[Any]()

    async def replace(self: Any, tenant: str, wait: Any) -> bool:
        tried.append(wait)
        return False

    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        monkeypatch.setattr(type(gate.store.suspensions), "replace", replace)
        for work in (
            gate.resume(handle, Approve(), approver=BOB),
            gate.resume(handle, Deny(), approver=BOB),
            gate.waits.withdraw(handle, ANN),
        ):
            assert await refused(work) == ONE_AND_THE_SAME
        assert len(tried) == 3
        assert desk.paid == []
