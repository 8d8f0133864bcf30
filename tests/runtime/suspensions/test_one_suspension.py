"""A repeat of a suspended call gets the same suspension, whatever identifies the call. Issue 35 §1.3."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import Approve, Gate, Hook, InvokeContext, Outcome, Respond, ToolCall, ToolResult, User, tool
from callgate.providers.principal import ANONYMOUS
from callgate.runtime.suspensions import keyed, suspensions
from tests.runtime.effects.scene_desk import AMY, ANN, BOB, LEAD, RAE, Desk, call, gate_of, handle_of
from tests.runtime.suspensions.test_handover import EVERY_STORE, processes

IDENTITIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "declared key": ({"key": ("order",), "key_scope": "user"}, {}),
    "declared key of the tenant": ({"key": ("order",)}, {}),
    "arguments": ({"dedupe": "arguments", "within": 3600.0}, {}),
    "key of the caller": ({}, {"idempotency_key": "k"}),
    "ids of the request and the call": ({}, {"request_id": "r"}),
    "ids in a session": ({}, {"request_id": "r", "session_id": "s"}),
    "ids of a read": ({"effect": "read"}, {"request_id": "r"}),
}
"""What identifies a call: the options of the tool, and those of the call."""
EVERY_IDENTITY = pytest.mark.parametrize("identity", IDENTITIES)
REPEATS = 3


class Orders(Desk):
    """``pay(cents, order, how)`` with the order among its arguments."""

    def tool(self, name: str = "pay", *, effect: str | None = "irreversible", **options: Any) -> Any:
        settings: dict[str, Any] = {"effect": effect, "requires_approval": LEAD, **options}

        @tool(name=name, **settings)
        async def pay(cents: int, order: str = "A1") -> str:
            """Pay."""
            self.paid.append(cents)
            return f"paid {len(self.paid)}"

        return pay


def tools_of(desk: Desk, identity: str) -> list[Any]:
    return [desk.tool(**IDENTITIES[identity][0])]


async def repeated(gate: Gate, identity: str, cents: int = 5, *, id: str = "c1", user: User = ANN) -> ToolResult:
    """Call the tool with what identifies the call."""
    return await gate.call(call(cents, id=id), user=user, **IDENTITIES[identity][1])


async def listed(gate: Gate) -> list[str]:
    """Return the handles that an approver sees."""
    return [one.handle for one in await gate.waits.pending(BOB)]


# ---------------------------------------------------------------------- one suspension


@EVERY_STORE
async def test_repeats_find_the_suspension_one_after_another_and_at_once(kind: str, tmp_path: Path) -> None:
    """In every process; the approver is asked once, and a repeat after the decision gets the outcome."""
    for identity in IDENTITIES:
        desk, tenant = Orders(), tmp_path / identity.replace(" ", "-")
        tenant.mkdir()
        async with processes(kind, tenant, desk, tools=tools_of(desk, identity)) as gates:
            at_once = await asyncio.gather(*(repeated(gate, identity) for gate in gates * REPEATS))
            (handle,) = {handle_of(one) for one in at_once}
            for gate in gates:
                assert handle_of(await repeated(gate, identity)) == handle
                assert await listed(gate) == [handle], identity
            await gates[1].resume(handle, Approve(), approver=BOB, here=False)
            again = await repeated(gates[2], identity)
            assert (again.pending.handle, again.pending.decided) == (handle, True)
            assert (await gates[0].proceed(handle, user=ANN)).output == "paid 1"
            assert desk.paid == [5]
            replay = await repeated(gates[2], identity)
            if identity == "ids of a read":  # no ledger keeps a read: its repeat is asked for again
                assert handle_of(replay) != handle
            else:
                assert (replay.output, replay.replayed, desk.paid) == ("paid 1", True, [5])


@EVERY_IDENTITY
async def test_control_without_identities_each_repeat_is_a_suspension(
    identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above sees a second suspension."""
    monkeypatch.setattr(suspensions, "chains_of", lambda *_: [])
    desk = Orders()
    async with gate_of(tools_of(desk, identity)) as gate:
        assert len({handle_of(await repeated(gate, identity)) for _ in range(REPEATS)}) == REPEATS
        assert len(await listed(gate)) == REPEATS


@EVERY_STORE
async def test_other_arguments_under_one_identity_are_refused(kind: str, tmp_path: Path) -> None:
    """As elsewhere; the suspension stays, and no other is made. By its arguments, such a call is another call."""
    for identity in IDENTITIES:
        desk, folder = Orders(), tmp_path / identity.replace(" ", "-")
        folder.mkdir()
        async with processes(kind, folder, desk, tools=tools_of(desk, identity)) as (gate, other, _):
            handle = handle_of(await repeated(gate, identity))
            different = await repeated(other, identity, 6)
            if identity == "arguments":
                assert handle_of(different) != handle
                continue
            assert different.outcome is Outcome.CONFLICT
            assert different.error is not None
            assert different.pending is None
            assert await listed(other) == [handle]


