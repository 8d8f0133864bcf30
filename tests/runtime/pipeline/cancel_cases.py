"""Invocations to be cancelled at every point: one gate each, one call a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import anyio

from callgate import Gate, Hook, InvokeContext, ToolCall, ToolContext, ToolRecord, User, tool
from callgate.runtime.testing.lease_ledger import LeaseLedger
from tests.harness.steploop import FAR
from tests.runtime.pipeline.leasing import (
    WAITS,
    Around,
    Faulty,
    Guarded,
    Held,
    Leased,
    Limited,
    Managed,
    Place,
    Plain,
    Quota,
    Sulky,
    Wait,
    Watching,
    anyio_limit,
    asyncio_limit,
    calls_work,
    cleans_up,
    fails,
    forever,
    hard,
    parts,
    responds,
    stubborn,
    task,
    timer,
    twice,
    work,
    yields,
)

USER = User("u")


# ---------------------------------------------------------------------- the scenario


class Case:
    """A gate made once, called once a run. Call it with the run's ledger."""

    def __init__(self, *, deadline: float | None = None) -> None:
        self.ledger = LeaseLedger()
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
        return [kind(self.held(f"{kind.__name__}{n}", ways[n], ways[n + 1])) for n, kind in enumerate(kinds)]

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
            self.gate = Gate(self.tools or [as_read(work)], self.hooks, allow_unguarded=True)
            await self.gate.__aenter__()
        return self.gate

    async def call(self, gate: Gate) -> Any:
        """What one run does."""
        return await gate.invoke(self.name, {}, user=USER, deadline=self.deadline)

    async def __call__(self, ledger: LeaseLedger) -> Any:
        self.ledger = ledger
        gate = await self.open()
        return await self.call(gate)


def as_read(function: Any) -> Any:
    """A tool of a plain function."""
    return (
        function if isinstance(function, ToolRecord) or hasattr(function, "record") else tool(effect="read")(function)
    )


