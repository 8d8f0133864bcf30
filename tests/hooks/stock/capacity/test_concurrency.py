"""``Concurrency``: never over its places, first come first served, nothing lost; in one process and across several."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, User, tool
from callgate.errors import HookError
from callgate.hooks.stock.capacity.concurrency import Concurrency
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.lifespan.background import TASKS
from callgate.testing import FAR, LeaseLedger, SweepFailed, every_cancel_point, run_virtual
from tests.harness.steploop import cost_of
from tests.harness.sweeps import swept
from tests.hooks.stock.capacity.limiting import USER, Desk, FailingStore, WaitingStore, ask, key_in, places_held, work

BOB, EVE = User("bob", tenant="acme"), User("ann", tenant="evil")


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    with made.time:
        yield made


class Peak(Hook):
    """How many bodies run at a time, and in which order they began."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[str] = []

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(ctx.request_id)
        try:
            return await next()
        finally:
            self.now -= 1


async def many(gate: Gate, number: int, arguments: Any = None, **options: Any) -> list[str]:
    calls = [ask(gate, arguments or {"seconds": 1}, request_id=str(n), **options) for n in range(number)]
    return [str(answer.outcome) for answer in await asyncio.gather(*calls)]


def shares(desk: Desk, *, before: float = 0.001) -> list[dict[str, Any]]:
    """The settings with which a limit is kept in process, and in a store that waits."""
    return [{}, {"store": WaitingStore(desk.now, before)}]


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"limit": True}, "limit is True"),
        ({"limit": 1, "queue": 5}, "go together"),
        ({"limit": 1, "queue_timeout": 5}, "go together"),
        ({"limit": 1, "queue": -1, "queue_timeout": 1}, "queue is -1"),
        ({"limit": 1, "ttl": 0}, "ttl is 0"),
        ({"limit": 1, "by": "tol"}, "did you mean 'tool'"),
        ({"limit": 1, "on_store_failure": "x"}, "choose"),
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(settings: dict[str, Any], says: str) -> None:
    """Contract C33."""
    with pytest.raises(HookError) as refused:
        Concurrency(**settings)
    assert says in str(refused.value)


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize("shared", [0, 1])
def test_without_a_line_whoever_finds_no_place_is_told_to_come_later(desk: Desk, shared: int) -> None:
    """Contract 88, I11."""
    hook, peak = Concurrency(2, retry_after=3, **shares(desk)[shared]), Peak()

    async def main() -> None:
        async with desk.gate(hook, peak) as gate:
            assert sorted(await many(gate, 5)) == ["retry_later"] * 3 + ["success"] * 2
            full = await asyncio.gather(*(ask(gate, {"seconds": 1}) for _ in range(3)))
            (refused,) = (one for one in full if one.error is not None)
            assert refused.error is not None
            assert (refused.error.code, refused.retry_after) == ("semaphore_full", 3000)
            assert hook.in_use() == 0
        assert peak.most == 2

    desk.run(main())


@pytest.mark.parametrize("shared", [0, 1])
def test_a_line_is_bounded_in_length_and_in_time_and_served_in_order(desk: Desk, shared: int) -> None:
    """Contract 88, I11."""
    hook, peak = Concurrency(1, queue=3, queue_timeout=2.5, **shares(desk)[shared]), Peak()

    async def main() -> None:
        async with desk.gate(hook, peak) as gate:
            began = desk.now()
            ends = await many(gate, 5)
            assert sorted(ends) == ["retry_later"] * 2 + ["success"] * 3  # one found no place in line, one waited 2.5 s
            assert 3.0 <= desk.now() - began < 3.6
            assert peak.order == sorted(peak.order)
            assert hook.in_use() == 0
        assert peak.most == 1

    desk.run(main())


@pytest.mark.parametrize(
    ("by", "most"),
    [("tool", 1), ("user", 3), ("tenant", 2), (("tenant", "tool"), 2), ((), 1), (lambda ctx: ctx.user.id, 3)],
)
def test_whom_it_counts_for(desk: Desk, by: Any, most: int) -> None:
    """I8, I11."""
    peak = Peak()

    async def main() -> None:
        async with desk.gate(Concurrency(1, by=by, name="c"), peak) as gate:
            await asyncio.gather(*(ask(gate, {"seconds": 1}, user=user) for user in (USER, BOB, EVE, USER)))

    desk.run(main())
    assert peak.most == most


