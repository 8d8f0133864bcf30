"""How a step that takes or gives back is carried through: contract C1a, C1d; invariants I1, I1b, I11."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import anyio
import pytest

from callgate import DeadlineExceeded, Gate, Hook, InvokeContext, User, tool
from callgate.errors import StageError
from callgate.hooks.state.host import CLOSING
from callgate.runtime.pipeline.shield import ACQUIRE_GRACE
from callgate.runtime.testing.lease_ledger import LeaseLedger
from tests.harness.steploop import Cost, StepLoop, close_loop, cost_of, run_virtual
from tests.runtime.pipeline.cancel_cases import Case
from tests.runtime.pipeline.leasing import Held, Leased, Place, Quota, nothing, yields

USER = User("u")
Act = Callable[[InvokeContext], Awaitable[Any]]


@tool(effect="read")
async def work() -> int:
    """Nothing much."""
    return 7


class Steps(Hook):
    """One lease, taken and given back as told."""

    def __init__(self, take: Act | None = None, give: Act | None = None, *, by_token: bool = False) -> None:
        self.take, self.give = take, give
        self.releases_by_token = by_token
        self.log: list[str] = []
        self.ctx: InvokeContext | None = None

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.ctx = ctx
        if self.take is not None:
            await self.take(ctx)
        self.log.append("taken")

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        if self.give is not None:
            await self.give(ctx)
        self.log.append("given")

    @property
    def suppressed(self) -> list[str]:
        assert self.ctx is not None
        return [type(one.error).__name__ for one in self.ctx.suppressed]


async def hangs(ctx: Any) -> None:
    await asyncio.sleep(1e9)


async def spins(ctx: Any) -> None:
    while True:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def hangs_and_swallows(ctx: Any) -> None:
    while True:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            continue


async def hangs_in_finally(ctx: Any) -> None:
    try:
        await hangs_and_swallows(ctx)
    finally:
        await asyncio.sleep(1e9)


async def timed(hooks: list[Any], *, cancel_after: float | None = None, **options: Any) -> tuple[Any, float]:
    """One call on the virtual clock: what it gave or raised, and how long it took."""
    loop = asyncio.get_running_loop()
    async with Gate([work], hooks) as gate:
        began = loop.time()
        calling = asyncio.ensure_future(gate.invoke("work", {}, user=USER, **options))
        if cancel_after is not None:
            loop.call_later(cancel_after, calling.cancel)
        await asyncio.wait([calling])
        took = loop.time() - began
    return "cancelled" if calling.cancelled() else calling.exception() or calling.result(), took


# ---------------------------------------------------------------------- what it costs


def test_steps_that_never_wait_make_no_task_and_no_callback() -> None:
    """I1, performance.md: the first step runs in place."""
    case = Case()
    kinds: list[Any] = [Quota, Quota, Place, Place, Leased, Leased]
    case.use(*(kind(Held(lambda: case.ledger, f"{n}", nothing, nothing)) for n, kind in enumerate(kinds))).runs(work)
    ledger = LeaseLedger()
    assert cost_of(lambda: case(ledger)) == Cost(tasks=0, callbacks=0)
    assert ledger.taken == 12  # both runs


def test_steps_that_wait_make_no_task_either() -> None:
    """I1, performance.md."""
    case = Case()
    case.use(*(Quota(Held(lambda: case.ledger, f"{n}", yields, yields)) for n in range(6))).runs(work)
    cost = cost_of(lambda: case(LeaseLedger()))
    assert cost.tasks == 0
    assert cost.callbacks == 6 * 4 * 2  # each of 24 waits: its future, and the task


# ---------------------------------------------------------------------- in the caller's own task


def test_a_step_runs_in_the_callers_task_and_context() -> None:
    """I1: what a step sets is seen by the later steps of the call, and by nothing after it."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    tasks: list[Any] = []

    async def takes(ctx: Any) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        variable.set("taken")
        tasks.append(asyncio.current_task())

    async def gives(ctx: Any) -> None:
        await asyncio.sleep(0.01)
        tasks.append((asyncio.current_task(), variable.get()))

    async def main() -> None:
        async with Gate([work], [Steps(takes, gives)]) as gate:
            assert await gate.invoke("work", {}, user=USER) == 7
        me = asyncio.current_task()
        assert tasks == [me, me, (me, "taken")]
        assert variable.get() == "unset"  # the call is over

    run_virtual(main())


