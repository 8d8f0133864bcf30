"""The unit of work: what a provider commits after its ``yield`` is part of the call, and the ledger tells the truth of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, Outcome, Provide, Scoped, ToolCall, ToolContext, ToolError, invoke_tool, tool
from callgate.errors import ProviderError, ToolFailed
from callgate.hooks import Retry
from tests.harness.gate_options import gate_options
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.effects.scene_desk import ANN, states

Next = Callable[[], Awaitable[Any]]
COMMITTED, NO_EFFECT, UNKNOWN = "committed", "no_effect", "unknown"


class Serialization(Exception):
    """What a driver raises when the server rolled a transaction back."""

    sqlstate = "40001"


class Lost(ConnectionError):
    """The connection broke during the commit: nobody knows whether it took place."""


class Database:
    """Rows that a commit makes visible. *faults* are those of the next commits: None, or when and what it raises."""

    def __init__(self, *faults: tuple[str, BaseException] | None) -> None:
        self.rows: list[str] = []
        self.log: list[str] = []
        self.faults = list(faults)

    def commit(self, rows: list[str]) -> None:
        """Make rows visible, unless a fault says otherwise."""
        when, error = (self.faults.pop(0) if self.faults else None) or ("", None)
        if when != "before":
            self.rows += rows
        if error is not None:
            raise error
        self.log.append("commit")


class Transaction:
    """An open transaction: what is put into it, and where."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.threads: set[int] = set()

    def put(self, row: str) -> None:
        """Write a row that is not committed yet."""
        self.rows.append(row)
        self.threads.add(threading.get_ident())


def provider(database: Database) -> Callable[[], AsyncIterator[Transaction]]:
    """The provider of our how-to page: it commits after the ``yield``, and rolls back when an error comes in."""

    async def transaction() -> AsyncIterator[Transaction]:
        database.log.append("begin")
        held = Transaction()
        try:
            yield held
        except BaseException:
            database.log.append("roll back")
            raise
        database.commit(held.rows)

    return transaction


Unit = Annotated[Transaction, Provide[Transaction]]


@tool(effect="irreversible")
async def order(how: str, ctx: ToolContext, *, unit: Unit) -> str:
    """Order something, and end in some way."""
    unit.put("order")
    await asyncio.sleep(0)
    match how:
        case "raises":
            raise ValueError("broken")
        case "tells":
            raise ToolError("It cannot be ordered.")
        case "declines":
            raise ToolError("There is nothing to do.", no_effect=True)
        case "aborts":
            ctx.abort("not today")
        case "responds":
            ctx.respond("ordered")
        case "hangs":
            await asyncio.sleep(100)
        case _:
            pass
    return "ordered"


class After(Hook):
    """Does something after the tool has returned."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    async def around_execute(self, ctx: Any, next: Next) -> Any:
        output = await next()
        self.act()
        return output


class DidExecute(Hook):
    """The same in its own stage."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    async def did_execute(self, ctx: Any) -> None:
        self.act()


def fails() -> None:
    """Fail."""
    raise RuntimeError("a hook broke")


def gate_with(database: Database, *hooks: Any, scope: Any = "execution", tools: Any = (order,), **more: Any) -> Gate:
    """A gate on a store in memory, with the provider in a scope."""
    provide = {Transaction: Scoped(scope, provider(database)), **more.pop("provide", {})}
    return Gate(list(tools), list(hooks), provide=provide, **gate_options(open=True, durable=False, **more))


async def ask(gate: Gate, how: str = "returns", name: str = "order", **more: Any) -> Any:
    """One call under the key that all calls here have."""
    given = ToolCall(id="c", name=name, arguments={"how": how})
    return await gate.call(given, user=ANN, idempotency_key="k", **more)


# The ledger tells the truth, however an execution and its commit end

WAYS = ("returns", "raises", "tells", "declines", "aborts", "responds", "wrapper fails", "did_execute fails")
FAULTS: dict[str, tuple[str, Callable[[], BaseException]] | None] = {
    "commits": None,
    "rolled back by the server": ("before", Serialization),
    "says that it had no effect": ("before", lambda: ToolError("nothing was written", no_effect=True)),
    "lost before": ("before", Lost),
    "lost after": ("after", Lost),
    "exits": ("before", SystemExit),
}