def test_nobody_waits_longer_than_the_call_may_take(desk: Desk) -> None:
    """I12."""

    async def main() -> None:
        async with desk.gate(Concurrency(1, queue=1, queue_timeout=60)) as gate:
            first = asyncio.create_task(ask(gate, {"seconds": 30}))
            await asyncio.sleep(0.1)
            began = desk.now()
            second = await ask(gate, deadline=2)
            assert str(second.outcome) in {"retry_later", "error"}
            assert desk.now() - began < 2.1
            await first

    desk.run(main())


@pytest.mark.parametrize("shared", [0, 1])
def test_in_shadow_mode_nobody_is_stopped_or_held_up(desk: Desk, shared: int) -> None:
    """Design 4."""
    hook, peak = Concurrency(1, queue=5, queue_timeout=9, mode="shadow", **shares(desk, before=0.0)[shared]), Peak()

    async def main() -> None:
        async with desk.gate(hook, peak) as gate:
            began = desk.now()
            assert await many(gate, 4) == ["success"] * 4
            assert desk.now() - began < 1.5
            assert hook.in_use() == 0

    desk.run(main())
    assert peak.most == 4


@pytest.mark.parametrize("number", [10_000])
def test_ten_thousand_callers_keep_to_the_limit_and_to_their_order(number: int) -> None:
    """I11: peak at the limit, nothing left, first come first served, and who goes away frees his place in line."""
    peak, hook = Peak(), Concurrency(64, queue=number, queue_timeout=1e6)
    rolls = random.Random(7)

    @tool(effect="read")
    async def roll() -> None:
        await asyncio.sleep(rolls.random())

    async def main() -> None:
        async with Gate([roll], [hook, peak]) as gate:
            tasks = [asyncio.create_task(ask(gate, tool="roll", request_id=f"{n:05}")) for n in range(number)]
            await asyncio.sleep(0.5)
            gone = rolls.sample(tasks, number // 10)
            for task in gone:
                task.cancel()
            await asyncio.wait(tasks)
            assert hook.in_use() == 0
            assert hook._local is not None
            assert hook._local.queues == {}

    run_virtual(main())
    assert peak.most == 64
    assert peak.order == sorted(peak.order)
    assert len(peak.order) >= number * 0.9


@pytest.mark.parametrize("shared", [0, 1])
def test_a_call_in_line_that_is_cancelled_ends_at_once_and_frees_its_place(desk: Desk, shared: int) -> None:
    """I11, C1d."""
    hook = Concurrency(1, queue=1, queue_timeout=60, **shares(desk)[shared])

    async def main() -> None:
        async with desk.gate(hook) as gate:
            first = asyncio.create_task(ask(gate, {"seconds": 9}))
            await asyncio.sleep(0.1)
            for _ in range(3):
                second = asyncio.create_task(ask(gate))
                await asyncio.sleep(0.1)
                assert str((await ask(gate)).outcome) == "retry_later"
                second.cancel()
                await asyncio.wait([second], timeout=0.05)
                assert second.cancelled()
            began = desk.now()
            assert str((await ask(gate, deadline=2)).outcome) in {"error", "retry_later"}
            assert desk.now() - began < 2.1
            assert str((await first).outcome) == "success"
            assert hook.in_use() == 0

    desk.run(main())


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("shared", [False, True])
def test_whatever_is_cancelled_whenever_no_place_is_lost_or_made(seed: int, shared: bool) -> None:
    """I11: the waiters, the holders, those whose turn has just come."""
    cancel_at_random(seed, shared)


@pytest.mark.soak
@pytest.mark.parametrize("shared", [False, True])
def test_soak_a_thousand_seeds_of_cancelled_calls(shared: bool) -> None:
    """I11."""
    for seed in range(1000, 2000):
        cancel_at_random(seed, shared)


def cancel_at_random(seed: int, shared: bool) -> None:
    """Sixty calls at three places, half of them cancelled at some time."""
    rolls = random.Random(seed)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = WaitingStore(loop.time, 0.001, 0.001)
        hook = Concurrency(3, queue=20, queue_timeout=4, store=store if shared else None, ttl=60)
        peak = Peak()
        async with Gate([work], [hook, peak], store=store) as gate:

            async def one() -> None:
                await asyncio.sleep(rolls.random() * 3)
                task = asyncio.create_task(ask(gate, {"seconds": rolls.random()}))
                if rolls.random() < 0.5:
                    loop.call_later(rolls.random() * 3, task.cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    await task

            await asyncio.gather(*(one() for _ in range(60)))
            assert peak.most <= 3
            assert hook.in_use() == places_held(store) == 0
            answers = [await ask(gate) for _ in range(3)]
            assert [str(answer.outcome) for answer in answers] == ["success"] * 3

    run_virtual(main())


# ---------------------------------------------------------------------- through a store


def test_two_gates_on_one_store_hold_one_limit(desk: Desk) -> None:
    """Design 8, I11."""
    peak = Peak()

    async def main() -> None:
        def made() -> Concurrency:
            return Concurrency(3, shared=True, queue=50, queue_timeout=60)

        async with desk.gate(made(), peak) as one, desk.gate(made(), peak) as two:
            ends = await asyncio.gather(many(one, 12), many(two, 12))
            assert [*ends] == [["success"] * 12] * 2
        assert peak.most == 3
        assert places_held(desk.store) == 0

    desk.run(main())


def test_a_lease_is_renewed_while_the_call_runs_and_by_one_task(desk: Desk) -> None:
    """I11: a call may take longer than the lease."""

    async def main() -> None:
        hook = Concurrency(2, shared=True, ttl=3)
        async with desk.gate(hook) as gate:
            calls = [asyncio.create_task(ask(gate, {"seconds": 20})) for _ in range(2)]
            await asyncio.sleep(15)
            assert places_held(desk.store) == 2
            assert str((await ask(gate)).outcome) == "retry_later"
            upkeep = [task for task in asyncio.all_tasks() if task.get_name().startswith(TASKS)]
            assert len(asyncio.all_tasks()) - len(upkeep) <= 1 + len(calls)  # this one
            await asyncio.gather(*calls)
            assert str((await ask(gate)).outcome) == "success"
            await asyncio.sleep(10)
            assert hook._shared._timer is None  # nothing is held, nothing is kept up
            assert hook._shared._task is None
            await ask(gate, {"seconds": 2})
            assert hook._shared._timer is not None
        assert hook._shared._timer is None  # the gate is closed

    desk.run(main())


def test_control_a_lease_that_is_not_renewed_lets_others_in(desk: Desk) -> None:
    """I11: control."""

    async def main() -> None:
        hook = Concurrency(1, shared=True, ttl=3)
        hook._shared._due = lambda: None  # type: ignore[method-assign]
        async with desk.gate(hook) as gate:
            first = asyncio.create_task(ask(gate, {"seconds": 20}))
            await asyncio.sleep(15)
            assert str((await ask(gate)).outcome) == "success"
            await first

    desk.run(main())


def test_a_place_given_back_while_it_is_renewed_stays_free(desk: Desk) -> None:
    """I11: the renewal that comes too late takes it back at once."""

    async def main() -> None:
        store = WaitingStore(desk.now, before=0.5)
        hook = Concurrency(1, store=store, ttl=3)
        async with desk.gate(hook) as gate:
            for seconds in 0.4, 0.6, 0.8, 1.0, 1.2:
                await ask(gate, {"seconds": seconds})
                await asyncio.sleep(1)
                assert places_held(store) == 0

    desk.run(main())


def test_who_holds_and_dies_is_out_within_one_ttl(desk: Desk) -> None:
    """I11."""

    async def main() -> None:
        await desk.store.semaphores.acquire(*key_in(Concurrency(1)), 1, "of the dead", 5)
        async with desk.gate(Concurrency(1, shared=True)) as gate:
            assert str((await ask(gate)).outcome) == "retry_later"
            await asyncio.sleep(5)
            assert str((await ask(gate)).outcome) == "success"

    desk.run(main())


def test_while_the_store_fails_calls_are_denied_or_pass_by_choice(desk: Desk) -> None:
    """I6."""

    async def main() -> None:
        gone = FailingStore(desk.now)
        async with desk.gate(Concurrency(1, store=gone)) as gate:
            answer = await ask(gate)
            assert answer.error is not None
            assert (str(answer.outcome), answer.error.code) == ("denied", "semaphore_unavailable")
        async with desk.gate(Concurrency(1, store=gone, on_store_failure="allow")) as gate:
            assert str((await ask(gate)).outcome) == "success"

    desk.run(main())


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("nth", range(1, 9))
def test_whichever_operation_of_the_store_fails_the_limit_holds_and_comes_back(
    desk: Desk, nth: int, commits: bool
) -> None:
    """I11: what is left over is free after one ttl."""
    peak = Peak()

    async def main() -> None:
        store = FailingStore(desk.now, nth, commits=commits)
        async with desk.gate(Concurrency(2, store=store, ttl=3, queue=9, queue_timeout=9), peak) as gate:
            await many(gate, 4, {"seconds": 2})
            assert peak.most <= 2
            await asyncio.sleep(3)
            assert await many(gate, 2) == ["success"] * 2
        assert places_held(store) == 0

    desk.run(main())


def test_nothing_is_made_where_nobody_waits() -> None:
    """Performance: no task, no turn of the loop for a free place."""

    async def scenario(hooks: list[Any]) -> None:
        async with Gate([work], hooks) as gate:
            await gate.invoke("work", {})

    assert cost_of(lambda: scenario([])) == cost_of(lambda: scenario([Concurrency(2)]))


# ---------------------------------------------------------------------- cancellation


class Occupied:
    """Somebody else's place: given back after a while, at the latest when the scenario is over."""

    def __init__(self, hook: Concurrency, store: WaitingStore) -> None:
        self.hook, self.store = hook, store
        self.key = key_in(hook)
        self.given = False
        semaphores: Any = store.inside[1]
        self.held = semaphores._held

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self.hook._local is not None:
            assert self.hook._local.take(self.key)
        else:
            self.held[self.key] = {"another": loop.time() + 100}
        self.timer = loop.call_later(0.02, self.give)

    def give(self) -> None:
        if self.given:
            return
        self.given = True
        if self.hook._local is not None:
            self.hook._local.give(self.key)
        else:
            del self.held[self.key]["another"]

    def __exit__(self, *error: object) -> None:
        self.timer.cancel()
        self.give()


def sweeping(make: Any, *, contended: bool, **options: Any) -> Any:
    async def scenario(ledger: LeaseLedger) -> Any:
        store = WaitingStore(asyncio.get_running_loop().time)
        hook = make(store)
        ledger.watch("places", lambda: (hook.in_use(), places_held(store)))
        async with Gate([work], [hook], allow_unguarded=True, store=store) as gate:
            with Occupied(hook, store) if contended else contextlib.nullcontext():
                return await gate.invoke("work", {"seconds": 0.001}, user=USER, **options)

    return scenario


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@swept
def test_cancelled_at_any_point_the_place_is_given_back_once(
    contended: bool, shared: bool, sweep: dict[str, Any]
) -> None:
    """I1, I1b, I11."""

    def made(store: MemoryStore) -> Concurrency:
        return Concurrency(1, queue=1, queue_timeout=5, store=store if shared else None)

    assert every_cancel_point(sweeping(made, contended=contended), **sweep).points > 30
    every_cancel_point(sweeping(made, contended=contended, deadline=FAR), deadline=True, pairs=sweep["pairs"])


def test_control_a_place_that_is_not_given_back_is_found() -> None:
    """I1: control."""

    class Forgetful(Concurrency):
        def did_release_semaphore(self, ctx: InvokeContext) -> None:
            if ctx.error is None and self._local is not None:
                self._local.give(ctx.data[self])

    with pytest.raises(SweepFailed):
        every_cancel_point(sweeping(lambda _: Forgetful(1), contended=False), stop_after=1)
