"""Records come before the releases; beside one that takes longer than 100 ms the releases run: contract 97, C1, C1a; I1, I10, I13."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callgate import Gate, Hook, InvokeContext, Stage, ToolContext, tool
from callgate.hooks import Concurrency
from callgate.runtime.pipeline import beside, closing
from callgate.runtime.testing import cancel
from callgate.runtime.testing.cancel import SweepFailed
from callgate.runtime.testing.cancel_modes import Native
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.pipeline import cancel_cases as cases
from tests.runtime.pipeline.leasing import Quota
from tests.runtime.pipeline.test_closing import BUDGET, at, gate_of, hangs

RELEASE = 0.01
"""Seconds that an asynchronous release of these tests takes."""
EPSILON = 0.02

Log = list[tuple[str, float]]


def noting(log: Log, what: str) -> None:
    log.append((what, asyncio.get_running_loop().time()))


# ---------------------------------------------------------------------- kinds of records and leases


def records_of(log: Log) -> dict[str, tuple[Any, float]]:
    """Hooks of ``did_audit`` and the seconds that each takes."""

    def takes(seconds: float) -> Any:
        async def record(_ctx: InvokeContext) -> None:
            if seconds:
                await asyncio.sleep(seconds)
            noting(log, "record")

        return record

    return {
        "sync": (at("did_audit", lambda _: noting(log, "record")), 0.0),
        "async, does not wait": (at("did_audit", takes(0.0)), 0.0),
        "async, quick": (at("did_audit", takes(0.05)), 0.05),
        "a plain function that returns an awaitable, quick": (at("did_audit", takes(0.05), is_plain=True), 0.05),
        "async, takes a second": (at("did_audit", takes(1.0)), 1.0),
        "a plain function that returns an awaitable, slow": (at("did_audit", takes(1.0), is_plain=True), 1.0),
        "dead": (at("did_audit", hangs), BUDGET / 2),
    }


@asynccontextmanager
async def lease(log: Log) -> AsyncGenerator[None]:
    yield
    await asyncio.sleep(RELEASE)
    noting(log, "release")


class PlainPermit(Hook):
    """A lease whose hook has plain functions."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        pass

    def did_release_semaphore(self, ctx: InvokeContext) -> None:
        noting(self.log, "release")


class AsyncPermit(Hook):
    """A lease whose release waits."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        pass

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(RELEASE)
        noting(self.log, "release")


LEASES: dict[str, Callable[[Log], Any]] = {
    "plain functions": PlainPermit,
    "coroutine functions": AsyncPermit,
    "ctx.lease of a hook": lambda log: at("will_execute", lambda ctx: ctx.lease(lease(log))),
}
RECORDS = list(records_of([]))


async def times_of(kind: str, permit: str) -> tuple[Log, float, float]:
    """Call once; return what happened when, the seconds of the record and those of the call."""
    log: Log = []
    hook, seconds = records_of(log)[kind]
    async with gate_of([LEASES[permit](log), hook, at("will_finalize_invoke", lambda _: noting(log, "end"))]) as gate:
        began = asyncio.get_running_loop().time()
        assert (await gate.call("work")).ok
        took = asyncio.get_running_loop().time() - began
    return [(what, when - began) for what, when in log], seconds, took


@pytest.mark.parametrize("permit", LEASES)
@pytest.mark.parametrize("kind", RECORDS)
@on_virtual_time
async def test_records_come_before_the_releases_unless_they_take_longer_than_100_ms(
    loop: StepLoop, kind: str, permit: str
) -> None:
    """Contract 97, C1; I1, I10. The permit is free after 100 ms and the time of its release, at most."""
    log, seconds, took = await times_of(kind, permit)
    record = [] if kind == "dead" else ["record"]
    assert [what for what, _ in log] == [*(["release", *record] if seconds > 0.1 else [*record, "release"]), "end"]
    assert dict(log)["release"] <= min(seconds, 0.1) + RELEASE + EPSILON
    assert took <= max(seconds, min(seconds, 0.1) + RELEASE) + EPSILON, "the releases run beside the record"


@pytest.mark.parametrize("permit", LEASES)
@on_virtual_time
async def test_without_the_limit_a_dead_sink_holds_the_permit(
    loop: StepLoop, permit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: the control."""
    monkeypatch.setattr(closing, "PATIENCE", 1e9)
    log, _, _ = await times_of("dead", permit)
    assert dict(log)["release"] > 0.1 + RELEASE + EPSILON


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("records", [1, 5])
@on_virtual_time
async def test_several_slow_records_hold_a_permit_for_100_ms_together(
    loop: StepLoop, records: int, shared: bool
) -> None:
    """I1, I10: each record alone may be quick."""
    free: list[float] = []

    async def takes(_ctx: InvokeContext) -> None:
        await asyncio.sleep(0.08)

    hooks = [
        Concurrency(1, queue=1, queue_timeout=10, shared=shared),
        *(at("will_audit", takes) for _ in range(records)),
    ]
    async with gate_of([*hooks, at("will_execute", lambda _: free.append(loop.time()))]) as gate:
        began = loop.time()
        results = await asyncio.gather(gate.call("work"), gate.call("work"))
        assert [one.ok for one in results] == [True, True]
    assert free[1] - began <= (0.11 if not shared else 0.5)