def told(way: str, fault: str) -> tuple[str, Outcome]:
    """What the ledger and the caller are to be told."""
    ends_well = way in {"returns", "responds"}
    if not ends_well:
        return NO_EFFECT, Outcome.DENIED if way == "aborts" else Outcome.ERROR
    if fault == "commits":
        return COMMITTED, Outcome.SUCCESS
    return UNKNOWN if fault in {"lost before", "lost after", "exits"} else NO_EFFECT, Outcome.ERROR


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", WAYS)
async def test_the_ledger_tells_what_became_of_the_transaction(way: str, fault: str, trace: bool) -> None:
    """Issue 15 E: a failing exit means ``no_effect`` where the transaction says that it rolled back, else ``unknown``."""
    given = FAULTS[fault]
    database = Database(given and (given[0], given[1]()))
    hooks: dict[str, list[Hook]] = {"wrapper fails": [After(fails)], "did_execute fails": [DidExecute(fails)]}
    async with gate_with(database, *hooks.get(way, [])) as gate:
        first = await ask(gate, way, trace=trace)
        assert ([str(state) for state in await states(gate)], first.outcome) == (
            [told(way, fault)[0]],
            told(way, fault)[1],
        )
        assert truthful(await states(gate), database)
        began = database.log.count("begin")
        again = await ask(gate, way)
        assert truthful(await states(gate), database)
        repeated = database.log.count("begin") > began
        assert repeated is (told(way, fault)[0] == NO_EFFECT)
        assert again.replayed is (told(way, fault)[0] == COMMITTED)


def truthful(found: Any, database: Database) -> bool:
    """Whether the ledger may say so of these rows."""
    return {COMMITTED: len(database.rows) == 1, NO_EFFECT: not database.rows, UNKNOWN: True}[str(found[0])]


@pytest.mark.parametrize(("way", "fault"), [("returns", "rolled back by the server"), ("returns", "lost before")])
async def test_with_a_provider_of_the_request_the_ledger_lies(way: str, fault: str) -> None:
    """The control: the same provider, closed after the effect was settled."""
    given = FAULTS[fault]
    assert given
    database = Database((given[0], given[1]()))
    async with gate_with(database, scope="request") as gate:
        assert (await ask(gate, way)).outcome == Outcome.SUCCESS
        assert not truthful(await states(gate), database)


async def test_a_failed_commit_is_a_failure_of_the_tool_whose_text_stays_here() -> None:
    async with gate_with(Database(("before", Serialization("row 4711")))) as gate:
        result = await ask(gate, trace=True)
        assert result.error.code == "tool_failed"
        assert "4711" not in str(result.error)
        assert ("around_execute", "unit of work", "Serialization") in [tuple(map(str, row[:3])) for row in result.trace]
    with pytest.raises(ToolFailed):
        async with gate_with(Database(("before", Serialization()))) as gate:
            await gate.invoke("order", {"how": "returns"}, user=ANN)


# Cancellation and deadlines


@on_virtual_time
async def test_a_deadline_in_the_body_rolls_back(loop: StepLoop) -> None:
    database = Database()
    async with gate_with(database) as gate:
        result = await ask(gate, "hangs", deadline=0.5)
        assert result.error.code == "deadline_exceeded"
        assert [str(state) for state in await states(gate)] == [NO_EFFECT]
        assert (database.rows, database.log) == ([], ["begin", "roll back"])


@on_virtual_time
async def test_a_cancellation_during_the_commit_waits_for_it(loop: StepLoop) -> None:
    """The commit is not torn: whoever cancels is told so afterwards, and the ledger says what took place."""
    database = Database()

    async def slow() -> AsyncIterator[Transaction]:
        held = Transaction()
        yield held
        await asyncio.sleep(1)
        database.commit(held.rows)

    async with gate_with(database, provide={Transaction: Scoped("execution", slow)}) as gate:
        running = asyncio.ensure_future(ask(gate))
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert database.rows == ["order"]
        assert [str(state) for state in await states(gate)] == [COMMITTED]


@on_virtual_time
async def test_a_commit_that_hangs_ends_unknown_in_bounded_time(loop: StepLoop) -> None:
    async def hanging() -> AsyncIterator[Transaction]:
        yield Transaction()
        await asyncio.sleep(10_000)

    async with gate_with(Database(), provide={Transaction: Scoped("execution", hanging)}) as gate:
        began = loop.time()
        result = await ask(gate)
        assert (result.outcome, loop.time() - began < 30) == (Outcome.ERROR, True)
        assert [str(state) for state in await states(gate)] == [UNKNOWN]