class Excusing(Hook):
    """Lets leases outlive a call that says so."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.case.ledger.may_outlive_call = lambda: ctx.run.pending_release


# ---------------------------------------------------------------------- cases by name


class Batch(Case):
    """Three calls at once."""

    async def call(self, gate: Gate) -> Any:
        self.ledger.in_order = False
        calls = [ToolCall(id=f"c{n}", name=self.name, arguments={}) for n in range(3)]
        return [result.outcome for result in await gate.call_many(calls, user=USER)]


class Unordered(Case):
    """Leases of an outer call that ends before an abandoned nested one."""

    async def call(self, gate: Gate) -> Any:
        self.ledger.in_order = False
        return await super().call(gate)


class Streamed(Case):
    """A stream whose reader stops after the first event."""

    async def call(self, gate: Gate) -> Any:
        stream: Any = gate.stream(ToolCall(id="c", name=self.name, arguments={}), user=USER)
        try:
            async for event in stream:
                return type(event).__name__
        finally:
            await stream.aclose()


class Results(Case):
    """``gate.call``: a result, whatever the tool does."""

    async def call(self, gate: Gate) -> Any:
        result = await gate.call(ToolCall(id="c", name=self.name, arguments={}), user=USER, deadline=self.deadline)
        return result.outcome


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


def slow_record(limit: Callable[[float], Any], *leases: Callable[[Case], Any]) -> Callable[[], Case]:
    """A record takes longer than the releases wait for it, and time limits of its own pass while they run."""

    class Slow(Hook):
        async def did_audit(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0.097)
            for seconds in (0.004, 0.003, 0.005):
                try:
                    await limit(seconds)
                except TimeoutError:
                    continue
                raise AssertionError("the limit of the record has not passed")

        def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            if any(isinstance(one.error, AssertionError) for one in ctx.suppressed):
                raise AssertionError

    def made() -> Case:
        case = Case()
        hooks = case.six([yields, timer])
        return case.use(*hooks[:2], *(lease(case) for lease in leases), *hooks[2:], Slow())

    return made


def other_lease(case: Case) -> Place:
    """A lease whose release waits several times."""
    return Place(case.held("other", task, twice))


def limited_lease(case: Case) -> Limited:
    """A lease whose release has a time limit of its own, which passes."""
    return Limited(case.held("limited"), anyio_limit)


async def asyncio_seconds(seconds: float) -> None:
    """A time limit of asyncio that passes."""
    async with asyncio.timeout(seconds):
        await asyncio.sleep(3)


async def anyio_seconds(seconds: float) -> None:
    """A time limit of anyio that passes."""
    with anyio.fail_after(seconds):
        await anyio.sleep(3)


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


def batch() -> Case:
    case = Batch()
    return case.use(Quota(case.held("q", timer)), Place(case.held("p")), Leased(case.held("l")))


def streamed() -> Case:
    case = Streamed()
    return case.use(*case.six([yields])[:4]).runs(parts)


def as_results() -> Case:
    case = Results()
    return case.use(*case.six([yields]), Watching()).runs(fails)


class Tidying(Case):
    """A tool that waits several times, also after a cancellation; each cancellation may interrupt one of its waits."""

    def __init__(self, cancellations: int) -> None:
        super().__init__()
        self.cancellations = cancellations
        self.use(*self.six([yields])).runs(self.tidies, self.calls)

    async def tidies(self) -> int:
        """Note each interruption, and go on."""
        noted: list[asyncio.CancelledError] = []
        for _ in range(8):
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError as error:
                noted.append(error)
        if len(noted) > self.cancellations:
            self.ledger.problems.append(f"cut off: {len(noted)} interruptions, {self.cancellations} cancellations")
        if noted:
            raise noted[0]
        return 7

    async def calls(self, ctx: ToolContext) -> int:
        """Call the tool that waits, and wait again."""
        try:
            answer: int = await ctx.call("tidies", {})
        finally:
            await self.tidies()
        return answer

    def nested(self) -> Tidying:
        """The same tool, called by another."""
        self.name = "calls"
        return self


def hard_body() -> Case:
    case = Case()
    return case.use(*case.six([yields])).runs(hard(cleans_up))


def hard_body_with_deadline() -> Case:
    case = Case(deadline=FAR)
    return case.use(*case.six([yields])[:4]).runs(hard(cleans_up))


def stubborn_body() -> Case:
    case = Case(deadline=FAR)
    return case.use(Excusing(case), *case.six([yields])[:4]).runs(hard(stubborn))


def nested_stubborn_body() -> Case:
    case = Unordered(deadline=FAR)
    inner = tool(effect="read", hard_deadline=True, deadline=FAR, name="work")(stubborn)
    return case.use(Excusing(case), *case.six([yields])[:2]).runs(calls_work, inner)


def tidy_body(*, nested: bool = False) -> Case:
    """It goes on after each cancellation, and then raises the first."""
    case = Tidying(cancellations=2)
    case.deadline = FAR
    return case.nested() if nested else case


def tidy_hook() -> Case:
    """A hook with ``hard_deadline`` that goes on after each cancellation, and then raises the first."""
    case = Tidying(cancellations=2)
    case.deadline = FAR

    class Tidies(Hook):
        hard_deadline = True

        async def will_execute(self, ctx: InvokeContext) -> None:
            await case.tidies()

    return case.use(Tidies()).runs(work)


def limit_around_a_lease() -> Case:
    """A time limit about the tool passes while ``ctx.lease`` waits inside it: not the lease's business."""
    case = Case()

    class TimeLimit(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            async with asyncio.timeout(0.003):
                return await next()

    class LateLease(Hook):
        async def will_execute(self, ctx: InvokeContext) -> None:
            await ctx.lease(Managed(case.held("late", twice, twice), ctx))
            await ctx.lease(Managed(case.held("later", twice, twice), ctx))

    return case.use(TimeLimit(), LateLease(), Quota(case.held("q"))).runs(forever)


def limited_hook_that_leases() -> Case:
    """The hook's own ``timeout`` passes while its ``ctx.lease`` waits."""
    case = Case()

    class Impatient(Hook):
        timeout = 0.004

        async def will_inject_secrets(self, ctx: InvokeContext) -> None:
            await ctx.lease(Managed(case.held("slow", twice, yields), ctx))
            await ctx.lease(Managed(case.held("slower", twice, yields), ctx))
            await ctx.lease(Managed(case.held("slowest", twice, yields), ctx))

    return case.use(Quota(case.held("q")), Impatient())


def nested_without_ctx() -> Case:
    """A tool that goes to the gate by itself; afterwards a release has a time limit of its own, which passes."""
    case = Case()

    async def calls_gate() -> int:
        assert case.gate is not None
        answer: int = await case.gate.invoke("work", {}, user=USER)
        return answer

    return case.use(Quota(case.held("q")), Limited(case.held("limited"), asyncio_limit)).runs(calls_gate, work)


def call_in_an_acquire() -> Case:
    """An acquire calls another tool, and has a time limit afterwards."""
    case = Case()

    class Asking(Quota):
        tools = ("cleans_up",)

        async def will_acquire_quota(self, ctx: InvokeContext) -> None:
            await ctx.call("work", {})
            await super().will_acquire_quota(ctx)
            try:
                await asyncio_limit()
            except TimeoutError:
                pass

    return case.use(Asking(case.held("asking")), Place(case.held("p"))).runs(cleans_up, work)


def limits_in_release_of_a_hard_body() -> Case:
    """A body in a task of its own takes a lease whose release has a time limit of its own."""
    case = Case()

    class Limiting(Managed):
        async def __aexit__(self, *error: object) -> None:
            try:
                await asyncio_limit()
            except TimeoutError:
                await super().__aexit__(*error)

    async def leases(ctx: ToolContext) -> int:
        held: Any = ctx
        await held.lease(Limiting(case.held("of the body"), ctx))
        await asyncio.sleep(0)
        return 7

    return case.runs(hard(leases))


def suspends() -> Case:
    case = Case()

    class Asks(Hook):
        async def will_authorize_input(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0)
            ctx.suspend("approval", "May I?")

    return case.use(*case.six([yields])[:4], Asks(), Watching())