@pytest.mark.parametrize("scoped", [False, True], ids=["bare", "in an anyio scope"])
@pytest.mark.parametrize("when", ["take", "give"])
def test_a_steps_own_limits_reach_it_and_nobody_else(when: str, scoped: bool) -> None:
    """I1, I13: asyncio.timeout, anyio.fail_after, wait_for, a task group; each once in an acquire, once in a release."""
    seen: list[str] = []

    async def limits(ctx: Any) -> None:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(3600)
        except TimeoutError:
            seen.append("asyncio.timeout")
        try:
            with anyio.fail_after(1):
                await anyio.sleep(3600)
        except TimeoutError:
            seen.append("fail_after")
        with anyio.move_on_after(1) as moved:
            await anyio.Event().wait()
        seen.append(f"move_on_after {moved.cancelled_caught}")
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        except TimeoutError:
            seen.append("wait_for")
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 3600)
            group.cancel_scope.cancel()
        seen.append("group")

    async def main() -> None:
        hook = Steps(**{when: limits})  # type: ignore[arg-type]
        with anyio.CancelScope() if scoped else nullcontext():
            outcomes = [await here(hook)]
        assert outcomes == [7]
        assert seen == ["asyncio.timeout", "fail_after", "move_on_after True", "wait_for", "group"]
        assert hook.log == ["taken", "given"]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run_virtual(main())


async def here(*hooks: Any) -> Any:
    """One call in the task of the test."""
    async with Gate([work], hooks) as gate:
        return await gate.invoke("work", {}, user=USER)


def test_a_steps_limit_passes_though_a_cancellation_is_held_back_from_it() -> None:
    """I1: the step does not see it, not even in ``cancelling()``."""
    seen: list[Any] = []

    async def gives(ctx: Any) -> None:
        await asyncio.sleep(0.5)
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        try:
            async with asyncio.timeout(0.1):
                await asyncio.sleep(3600)
        except TimeoutError:
            seen.append("its own")

    hook = Steps(None, gives)
    outcome, took = run_virtual(timed([hook], cancel_after=0.2))
    assert outcome == "cancelled"
    assert seen == [0, "its own"]
    assert hook.log == ["taken", "given"]
    assert 0.6 <= took < 0.7


def test_a_step_that_cancels_its_own_task_ends_the_call_when_it_is_over() -> None:
    """I13: never lost."""

    async def takes(ctx: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0.01)

    hook = Steps(takes)
    outcome, _ = run_virtual(timed([hook]))
    assert outcome == "cancelled"
    assert hook.log == ["taken", "given"]


def test_a_task_that_a_step_awaits_and_that_was_cancelled_is_no_cancellation_of_the_call() -> None:
    """I13: fake."""

    async def takes(ctx: Any) -> None:
        other = asyncio.ensure_future(asyncio.sleep(3600))
        asyncio.get_running_loop().call_later(0.1, other.cancel)
        await other

    hook = Steps(takes)
    outcome, _ = run_virtual(timed([hook]))
    assert isinstance(outcome, Exception)
    assert hook.log == []


def test_a_future_of_another_loop_is_refused_instead_of_waited_for() -> None:
    """I1: it would never wake us."""
    other = StepLoop()

    async def takes(ctx: Any) -> None:
        await other.create_future()

    outcome, took = run_virtual(timed([Steps(takes)]))
    assert isinstance(outcome.__cause__, RuntimeError)
    assert "not of this event loop" in str(outcome.__cause__)
    assert took < 1
    close_loop(other)


# ---------------------------------------------------------------------- bounded


@pytest.mark.parametrize("release", [hangs, spins, hangs_and_swallows, hangs_in_finally])
def test_a_release_that_hangs_is_given_up(release: Act) -> None:
    """I1b, I10, I12: recorded, and the outcome stays."""
    first, hook = Steps(), Steps(None, release)
    outcome, took = run_virtual(timed([first, hook]))
    assert outcome == 7
    assert CLOSING / 2 <= took <= CLOSING / 2 + ACQUIRE_GRACE + 0.2
    assert hook.suppressed == ["TimeoutError"]
    assert first.log == ["taken", "given"]


def test_a_release_that_hangs_does_not_lose_a_cancellation() -> None:
    """I1b, I13."""
    hook = Steps(None, hangs)
    outcome, took = run_virtual(timed([hook], cancel_after=1.0))
    assert outcome == "cancelled"
    assert took <= 1.0 + CLOSING / 2


