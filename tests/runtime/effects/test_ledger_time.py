"""The ledger while time passes: repeats that wait, deadlines, bodies that are left behind, and cancellation everywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate import Effects, Gate, Outcome, ToolCall, ToolContext, User, tool
from callgate.errors import InFlight, RegistrationError
from callgate.hooks import Audit
from callgate.providers.stores.effects import EffectRecord, EffectState
from callgate.testing import FakeClock, VirtualTime
from tests.runtime.effects.scene_desk import AMY, ANN, Desk, call, code, gate_of, states

SLOW = 5.0


def slow(desk: Desk, **options: Any) -> Any:
    """A tool that takes its time and ends as it is told to."""

    @tool(effect="irreversible", **options)
    async def pay(cents: int, ctx: ToolContext, how: str = "ok") -> str:
        """Pay."""
        await asyncio.sleep(SLOW)
        if how == "abort":
            ctx.abort("no")
        if how == "raise":
            raise RuntimeError("broken")
        desk.paid.append(cents)
        return f"paid {len(desk.paid)}"

    return pay


def on_virtual_time(virtual_time: VirtualTime, made: Any, *hooks: Any, **options: Any) -> Gate:
    return gate_of(made, hooks, clock=virtual_time.clock, **options)


# ---------------------------------------------------------------------- at the same time


@pytest.mark.parametrize("audit", [False, True], ids=["alone", "with audit rows"])
def test_repeats_wait_for_the_first_and_get_its_receipt(virtual_time: VirtualTime, audit: bool) -> None:
    """I4: at most one concurrent execution, one recorded outcome, all callers get it."""
    desk = Desk()

    async def run() -> None:
        hooks = [Audit()] if audit else []
        async with on_virtual_time(virtual_time, slow(desk), *hooks) as gate:
            told = await asyncio.gather(*(gate.call(call(), user=ANN, idempotency_key="k") for _ in range(50)))
            assert [result.output for result in told] == ["paid 1"] * 50
            assert sorted(result.replayed for result in told) == [False] + [True] * 49
            assert await states(gate) == ["committed"]

    virtual_time.run(run())
    assert desk.paid == [5]
    assert virtual_time.elapsed < SLOW + 1.0, "told at once, not looked at from time to time"


@pytest.mark.parametrize("how", ["abort", "raise"])
def test_who_waited_for_what_had_no_effect_runs_it_and_for_what_nobody_knows_does_not(
    virtual_time: VirtualTime, how: str
) -> None:
    """I4: one at a time."""
    desk, running, most = Desk(), 0, 0
    ends = iter([how, "ok", "ok"])

    @tool(effect="irreversible")
    async def pay(cents: int, ctx: ToolContext) -> str:
        """Pay."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(SLOW)
        running -= 1
        end = next(ends)
        if end == "abort":
            ctx.abort("no")
        if end == "raise":
            raise RuntimeError("broken")
        desk.paid.append(cents)
        return "paid"

    async def run() -> None:
        async with on_virtual_time(virtual_time, pay) as gate:
            told = await asyncio.gather(*(gate.call(call(), user=ANN, idempotency_key="k") for _ in range(3)))
            found = [result.outcome for result in told]
            if how == "abort":
                assert found == [Outcome.DENIED, Outcome.SUCCESS, Outcome.SUCCESS]
                assert [result.replayed for result in told] == [False, False, True]
            else:
                assert found == [Outcome.ERROR, Outcome.UNKNOWN, Outcome.UNKNOWN]

    virtual_time.run(run())
    assert (desk.paid, most) == ([5] if how == "abort" else [], 1)


@pytest.mark.parametrize(
    ("wait", "deadline", "waited"), [(2.0, None, 2.0), (0.0, None, 0.0), (30.0, 1.0, 1.0), (1.0, 30.0, 1.0)]
)
def test_a_repeat_waits_so_long_and_then_says_that_the_first_is_still_running(
    virtual_time: VirtualTime, wait: float, deadline: float | None, waited: float
) -> None:
    """I4; I12."""
    desk = Desk()

    async def run() -> None:
        async with on_virtual_time(virtual_time, slow(desk), effects=Effects(wait=wait)) as gate:
            first = asyncio.ensure_future(gate.call(call(), user=ANN, idempotency_key="k"))
            await asyncio.sleep(0.1)
            began = virtual_time.elapsed
            result = await gate.call(call(), user=ANN, idempotency_key="k", deadline=deadline)
            assert virtual_time.elapsed - began == pytest.approx(waited, abs=0.1)
            in_time = deadline is None or deadline > wait
            expected = [(Outcome.IN_FLIGHT, "in_flight"), (Outcome.ERROR, "deadline_exceeded")]
            assert (result.outcome, code(result)) in (expected[:1] if in_time else expected)
            clash = await gate.call(call(6), user=ANN, idempotency_key="k")
            assert clash.outcome is Outcome.CONFLICT, "which nobody has to wait to know"
            other = await gate.call(call(7, how="abort"), user=AMY, idempotency_key="k")
            assert other.outcome is Outcome.DENIED, "somebody else's key is another"
            assert (await first).output == "paid 1"

    virtual_time.run(run())
    assert desk.paid == [5]


