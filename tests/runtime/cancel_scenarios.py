"""Invocations to be cancelled at every point: hooks whose leases await, and everything that can go wrong about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio

from callgate import Gate, Hook, InvokeContext, Outcome, ToolCall, ToolContext, ToolDefinition, ToolRecord, User, tool
from callgate.tools.definition import Effect
from tests.harness.cancel import FAR, Ledger

USER = User("u")
Wait = Callable[[], Awaitable[Any]]


# ---------------------------------------------------------------------- ways to wait


async def yields() -> None:
    """A bare yield."""
    await asyncio.sleep(0)


async def timer() -> None:
    """A future that a timer of the loop sets."""
    await asyncio.sleep(0.002)


async def task() -> None:
    """Another task."""
    await asyncio.ensure_future(asyncio.sleep(0))


async def twice() -> None:
    """Several times, in different ways."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)


async def nothing() -> None:
    """Never suspends."""


WAITS: tuple[Wait, ...] = (yields, timer, task, twice)


# ---------------------------------------------------------------------- leases that wait


class Held:
    """One lease of two units: a torn acquire or release shows. Taking and giving wait in between and after."""

    def __init__(self, ledger: Callable[[], Ledger], name: str, take: Wait = yields, give: Wait = yields) -> None:
        self.ledger, self.name, self.waits_to_take, self.waits_to_give = ledger, name, take, give

    async def take(self, ctx: Any) -> None:
        lease = (self.name, id(ctx))
        self.ledger().take(lease)
        await self.waits_to_take()
        self.ledger().take(lease)
        await self.waits_to_take()

    async def give(self, ctx: Any) -> None:
        lease = (self.name, id(ctx))
        await self.waits_to_give()
        self.ledger().give(lease)
        await self.waits_to_give()
        self.ledger().give(lease)


class Quota(Hook):
    """Holds a lease from ``will_acquire_quota`` on."""

    def __init__(self, held: Held) -> None:
        self.held = held

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        await self.held.take(ctx)

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        await self.held.give(ctx)


class Place(Hook):
    """Holds a lease from ``will_acquire_semaphore`` on."""

    def __init__(self, held: Held) -> None:
        self.held = held

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        await self.held.take(ctx)

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await self.held.give(ctx)


class Managed(AbstractAsyncContextManager[None]):
    """A lease as an async context manager, for ``ctx.lease``."""

    def __init__(self, held: Held, ctx: Any) -> None:
        self.held, self.ctx = held, ctx

    async def __aenter__(self) -> None:
        await self.held.take(self.ctx)

    async def __aexit__(self, *error: object) -> None:
        await self.held.give(self.ctx)


class Leased(Hook):
    """Takes its lease with ``ctx.lease``, in another stage."""

    def __init__(self, held: Held) -> None:
        self.held = held

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        await ctx.lease(Managed(self.held, ctx))


# ---------------------------------------------------------------------- the scenario


class Case:
    """A gate made once, called once a run. Call it with the run's ledger."""

    def __init__(self, *, deadline: float | None = None) -> None:
        self.ledger = Ledger()
        self.deadline = deadline
        self.gate: Gate | None = None
        self.hooks: list[Any] = []
        self.tools: list[Any] = []
        self.name = "work"

    def held(self, name: str, take: Wait = yields, give: Wait = yields) -> Held:
        """A lease on the ledger of the run."""
        return Held(lambda: self.ledger, name, take, give)

    def six(self, waits: Iterable[Wait] = WAITS) -> list[Any]:
        """Six hooks that hold leases: two quotas, two places, two by ``ctx.lease``."""
        ways = [*waits] * 7
        kinds = (Quota, Quota, Place, Place, Leased, Leased)
        return [
            kind(self.held(f"{kind.__name__}{n}", ways[n], ways[n + 1]))
            for n, kind in enumerate(kinds)
        ]

    def use(self, *hooks: Any) -> Case:
        """Add hooks."""
        self.hooks += hooks
        return self

    def runs(self, *tools: Any) -> Case:
        """Set the tools; the first is called."""
        self.tools = [as_read(one) for one in tools]
        self.name = self.tools[0].record.id if hasattr(self.tools[0], "record") else self.tools[0].id
        return self

    async def open(self) -> Gate:
        """The gate, opened at the first run."""
        if self.gate is None:
            self.gate = Gate(self.tools or [as_read(work)], self.hooks, open=True)
            await self.gate.__aenter__()
        return self.gate

    async def call(self, gate: Gate) -> Any:
        """What one run does."""
        return await gate.invoke(self.name, {}, user=USER, deadline=self.deadline)

    async def __call__(self, ledger: Ledger) -> Any:
        self.ledger = ledger
        gate = await self.open()
        return await self.call(gate)


def as_read(function: Any) -> Any:
    """A tool of a plain function."""
    return function if isinstance(function, ToolRecord) or hasattr(function, "record") else tool(effect="read")(function)


