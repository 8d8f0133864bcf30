"""Closing has a budget of its own, and a dead sink holds capacity for 100 ms: contract C1, C1c, C1d; invariants I1, I10, I12."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import DeadlineExceeded, Gate, Hook, InvokeContext, Options, Scoped, Stage, ToolContext, tool
from callgate.hooks import Audit, Concurrency
from callgate.providers.stores.effects import OPEN_STATES
from callgate.runtime.pipeline import closing
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.effects.scene_desk import ANN, Desk, states
from tests.runtime.effects.scene_desk import call as pays
from tests.runtime.effects.scene_desk import gate_of as desk_gate

Act = Callable[[InvokeContext], Any]
BUDGET, DEADLINE = 4.0, 0.2


@tool(effect="read")
async def work(seconds: float = 0.0) -> int:
    """Take some seconds."""
    await asyncio.sleep(seconds)
    return 7


async def hangs(ctx: InvokeContext) -> None:
    await asyncio.sleep(1e9)


async def swallows(ctx: InvokeContext) -> None:
    while True:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            continue


def at(stage: Stage | str, act: Act, *, is_plain: bool = False) -> Any:
    """A hook with one method: a coroutine function where *act* is one, unless it is to return the awaitable."""

    async def waits(_self: Any, ctx: InvokeContext) -> None:
        await act(ctx)

    def plain(_self: Any, ctx: InvokeContext) -> Any:
        return act(ctx)

    method = waits if inspect.iscoroutinefunction(act) and not is_plain else plain
    return type(f"At_{stage}", (Hook,), {Stage(stage).value: method})()


class Permit(Hook):
    """Capacity for one call; a second one is refused."""

    def __init__(self, log: list[str] | None = None, name: str = "permit") -> None:
        self.taken, self.name, self.log = False, name, [] if log is None else log

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        if self.taken:
            ctx.abort("full")
        self.taken = True

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        self.taken = False
        self.log.append(f"-{self.name}")


def gate_of(hooks: Iterable[Any], budget: float = BUDGET, **options: Any) -> Gate:
    return Gate([work], hooks, options=Options(closing=budget), **options)


# ---------------------------------------------------------------------- the budget of a call

CLOSING_STAGES = [
    (Stage.ON_ERROR, Stage.ON_ERROR),
    (Stage.ON_ERROR, Stage.WILL_AUDIT),
    (Stage.WILL_AUDIT, Stage.ON_METRICS),
    (Stage.DID_RELEASE_SEMAPHORE, Stage.DID_RELEASE_QUOTA),
    (Stage.DID_RELEASE_QUOTA, Stage.WILL_FINALIZE_INVOKE),
]


async def seconds_of_two(stages: tuple[Stage, Stage], act: Act) -> float:
    """Call with a short deadline and two hooks that act so; return the seconds that it took."""
    async with gate_of([at(stage, act) for stage in stages]) as gate:
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded):
            await gate.invoke("work", {"seconds": 1e9}, deadline=DEADLINE)
        return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("act", [hangs, swallows])
@pytest.mark.parametrize("stages", CLOSING_STAGES, ids=" and ".join)
@on_virtual_time
async def test_two_hooks_that_hang_hold_a_call_no_longer_than_its_budget(
    loop: StepLoop, stages: tuple[Stage, Stage], act: Act
) -> None:
    """C1c, C1d, I12."""
    assert DEADLINE + BUDGET / 2 <= await seconds_of_two(stages, act) <= DEADLINE + BUDGET + 0.1


@on_virtual_time
async def test_steps_with_a_limit_each_and_no_budget_are_found(loop: StepLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: the control."""

    def ten(ctx: InvokeContext) -> float:
        ctx.run.closes_at = 0.0
        return 10.0

    monkeypatch.setattr(closing, "share", ten)
    assert await seconds_of_two((Stage.WILL_AUDIT, Stage.ON_METRICS), hangs) > 20