def test_a_call_that_waits_for_itself_is_told_so_at_once(virtual_time: VirtualTime) -> None:
    """I4, I12."""
    told: list[Any] = []

    @tool(effect="irreversible", key=("n",))
    async def again(n: int, ctx: ToolContext) -> str:
        """Call itself."""
        try:
            await ctx.call("again", {"n": n})
        except InFlight as error:
            told.append(error.code)
        return "done"

    async def run() -> None:
        async with on_virtual_time(virtual_time, again) as gate:
            assert (await gate.call(ToolCall(id="c", name="again", arguments={"n": 1}), user=ANN)).output == "done"

    virtual_time.run(run())
    assert told == ["in_flight"]
    assert virtual_time.elapsed < 1.0


async def test_a_claim_that_had_to_wait_is_leased_from_when_it_is_made() -> None:
    """I3, I4: or others would take it for dead while it runs."""
    clock, order = FakeClock(), list[EffectRecord]()
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(effect="irreversible")
    async def pay(cents: int, ctx: ToolContext) -> str:
        """Pay."""
        seen: Any = ctx
        order.append(seen._ctx.run.claim.effect)
        if len(order) == 1:
            begun.set()
            await go.wait()
            ctx.abort("not yet")
        return "paid"

    async with gate_of(pay, store="sqlite://", clock=clock, effects=Effects(lease=10.0)) as gate:
        first = asyncio.ensure_future(gate.call(call(), user=ANN, idempotency_key="k"))
        await begun.wait()
        second = asyncio.ensure_future(gate.call(call(), user=ANN, idempotency_key="k"))
        while not gate._records.ledger.waiters:  # noqa: ASYNC110  (nobody tells when somebody begins to wait)
            await asyncio.sleep(0)
        clock.advance(100.0)
        go.set()
        assert ((await first).outcome, (await second).output) == (Outcome.DENIED, "paid")
        before, after = order
        assert (after.began_at - before.began_at, after.lease_until - after.began_at) == (100.0, 6.0)


@pytest.mark.parametrize("wrong", [{"lease": 0.0}, {"lease": -1.0}, {"wait": -0.1}, {"lease": float("nan")}])
def test_times_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError):
        Effects(**wrong)


# ---------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("hard", [False, True])
def test_a_body_that_its_deadline_has_cut_off_leaves_nobody_knowing(virtual_time: VirtualTime, hard: bool) -> None:
    """I4, I12."""
    desk = Desk()

    async def run() -> None:
        async with on_virtual_time(virtual_time, slow(desk, hard_deadline=hard)) as gate:
            result = await gate.call(call(), user=ANN, idempotency_key="k", deadline=1.0)
            assert code(result) == "deadline_exceeded"
            assert await states(gate) == ["unknown"]
            assert (await gate.call(call(), user=ANN, idempotency_key="k")).outcome is Outcome.UNKNOWN

    virtual_time.run(run())
    assert desk.paid == []


def test_a_body_that_is_left_behind_holds_its_claim_until_it_ends(virtual_time: VirtualTime) -> None:
    """I4, I12: and then nobody knows: its caller was told so."""
    desk = Desk()

    @tool(effect="irreversible", hard_deadline=True)
    async def pay(cents: int) -> str:
        """Pay."""
        until = virtual_time.elapsed + 60.0
        while virtual_time.elapsed < until:
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                pass  # it swallows its cancellation
        desk.paid.append(cents)
        return "paid"

    async def run() -> None:
        async with on_virtual_time(virtual_time, pay, effects=Effects(wait=0.0)) as gate:
            result = await gate.call(call(), user=ANN, idempotency_key="k", deadline=1.0)
            assert (result.outcome, result.pending_release) == (Outcome.UNKNOWN, True)
            for _ in range(5):
                ((_, held),) = await gate.store.effects.list(None)
                assert held.state is EffectState.RUNNING
                repeat = await gate.call(call(), user=ANN, idempotency_key="k")
                assert repeat.outcome is Outcome.IN_FLIGHT
                await asyncio.sleep(10.0)
            await asyncio.sleep(20.0)
            assert await states(gate) == ["unknown"]
            assert (await gate.call(call(), user=ANN, idempotency_key="k")).outcome is Outcome.UNKNOWN

    virtual_time.run(run())
    assert desk.paid == [5]


def test_a_waiter_that_is_cancelled_leaves_the_first_alone(virtual_time: VirtualTime) -> None:
    """I4, I11."""
    desk = Desk()

    async def run() -> None:
        async with on_virtual_time(virtual_time, slow(desk)) as gate:
            first = asyncio.ensure_future(gate.call(call(), user=ANN, idempotency_key="k"))
            await asyncio.sleep(0.1)
            second = asyncio.ensure_future(gate.call(call(), user=ANN, idempotency_key="k"))
            third = asyncio.ensure_future(gate.call(call(), user=ANN, idempotency_key="k"))
            await asyncio.sleep(0.1)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert (await first).output == (await third).output == "paid 1"
            assert not gate._records.ledger.waiters

    virtual_time.run(run())
    assert desk.paid == [5]


def test_a_thousand_callers_at_once_with_one_key_each_are_a_thousand_effects(virtual_time: VirtualTime) -> None:
    """I4, I11."""
    desk = Desk()

    async def run() -> None:
        async with on_virtual_time(virtual_time, slow(desk)) as gate:
            people = [User(f"u{number}", "acme") for number in range(1000)]
            calls = [gate.call(call(), user=user, idempotency_key="k") for user in people for _ in range(2)]
            told = await asyncio.gather(*calls)
            assert sum(result.replayed for result in told) == 1000

    virtual_time.run(run())
    assert len(desk.paid) == 1000
