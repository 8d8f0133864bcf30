"""A load of misbehaving tools, hooks, providers and callers on one gate, and an outside count of what really happened.

An order is paid where ``Oracle.pay`` is called, and nowhere else. The gate may be wrong about it; the oracle is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Annotated, Any

from callgate import (
    Denied,
    Effects,
    Gate,
    Hook,
    Jobs,
    Provide,
    RetryLater,
    Scoped,
    ToolCall,
    ToolContext,
    ToolError,
    User,
    tool,
)
from callgate.errors import StoreError
from callgate.hooks import Cache, Committed, Concurrency, Retry
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.address import store_at
from callgate.runtime.effects.reconciling import settle_unknown
from callgate.runtime.testing.fault_calls import Faults
from callgate.stores import EffectState, JobState
from callgate.testing import FaultyStore
from tests.runtime.effects.faulty_batches import fail_batches

USERS = User("ann", tenant="acme"), User("bob", tenant="acme"), User("ann", tenant="umbrella")
AT_ONCE = 8
"""Permits of the gate, and the clients of the load."""
SETTLES = 30
"""Seconds within which maintenance writes what a busy store did not take; less than the lease of a dead process."""
PAYING = ("pay", "pay_plain", "pay_wrapped", "pay_hard", "pay_in_unit", "pay_streaming", "pay_nested")
READING = ("look", "endless")
ENDED = {JobState.DONE, JobState.DEAD, JobState.CANCELLED}


class Unreadable(Exception):
    """Raises whenever it is read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Unit:
    """A unit of work: what is paid in it is paid when it is committed."""

    def __init__(self) -> None:
        self.paid: list[tuple[str | None, str]] = []


class Oracle:
    """What was paid, by tenant and order, counted outside of the gate; and the deeds that are drawn."""

    def __init__(self, seed: int) -> None:
        self.paid: Counter[tuple[str, str]] = Counter()
        self.deeds: Counter[str] = Counter()
        self.random = random.Random(seed)

    def pay(self, tenant: str | None, order: str) -> None:
        self.paid[tenant or "", order] += 1

    def draw(self, *deeds: str) -> str:
        deed = self.random.choice(deeds)
        self.deeds[deed] += 1
        return deed

    def errors(self) -> BaseException:
        """Draw an odd error."""
        return self.random.choice(
            (
                ValueError("odd"),
                Unreadable(),
                ExceptionGroup("odd", [KeyError("x"), ExceptionGroup("inner", [Unreadable()])]),
                ExceptionGroup("with ours", [ToolError("no"), ValueError()]),
                SystemExit(3),
                asyncio.CancelledError(),
                GeneratorExit(),
                StopAsyncIteration(),
                Denied("late"),
                RetryLater(1),
                ToolError({"not": "text"}),  # type: ignore[arg-type]
            )
        )


def output_of(oracle: Oracle) -> Any:
    """Draw an odd output."""
    kinds: tuple[Any, ...] = (
        1,
        {"a": 1},
        object(),
        {1: {2}},
        float("nan"),
        (n for n in range(3)),
        b"\xff",
        {"deep": [[[[]]]]},
    )
    return oracle.random.choice(kinds)