@pytest.mark.parametrize("acquire", [hangs, spins, hangs_and_swallows, hangs_in_finally])
def test_an_acquire_that_hangs_ends_soon_after_a_cancellation(acquire: Act) -> None:
    """Design 10.8; I12."""
    first, hook = Steps(), Steps(acquire)
    outcome, took = run_virtual(timed([first, hook], cancel_after=5.0))
    assert outcome == "cancelled"
    assert 5.0 + ACQUIRE_GRACE <= took <= 5.0 + 2 * ACQUIRE_GRACE + 0.2
    assert first.log == ["taken", "given"]
    assert hook.log == []


@pytest.mark.parametrize("acquire", [hangs, hangs_and_swallows])
def test_an_acquire_that_hangs_ends_soon_after_the_deadline(acquire: Act) -> None:
    """Design 10.8; I12."""
    first, hook = Steps(), Steps(acquire)
    outcome, took = run_virtual(timed([first, hook], deadline=3.0))
    assert isinstance(outcome, DeadlineExceeded)
    assert took <= 3.0 + 2 * ACQUIRE_GRACE + 0.2
    assert first.log == ["taken", "given"]


def test_a_cancelled_acquire_may_take_its_grace_and_is_then_given_back() -> None:
    """I1: what it took is on the ledger."""

    async def takes(ctx: Any) -> None:
        await asyncio.sleep(1.0)

    hook = Steps(takes)
    outcome, took = run_virtual(timed([hook], cancel_after=0.5))
    assert outcome == "cancelled"
    assert hook.log == ["taken", "given"]
    assert 1.0 <= took < 1.1


@pytest.mark.parametrize("by_token", [False, True])
def test_an_interrupted_acquire_is_given_back_by_its_token(by_token: bool) -> None:
    """Design 10.8: it may have won; a release that is harmless without an acquire runs, any other does not."""
    hook = Steps(hangs, by_token=by_token)
    outcome, _ = run_virtual(timed([hook], cancel_after=1.0))
    assert outcome == "cancelled"
    assert hook.log == (["given"] if by_token else [])


@pytest.mark.parametrize("by_token", [False, True])
def test_an_acquire_that_just_fails_is_not_given_back(by_token: bool) -> None:
    """C1a: also where it gives back by token."""

    async def fails(ctx: Any) -> None:
        await asyncio.sleep(0)
        raise ConnectionError

    hook = Steps(fails, by_token=by_token)
    outcome, _ = run_virtual(timed([hook]))
    assert isinstance(outcome.__cause__, ConnectionError)
    assert hook.log == []


def test_an_acquire_that_fails_while_a_cancellation_is_held_back_chains_both() -> None:
    """Design 10.8."""

    async def fails(ctx: Any) -> None:
        await asyncio.sleep(0.5)
        raise ConnectionError("gone")

    async def main() -> None:
        async with Gate([work], [Steps(fails)]) as gate:
            calling = asyncio.ensure_future(gate.invoke("work", {}, user=USER))
            asyncio.get_running_loop().call_later(0.1, calling.cancel)
            with pytest.raises(asyncio.CancelledError) as raised:
                await calling
        chain: list[str] = []
        error: BaseException | None = raised.value
        while error is not None:
            chain.append(type(error).__name__)
            error = error.__cause__ or error.__context__
        assert "ConnectionError" in chain

    run_virtual(main())


# ---------------------------------------------------------------------- ctx.lease