@EVERY_IDENTITY
@pytest.mark.parametrize("user", [AMY, RAE], ids=["of the tenant", "of another tenant"])
async def test_another_user_never_finds_a_suspension(identity: str, user: User) -> None:
    """The call of the other user waits by itself, or is ``in_flight``; it has no handle of the first."""
    desk = Orders()
    async with gate_of(tools_of(desk, identity)) as gate:
        handle = handle_of(await repeated(gate, identity))
        for _ in range(REPEATS):
            theirs = await repeated(gate, identity, user=user)
            if identity == "declared key of the tenant" and user is AMY:
                assert (theirs.outcome, theirs.pending) == (Outcome.IN_FLIGHT, None)
            else:
                assert handle_of(theirs) != handle
        assert handle_of(await repeated(gate, identity)) == handle


ANONYMOUS_CALLERS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "no session": ({"idempotency_key": "k"}, {"idempotency_key": "k"}, False),
    "two sessions": ({"idempotency_key": "k", "session_id": "s"}, {"idempotency_key": "k", "session_id": "t"}, False),
    "one session": ({"idempotency_key": "k", "session_id": "s"}, {"idempotency_key": "k", "session_id": "s"}, True),
    "one request": ({"request_id": "r"}, {"request_id": "r"}, True),
}


@pytest.mark.parametrize("case", ANONYMOUS_CALLERS)
async def test_an_anonymous_caller_is_known_by_its_session_or_request(case: str) -> None:
    """As for receipts: callers without a name share nothing."""
    first, second, same = ANONYMOUS_CALLERS[case]
    desk = Orders()
    async with gate_of(desk.tool()) as gate:
        handle = handle_of(await gate.call(call(), user=ANONYMOUS, **first))
        other = await gate.call(call(), user=ANONYMOUS, **second)
        if same:
            assert handle_of(other) == handle
        else:
            assert (other.outcome, other.pending) == (Outcome.IN_FLIGHT, None)


# ---------------------------------------------------------------------- what does not identify a call


@pytest.mark.parametrize(
    ("id", "options", "synthetic"),
    [("c1", {}, False), ("c1", {"session_id": "s"}, False), ("c1", {"request_id": "r"}, True)],
    ids=["call id alone", "call id in a session", "a call id that Callgate made"],
)
async def test_a_call_without_an_identity_is_a_call_of_its_own(
    id: str, options: dict[str, Any], synthetic: bool
) -> None:
    """Some models number their calls anew in each answer, so a call id alone identifies no call."""
    desk = Orders()
    async with gate_of(desk.tool()) as gate:
        made = [ToolCall(id=id, name="pay", arguments={"cents": cents}, synthetic_id=synthetic) for cents in (5, 5, 6)]
        handles = {handle_of(await gate.call(one, user=ANN, **options)) for one in made}
        assert len(handles) == len(made)


async def test_two_calls_of_one_request_are_two_suspensions() -> None:
    """A model's answer may have several calls with the same arguments."""
    desk = Orders()
    async with gate_of(desk.tool()) as gate:
        handles = {
            handle_of(await repeated(gate, "ids of the request and the call", id=id)) for id in ("c1", "c2", "c1")
        }
        assert len(handles) == 2


class Asks(Hook):
    """Asks at two places before the call is approved, at the first of them before the arguments are read."""

    def will_parse_input(self, ctx: InvokeContext) -> None:
        ctx.suspend("input", "Why?")

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        ctx.suspend("input", "Really?")


@EVERY_IDENTITY
@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
async def test_a_replayed_node_leaves_no_orphan_at_any_question(kind: str, identity: str, tmp_path: Path) -> None:
    """A graph runs its node again from the start for each answer: one suspension waits at any time."""
    desk = Orders()
    async with processes(kind, tmp_path, desk, tools=tools_of(desk, identity), hooks=[Asks()]) as (gate, other, _):
        handle = handle_of(await repeated(gate, identity))
        result = None
        for decision, approver in ((Respond("b"), ANN), (Respond("c"), ANN), (Approve(), BOB)):
            for one in (gate, other):
                assert handle_of(await repeated(one, identity)) == handle
            result = await other.resume(handle, decision, approver=approver)
            if result.pending is not None:
                handle = result.pending.handle
        assert result is not None
        assert result.output == "paid 1"
        assert await listed(gate) == await listed(other) == []
        assert await gate.waits.pending(ANN) == []
        assert desk.paid == [5]


async def test_equal_arguments_of_two_requests_are_two_suspensions_at_every_question() -> None:
    """Before the arguments are parsed, too."""
    desk = Orders()
    async with gate_of(desk.tool(), [Asks()]) as gate:
        handles = [handle_of(await gate.call(call(), user=ANN, request_id=id)) for id in ("r1", "r2")]
        assert len(set(handles)) == 2
        for handle in handles:
            result = await gate.resume(handle, Respond("b"), approver=ANN)
            assert result.pending.handle not in handles
        assert len(await gate.waits.pending(ANN)) == 2