async def test_a_timeout_of_a_wrapper_that_ends_during_the_commit_waits_for_it() -> None:
    """It is the wrapper's own error, and not a cancellation of the call; the ledger says what took place."""
    database, committing, go_on = Database(), asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[Transaction]:
        held = Transaction()
        yield held
        committing.set()
        await go_on.wait()
        database.commit(held.rows)

    class Impatient(Hook):
        repeats = True  # so the unit is inside

        async def around_execute(self, ctx: Any, next: Next) -> Any:
            async with asyncio.timeout(None) as timeout:
                watching = asyncio.ensure_future(self.expire(timeout))
                try:
                    return await next()
                finally:
                    await watching

        async def expire(self, timer: asyncio.Timeout) -> None:
            await committing.wait()
            timer.reschedule(0)
            for _ in range(5):
                await asyncio.sleep(0)
            go_on.set()

    async with gate_with(database, Impatient(), provide={Transaction: Scoped("execution", slow)}) as gate:
        result = await ask(gate)
        assert (result.outcome, result.error.code) == (Outcome.ERROR, "hook_failed")
        assert database.rows == ["order"]
        assert [str(state) for state in await states(gate)] == [COMMITTED]


# Attempts, wrappers and nested calls


async def test_each_attempt_has_a_unit_of_its_own_and_a_retry_sees_a_failed_commit() -> None:
    """A serialization failure at the commit is what retries are for."""
    database = Database(("before", Serialization()), ("before", Serialization()))

    class Again(Hook):
        repeats = True

        async def around_execute(self, ctx: Any, next: Next) -> Any:
            for _ in range(2):
                try:
                    return await next()
                except Serialization:
                    continue
            return await next()

    async with gate_with(database, After(lambda: None), Again()) as gate:
        result = await ask(gate)
        assert (result.outcome, database.rows) == (Outcome.SUCCESS, ["order"])
        assert database.log == ["begin", "begin", "begin", "commit"]
        assert [str(state) for state in await states(gate)] == [COMMITTED]


async def test_an_attempt_that_was_lost_stays_unknown_though_the_next_rolled_back() -> None:
    database = Database(("after", Lost()), ("before", Serialization()))

    class Again(Hook):
        repeats = True

        async def around_execute(self, ctx: Any, next: Next) -> Any:
            try:
                return await next()
            except Lost:
                return await next()

    async with gate_with(database, Again()) as gate:
        assert (await ask(gate)).outcome == Outcome.ERROR
        assert [str(state) for state in await states(gate)] == [UNKNOWN]


async def test_what_a_failed_body_wrote_is_rolled_back_though_a_hook_answers_for_it() -> None:
    class Instead(Hook):
        async def around_execute(self, ctx: Any, next: Next) -> Any:
            try:
                return await next()
            except ValueError:
                return "something else"

    database = Database()
    async with gate_with(database, Instead()) as gate:
        result = await ask(gate, "raises")
        assert (result.output, database.rows, database.log) == ("something else", [], ["begin", "roll back"])


async def test_a_body_that_failed_is_rolled_back_though_a_hook_responds_for_it() -> None:
    class Responds(Hook):
        async def around_execute(self, ctx: Any, next: Next) -> Any:
            try:
                return await next()
            except ValueError:
                ctx.respond("something else")

    database = Database()
    async with gate_with(database, Responds()) as gate:
        result = await ask(gate, "raises")
        assert (result.output, database.rows, database.log) == ("something else", [], ["begin", "roll back"])


async def test_a_nested_call_has_a_unit_of_its_own_and_its_outcome_is_true() -> None:
    """The nested effect is committed before its outcome is recorded, whatever becomes of the outer call."""
    database = Database()

    @tool(effect="irreversible")
    async def outer(how: str, ctx: ToolContext, *, unit: Unit) -> str:
        """Order, and fail."""
        unit.put("outer")
        await ctx.call("order", {"how": "returns"})
        raise ValueError(how)

    async with gate_with(database, tools=(order, outer)) as gate:
        await ask(gate, name="outer")
        found = {row.tool: str(row.state) for _, row in await gate.store.effects.list(None)}
        assert (found, database.rows) == ({"order": COMMITTED, "outer": NO_EFFECT}, ["order"])