class Leasing(Hook):
    """Takes what it is given with ``ctx.lease``."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.got: Any = None
        self.ctx: InvokeContext | None = None

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        self.ctx = ctx
        self.got = await ctx.lease(self.make())


def test_a_lease_is_entered_once_and_left_once_with_the_calls_error() -> None:
    """I1."""
    log: list[Any] = []

    @asynccontextmanager
    async def place() -> AsyncGenerator[str, None]:
        try:
            yield "place"
        except BaseException as error:
            log.append(type(error).__name__)
            raise
        else:
            log.append("left")

    hook = Leasing(place)
    assert run_virtual(here(hook)) == 7
    assert hook.got == "place"

    async def cancelled() -> None:
        pending = Steps()  # an acquire stage comes before, an around stage after

        class Waits(Hook):
            async def will_execute(self, ctx: InvokeContext) -> None:
                await asyncio.sleep(5)

        outcome, took = await timed([pending, hook, Waits()], cancel_after=1.0)
        assert outcome == "cancelled"
        assert took < 1.1

    run_virtual(cancelled())
    assert log == ["left", "CancelledError"]


@pytest.mark.parametrize("around", [False, True], ids=["bare", "in an anyio scope"])
@pytest.mark.parametrize("make", [anyio.CancelScope, anyio.create_task_group], ids=["CancelScope", "task group"])
def test_structure_is_no_lease(make: Callable[[], Any], around: bool) -> None:
    """A scope that outlives its hook would come off anyio's stack in the wrong order: refused, with what to do."""

    class Scope:
        async def __aenter__(self) -> Any:
            self.inner = make()
            return await self.inner.__aenter__() if hasattr(self.inner, "__aenter__") else self.inner.__enter__()

        async def __aexit__(self, *error: object) -> Any:
            if hasattr(self.inner, "__aexit__"):
                return await self.inner.__aexit__(*error)
            return self.inner.__exit__(*error)

    async def main() -> None:
        with anyio.CancelScope(deadline=1e9) if around else nullcontext():  # its exit finds a scope left open
            with pytest.raises(Exception, match="failed") as raised:
                await here(Leasing(Scope))
            assert isinstance(raised.value.__cause__, StageError)
            assert "around_execute" in str(raised.value.__cause__)
            assert anyio.current_effective_deadline() == (1e9 if around else math.inf)

    run_virtual(main())


def test_the_scopes_around_a_lease_are_as_they_were_after_it() -> None:
    """I1: they are kept off meanwhile."""

    async def main() -> None:
        with anyio.CancelScope(deadline=1e9):
            await here(Leasing(lambda: anyio.CapacityLimiter(1)), Steps(lambda ctx: anyio.sleep(0.1)))
            assert anyio.current_effective_deadline() == 1e9
        assert anyio.current_effective_deadline() == math.inf

    run_virtual(main())


def test_waiters_for_a_place_free_it_when_they_are_cancelled() -> None:
    """I11: ten callers, two places, half of them cancelled while they wait; all places come back."""
    limiter: list[anyio.CapacityLimiter] = []

    class Places(Hook):
        async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            await ctx.lease(limiter[0])

    @tool(effect="read")
    async def slow() -> int:
        """Take a second."""
        await asyncio.sleep(1.0)
        return 1

    async def main() -> None:
        limiter.append(anyio.CapacityLimiter(2))
        async with Gate([slow], [Places()]) as gate:
            calls = [asyncio.ensure_future(gate.invoke("slow", {}, user=USER)) for _ in range(10)]
            await asyncio.sleep(0.5)
            assert limiter[0].borrowed_tokens == 2
            for one in calls[4:]:
                one.cancel()
            await asyncio.wait(calls)
            assert [one.cancelled() for one in calls] == [False] * 4 + [True] * 6
        assert limiter[0].borrowed_tokens == 0
        assert limiter[0].statistics().tasks_waiting == 0

    run_virtual(main())


# ---------------------------------------------------------------------- who is outside


class Watchdog(Hook):
    """Cancels the call's task after a while, like a lock that is lost: armed in a stage before, or by an acquire."""

    def __init__(self, stage: str, seconds: float) -> None:
        self.stage, self.seconds = stage, seconds

    def arm(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(self.seconds, task.cancel)

    async def will_authorize(self, ctx: InvokeContext) -> None:
        if self.stage == "will_authorize":
            self.arm()

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        if self.stage == "will_acquire_quota":
            self.arm()

    async def did_release_quota(self, ctx: InvokeContext) -> None: ...


async def fifth() -> None:
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("stage", ["will_authorize", "will_acquire_quota"])
def test_what_another_hook_of_the_call_has_armed_is_outside_of_a_step(stage: str) -> None:
    """I1: it cancels the call, and tears no acquire and no release."""
    ledger = LeaseLedger()

    async def calls(seconds: float) -> None:
        leases = [Quota(Held(lambda: ledger, f"{n}", fifth, fifth)) for n in "abc"]
        outcome, _ = await timed([Watchdog(stage, seconds), *leases])
        assert outcome == "cancelled"
        assert ledger.held() == []
        assert ledger.problems == []

    for tenths in range(1, 24, 2):  # three acquires of 0.4 seconds, then three releases
        run_virtual(calls(tenths / 10))