# ---------------------------------------------------------------------- both go on


async def shared_lock() -> tuple[list[str], float]:
    """A record that takes half a second holds the lock that a release needs."""
    log: list[str] = []
    lock = asyncio.Lock()

    class Permit(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None:
            pass

        async def did_release_quota(self, ctx: InvokeContext) -> None:
            async with lock:
                log.append("released")

    async def record(_ctx: InvokeContext) -> None:
        async with lock:
            await asyncio.sleep(0.25)
            await asyncio.sleep(0.25)
            log.append("recorded")

    async with gate_of([Permit(), at("on_metrics", record)]) as gate:
        began = asyncio.get_running_loop().time()
        await gate.call("work")
        return log, asyncio.get_running_loop().time() - began


@on_virtual_time
async def test_a_release_that_waits_for_a_lock_of_the_record_gets_it(loop: StepLoop) -> None:
    """I1: a slow store is no deadlock."""
    log, took = await shared_lock()
    assert log == ["recorded", "released"]
    assert took < 0.55


@on_virtual_time
async def test_a_record_that_stands_still_during_the_releases_is_found(
    loop: StepLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: the control."""
    is_ready = beside.Beside._is_ready

    def releases_first(self: Any, turn: Any) -> None:
        if turn[0] is self.record and len(self.strands) > 1 and not self.strands[1].is_over:
            self.loop.call_later(0.01, releases_first, self, turn)
        else:
            is_ready(self, turn)

    monkeypatch.setattr(beside.Beside, "_is_ready", releases_first)
    log, took = await shared_lock()
    assert "released" not in log
    assert took > 1


async def crossing_scopes() -> list[str]:
    """The scopes of a record and of a release overlap; the time of the record's second scope passes meanwhile."""
    log: list[str] = []

    class Limited(Hook):
        async def will_acquire_quota(self, ctx: InvokeContext) -> None:
            self.task, self.limiter = asyncio.current_task(), anyio.CapacityLimiter(1)
            await self.limiter.acquire()

        async def did_release_quota(self, ctx: InvokeContext) -> None:
            with anyio.fail_after(1):  # begins within the record's first scope, and ends after its second
                await anyio.sleep(0.4)
            with anyio.move_on_after(0.1):
                await anyio.sleep(5)
            assert asyncio.current_task() is self.task
            assert ctx.stage is Stage.DID_RELEASE_QUOTA
            self.limiter.release()  # of the task that took it
            log.append("released")

    async def record(ctx: InvokeContext) -> None:
        with anyio.fail_after(1):
            await anyio.sleep(0.2)
        with anyio.move_on_after(0.1) as scope:
            await anyio.sleep(5)
        try:
            async with asyncio.timeout(0.15):
                await asyncio.sleep(5)
        except TimeoutError:
            log.append(f"recorded, cancelled {scope.cancelled_caught}")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.1))
        assert ctx.stage is Stage.DID_AUDIT

    def finals(ctx: InvokeContext) -> None:
        log.extend(f"failed: {one.error!r}" for one in ctx.suppressed)

    async with gate_of([Limited(), at("did_audit", record), at("will_finalize_invoke", finals)]) as gate:
        with anyio.CancelScope():
            await gate.call("work")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    return log


@on_virtual_time
async def test_time_limits_of_a_record_and_of_a_release_are_their_own(loop: StepLoop) -> None:
    """I12, I13: of asyncio and of anyio, in the task of the call."""
    assert await crossing_scopes() == ["recorded, cancelled True", "released"]