async def test_a_wrapper_that_fails_after_the_tool_returned_leaves_the_effect_unknown() -> None:
    """Issue 15 E: it may have rolled back what the tool did, as a wrapper with a transaction does whose commit fails."""
    done: list[str] = []

    @tool(effect="irreversible")
    async def pay() -> str:
        """Pay."""
        done.append("paid")
        return "paid"

    async def state_after(hook: Any) -> list[str]:
        async with Gate([pay], [hook], **gate_options(open=True, durable=False)) as gate:
            await gate.call(ToolCall(id="c", name="pay", arguments={}), user=ANN, idempotency_key="k")
            return [str(state) for state in await states(gate)]

    class Sure(After):
        """States that nothing took place."""

    class RolledBack(Exception):
        no_effect = True

    def says_so() -> None:
        raise RolledBack

    def means_the_output() -> None:
        raise ToolError("The output is not wanted.", no_effect=True)

    class Aborts(Hook):
        async def around_execute(self, ctx: Any, next: Next) -> Any:
            await next()
            ctx.abort("the output is not wanted")

    assert await state_after(After(lambda: None)) == [COMMITTED]
    assert await state_after(After(fails)) == [UNKNOWN]
    assert await state_after(Sure(says_so)) == [NO_EFFECT]
    assert await state_after(After(means_the_output)) == [UNKNOWN]
    assert await state_after(Aborts()) == [UNKNOWN]  # it speaks of the output: the payment took place


async def test_a_unit_that_only_a_hook_uses_says_nothing_of_the_tools_effect() -> None:
    """A payment that fails stays unknown, though the rows of a hook were rolled back."""

    @tool(effect="irreversible")
    async def pay(how: str) -> str:
        """Pay somewhere else."""
        if how == "raises":
            raise ValueError("after the payment")
        return "paid"

    class Outbox(Hook):
        async def around_execute(self, ctx: Any, next: Next) -> Any:
            (await ctx.resolve(Transaction)).put("outbox")
            return await next()

    for how, faults, state in [
        ("raises", (), UNKNOWN),
        ("returns", (("before", Serialization()),), UNKNOWN),
        ("returns", (), COMMITTED),
    ]:
        database = Database(*faults)
        async with gate_with(database, Outbox(), tools=(pay,)) as gate:
            await ask(gate, how, name="pay")
            assert [str(one) for one in await states(gate)] == [state]


class First(Transaction):
    """Another unit of work."""


@pytest.mark.parametrize(("inside", "state"), [(True, NO_EFFECT), (False, UNKNOWN)])
async def test_two_units_are_rolled_back_together_or_nobody_knows(inside: bool, state: str) -> None:
    """The second is left first. What it committed inside the first is undone with it; what it committed alone is not."""
    ended: list[str] = []

    async def first() -> AsyncIterator[First]:
        yield First()
        raise Serialization

    async def alone() -> AsyncIterator[Transaction]:
        yield Transaction()
        ended.append("second")

    async def within(_: Annotated[First, Provide[First]]) -> AsyncIterator[Transaction]:
        yield Transaction()
        ended.append("second")

    @tool(effect="irreversible")
    async def both(*, one: Annotated[First, Provide[First]], unit: Unit) -> str:
        """Write in two units."""
        return "done"

    provide = {First: Scoped("execution", first), Transaction: Scoped("execution", within if inside else alone)}
    async with Gate([both], provide=provide, **gate_options(open=True, durable=False)) as gate:
        await gate.call(ToolCall(id="c", name="both", arguments={}), user=ANN, idempotency_key="k")
        assert (ended, [str(one) for one in await states(gate)]) == (["second"], [state])


# Threads


@tool(effect="irreversible", max_threads=2)
def plain_order(how: str, *, unit: Unit) -> str:
    """Order in a thread."""
    unit.put("order")
    if how == "raises":
        raise ValueError("broken")
    return "ordered"


@pytest.mark.parametrize(("how", "state"), [("returns", COMMITTED), ("raises", NO_EFFECT)])
async def test_a_plain_provider_of_a_plain_tool_runs_in_threads_and_blocks_no_loop(how: str, state: str) -> None:
    where: list[int] = []

    def plain() -> Iterator[Transaction]:
        where.append(threading.get_ident())
        try:
            yield Transaction()
        finally:
            where.append(threading.get_ident())

    async with gate_with(Database(), tools=(plain_order,), provide={Transaction: Scoped("execution", plain)}) as gate:
        await ask(gate, how, name="plain_order")
        assert [str(one) for one in await states(gate)] == [state]
    assert len(where) == 2
    assert threading.get_ident() not in where


async def test_a_provider_that_begins_in_a_thread_as_its_call_is_cancelled_is_closed() -> None:
    began, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def plain() -> Iterator[Transaction]:
        began.set()
        go_on.wait(10)
        try:
            yield Transaction()
        finally:
            closed.set()

    async with gate_with(Database(), tools=(plain_order,), provide={Transaction: Scoped("execution", plain)}) as gate:
        running = asyncio.ensure_future(ask(gate, name="plain_order"))
        await asyncio.to_thread(began.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 10)
        assert [str(one) for one in await states(gate)] == [NO_EFFECT]


