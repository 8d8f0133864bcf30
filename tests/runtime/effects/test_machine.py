"""A gate, its ledger and its waiting calls do what the model says, whatever the order; and a gate that does not is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis.errors import Flaky

from callgate import Approval
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.memory.effects import MemoryEffects
from callgate.providers.stores.memory.suspensions import MemorySuspensions
from callgate.runtime.suspensions.decisions import with_decision
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall
from callgate.runtime.suspensions.suspensions import SuspensionManager
from tests.runtime.effects.machine import search
from tests.runtime.effects.machine_world import World

RUNS = {"memory": (1, 94), "sqlite": (1, 10)}
"""Searches, and runs of each; the soak makes many searches, since one alone keeps to what it has found interesting."""
SOAK = {"memory": (50, 190), "sqlite": (20, 25)}
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("kind", RUNS)
def test_only_what_was_permitted_runs_and_once_whatever_is_done_in_whatever_order(kind: str) -> None:
    """I4, I5, I16."""
    searches, runs = RUNS[kind]
    for _ in range(searches):
        search(kind, runs)


@pytest.mark.soak
@pytest.mark.parametrize("kind", SOAK)
def test_only_what_was_permitted_runs_and_once_over_ten_thousand_runs(kind: str) -> None:
    """I4, I5, I16."""
    searches, runs = SOAK[kind]
    for _ in range(searches):
        search(kind, runs, steps=40)


# ---------------------------------------------------------------------- controls


def every_mac_is_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SigningKeys, "verify", lambda self, mac, *parts: True)


def a_use_changes_nothing(patch: pytest.MonkeyPatch) -> None:
    real = MemorySuspensions.replace

    async def forgets(self: Any, tenant: str, wait: SuspensionRecord) -> bool:
        return wait.state is SuspensionState.USED or await real(self, tenant, wait)

    patch.setattr(MemorySuspensions, "replace", forgets)


def arguments_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = Resumed.approved
    patch.setattr(Resumed, "approved", lambda self, rules, input_hash: real(self, rules, self.bound.input_hash))


def every_claim_wins(patch: pytest.MonkeyPatch) -> None:
    def claim(self: Any, tenant: str, effect: Any, retry: bool = False) -> Any:
        self._write((tenant, effect.key), effect)
        return True, effect

    patch.setattr(MemoryEffects, "claim_now", claim)


def versions_and_policies_do_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SuspensionManager, "is_bound_to", lambda self, plan, bound: True)


def the_caller_may_approve(patch: pytest.MonkeyPatch) -> None:
    real = Approval.allows
    patch.setattr(Approval, "allows", lambda self, person, requester, waited: real(self, person, "", waited))


def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    real = SuspensionManager._find

    async def find(self: Any, *args: Any, **options: Any) -> Any:
        now, self.now = self.now, lambda: 0.0
        try:
            return await real(self, *args, **options)
        finally:
            self.now = now

    patch.setattr(SuspensionManager, "_find", find)


def one_approval_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SuspendedCall, "is_met", True)
    patch.setattr(Resumed, "approved", lambda self, rules, input_hash: input_hash == self.bound.input_hash)


def nobody_is_looked_up_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "refresh", lambda self, user: user)


def approvals_outlive_an_edit(patch: pytest.MonkeyPatch) -> None:
    real = with_decision

    def decided(plan: Any, bound: SuspendedCall, *rest: Any) -> SuspendedCall:
        after = real(plan, bound, *rest)
        return (
            after
            if after.approvals == bound.approvals
            else replace(after, approvals=(*bound.approvals, *after.approvals))
        )

    patch.setattr("callgate.runtime.suspensions.suspensions.with_decision", decided)


def everybody_sees_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("callgate.runtime.suspensions.suspensions.may_decide", lambda bound, person, waited: True)


@pytest.mark.parametrize(
    "sabotage",
    [
        every_mac_is_right,
        a_use_changes_nothing,
        arguments_are_not_compared,
        every_claim_wins,
        versions_and_policies_do_not_count,
        the_caller_may_approve,
        nothing_expires,
        one_approval_is_enough,
        nobody_is_looked_up_again,
        approvals_outlive_an_edit,
        everybody_sees_all,
    ],
)
def test_a_gate_that_breaks_one_promise_is_found_out(sabotage: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4, I5: the control of the test above. A search of its size finds most in the first, all in the third; none may need 20."""
    sabotage(monkeypatch)
    _, runs = RUNS["memory"]
    # A row with one bit changed may be JSON or not, by chance of the ids in it: what was found then does not replay.
    with pytest.raises((AssertionError, Flaky)):
        for _ in range(20):
            search("memory", runs, shrink=False)