async def work() -> int:
    """Wait a little."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    return 7


# ---------------------------------------------------------------------- what can go wrong about them


class Faulty(Quota):
    """Its acquire takes half, cleans up after itself and raises."""

    def __init__(self, held: Held) -> None:
        super().__init__(held)

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        lease = (self.held.name, id(ctx))
        self.held.ledger().take(lease)
        try:
            await self.held.waits_to_take()
            raise ConnectionError("the server is gone")
        except BaseException:
            self.held.ledger().undo(lease)
            raise


class Sulky(Place):
    """Its release gives back and then raises."""

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await super().did_release_semaphore(ctx)
        raise ConnectionError("the server is gone")


class Limited(Quota):
    """Its acquire has a time limit of its own about the first try, which passes; the second try succeeds."""

    def __init__(self, held: Held, limit: Callable[[], Awaitable[None]]) -> None:
        super().__init__(held)
        self.limit = limit

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        try:
            await self.limit()
        except TimeoutError:
            await super().will_acquire_quota(ctx)

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        try:
            await self.limit()
        except TimeoutError:
            await super().did_release_quota(ctx)


async def asyncio_limit() -> None:
    """Passes."""
    async with asyncio.timeout(0.003):
        await asyncio.sleep(5)


async def anyio_limit() -> None:
    """Passes."""
    with anyio.fail_after(0.003):
        await anyio.sleep(5)


async def wait_for_limit() -> None:
    """Passes."""
    await asyncio.wait_for(asyncio.sleep(5), 0.003)


async def no_time_limit() -> None:
    """Has passed before it begins."""
    async with asyncio.timeout(-1):
        await asyncio.sleep(5)


async def group_limit() -> None:
    """A task group whose child fails cancels its parent."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise TimeoutError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.sleep(5)
    except* TimeoutError:
        pass
    raise TimeoutError


class Plain(Hook):
    """Plain methods that return an awaitable."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def will_acquire_quota(self, ctx: InvokeContext) -> Awaitable[None]:
        return self.held.take(ctx)

    def did_release_quota(self, ctx: InvokeContext) -> Awaitable[None]:
        return self.held.give(ctx)


class Watching(Hook):
    """Waits in the closing and error stages and in those that shape the output."""

    async def will_normalize_input(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)

    async def will_transform_output(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)

    async def on_error(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.001)

    async def will_audit(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)

    async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)


class Around(Hook):
    """Waits before and after; holds a lease of its own inside."""

    def __init__(self, held: Held, tries: int = 1) -> None:
        self.held, self.tries = held, tries
        self.repeats = tries > 1

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        await asyncio.sleep(0)
        await ctx.lease(Managed(self.held, ctx))
        for _ in range(self.tries - 1):
            try:
                return await next()
            except ConnectionError:
                await asyncio.sleep(0.001)
        try:
            return await next()
        finally:
            await asyncio.sleep(0)


class Guarded(Quota):
    """A filter that waits and a time limit for each method."""

    timeout = 1.0

    async def filter(self, ctx: InvokeContext) -> bool:
        await asyncio.sleep(0)
        return True


# ---------------------------------------------------------------------- bodies


async def fails() -> int:
    """Raise."""
    await asyncio.sleep(0)
    raise ConnectionError("no")


async def responds(ctx: ToolContext) -> int:
    """Respond."""
    await asyncio.sleep(0)
    ctx.respond(8)


async def cleans_up() -> int:
    """Wait in ``finally``."""
    try:
        await asyncio.sleep(0.002)
    finally:
        await asyncio.sleep(0)
    return 7


async def calls_work(ctx: ToolContext) -> int:
    """Call another tool, twice."""
    one: int = await ctx.call("work", {})
    await asyncio.sleep(0)
    two: int = await ctx.call("work", {})
    return one + two


def hard(function: Any) -> Any:
    """In a task of its own that can be left behind."""
    return tool(effect="read", hard_deadline=True)(function)


async def stubborn() -> int:
    """Swallow cancellations for a second."""
    until = asyncio.get_running_loop().time() + 1.0
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return 7


class Excusing(Hook):
    """Lets leases outlive a call that says so."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.case.ledger.excuse = lambda: ctx.pending_release


# ---------------------------------------------------------------------- cases by name


class Batch(Case):
    """Three calls at once."""

    async def call(self, gate: Gate) -> Any:
        self.ledger.in_order = False
        calls = [ToolCall(f"c{n}", self.name, {}) for n in range(3)]
        return [result.outcome for result in await gate.call_many(calls, user=USER)]


class Streamed(Case):
    """A stream whose reader stops after the first event."""

    async def call(self, gate: Gate) -> Any:
        stream: Any = gate.stream(ToolCall("c", self.name, {}), user=USER)
        try:
            async for event in stream:
                return type(event).__name__
        finally:
            await stream.aclose()