async def test_a_body_that_is_left_behind_keeps_its_unit_and_never_commits() -> None:
    database, began, go_on = Database(), threading.Event(), threading.Event()

    @tool(effect="irreversible")
    def slow(how: str, *, unit: Unit) -> str:
        """Outlive the deadline."""
        began.set()
        go_on.wait(10)
        unit.put(how)
        return "ordered"

    async with gate_with(database, tools=(slow,)) as gate:
        running = asyncio.ensure_future(ask(gate, name="slow", deadline=0.3))
        assert (await running).outcome == Outcome.UNKNOWN
        assert database.log == ["begin"]
        go_on.set()
        await gate.close()
        assert (database.rows, database.log) == ([], ["begin", "roll back"])


async def test_a_body_that_is_left_behind_never_commits_though_a_hook_answers_for_it() -> None:
    database, go_on = Database(), threading.Event()

    class Instead(Hook):
        async def around_execute(self, ctx: Any, next: Next) -> Any:
            try:
                async with asyncio.timeout(0.05):
                    return await next()
            except TimeoutError:
                return "something else"

    @tool(effect="irreversible")
    def slow(how: str, *, unit: Unit) -> str:
        """Outlive the patience of the hook."""
        go_on.wait(10)
        unit.put(how)
        return "ordered"

    async with gate_with(database, Instead(), tools=(slow,)) as gate:
        assert (await ask(gate, name="slow")).output == "something else"
        assert database.log == ["begin"]  # the body still uses it
        go_on.set()
        await gate.close()
        assert (database.rows, database.log) == ([], ["begin", "roll back"])


# Where a unit can be used


async def test_outside_of_an_execution_a_unit_is_refused_with_what_to_do() -> None:
    class Early:
        async def will_authorize(self, ctx: Any, *, unit: Unit) -> None:
            """Too early."""

    def longer(unit: Unit) -> First:
        return First()

    @tool(effect="read")
    async def both(*, one: Annotated[First, Provide[First]]) -> str:
        """Take what lives too long."""
        return "never"

    with pytest.raises(ProviderError, match="will_authorize takes a provider of the scope 'execution'; only the tool"):
        gate_with(Database(), Early())
    with pytest.raises(
        ProviderError, match="lasts for one request and needs Transaction, which lasts for one execution"
    ):
        gate_with(Database(), provide={First: Scoped("request", longer)}, tools=(order, both))

    asked: list[str] = []

    class Late(Hook):
        async def will_transform_output(self, ctx: Any) -> None:
            try:
                await ctx.resolve(Transaction)
            except ProviderError as error:
                asked.append(str(error))

    async with gate_with(Database(), Late()) as gate:
        await ask(gate)
    assert "requested outside of an execution" in asked[0]


async def test_tools_without_a_unit_run_as_before() -> None:
    """A gate with such a provider costs the other tools nothing."""

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    async with gate_with(Database(), tools=(order, look)) as gate:
        plans = [gate._plans.of(name) for name in ("look", "order")]
        assert [(plan.fast_path is not None, plan.in_units) for plan in plans] == [(True, False), (False, True)]


async def test_a_bare_call_has_units_too() -> None:
    from callgate import ProviderRegistry

    database = Database(None, ("before", Serialization()))
    registry = ProviderRegistry()
    registry.provide({Transaction: Scoped("execution", provider(database))})
    assert await invoke_tool(order, {"how": "returns"}, user=ANN, registry=registry) == "ordered"
    with pytest.raises(Serialization):
        await invoke_tool(order, {"how": "returns"}, user=ANN, registry=registry)
    assert database.rows == ["order"]


async def test_stock_retry_and_units_go_together() -> None:
    database = Database(("before", Serialization()))

    @tool(effect="idempotent")
    async def put(how: str, *, unit: Unit) -> str:
        """Put something."""
        unit.put("put")
        return how

    async with gate_with(database, Retry(3, on=Serialization, wait=lambda _: 0.0), tools=(put,)) as gate:
        assert (await ask(gate, name="put")).outcome == Outcome.SUCCESS
        assert database.rows == ["put"]


async def test_the_linter_names_a_provider_that_ends_after_the_outcome() -> None:
    async with gate_with(Database(), scope="request") as gate:
        (found,) = [str(one) for one in gate.lint() if one.rule == "ends_after_outcome"]
        assert "order: parameter 'unit': Transaction ends after the outcome" in found
    async with gate_with(Database()) as gate:
        assert "ends_after_outcome" not in {one.rule for one in gate.lint()}
