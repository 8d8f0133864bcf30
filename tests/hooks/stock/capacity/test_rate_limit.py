"""``Quota``: what it counts, for whom, what it gives back, and when a refused call may come again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Gate, Hook, InvokeContext, ToolContext, User, tool
from callgate.errors import HookError
from callgate.hooks.stock.capacity.rate_limit import Quota, parse_limits
from callgate.providers.stores.base import Limit
from callgate.testing import FAR, LeaseLedger, SweepFailed, every_cancel_point
from tests.harness.steploop import cost_of
from tests.harness.sweeps import swept
from tests.hooks.stock.capacity.limiting import USER, Desk, FailingStore, WaitingStore, ask, taken, work

ANN, BOB, EVE = USER, User("bob", tenant="acme"), User("ann", tenant="evil")


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    with made.time:
        yield made


async def outcomes(gate: Any, *calls: dict[str, Any]) -> list[str]:
    return [str((await ask(gate, **call)).outcome) for call in calls]


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("100/minute", [(100, 60)]),
        ("100/minute; 1000/day", [(100, 60), (1000, 86_400)]),
        ("10 per 30 s, 2/h", [(10, 30), (2, 3600)]),
        ("1/5 weeks", [(1, 5 * 604_800)]),
        ("5 PER SECOND", [(5, 1)]),
    ],
)
def test_limits_are_read_as_people_write_them(text: str, limits: list[tuple[int, float]]) -> None:
    """Design 4."""
    assert [(limit.amount, limit.seconds) for limit in parse_limits(text)] == limits
    assert Quota(text).limits == Quota([Limit(*one) for one in limits]).limits


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"limit": "many/minute"}, "many/minute"),
        ({"limit": "100/fortnight"}, "100/fortnight"),
        ({"limit": ""}, "100/minute"),
        ({"limit": "0/minute"}, "has no amount"),
        ({"limit": "3/0s"}, "no window"),
        ({"limit": "3/minute; 5/60s"}, "same window"),
        ({"limit": "3/minute", "by": "usr"}, "did you mean 'user'"),
        ({"limit": "3/minute", "by": lambda ctx: "x"}, "name=..."),
        ({"limit": "3/minute", "cost": 4}, "no call could pass"),
        ({"limit": "3/minute", "cost": -1}, "cost is -1"),
        ({"limit": "3/minute", "cost": True}, "cost is True"),
        ({"limit": "3/minute", "at": "output"}, "choose 'acquire' or 'input'"),
        ({"limit": "3/minute", "refund_on": {"errors"}}, "errors"),
        ({"limit": "3/minute", "on_store_failure": "ignore"}, "choose 'deny' or 'allow'"),
        ({"limit": 100}, "write Quota('100/minute')"),
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(settings: dict[str, Any], says: str) -> None:
    """Contract C33."""
    with pytest.raises(HookError) as refused:
        Quota(settings.pop("limit"), **settings)
    assert says in str(refused.value)


# ---------------------------------------------------------------------- counting


def test_a_call_over_the_limit_is_told_when_it_fits_and_then_it_does(desk: Desk) -> None:
    """Contract 88, I11."""

    async def main() -> None:
        async with desk.gate(Quota("2/10s")) as gate:
            assert await outcomes(gate, {}, {}, {}) == ["success", "success", "retry_later"]
            refused = await ask(gate)
            assert refused.error is not None
            assert refused.error.code == "over_quota"
            assert refused.retry_after is not None
            await asyncio.sleep(refused.retry_after / 1000 - 0.1)
            assert await outcomes(gate, {}) == ["retry_later"]
            await asyncio.sleep(0.1)
            assert await outcomes(gate, {}) == ["success"]

    desk.run(main())


def test_of_several_limits_all_give_or_none_and_the_longest_wait_is_told(desk: Desk) -> None:
    """Contract 88, I11."""

    async def main() -> None:
        async with desk.gate(Quota("2/s; 3/hour")) as gate:
            assert await outcomes(gate, {}, {}, {}) == ["success", "success", "retry_later"]
            soon = await ask(gate)
            assert soon.retry_after is not None
            assert 0 < soon.retry_after <= 2000
            assert taken(desk.store) == 4  # the hour lost nothing by the two that were refused
            await asyncio.sleep(2)
            assert await outcomes(gate, {}, {}) == ["success", "retry_later"]
            late = await ask(gate)
            assert late.retry_after is not None
            assert late.retry_after > 600_000

    desk.run(main())


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 7, 60])), min_size=1, max_size=3, unique_by=lambda x: x[1]
    ),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), min_size=1, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_the_time_that_a_refused_call_is_told_is_enough(limits: list[tuple[int, int]], calls: list[Any]) -> None:
    """Contract 88, I11: whatever was taken before, and of however many limits."""
    desk = Desk()

    async def main() -> None:
        quota = Quota([Limit(*one) for one in limits], at="input", cost=lambda arguments: arguments["cost"])
        async with desk.gate(quota, tools=[priced]) as gate:
            for pause, cost in calls:
                await asyncio.sleep(pause)
                answer = await ask(gate, {"cost": cost}, tool="priced")
                if answer.retry_after is not None:
                    await asyncio.sleep(answer.retry_after / 1000)
                    again = await ask(gate, {"cost": cost}, tool="priced")
                    assert str(again.outcome) == "success"
                else:
                    assert str(answer.outcome) == ("denied" if cost > min(n for n, _ in limits) else "success")

    with desk.time:
        desk.run(main())


@tool(effect="read")
async def priced(cost: int) -> int:
    """Costs what it is told."""
    return cost


@pytest.mark.parametrize(
    ("by", "ends"),
    [
        ("user", "sssr"),  # bob and the other tenant's ann have their own
        ("tenant", "srsr"),
        ("tool", "srrr"),
        ((), "srrr"),
        (("user", "tool"), "sssr"),
        (("tenant", "tool"), "srsr"),
        ("session", "sssr"),
        (("user", lambda ctx: ctx.tool_id), "sssr"),
    ],
)
def test_whom_it_counts_for(desk: Desk, by: Any, ends: str) -> None:
    """Contract 88, I8: users and sessions of two tenants are never one."""

    async def main() -> None:
        async with desk.gate(Quota("1/minute", by=by, name="q")) as gate:
            ended = await outcomes(gate, *({"user": user} for user in (ANN, BOB, EVE, ANN)))
            assert "".join(one[0] for one in ended) == ends

    desk.run(main())


def test_no_two_lists_of_key_parts_are_one_key(desk: Desk) -> None:
    """I8."""

    async def main() -> None:
        async with desk.gate(Quota("1/minute", by=("user", "session"))) as gate:
            for user, session in [("a", "b"), ("a1:b", ""), ("a", "1:b"), ("", "a1:b")]:
                answer = await ask(gate, user=User(user, tenant="t"), session_id=session)
                assert str(answer.outcome) == "success", (user, session)

    desk.run(main())


def test_two_quotas_on_one_store_count_apart_and_with_one_name_together(desk: Desk) -> None:
    """Design 8."""

    async def main() -> None:
        async with desk.gate(Quota("5/minute", tools={"work"}), Quota("5/minute", mode="shadow")) as gate:
            await ask(gate)
            assert taken(desk.store) == 2
        async with (
            desk.gate(Quota("2/minute", name="one")) as first,
            desk.gate(Quota("2/minute", name="one")) as second,
        ):
            assert await outcomes(first, {}) + await outcomes(second, {}, {}) == ["success", "success", "retry_later"]

    desk.run(main())


# ---------------------------------------------------------------------- cost


def test_a_cost_may_be_a_function_of_the_context_or_of_valid_arguments(desk: Desk) -> None:
    """Design 10.14."""
    seen: list[Any] = []

    def by_arguments(arguments: dict[str, Any]) -> int:
        seen.append(arguments)
        return int(arguments["cost"])

    async def main() -> None:
        async with desk.gate(Quota("10/minute", cost=lambda ctx: len(ctx.user.id))) as gate:
            assert await outcomes(gate, {}, {}, {}, {}) == ["success"] * 3 + ["retry_later"]
        quota = Quota("10/minute", at="input", cost=by_arguments, by="user")
        async with desk.gate(quota, tools=[priced]) as gate:
            ends = [await ask(gate, {"cost": cost}, tool="priced") for cost in ("seven", 7, 0, 4, 3, 11, -1)]
            assert [str(end.outcome)[0] for end in ends] == ["i", "s", "s", "r", "s", "d", "d"]
            assert [end.error.code for end in ends[-2:] if end.error] == ["over_limit", "policy_error"]
        assert seen[0] == {"cost": 7}  # never what was not valid

    desk.run(main())


def test_the_stages_are_those_that_are_needed(desk: Desk) -> None:
    """Performance: a hook is in no stage where it has nothing to do."""
    early = str(desk.gate(Quota("1/s")).explain("work"))
    late = str(desk.gate(Quota("1/s", at="input")).explain("work"))
    assert "will_acquire_quota" in early
    assert "will_authorize_input" not in early
    assert "will_authorize_input" in late
    assert "will_acquire_quota" not in late

    class Mine(Quota):
        pass

    mine = str(desk.gate(Mine("1/s", at="input")).explain("work"))
    assert "will_authorize_input" in mine
    assert "will_acquire_quota" not in mine


def test_nothing_is_made_where_the_store_does_not_wait() -> None:
    """Performance: no task and no turn of the loop with the memory store."""

    async def scenario(hooks: list[Any]) -> None:
        async with Gate([work], hooks) as gate:
            await gate.invoke("work", {}, user=USER)

    bare = cost_of(lambda: scenario([]))
    assert cost_of(lambda: scenario([Quota("9/minute; 99/hour")])) == bare
    assert cost_of(lambda: scenario([Quota("9/minute", at="input")])) == bare


# ---------------------------------------------------------------------- commit and refund


class Denies(Hook):
    def __init__(self, stage: str) -> None:
        self.stage = stage

    def _at(self, stage: str, ctx: InvokeContext) -> None:
        if stage == self.stage:
            ctx.abort("no")

    def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        self._at("semaphore", ctx)

    def did_release_semaphore(self, ctx: InvokeContext) -> None:
        pass

    def will_inject_secrets(self, ctx: InvokeContext) -> None:
        self._at("secrets", ctx)

    def will_execute(self, ctx: InvokeContext) -> None:
        self._at("execute", ctx)

    def did_execute(self, ctx: InvokeContext) -> None:
        self._at("executed", ctx)


class Passes(Hook):
    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        return await next()


class Answers(Hook):
    def __init__(self, stage: str) -> None:
        self.stage = stage

    def will_read_cache(self, ctx: InvokeContext) -> None:
        if self.stage == "cache":
            ctx.respond("done")

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        return "done" if self.stage == "around" else await next()

    def will_check_consent(self, ctx: InvokeContext) -> None:
        if self.stage == "consent":
            ctx.respond("may I?", validate=False)


@tool(effect="read")
async def answers(ctx: ToolContext) -> str:
    """Responds by itself."""
    ctx.respond("done")


@pytest.mark.parametrize("around", [(), (Passes(),)], ids=["bare", "wrapped"])
@pytest.mark.parametrize(
    ("hooks", "arguments", "name", "spent"),
    [
        ((), {}, "work", 1),
        ((), {"seconds": "soon"}, "work", 0),
        ((), {"fail": True}, "work", 1),
        ((Denies("semaphore"),), {}, "work", 0),
        ((Denies("secrets"),), {}, "work", 0),
        ((Denies("execute"),), {}, "work", 0),
        ((Denies("executed"),), {}, "work", 1),
        ((Answers("cache"),), {}, "work", 1),
        ((Answers("around"),), {}, "work", 0),
        ((), {}, "answers", 1),
    ],
    ids=["success", "invalid", "fails", "busy", "late", "will_execute", "did_execute", "hit", "skipped", "responds"],
)
def test_what_did_not_execute_is_given_back_and_everything_else_is_spent(
    desk: Desk, around: Any, hooks: Any, arguments: Any, name: str, spent: int
) -> None:
    """Contract 96, C1a, I11."""

    async def main() -> None:
        async with desk.gate(Quota("9/minute"), *hooks, *around, tools=[work, answers]) as gate:
            await ask(gate, arguments, tool=name)
        assert taken(desk.store) == spent

    desk.run(main())


def test_a_consent_challenge_spends_nothing(desk: Desk) -> None:
    """Contract C17: the quota is not even reached."""

    async def main() -> None:
        async with desk.gate(Quota("9/minute"), Answers("consent")) as gate:
            await ask(gate)
        assert taken(desk.store) == 0

    desk.run(main())


def test_what_else_is_given_back_is_a_choice(desk: Desk) -> None:
    """Contract 96."""

    async def spent(quota: Quota, *hooks: Any, **arguments: Any) -> int:
        before = taken(desk.store)
        async with desk.gate(quota, *hooks) as gate:
            await ask(gate, arguments)
        return taken(desk.store) - before

    async def main() -> None:
        assert await spent(Quota("9/minute", refund_on={"cache_hit"}), Answers("cache")) == 0
        assert await spent(Quota("9/minute", refund_on={"error"}), fail=True) == 0
        assert await spent(Quota("9/minute", refund_on=()), seconds="soon") == 1
        assert await spent(Quota("9/minute", refund_on=lambda ctx: ctx.executed)) == 0
        assert await spent(Quota("9/minute", refund_on=lambda ctx: False), seconds="soon") == 1
        answers: list[Any] = ["no", None, 1, [0]]
        for answer in answers:  # only True gives back: a coroutine is true as well
            assert await spent(Quota("9/minute", refund_on=lambda ctx: answer)) == 1  # noqa: B023

    desk.run(main())


@pytest.mark.parametrize("refund_on", [(), ("cancelled",)])
def test_a_call_cancelled_before_its_body_spends_nothing_and_in_its_body_it_does(desk: Desk, refund_on: Any) -> None:
    """I11."""

    class Slow(Hook):
        async def will_authorize_input(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(1)

    async def main() -> None:
        quota = Quota("9/minute", refund_on=("not_executed", *refund_on))
        async with desk.gate(quota, Slow()) as gate:
            for after, spent in (0.5, 0), (1.5, 0 if refund_on else 1):
                task = asyncio.create_task(ask(gate, {"seconds": 5}))
                await asyncio.sleep(after)
                assert taken(desk.store) == 1
                task.cancel()
                await asyncio.wait([task])
                assert taken(desk.store) == spent

    desk.run(main())


def test_a_body_that_is_left_behind_is_spent_when_it_ends(desk: Desk) -> None:
    """I12."""

    @tool(effect="read", hard_deadline=True)
    async def stubborn() -> None:
        until = desk.now() + 5
        while desk.now() < until:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        async with desk.gate(Quota("9/minute", refund_on={"not_executed", "cache_hit"}), tools=[stubborn]) as gate:
            answer = await ask(gate, tool="stubborn", deadline=1)
            assert str(answer.outcome) == "unknown"
        assert taken(desk.store) == 1

    desk.run(main())


# ---------------------------------------------------------------------- the store


def test_while_the_store_fails_calls_are_denied_or_pass_by_choice(desk: Desk) -> None:
    """I6: the default is no."""

    async def main() -> None:
        gone = FailingStore(desk.now)
        async with desk.gate(Quota("9/minute", store=gone)) as gate:
            answer = await ask(gate)
            assert answer.error is not None
            assert (str(answer.outcome), answer.error.code) == ("denied", "quota_unavailable")
            assert answer.error.http_status == 503
        seen: list[Any] = []

        class Audit(Hook):
            def did_audit(self, ctx: InvokeContext) -> None:
                seen.extend(type(one.error) for one in ctx.suppressed)

        async with desk.gate(Quota("9/minute", store=gone, on_store_failure="allow"), Audit()) as gate:
            assert await outcomes(gate, {}) == ["success"]
        assert seen == [ConnectionError]

    desk.run(main())


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("nth", range(1, 8))
def test_whichever_operation_of_the_store_fails_nothing_is_over_spent(desk: Desk, nth: int, commits: bool) -> None:
    """I11: too much may stay counted until its window is over, never too little."""

    async def main() -> None:
        store = FailingStore(desk.now, nth, commits=commits)
        async with desk.gate(Quota("3/minute; 4/hour"), store=store) as gate:
            ends = await outcomes(gate, {}, {"arguments": {"seconds": "x"}}, {}, {}, {}, {})
            assert ends.count("success") <= 3
            assert taken(store) >= ends.count("success") * 2

    desk.run(main())


def test_in_shadow_mode_it_counts_and_stops_nobody(desk: Desk) -> None:
    """Design 4."""

    async def main() -> None:
        would: list[str] = []

        class Audit(Hook):
            def did_audit(self, ctx: InvokeContext) -> None:
                would.extend(f"{one.hook} {one.error}" for one in ctx.suppressed)

        for at in "acquire", "input":
            would.clear()
            async with desk.gate(Quota("1/minute", at=at, mode="shadow"), Audit()) as gate:
                assert await outcomes(gate, {}, {}) == ["success", "success"]
            (only,) = would
            assert "over the quota of 1 in 60 s" in only

    desk.run(main())


# ---------------------------------------------------------------------- cancellation


class Late(Hook):
    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)
        ctx.abort("not executed: all is to be given back")


def sweeping(make: Any, **options: Any) -> Any:
    async def scenario(ledger: LeaseLedger) -> Any:
        store = WaitingStore(asyncio.get_running_loop().time)
        ledger.watch("taken", lambda: taken(store))
        async with Gate([work], [make(), Late()], allow_unguarded=True, store=store) as gate:
            return await gate.invoke("work", {}, user=USER, **options)

    return scenario


@swept
@pytest.mark.parametrize("at", ["acquire", "input"])
def test_cancelled_at_any_point_before_the_body_nothing_stays_taken(at: Any, sweep: dict[str, Any]) -> None:
    """I1, I1b, I11."""
    report = every_cancel_point(sweeping(lambda: Quota("9/minute; 99/hour", at=at)), **sweep)
    assert report.points > 100
    every_cancel_point(
        sweeping(lambda: Quota("9/minute; 99/hour", at=at), deadline=FAR), deadline=True, pairs=sweep["pairs"]
    )


def test_control_a_quota_that_forgets_its_refunds_is_found() -> None:
    """I1: control."""

    class Forgetful(Quota):
        def did_release_quota(self, ctx: InvokeContext) -> None:
            pass

    with pytest.raises(SweepFailed):
        every_cancel_point(sweeping(lambda: Forgetful("9/minute")), stop_after=1)