class Results(Case):
    """``gate.call``: a result, whatever the tool does."""

    async def call(self, gate: Gate) -> Any:
        result = await gate.call(ToolCall("c", self.name, {}), user=USER, deadline=self.deadline)
        return result.outcome


async def parts() -> Any:
    """Yield parts."""
    yield 1
    await asyncio.sleep(0)
    yield 2
    await asyncio.sleep(0.001)


def plain() -> Case:
    case = Case()
    return case.use(*case.six())


def many_waits() -> Case:
    case = Case()
    return case.use(*case.six([twice]))


def other_tasks() -> Case:
    case = Case()
    return case.use(*case.six([task]))


def watched() -> Case:
    case = Case()
    return case.use(*case.six([yields]), Watching()).runs(cleans_up)


def tool_fails() -> Case:
    case = Case()
    return case.use(*case.six(), Watching()).runs(fails)


def tool_responds() -> Case:
    case = Case()
    return case.use(*case.six()).runs(responds)


def release_fails() -> Case:
    case = Case()
    sulky = [Sulky(case.held("sulky1", timer, timer)), Sulky(case.held("sulky2"))]
    return case.use(*case.six()[:4], *sulky, Watching())


def tool_and_release_fail() -> Case:
    return release_fails().runs(fails)


def acquire_fails(place: int) -> Callable[[], Case]:
    def made() -> Case:
        case = Case()
        hooks = [Quota(case.held(f"q{n}", WAITS[n % 4])) for n in range(5)]
        hooks.insert(place, Faulty(case.held("faulty")))
        return case.use(*hooks, Watching())

    return made


def own_limit(limit: Wait) -> Callable[[], Case]:
    def made() -> Case:
        case = Case()
        return case.use(Quota(case.held("before")), Limited(case.held("limited"), limit), Quota(case.held("after")))

    return made


def limiter() -> Case:
    """Places of anyio and asyncio, one of them contended."""
    case = Case()

    class Places(Hook):
        async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            places = anyio.CapacityLimiter(1)
            await ctx.lease(places)
            lock = asyncio.Lock()
            await lock.acquire()
            asyncio.get_running_loop().call_later(0.002, lock.release)
            await ctx.lease(lock)
            ctx.data["places"], ctx.data["lock"] = places, lock
            case.ledger.take("places")
            case.ledger.take("places")

        def did_release_semaphore(self, ctx: InvokeContext) -> None:
            case.ledger.give("places")
            case.ledger.give("places")

        def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            if ctx.data and (ctx.data["places"].borrowed_tokens or ctx.data["lock"].locked()):
                case.ledger.problems.append("leak: a place or the lock")

    return case.use(Places(), Quota(case.held("q")))


def nested() -> Case:
    case = Case()
    return case.use(Quota(case.held("q")), Place(case.held("p", timer, task)), Leased(case.held("l"))).runs(
        calls_work, work
    )


def around() -> Case:
    case = Case()
    return case.use(*case.six([yields])[:3], Around(case.held("a")), Around(case.held("b", timer)))


def retried() -> Case:
    case = Case()
    return case.use(Quota(case.held("q")), Around(case.held("a"), tries=3), Watching()).runs(fails)


def guarded() -> Case:
    case = Case()
    return case.use(*(Guarded(case.held(f"g{n}", WAITS[n])) for n in range(4)))


def plain_methods() -> Case:
    case = Case()
    return case.use(*(Plain(case.held(f"p{n}", WAITS[n])) for n in range(3)))


def with_deadline() -> Case:
    case = Case(deadline=FAR)
    return case.use(*case.six(), Watching()).runs(cleans_up)


def nested_with_deadlines() -> Case:
    case = Case(deadline=FAR)
    inner = tool(effect="read", deadline=FAR, name="work")(work)
    return case.use(Quota(case.held("q", timer)), Watching()).runs(calls_work, inner)


def deadline_passes() -> Case:
    case = Case(deadline=0.02)
    return case.use(*case.six([yields]), Watching()).runs(forever)


async def forever() -> int:
    """Wait for an hour."""
    await asyncio.sleep(3600)
    return 7


def batch() -> Case:
    case = Batch()
    return case.use(Quota(case.held("q", timer)), Place(case.held("p")), Leased(case.held("l")))


def streamed() -> Case:
    case = Streamed()
    return case.use(*case.six([yields])[:4]).runs(parts)


def as_results() -> Case:
    case = Results()
    return case.use(*case.six([yields]), Watching()).runs(fails)


def hard_body() -> Case:
    case = Case()
    return case.use(*case.six([yields])).runs(hard(cleans_up))


def hard_body_with_deadline() -> Case:
    case = Case(deadline=FAR)
    return case.use(*case.six([yields])[:4]).runs(hard(cleans_up))


def stubborn_body() -> Case:
    case = Case(deadline=FAR)
    return case.use(Excusing(case), *case.six([yields])[:4]).runs(hard(stubborn))