@on_virtual_time
async def test_an_exit_of_a_request_provider_shares_the_budget(loop: StepLoop) -> None:
    """C1c, I8."""
    left: list[str] = []

    async def connection() -> AsyncIterator[str]:
        yield "connection"
        left.append("began")
        await asyncio.sleep(1e9)

    class Uses(Hook):
        async def will_execute(self, ctx: InvokeContext) -> None:
            await ctx.resolve("connection")

    hooks = [Uses(), at("on_metrics", hangs)]
    async with gate_of(hooks, provide={"connection": Scoped("request", connection)}) as gate:
        began = loop.time()
        assert await gate.invoke("work", {}) == 7
        assert left == ["began"]
        assert loop.time() - began <= BUDGET


@on_virtual_time
async def test_steps_run_though_the_budget_has_run_out(loop: StepLoop) -> None:
    """C1, I10: records that do not wait are written, and releases still have a share."""
    log: list[str] = []

    class Slow(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None:
            pass

        async def did_release_quota(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0.01)
            log.append("released")

        async def will_audit(self, ctx: InvokeContext) -> None:
            log.append("written")

    hooks = [
        *(at("on_error", hangs) for _ in range(6)),
        Slow(),
        at("will_finalize_invoke", lambda _: log.append("end")),
    ]
    async with gate_of(hooks) as gate:
        began = loop.time()
        assert not (await gate.call("work", {"seconds": "x"})).ok
        assert loop.time() - began <= BUDGET
    assert log == ["written", "released", "end"]


@on_virtual_time
async def test_without_a_budget_a_step_that_waits_is_cancelled_at_once(loop: StepLoop) -> None:
    """C1c."""
    seen: list[Any] = []
    finals = at("will_finalize_invoke", lambda ctx: seen.extend(one.error for one in ctx.suppressed))
    async with gate_of([at("on_metrics", hangs), finals], budget=0.0) as gate:
        began = loop.time()
        assert await gate.invoke("work", {}) == 7
        assert loop.time() - began < 0.1
    assert [type(error) for error in seen] == [TimeoutError]


@on_virtual_time
async def test_a_body_that_was_left_behind_has_a_budget_when_it_ends(loop: StepLoop) -> None:
    """I1, I10: long after its call."""
    released: list[float] = []
    going = asyncio.Event()

    @tool(effect="read", hard_deadline=True)
    async def stubborn(ctx: ToolContext) -> None:
        """Swallow a cancellation."""

        @asynccontextmanager
        async def lease() -> AsyncGenerator[None]:
            try:
                yield
            finally:
                await asyncio.sleep(0.5)
                released.append(loop.time())

        await ctx.lease(lease())
        while not going.is_set():
            try:
                await going.wait()
            except asyncio.CancelledError:
                continue

    async with Gate([stubborn], [at("on_metrics", hangs)], options=Options(closing=BUDGET)) as gate:
        await gate.call("stubborn", deadline=DEADLINE)
        await asyncio.sleep(100)
        going.set()
        await asyncio.sleep(1)
    assert len(released) == 1


# ---------------------------------------------------------------------- what a call says of releases that do not end


async def breaks(ctx: InvokeContext) -> None:
    raise OSError("the server is gone")


async def takes_time(ctx: InvokeContext) -> None:
    await asyncio.sleep(0.05)


def of_hook(act: Act) -> dict[str, Any]:
    class Held(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None:
            pass

        async def did_release_quota(self, ctx: InvokeContext) -> None:
            await act(ctx)

    return {"hooks": [Held()]}


def of_lease(act: Act) -> dict[str, Any]:
    class Leases(Hook):
        async def will_bind_providers(self, ctx: InvokeContext) -> None:
            @asynccontextmanager
            async def lease() -> AsyncGenerator[None]:
                try:
                    yield
                finally:
                    await act(ctx)

            await ctx.lease(lease())

    return {"hooks": [Leases()]}


def of_provider(act: Act) -> dict[str, Any]:
    async def connection() -> AsyncIterator[str]:
        try:
            yield "connection"
        finally:
            await act(None)  # type: ignore[arg-type]  # no act reads it

    class Uses(Hook):
        async def will_execute(self, ctx: InvokeContext) -> None:
            await ctx.resolve("connection")

    return {"hooks": [Uses()], "provide": {"connection": Scoped("request", connection)}}


def of_record(act: Act) -> dict[str, Any]:
    return {"hooks": [at(Stage.WILL_AUDIT, act), at(Stage.WILL_FINALIZE_INVOKE, act), *of_hook(takes_time)["hooks"]]}


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["success", "deadline"])
@pytest.mark.parametrize("act", [hangs, swallows, breaks, takes_time])
@pytest.mark.parametrize("held", [of_hook, of_lease, of_provider, of_record])
@on_virtual_time
async def test_a_call_says_that_what_it_took_is_not_given_back(
    loop: StepLoop, held: Callable[[Act], dict[str, Any]], act: Act, seconds: float
) -> None:
    """I1b: a release that is cancelled or abandoned for its time is named; a record is no release."""
    pending = held is not of_record and act in (hangs, swallows)
    async with gate_of(**held(act)) as gate:
        result = await gate.call("work", {"seconds": seconds}, deadline=DEADLINE)
        assert (result.ok, result.pending_release) == (not seconds, pending)
        if seconds:
            with pytest.raises(DeadlineExceeded) as caught:
                await gate.invoke("work", {"seconds": seconds}, deadline=DEADLINE)
            assert caught.value.pending_release is pending


# ---------------------------------------------------------------------- a dead sink holds no capacity


async def second_call(stage: Stage, hook: Any, is_plain: bool) -> float:
    """Make a call whose hook at *stage* hangs; return after how many seconds its permit is free for the next call."""
    loop, stuck = asyncio.get_running_loop(), asyncio.Event()

    async def sink(ctx: InvokeContext) -> None:
        if not stuck.is_set():
            stuck.set()
            await asyncio.sleep(1e9)

    async with gate_of([hook, at(stage, sink, is_plain=is_plain)]) as gate:
        first = asyncio.ensure_future(gate.call("work"))
        await stuck.wait()
        began = loop.time()
        while not (await gate.call("work")).ok:  # noqa: ASYNC110  (refused; it tries again, as a caller does)
            await asyncio.sleep(0.001)
        took = loop.time() - began
        assert not first.done()
        await first
        return took


SINKS = [Stage.WILL_AUDIT, Stage.DID_AUDIT, Stage.ON_METRICS]


@pytest.mark.parametrize("hook", [Permit, lambda: Concurrency(1), lambda: Concurrency(1, shared=True)])
@pytest.mark.parametrize(
    "is_plain", [False, True], ids=["a coroutine function", "a function that returns an awaitable"]
)
@pytest.mark.parametrize("stage", SINKS)
@on_virtual_time
async def test_a_dead_sink_holds_no_capacity_for_longer_than_100_ms(
    loop: StepLoop, stage: Stage, is_plain: bool, hook: Callable[[], Any]
) -> None:
    """I1, I10: the next call gets the permit after 100 ms."""
    assert 0.1 <= await second_call(stage, hook(), is_plain) < 0.11


@pytest.mark.parametrize("is_plain", [False, True])
@on_virtual_time
async def test_releases_that_wait_for_a_dead_sink_are_found(
    loop: StepLoop, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    """I1: the control, releases after all records."""
    monkeypatch.setattr(closing, "_free", lambda steps: [])
    with pytest.raises(AssertionError):  # the permit is not free until the first call has ended
        await second_call(Stage.WILL_AUDIT, Permit(), is_plain)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("seconds", [0.05, 1.0])
@on_virtual_time
async def test_releases_run_after_the_records_or_beside_one_that_takes_longer_than_100_ms(
    loop: StepLoop, seconds: float, is_plain: bool
) -> None:
    """C1, C1a: in reverse order, also leases of hooks and of the tool."""
    log: list[str] = []

    def leases_as(name: str) -> Act:
        @asynccontextmanager
        async def lease() -> AsyncGenerator[None]:
            yield
            await asyncio.sleep(0.1)
            log.append(f"-{name}")

        return lambda ctx: ctx.lease(lease())

    @tool(effect="read")
    async def leased(ctx: ToolContext) -> None:
        """Take a lease."""
        await leases_as("tool")(ctx)  # type: ignore[arg-type]  # a tool's context leases, too

    async def slow(ctx: InvokeContext) -> None:
        await asyncio.sleep(seconds)
        assert ctx.stage is Stage.DID_AUDIT
        log.append("written")

    hooks = [
        Permit(log),
        at("will_execute", leases_as("hook")),
        at("will_audit", lambda _: log.append("first record")),
        at("did_audit", slow, is_plain=is_plain),
        at("on_metrics", lambda _: log.append("last record")),
    ]
    async with Gate([leased], hooks) as gate:
        await gate.invoke("leased")
    releases, records = ["-tool", "-hook", "-permit"], ["written", "last record"]
    assert log == ["first record", *(records + releases if seconds < 0.1 else releases + records)]


@on_virtual_time
async def test_a_hooks_own_records_come_before_its_release(loop: StepLoop) -> None:
    """Contract 97: they may use what it holds; what was acquired before it stays, too."""
    log: list[str] = []

    class Connected(Permit):
        async def did_audit(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0.1)
            log.append(f"audited, connected: {self.taken}")

    async def slow(ctx: InvokeContext) -> None:
        await asyncio.sleep(0.2)
        log.append("audit")

    hooks = [Permit(log, "outer"), Connected(log, "connection"), Permit(log, "inner"), at("will_audit", slow)]
    async with gate_of([*hooks, at("on_metrics", slow)]) as gate:
        await gate.invoke("work", {})
    assert log == ["-inner", "audit", "audited, connected: True", "audit", "-connection", "-outer"]


# ---------------------------------------------------------------------- the outcome of an effect


@pytest.mark.parametrize("stage", [Stage.WILL_AUDIT, Stage.DID_AUDIT, Stage.ON_METRICS])
@on_virtual_time
async def test_a_record_that_hangs_delays_the_outcome_at_most_until_the_audit_row_is_prepared(
    loop: StepLoop, stage: Stage
) -> None:
    """I3, I10."""
    desk, hanging = Desk(), at(stage, hangs)
    hanging.priority = 10  # before the audit hook in will_audit
    async with desk_gate(desk.tool(), [Audit(), hanging], store="memory://", closing=BUDGET) as gate:
        calling = asyncio.ensure_future(gate.call(pays(), user=ANN))
        await asyncio.sleep(0.1)
        assert not calling.done()
        [(_, effect)] = await gate.store.effects.list(None)
        assert (effect.state in OPEN_STATES) is (stage is Stage.WILL_AUDIT)
        await asyncio.sleep(BUDGET / 2)
        assert await states(gate) == ["committed"]
        assert (await calling).output == "paid 1"


@pytest.mark.parametrize("stage", [Stage.ON_ERROR, Stage.WILL_AUDIT, Stage.ON_METRICS])
async def test_the_audit_row_of_an_effect_is_written_with_its_outcome_though_a_record_waits(
    stage: Stage, tmp_path: Path
) -> None:
    """I3, I10: one transaction has both."""
    desk = Desk()

    async def waits(ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)

    waiting = at(stage, waits)
    waiting.priority = 10
    async with desk_gate(desk.tool(), [Audit(), waiting], store=f"sqlite:///{tmp_path}/gate.db") as gate:
        how = "tool_error" if stage is Stage.ON_ERROR else "ok"
        await gate.call(pays(how=how), user=ANN)
        assert await states(gate) == ["committed"]
        kinds = [(row.body["kind"], row.body.get("outcome")) for row in await rows_of(gate)]
    assert kinds == [("intent", None), ("outcome", "error" if how == "tool_error" else "success")]


async def rows_of(gate: Gate) -> list[Any]:
    return [row async for row in gate.store.audit.read(None)]