# ---------------------------------------------------------------------- another key of a caller, beside the declared key


@EVERY_STORE
@pytest.mark.parametrize("handed_over", [False, True])
async def test_the_key_of_a_repeat_is_an_identity_of_the_effect_from_its_claim_on(
    kind: str, handed_over: bool, tmp_path: Path
) -> None:
    """Each key of the callers is used then, whether the call runs, or has ended: another order under it is a conflict."""
    desk = Orders()
    async with processes(kind, tmp_path, desk, tools=[desk.tool(key=("order",))]) as (gate, other, third):
        handles = {
            handle_of(await each.call(call(order="A1"), user=ANN, idempotency_key=key))
            for each, key in ((gate, None), (other, "k1"), (third, "k2"), (gate, "k3"), (other, "k2"))
        }
        (handle,) = handles
        assert await listed(third) == [handle]
        if handed_over:
            await other.resume(handle, Approve(), approver=BOB, here=False)
            assert (await gate.call(call(order="A1"), user=ANN, idempotency_key="k4")).pending.handle == handle
            assert (await gate.proceed(handle, user=ANN)).output == "paid 1"
        else:
            assert (await other.resume(handle, Approve(), approver=BOB)).output == "paid 1"
        for each, key in ((gate, "k2"), (other, "k3"), (third, "k1")):
            assert (await each.call(call(order="B2"), user=ANN, idempotency_key=key)).outcome is Outcome.CONFLICT
            again = await each.call(call(order="A1"), user=ANN, idempotency_key=key)
            assert (again.output, again.replayed) == ("paid 1", True)
            found = (await each.outcome(key, user=ANN, tool="pay")).result
            assert found is not None
            assert found.output == "paid 1"
        assert await listed(gate) == []
        rows = await gate.store.effects.list(None)
        assert [row.state.value for _, row in rows] == ["committed"]
    assert desk.paid == [5]


@EVERY_STORE
async def test_the_key_of_a_repeat_is_taken_while_the_effect_runs(kind: str, tmp_path: Path) -> None:
    """Another order under it asks no approver."""
    running, go = asyncio.Event(), asyncio.Event()

    @tool(effect="irreversible", key=("order",), requires_approval=LEAD)
    async def pay(cents: int, order: str) -> str:
        """Pay."""
        running.set()
        await go.wait()
        return order

    async with processes(kind, tmp_path, Orders(), tools=[pay]) as (gate, other, _):
        await gate.call(call(order="A1"), user=ANN, idempotency_key="k1")
        handle = handle_of(await gate.call(call(order="A1"), user=ANN, idempotency_key="k2"))
        approved = asyncio.create_task(gate.resume(handle, Approve(), approver=BOB))
        await running.wait()
        assert (await other.call(call(order="B2"), user=ANN, idempotency_key="k2")).outcome is Outcome.CONFLICT
        assert await listed(other) == []
        go.set()
        assert (await approved).output == "A1"


@EVERY_STORE
async def test_the_keys_of_repeats_are_free_again_after_a_run_without_an_effect(kind: str, tmp_path: Path) -> None:
    """As the key of the first caller is; a key that another order has had meanwhile stays with that one."""
    desk, failing = Orders(), Desk()
    tools = [failing.tool(key=("cents",), requires_approval=LEAD)]
    async with processes(kind, tmp_path, desk, tools=tools) as (gate, other, _):
        wanted = call(how="no_effect")
        await gate.call(wanted, user=ANN, idempotency_key="k1")
        handle = handle_of(await other.call(wanted, user=ANN, idempotency_key="k2"))
        assert (await gate.resume(handle, Approve(), approver=BOB)).outcome is Outcome.ERROR
        for key, cents in (("k2", 6), ("k1", 7)):
            next_one = handle_of(await other.call(call(cents), user=ANN, idempotency_key=key))
            assert (await other.resume(next_one, Approve(), approver=BOB)).ok
        assert (await gate.call(call(7), user=ANN, idempotency_key="k2")).outcome is Outcome.CONFLICT
    assert failing.paid == [6, 7]


async def test_too_many_keys_of_repeats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that makes a new key for each look learns it; the keys that are known still find the call."""
    monkeypatch.setattr(keyed, "MAX_KEYS", 2)
    desk = Orders()
    async with gate_of([desk.tool(key=("order",))]) as gate:
        given = [await gate.call(call(order="A1"), user=ANN, idempotency_key=f"k{n}") for n in (0, 1, 2, 3, 1)]
        handles = {handle_of(one) for one in (*given[:3], given[4])}
        assert len(handles) == 1
        assert given[3].outcome is Outcome.IN_FLIGHT