@on_virtual_time
async def test_scopes_of_one_stack_are_found(loop: StepLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: the control, and the canary for the private name of anyio."""
    monkeypatch.setattr(beside, "enter_stack", lambda task, scope: None)
    with pytest.raises(RuntimeError, match="cancel scope"):
        await crossing_scopes()


@pytest.mark.parametrize(
    ("sabotage", "limit"),
    [
        ("the stack of scopes is shared", cases.anyio_seconds),
        ("cancellations reach the other step", cases.asyncio_seconds),
        ("cancellations reach the other step", cases.anyio_seconds),
    ],
)
def test_the_sweeps_find_steps_that_are_not_kept_apart(
    sabotage: str, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: the control of the cases in the sweeps, whose limits pass while both run."""
    if sabotage.startswith("the stack"):
        monkeypatch.setattr(beside, "enter_stack", lambda task, scope: None)
    else:
        cancel_step = beside.Beside.cancel

        def crossed(self: Any, msg: Any) -> bool:
            self.mark = self.record.mark
            return cancel_step(self, msg)

        monkeypatch.setattr(beside.Beside, "cancel", crossed)
    with pytest.raises(SweepFailed):
        cancel.every_cancel_point(cases.slow_record(limit, cases.limited_lease)(), (Native,), paired=(), stop_after=10)


# ---------------------------------------------------------------------- the end of a call


@on_virtual_time
async def test_a_dead_sink_and_dead_releases_share_the_budget(loop: StepLoop) -> None:
    """C1c, I12."""

    class Dead(Quota):
        async def did_release_quota(self, ctx: InvokeContext) -> None:
            await hangs(ctx)

        async def will_acquire_quota(self, ctx: InvokeContext) -> None:
            pass

    hooks: list[Any] = [Dead(None), Dead(None), at("will_audit", hangs), at("on_metrics", hangs)]  # type: ignore[arg-type]
    async with gate_of(hooks) as gate:
        began = loop.time()
        assert (await gate.call("work")).ok
        assert loop.time() - began <= BUDGET + 0.1


@on_virtual_time
async def test_a_cancellation_waits_for_both_and_is_raised_once(loop: StepLoop) -> None:
    """I13."""
    log: Log = []

    async def record(_ctx: InvokeContext) -> None:
        await asyncio.sleep(0.3)
        noting(log, "record")

    async with gate_of([AsyncPermit(log), AsyncPermit(log), at("did_audit", record)]) as gate:
        calling = asyncio.ensure_future(gate.call("work"))
        await asyncio.sleep(0.105)
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
    assert [what for what, _ in log] == ["release", "release", "record"]


class Closed:
    """A call whose coroutine is closed at its first wait after some seconds."""

    def __init__(self, call: Any, after: float) -> None:
        self.call, self.loop = call, asyncio.get_running_loop()
        self.until = self.loop.time() + after

    def __await__(self) -> Generator[Any, None, None]:
        while True:
            pending = self.call.send(None)
            if self.loop.time() > self.until:
                self.call.close()
                return
            yield pending


@on_virtual_time
async def test_a_call_whose_coroutine_is_closed_meanwhile_ends_both(loop: StepLoop) -> None:
    """I1: plain releases still run."""
    log: list[str] = []
    released: Log = []

    async def record(_ctx: InvokeContext) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            log.append("record closed")

    class Permit(AsyncPermit):
        async def did_release_quota(self, ctx: InvokeContext) -> None:
            try:
                for _ in range(20):
                    await asyncio.sleep(0.05)
            finally:
                log.append("release closed")

    hooks = [PlainPermit(released), Permit(released), at("on_metrics", record)]
    async with gate_of(hooks) as gate:
        await Closed(gate.call("work"), after=0.2)
    assert log == ["release closed", "record closed"]
    assert [what for what, _ in released] == ["release"]


@on_virtual_time
async def test_a_tool_with_a_lease_of_its_own_gives_it_back_too(loop: StepLoop) -> None:
    """C1a."""
    log: Log = []

    @tool(effect="read")
    async def leases(ctx: ToolContext) -> None:
        """Take a lease."""
        held: Any = ctx
        await held.lease(lease(log))

    async with Gate([leases], [PlainPermit(log), at("on_metrics", hangs)]) as gate:
        await gate.call("leases")
    assert [what for what, _ in log] == ["release", "release"]
