"""A state machine over gate, ledger and waiting calls: whatever is done in whatever order, the model says the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeAlias, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from callgate import Approve, Edit, Respond, ToolCall, User
from callgate.testing import FakeClock
from tests.runtime.effects.machine_checks import Checked, name_new
from tests.runtime.effects.machine_model import NOT_PENDING, Waiting
from tests.runtime.effects.machine_moves import (
    ARGUMENTS,
    ASKED,
    CHANGES,
    DECISIONS,
    IN_BETWEEN,
    KEY_RINGS,
    PEOPLE,
    WHICH,
    Asked,
    Change,
    Handle,
    with_changed,
)
from tests.runtime.effects.machine_world import ANN, BOB, CALLERS, CID, DAN, KEYS, World, store_of

Wanted: TypeAlias = Callable[[Waiting], bool]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def some_waits(machine: Checked) -> bool:
    """Whether there is anything to decide."""
    return bool(machine.handles)


class Machine(Checked):
    """Calls, decisions, forgeries, time, and other processes, in any order."""

    # ------------------------------------------------------------------ calling and deciding

    @initialize(calls=st.lists(ASKED, max_size=3), user=st.sampled_from(CALLERS))
    def begin(self, calls: list[Asked], user: User) -> None:
        for asked in (("pay", {"n": 500, "how": "ok"}, user, None, None, "c1"), *calls):
            self.put(asked)

    @rule(asked=ASKED)
    def call(self, asked: Asked) -> None:
        self.put(asked)

    @rule(which=WHICH, arguments=st.none() | ARGUMENTS, user=st.none() | st.sampled_from(CALLERS), anew=st.booleans())
    def repeat(self, which: int, arguments: Any, user: User | None, anew: bool) -> None:
        """The same again, or with other arguments, or by somebody else."""
        tool, before, caller, *keys = self.asked[which % len(self.asked)]
        keys = keys if anew else ["k1", "r1", "c1"]
        self.put((tool, arguments or before, user or caller, keys[0], keys[1], keys[2] or ""))

    def put(self, asked: Asked) -> None:
        self.asked.append(asked)
        tool, arguments, user, given, request, id = asked
        said = self.model.call(tool, arguments, self.now(user), given, (request, id))
        call = ToolCall(id=id, name=tool, arguments=dict(arguments))
        work = self.world.gate.call(call, user=self.now(user), idempotency_key=given, request_id=request)
        seen, handle = self.did(self.told(work))
        self.agreed(said, seen, handle, user.tenant)

    def now(self, user: User) -> User:
        """As their application authenticates them: who lost the role comes without it."""
        lost = self.model.status.get((user.id, user.tenant or "")) == "lost"
        return User(user.id, user.tenant) if lost else user

    @precondition(some_waits)
    @rule(which=WHICH, person=st.sampled_from([BOB, CID, DAN, ANN]))
    def approve(self, which: int, person: User) -> None:
        self.resume(self.good(which), Approve(), person)

    @precondition(some_waits)
    @rule(which=WHICH)
    def approve_and_repeat(self, which: int) -> None:
        """The ledger answers what it has recorded, before anybody is asked again."""
        handle = self.good(which, lambda one: one.given is not None)
        waiting = self.model.find(handle.id)
        self.resume(handle, Approve(), CID)
        same = [one for one in self.asked if (one[0], one[2].id) == (waiting.tool, waiting.user.id)]
        for asked in same[-1:]:
            self.put(asked)

    @precondition(some_waits)
    @rule(which=WHICH, decision=DECISIONS, person=PEOPLE)
    def decide(self, which: int, decision: Any, person: User) -> None:
        self.resume(self.good(which), decision, person)

    @precondition(some_waits)
    @rule(which=WHICH, decision=DECISIONS, person=PEOPLE)
    def decide_again(self, which: int, decision: Any, person: User) -> None:
        """Whatever became of it since."""
        self.resume(self.handle(which), decision, person)

    @precondition(some_waits)
    @rule(which=WHICH)
    def answer_as_the_caller(self, which: int) -> None:
        handle = self.good(which)
        self.resume(handle, Respond(7), self.model.find(handle.id).user)

    def resume(self, handle: Handle, decision: Any, person: User) -> None:
        said = self.model.resume(handle, decision, person)
        seen, pending = self.did(self.told(self.world.gate.resume(handle.text, decision, approver=person)))
        self.agreed(said, seen, pending, person.tenant)

    @precondition(some_waits)
    @rule(which=WHICH, people=st.permutations([BOB, CID]))
    def approve_by_two(self, which: int, people: list[User]) -> None:
        handle = self.good(which)
        for person in people:
            self.resume(handle, Approve(), person)

    @precondition(some_waits)
    @rule(which=WHICH, change=st.sampled_from(IN_BETWEEN), by=st.sampled_from([-1.0, 0.0, 1.0]), back=st.booleans())
    def something_changes_before_the_last_approval(self, which: int, change: str, by: float, back: bool) -> None:
        large: Wanted = lambda waiting: bool(waiting.rules) and waiting.rules[0].quorum > 1
        wanted: dict[str, Wanted] = {"edit": large, "escalates": large, "arguments": lambda one: one.tool == "pay"}
        handle = self.good(which, wanted.get(change, lambda _: True))
        waiting = self.model.find(handle.id)
        if large(waiting):
            self.resume(handle, Approve(), BOB)
        user = waiting.user
        if change == "expires":
            self.time_passes_or_goes_back(waiting.expires - self.model.now + by)
        elif change == "escalates":
            self.time_passes_or_goes_back(waiting.made + 300.0 - self.model.now + by)
        elif change == "arguments":
            self.arguments_come_to_something_else(1)
        elif change == "edit":
            self.resume(handle, Edit({**waiting.arguments, "n": 501}), CID)
        else:
            self.people_change(user, change)
        self.resume(handle, Approve(), DAN if change == "escalates" else CID)
        self.arguments_come_to_something_else(0)
        if back:
            self.people_change(user, "")

    @precondition(some_waits)
    @rule(which=WHICH, first=DECISIONS, second=DECISIONS, people=st.permutations([BOB, CID, DAN]))
    def decide_at_once(self, which: int, first: Any, second: Any, people: list[User]) -> None:
        """Two at once: as if one had come after the other, or as if one of them had come too late."""
        handle = self.good(which)
        deeds = [(first, people[0]), (second, people[1])]

        async def both() -> Any:
            gate = self.world.gate
            return await asyncio.gather(*(self.told(gate.resume(handle.text, one, approver=who)) for one, who in deeds))

        told = self.did(both())
        seen = [told[0][0], told[1][0]]
        _, _, shown = self.did(self.look_at_everything())
        for order in ([0, 1], [1, 0], [0], [1]):
            model = self.model.twin()
            said = [NOT_PENDING, NOT_PENDING]
            for index in order:
                said[index] = model.resume(handle, *deeds[index])
                name_new(model, told[index][1])
            if said == seen and model.ran == self.world.ran and self.is_shown_by(model, shown):
                self.model = model
                for index in order:
                    if told[index][1] is not None:
                        self.know(told[index][1], deeds[index][1].tenant)
                return
        raise AssertionError(f"two at once were told {seen}, and {self.world.ran} ran")

    @precondition(some_waits)
    @rule(which=WHICH, person=PEOPLE)
    def look(self, which: int, person: User) -> None:
        handle = self.handle(which)
        seen, _ = self.did(self.told(self.world.gate.waits.look(handle.text, person)))
        assert seen == self.model.look(handle, person)

    @precondition(some_waits)
    @rule(which=WHICH, person=st.sampled_from(CALLERS))
    def withdraw(self, which: int, person: User) -> None:
        handle = self.handle(which)
        seen, _ = self.did(self.told(self.world.gate.waits.withdraw(handle.text, person)))
        assert seen == self.model.withdraw(handle, person)

    # ------------------------------------------------------------------ forging and tampering

    @precondition(some_waits)
    @rule(which=WHICH, at=st.integers(0, 96), other=st.sampled_from("0123456789abcdef.x ö"), person=PEOPLE, cross=WHICH)
    def forge_a_handle(self, which: int, at: int, other: str, person: User, cross: int) -> None:
        """One character is another, or the end of a handle is another one's."""
        one, two = self.handle(which), self.handle(cross)
        forged = one.text[:at] + other + one.text[at + 1 :]
        for text in (forged, f"{one.id}.{two.text.partition('.')[2]}"):
            if text not in {one.text, two.text} and (text == forged or one.id != two.id):
                self.resume(replace(one, text=text, whole=False), Approve(), person)

    @precondition(some_waits)
    @rule(which=WHICH, change=CHANGES)
    def tamper(self, which: int, change: Change) -> None:
        """One column is another, or one bit of the body."""
        at, row = self.row(which)
        self.tampered(at, with_changed(row, change), "rival" if change[0] == "tenant" else at[0])

    @precondition(some_waits)
    @rule(which=WHICH, other=WHICH, whole=st.booleans())
    def swap_two_bodies(self, which: int, other: int, whole: bool) -> None:
        (one, first), (two, second) = self.row(which), self.row(other)
        if first.body != second.body:
            macs = (second.mac, first.mac) if whole else (first.mac, second.mac)
            self.tampered(one, replace(first, body=second.body, mac=macs[0]), one[0])
            self.tampered(two, replace(second, body=first.body, mac=macs[1]), two[0])

    @precondition(some_waits)
    @rule(which=WHICH, version=st.integers(0, 3))
    def roll_back(self, which: int, version: int) -> None:
        """Whoever can write in the store can put back what was there; what it had let run does not run again."""
        at, _ = self.row(which)
        versions = self.versions[self.without_key(which).id]
        row, waiting = versions[version % len(versions)]
        if hasattr(self.world.store, "signed") and waiting.id in self.model.denied:
            return  # a store with signed counters refuses such a row: see tests/attacks/test_database.py
        self.did(self.world.put_row(at, row, waiting.user.tenant or ""))
        self.model.waits[self.model.waits.index(self.model.find(waiting.id))] = deepcopy(waiting)

    # ------------------------------------------------------------------ time, people, processes

    @rule(seconds=st.sampled_from([1.0, -1.0, 60.0, -60.0, 101.0, 301.0, -301.0, 700.0]))
    def time_passes_or_goes_back(self, seconds: float) -> None:
        self.world.clock.now += seconds
        self.model.now += seconds

    @rule()
    def maintain(self) -> None:
        self.did(self.world.gate.maintain())
        self.model.sweep()

    @rule(user=st.sampled_from(CALLERS), status=st.sampled_from(["", "lost", "", "gone", "", "other"]))
    def people_change(self, user: User, status: str) -> None:
        self.model.status[user.id, user.tenant or ""] = self.world.status[user.id, user.tenant or ""] = status

    @rule(drift=st.sampled_from([0, 0, 1]))
    def arguments_come_to_something_else(self, drift: int) -> None:
        self.model.drift = self.world.drift = drift

    @rule(
        version=st.sampled_from("112"), policy=st.sampled_from(["plain", "plain", "strict", "renamed"]), keys=KEY_RINGS
    )
    def redeploy(self, version: str, policy: str, keys: tuple[str, ...]) -> None:
        if hasattr(self.world.store, "signed"):  # without the key of an effect, its row is refused: see tests/attacks
            keys = tuple(dict.fromkeys((*keys, *KEYS)))
        self.did(self.world.end())
        self.did(self.world.deploy(version, policy, keys))
        self.model.version, self.model.policy, self.model.keys = version, policy, keys


def search(kind: str, examples: int, *, steps: int = 30, shrink: bool = True) -> None:
    """Look for steps after which gate and model differ."""
    clock, log = FakeClock(), logging.getLogger("callgate")
    with asyncio.Runner() as runner:
        store = store_of(kind, clock)
        runner.run(store.open())
        made = type("Made", (Machine,), {"loop": runner.get_loop(), "world": World(store, clock)})
        log.disabled = True  # pytest would keep every line of every run
        try:
            run_state_machine_as_test(
                made,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    suppress_health_check=SLOW,
                    database=None,
                    derandomize=False,  # searches differ, also where Hypothesis would make all runs alike (CI)
                    phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
                    report_multiple_bugs=False,
                ),
            )
        finally:
            log.disabled = False
            if kind != "memory":
                runner.run(cast("Any", store)._database.close())