def paying(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Declare an irreversible tool: an order is paid once, whoever asks for it."""
    return tool(effect="irreversible", key=("order",), **options)


def paying_tools(oracle: Oracle) -> list[Any]:
    """Return irreversible tools of every kind of body; ``order`` is the effect, whoever asks for it."""

    async def misbehave(ctx: ToolContext, order: str, unit: Unit | None = None) -> Any:
        match oracle.draw("early", "nothing", "late", "hang", "stubborn", "block", "odd", "good", "good"):
            case "early":
                raise oracle.errors()
            case "nothing":
                raise ToolError("nothing was done", no_effect=True)
            case "hang":
                await asyncio.sleep(oracle.random.random() * 0.05)
            case "stubborn":
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)
            case "block":
                time.sleep(0.005)  # noqa: ASYNC251  (a fault on purpose)
            case _:
                pass
        if unit is None:
            oracle.pay(ctx.tenant, order)
        else:
            unit.paid.append((ctx.tenant, order))
        match oracle.draw("late", "sleep", "odd", "good", "good"):
            case "late":
                raise oracle.errors()
            case "sleep":
                await asyncio.sleep(oracle.random.random() * 0.03)
            case "odd":
                return output_of(oracle)
            case _:
                pass
        return "paid"

    @paying(name="pay")
    async def pay(order: str, ctx: ToolContext) -> Any:
        return await misbehave(ctx, order)

    @paying(name="pay_plain", max_threads=4)
    def pay_plain(order: str, ctx: ToolContext) -> Any:
        if oracle.draw("early", "good", "good") == "early":
            raise ValueError
        oracle.pay(ctx.tenant, order)
        time.sleep(oracle.random.random() * 0.01)
        if oracle.draw("late", "good") == "late":
            raise StopIteration
        return output_of(oracle)

    @paying(name="pay_wrapped", max_threads=4)
    def pay_wrapped(order: str, ctx: ToolContext) -> Any:
        return misbehave(ctx, order)

    @paying(name="pay_hard", hard_deadline=True)
    async def pay_hard(order: str, ctx: ToolContext) -> Any:
        return await misbehave(ctx, order)

    @paying(name="pay_in_unit")
    async def pay_in_unit(order: str, ctx: ToolContext, unit: Annotated[Unit, Provide[Unit]]) -> Any:
        return await misbehave(ctx, order, unit)

    @paying(name="pay_streaming")
    async def pay_streaming(order: str, ctx: ToolContext) -> AsyncGenerator[Any]:
        yield "begun"
        await misbehave(ctx, order)
        for part in itertools.count() if oracle.draw("endless", "good", "good") == "endless" else range(2):
            yield "x" * 10_000 + str(part)

    @tool(effect="irreversible")
    async def pay_part(order: str, ctx: ToolContext) -> Any:
        return await misbehave(ctx, order)

    @tool(name="pay_nested", effect="idempotent", key=("order",), key_scope="tenant")
    async def pay_nested(order: str, ctx: ToolContext) -> Any:
        with contextlib.suppress(Exception):
            await ctx.call("look", {"n": oracle.random.randrange(3)})
        parts = [ctx.call("pay_part", {"order": f"{order}/{part}"}) for part in "ab"]
        told = await asyncio.gather(*parts, return_exceptions=True)
        if oracle.draw("late", "good") == "late":
            raise ConnectionError
        return [str(type(one).__name__) for one in told]

    return [pay, pay_plain, pay_wrapped, pay_hard, pay_in_unit, pay_streaming, pay_part, pay_nested]


def swallowing_provider(oracle: Oracle) -> Any:
    """Return a provider of the execution that hides the errors of its tool, or raises its own."""

    async def swallowing() -> AsyncGenerator[Unit]:
        if oracle.draw("no provider", "good", "good") == "no provider":
            raise OSError("no connection")
        unit = Unit()
        try:
            yield unit
        except Exception:
            if oracle.draw("swallow", "good") == "good":
                raise
        if oracle.draw("no commit", "good", "good") == "no commit":
            raise ConnectionError("no commit")
        for tenant, order in unit.paid:
            oracle.pay(tenant, order)
        if oracle.draw("cut off", "good", "good") == "cut off":
            raise ConnectionError("committed, and the answer was lost")

    return swallowing


def reading_tools(oracle: Oracle) -> list[Any]:
    @tool(effect="read")
    async def look(n: int) -> Any:
        await asyncio.sleep(oracle.random.random() * 0.005)
        if oracle.draw("early", "good", "good") == "early":
            raise oracle.errors()
        return {"n": n}

    @tool(effect="read", max_threads=2)
    def endless(n: int) -> Any:
        return itertools.repeat("x" * 1000) if n else iter(range(3))

    return [look, endless]


class Chaos(Hook):
    """Fails, waits, blocks and swallows cancellations at many stages, seldom enough that most calls go on."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def _deed(self) -> str:
        return self.oracle.draw(*("good",) * 12, "raise", "wait", "block")

    async def _act(self) -> None:
        match self._deed():
            case "raise":
                raise self.oracle.errors()
            case "wait":
                await asyncio.sleep(0.002)
            case "block":
                time.sleep(0.002)  # noqa: ASYNC251  (a fault on purpose)
            case _:
                pass

    async def will_authorize(self, ctx: Any) -> None:
        await self._act()

    def will_normalize_input(self, ctx: Any) -> Any:
        return self._act()  # a plain callable that returns an awaitable

    async def around_execute(self, ctx: Any, next: Any) -> Any:
        if self._deed() == "wait":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return await next()

    async def will_redact_output(self, ctx: Any) -> None:
        await self._act()

    async def did_audit(self, ctx: Any) -> None:
        await self._act()

    async def will_finalize_invoke(self, ctx: Any) -> None:
        await self._act()


class Load:
    """Clients on one gate: each calls, repeats, cancels and submits at random until it is told to stop."""

    def __init__(self, store: str, seed: int, *, every: int | None = None) -> None:
        """*every*: every so many operations of the store one fails, before or after it has happened in turn."""
        self.store, self.oracle = store, Oracle(seed)
        inner: Any = store_at(store)
        self.faults = Faults((), every, self._fault, 0.0)
        if every is not None:
            bind = inner.signed
            inner.signed = lambda keys: failing(bind(keys), self.faults)  # the gate works with the store that signs
        self.outcomes: Counter[str] = Counter()
        self.calls = self.orders = 0
        self.permits = Concurrency(AT_ONCE, by="user", queue=200, queue_timeout=30.0)
        self.gate = Gate(
            tools=[*paying_tools(self.oracle), *reading_tools(self.oracle), self._holding()],
            hooks=[
                Chaos(self.oracle),
                self.permits,
                Cache(0.05),
                Retry(3, on=lambda error: not isinstance(error, ToolError), wait=lambda _: 0.0),
            ],
            provide={Unit: Scoped("execution", swallowing_provider(self.oracle))},
            store=inner,
            allow_unguarded=True,
            # Orders are asked for again within seconds. Rows in memory that were kept would hide what leaks.
            effects=Effects(durable=False, wait=0.5, keep=60.0 if store == "memory://" else None),
            jobs=Jobs(engine=EmbeddedJobs(2), max_attempts=2, backoff=0.0, keep=60.0 if store == "memory://" else None),
            signing_keys=["ab" * 32],
        )
        self.holding = 0
        self.most_held = 0

    def _fault(self) -> StoreError:
        self.faults.after = not self.faults.after
        return StoreError("injected")

    def _holding(self) -> Any:
        @tool(effect="read", hooks=[])
        async def hold(n: int) -> int:
            self.holding += 1
            self.most_held = max(self.most_held, self.holding)
            await asyncio.sleep(0.2)
            self.holding -= 1
            return 0

        return hold

    async def client(self, until: float) -> None:
        """Call until the time of the loop; errors of the gate's own are raised."""
        draw, clock = self.oracle.random, asyncio.get_running_loop().time
        while clock() < until:
            user = draw.choice(USERS)
            self.calls += 1
            if draw.random() < 0.2:
                await self._call(ToolCall(name=draw.choice(READING), arguments={"n": draw.randrange(3)}), user)
                continue
            if draw.random() < 0.5 or not self.orders:
                self.orders += 1
            order = f"o{max(1, self.orders - draw.randrange(12))}"
            name = PAYING[int(order[1:]) % len(PAYING)]  # an order is of one tool
            call = ToolCall(name=name, arguments={"order": order})
            if draw.random() < 0.05:
                with contextlib.suppress(Denied, StoreError):
                    await self.gate.submit(call, user=user)
                    self.outcomes["submitted"] += 1
                continue
            await self._call(call, user, **({"idempotency_key": f"k{order}"} if draw.random() < 0.3 else {}))

    async def _call(self, call: ToolCall, user: User, **options: Any) -> None:
        draw = self.oracle.random
        if draw.random() < 0.2:
            options["deadline"] = draw.random() * 0.05
        running = asyncio.ensure_future(self.gate.call(call, user=user, **options))
        if draw.random() < 0.15:
            await asyncio.sleep(draw.random() * 0.02)
            running.cancel()
        try:
            self.outcomes[(await running).outcome.value] += 1
        except asyncio.CancelledError:
            self.outcomes["cancelled by the caller"] += 1
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise

    async def run(self, seconds: float) -> list[str]:
        """Run the load; return what is out of balance at its end."""
        until = asyncio.get_running_loop().time() + seconds
        async with self.gate as gate:
            async with asyncio.TaskGroup() as clients:
                for _ in range(AT_ONCE):
                    clients.create_task(self.client(until))
                clients.create_task(self._operate(until))
            self.faults.every = None
            for _ in range(600):  # bodies that were left behind, and jobs
                counted = await gate.store.jobs.count()
                if not sum(counted.get(state, 0) for state in (JobState.QUEUED, JobState.RUNNING)):
                    break
                await asyncio.sleep(0.1)
            await gate._services.left_behind.drain(30)
            return [*await self._permits(), *await self._ledger(), *await self._jobs(), *self._seconds()]

    async def _operate(self, until: float) -> None:
        """Let go of what is kept by promise, and of the log of the faults: what grows beside them is a leak.

        In memory an operator settles unknown effects, and old rows are pruned. A store on disk keeps its rows there.
        """
        clock = asyncio.get_running_loop().time
        while clock() < until:
            self.faults.log.clear()
            if self.store == "memory://":
                await self._settle_unknown()
                await self.gate.maintain()
            await asyncio.sleep(min(10.0, max(0.0, until - clock())))

    async def _settle_unknown(self) -> None:
        """Record unknown effects as committed, as an operator would who does not pay an order again."""
        effects, now = self.gate.store.effects, time.time()
        after = None
        while rows := await effects.list(None, states=[EffectState.UNKNOWN], after=after):
            for tenant, effect in rows:
                await settle_unknown(effects, now, tenant, effect, Committed(None))
            tenant, last = rows[-1]
            after = (last.began_at, tenant, last.key)

    async def _permits(self) -> list[str]:
        """All permits of each user can be held at once, and no more."""
        found = []
        for user in USERS:
            self.most_held = 0
            with no_chaos(self.oracle):
                calls = [self.gate.call("hold", {"n": n}, user=user) for n in range(AT_ONCE + 2)]
                results = await asyncio.gather(*calls)
            if self.most_held != AT_ONCE or not all(one.ok for one in results):
                ended = Counter(one.outcome.value for one in results)
                found.append(f"permits: {self.most_held} of {AT_ONCE} for {user.tenant}/{user.id}: {dict(ended)}")
        return found

    async def _ledger(self) -> list[str]:
        open_states = (EffectState.RUNNING, EffectState.CLAIMED)
        rows: Any = ()
        for _ in range(SETTLES * 10):  # an outcome that the store failed to take is written by the next maintenance
            rows = await self.gate.store.effects.list(None, states=open_states, limit=5)
            if not rows:
                return []
            await asyncio.sleep(0.1)
        return [f"ledger: {row}" for row in rows]

    async def _jobs(self) -> list[str]:
        counted = await self.gate.store.jobs.count()
        left = {state: number for state, number in counted.items() if number and state not in ENDED}
        return [f"jobs: {left}"] if left else []

    def _seconds(self) -> list[str]:
        second = {effect: number for effect, number in self.oracle.paid.items() if number > 1}
        return [f"second effects: {len(second)}, such as {list(second.items())[:5]}"] if second else []

    def figures(self) -> str:
        """Return what happened, in one line."""
        paid = sum(self.oracle.paid.values())
        return (
            f"{self.store.split(':')[0]}: {self.calls} calls of {self.orders} orders, {paid} effects, "
            f"{len(self.oracle.paid)} different, {len(self.faults.injected)} faults of the store, "
            f"{dict(self.outcomes)}"
        )


def failing(store: Any, faults: Faults) -> Any:
    """Wrap a store, and the batches in which it sends its statements."""
    fail_batches(store.ledger._batches, faults)
    wrapped = FaultyStore(store)
    object.__setattr__(wrapped, "_callgate_faults", faults)
    return wrapped


@contextlib.contextmanager
def no_chaos(oracle: Oracle) -> Generator[None]:
    """Let all deeds be good ones."""
    drawn = oracle.draw
    oracle.draw = lambda *_: "good"  # type: ignore[method-assign]
    try:
        yield
    finally:
        oracle.draw = drawn  # type: ignore[method-assign]
