"""Tools and hooks that change while the gate is open: a policy is never lost, and a refused change changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, Outcome, Provide, ToolRecord, UnknownTool
from callgate.errors import DefinitionError, HookError, ProviderError, RegistrationError
from callgate.hooks import Authorize, forbid, permit
from callgate.runtime.pipeline import plans
from callgate.runtime.pipeline.compile import compile_plan
from callgate.runtime.pipeline.plans import Generation, Plans
from callgate.tools.definition import Effect
from callgate.tools.record import as_declared
from callgate.tools.schemas import validation
from tests.harness.gate_options import gate_options
from tests.runtime.gate.making import call, double, gate_of, made


class Refuse(Hook):
    """Denies every call."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        ctx.abort("no")


class Only(Hook):
    """Authorises the calls of one tool."""

    tools = frozenset({"work"})

    def will_authorize(self, ctx: InvokeContext) -> None:
        """Allow all of them."""


def guarded(*tools: Any, hooks: Any = (), **options: Any) -> Gate:
    """A gate that demands a hook that authorises."""
    return Gate(tools, hooks, effects=Effects(durable=False), **gate_options(**options))


def pays(name: str = "pay", **options: Any) -> ToolRecord:
    return as_declared(made(double, name, effect=Effect.IRREVERSIBLE, **options))


ALL = Authorize(permit("all"))

# ---------------------------------------------------------------------- a change during a compilation

Read = Callable[[Gate], Any]
READS: dict[str, Read] = {
    "the first call": lambda gate: gate.invoke("work", {"n": 1}).close(),
    "hydrate": lambda gate: gate.hydrate(call()),
    "explain": lambda gate: gate.explain("work"),
    "a traced plan": lambda gate: gate._plans.of("work", trace=True),
    "an extended gate": lambda gate: gate.with_tools([]).explain("work"),
}


class Paused:
    """Stops the first compilation in a thread, until the test has changed the policy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        compiles, first = compile_plan, threading.Lock()

        def compile_slowly(*given: Any, **options: Any) -> Any:
            plan = compiles(*given, **options)
            if first.acquire(blocking=False):
                self.reached.set()
                assert self.go_on.wait(10)
            return plan

        monkeypatch.setattr(plans, "compile_plan", compile_slowly)


async def denials_after_a_change_in_between(read: Read, monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """Let a thread compile a plan, call ``use`` meanwhile, then call the tool in every way."""
    async with gate_of([made(double)], lazy=True) as gate:
        paused = Paused(monkeypatch)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read, gate)
            assert paused.reached.wait(10)
            gate.use(Refuse())
            paused.go_on.set()
            reading.result(10)
        traced = await gate.call(call(), trace=True)
        extended = await gate.with_tools([]).call(call())
        return [(await gate.call(call())).outcome, traced.outcome, extended.outcome]


@pytest.mark.parametrize("read", READS)
async def test_a_policy_is_not_lost_to_a_compilation_in_another_thread(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await denials_after_a_change_in_between(READS[read], monkeypatch) == [Outcome.DENIED] * 3


async def test_the_probe_finds_a_plan_that_is_stored_for_a_later_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one generation for ever, emptied by each change, loses the policy."""

    def publish_in_place(plans: Plans, generation: Generation) -> None:
        plans.current.shared = generation.shared
        for known in (plans.current.plans, plans.current.traced, plans.current.live):
            known.clear()

    monkeypatch.setattr(Plans, "_publish", publish_in_place)
    found = await denials_after_a_change_in_between(READS["explain"], monkeypatch)
    assert Outcome.SUCCESS in found


async def test_a_call_that_compiles_during_a_change_runs_under_the_new_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gate_of([made(double)], lazy=True) as gate:
        paused = Paused(monkeypatch)
        with ThreadPoolExecutor(1) as threads:
            made_elsewhere = threads.submit(gate.invoke, "work", {"n": 1})
            assert paused.reached.wait(10)
            gate.use(Refuse())
            paused.go_on.set()
            with pytest.raises(Exception, match="no"):
                await made_elsewhere.result(10)


@pytest.mark.parametrize("name", ["work", "mine"])
async def test_a_gate_with_more_tools_follows_the_policy(name: str) -> None:
    async with gate_of([made(double)]) as gate:
        more = gate.with_tools([made(double, "mine")])
        assert await more.invoke(name, {"n": 1}) == 2
        undo = gate.use(Refuse())
        assert (await more.call(call(name=name))).outcome is Outcome.DENIED
        undo()
        assert await more.invoke(name, {"n": 1}) == 2


async def test_a_gate_with_more_tools_follows_the_tools() -> None:
    async with gate_of([made(double)]) as gate:
        more = gate.with_tools([made(double, "mine")])
        gate.add(made(double, "later"))
        assert await more.invoke("later", {"n": 1}) == 2
        gate.remove("work")
        assert (await more.call(call())).outcome is Outcome.INVALID
        assert [one.name for one in more.definitions()] == ["mine", "later"]
        assert await more.invoke("mine", {"n": 1}) == 2


async def test_a_gate_takes_no_more_tools_than_it_opens_with() -> None:
    """As ``add`` does: a hook authorises each tool that may change something. Such a tool ran for any user."""
    async with guarded(made(double, effect=Effect.READ), hooks=[Only()]) as gate:
        with pytest.raises(RegistrationError, match="no hook authorises every call of tool 'pay'"):
            gate.with_tools([pays()])
        undo = gate.use(ALL)
        more = gate.with_tools([pays()])
        assert await more.invoke("pay", {"n": 1}) == 2
        undo()
        result = await more.call(call(name="pay"))
        assert result.outcome is Outcome.ERROR, "its hook has gone"
        assert await more.invoke("work", {"n": 1}) == 2
    async with guarded(made(double, effect=Effect.READ), hooks=[ALL], allow_unguarded=True) as gate:
        assert await gate.with_tools([pays()]).invoke("pay", {"n": 1}) == 2


# ---------------------------------------------------------------------- refused changes


@contextmanager
def refused(gate: Gate, error: type[Exception], match: str) -> Generator[None]:
    """Expect a refusal, and find the gate as it was."""

    def state() -> Any:
        return gate.registry.list(), gate._plans.current.shared, dict(gate._plans.current.plans), gate.registry.version

    before = state()
    with pytest.raises(error, match=match):
        yield
    assert state() == before


async def test_an_open_gate_refuses_an_irreversible_tool_that_no_hook_authorises() -> None:
    tool = pays()
    async with guarded(made(double)) as gate:
        with refused(gate, RegistrationError, "no hook authorises every call of tool 'pay'"):
            gate.add(tool)
        with refused(gate, RegistrationError, "no hook authorises"):
            gate.add(pays("work"), replace=True)
        assert (await gate.call(call(name="pay"))).error.code == "unknown_tool"  # type: ignore[union-attr]
        assert await gate.invoke("work", {"n": 1}) == 2


async def test_an_open_gate_refuses_to_lose_its_only_authoriser() -> None:
    gate = guarded(pays())
    undo = gate.use(ALL)
    async with gate:
        with refused(gate, RegistrationError, "the open gate refuses this change"):
            undo()
        other = gate.use(Authorize(permit("others")))
        undo()
        with refused(gate, RegistrationError, "no hook authorises"):
            other()
        assert await gate.invoke("pay", {"n": 1}) == 2
    other()  # a closed gate is checked when it opens
    with pytest.raises(RegistrationError, match="does not open"):
        await gate.open()


async def test_an_open_gate_refuses_a_rule_that_names_an_unknown_tool() -> None:
    async with guarded(made(double)) as gate:
        with refused(gate, HookError, "there is no tool 'wrok'"):
            gate.use(Authorize(permit("all"), forbid("one", tools={"wrok"})))
        undo = gate.use(Authorize(permit("all"), forbid("one", tools={"work"})))
        with refused(gate, HookError, "there is no tool 'work'"):
            gate.remove("work")
        undo()
        gate.remove("work")


async def test_a_hook_that_remembers_the_tools_is_told_of_them_again_after_a_refusal() -> None:
    class Remembers(Hook):
        known: tuple[str, ...] = ()

        def check_tools(self, definitions: Any) -> None:
            self.known = tuple(one.name for one in definitions)

        def will_authorize(self, ctx: InvokeContext) -> None:
            assert ctx.tool_id in self.known

    class Strict(Hook):
        def check_tools(self, definitions: Any) -> None:
            if len(definitions) != 1:
                raise HookError("one tool, and no other")

        def will_authorize(self, ctx: InvokeContext) -> None: ...

    remembers = Remembers()
    async with guarded(made(double), hooks=[remembers, Strict()]) as gate:
        with refused(gate, HookError, "one tool"):
            gate.add(made(double, "other"))
        assert remembers.known == ("work",)
        with refused(gate, HookError, "one tool"):
            gate.remove("work")
        assert await gate.invoke("work", {"n": 1}) == 2


async def test_a_hook_without_its_provider_is_refused_before_any_call() -> None:
    class Needs(Hook):
        def __init__(self, it: Annotated[str, Provide["it"]]) -> None: ...

        def will_authorize(self, ctx: InvokeContext) -> None: ...

    class Binds(Hook):
        binds = ("it",)

        def will_bind_providers(self, ctx: InvokeContext) -> dict[str, str]:
            return {"it": "bound"}

    async with gate_of([made(double)]) as gate:
        with refused(gate, ProviderError, "it"):
            gate.use(Needs)
        undo = gate.use(Binds())
        gate.use(Needs)
        assert await gate.invoke("work", {"n": 1}) == 2
        with refused(gate, ProviderError, "it"):
            undo()
    bound = made(double, hooks=[Binds()])
    async with gate_of([bound]) as gate:
        gate.use(Needs)
        with refused(gate, ProviderError, "it"):
            gate.add(made(double, "other"))


async def test_a_tool_with_a_wrong_hook_of_its_own_is_refused() -> None:
    class Typo(Hook):
        def will_authorise(self, ctx: InvokeContext) -> None: ...

    async with gate_of([made(double)]) as gate:
        with refused(gate, HookError, "will_authorize"):
            gate.add(made(double, "other", hooks=[Typo()]))


async def test_the_registry_of_an_open_gate_is_checked_as_well() -> None:
    async with guarded(made(double)) as gate:
        with refused(gate, RegistrationError, "no hook authorises"):
            gate.registry.add_inline(pays())
        gate.registry.remove("work")
        with pytest.raises(UnknownTool):
            await gate.invoke("work", {"n": 1})


# ---------------------------------------------------------------------- remove


@pytest.mark.parametrize("given", ["name", "object"])
async def test_a_removed_tool_cannot_be_called_and_calls_under_way_finish(given: str) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def waits(n: int) -> int:
        began.set()
        await go_on.wait()
        return n

    record = made(waits)
    async with gate_of([record, made(double, "other")]) as gate:
        running = asyncio.ensure_future(gate.invoke(record, {"n": 1}))
        await began.wait()
        assert gate.remove("work" if given == "name" else record) is record
        for asked in ("work", record):
            with pytest.raises(UnknownTool):
                await gate.invoke(asked, {"n": 1})
        assert (await gate.call(call())).outcome is Outcome.INVALID
        assert not gate.hydrate(call()).success
        assert [one.name for one in gate.tools_for()] == ["other"]
        go_on.set()
        assert await running == 1
        gate.add(made(double))  # the name is free again
        assert await gate.invoke("work", {"n": 2}) == 4


async def test_removing_an_unknown_tool_or_adding_a_known_one_is_refused() -> None:
    async with gate_of([made(double)]) as gate:
        with refused(gate, UnknownTool, "no tool 'wrok'"):
            gate.remove("wrok")
        with refused(gate, DefinitionError, "Duplicate"):
            gate.add(made(double))


async def test_a_replaced_tool_runs_from_the_next_call_on() -> None:
    async def triple(n: int) -> int:
        return 3 * n

    async with gate_of([made(double)]) as gate:
        assert await gate.invoke("work", {"n": 1}) == 2
        gate.add(made(triple), replace=True)
        assert await gate.invoke("work", {"n": 1}) == 3


# ---------------------------------------------------------------------- what is compiled


class Counted:
    """Counts compiled plans and schemas of a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans = self.schemas = 0
        compiles, compiles_schema = compile_plan, validation.compile_schema

        def plan(*given: Any, **options: Any) -> Any:
            self.plans += 1
            return compiles(*given, **options)

        def schema(*given: Any, **options: Any) -> Any:
            self.schemas += 1
            return compiles_schema(*given, **options)

        monkeypatch.setattr(plans, "compile_plan", plan)
        monkeypatch.setattr("callgate.runtime.pipeline.builtin.compile_schema", schema)


async def test_a_change_of_policy_compiles_no_schema_again_and_no_plan_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    async with guarded(*(pays(f"pay{number}") for number in range(30)), hooks=[ALL]) as gate:
        assert (counted.plans, counted.schemas) == (30, 30)
        undo = gate.use(Refuse())
        gate.definitions()
        await gate.maintain()
        assert (counted.plans, counted.schemas) == (30, 30)
        for _ in range(3):
            assert (await gate.call(call(name="pay7"))).outcome is Outcome.DENIED
        assert (counted.plans, counted.schemas) == (31, 30)
        undo()
        assert await gate.invoke("pay7", {"n": 1}) == 2
        assert (counted.plans, counted.schemas) == (32, 30)
        gate.add(pays("other"))
        gate.remove("pay3")
        await gate.invoke("pay7", {"n": 1})
        await gate.invoke("other", {"n": 1})
        assert (counted.plans, counted.schemas) == (33, 31)


async def test_hydrated_calls_stay_valid_when_the_policy_changes() -> None:
    async with gate_of([made(double)]) as gate:
        hydrated = gate.hydrate(call())
        gate.use(Authorize(permit("all")))
        plan = gate._plans.of("work")
        assert hydrated.vouched_for(plan.definition, plan.builtins.arguments)


# ---------------------------------------------------------------------- threads


def test_every_thread_may_change_the_tools_and_hooks_of_a_synchronous_gate() -> None:
    gate = gate_of([made(double)])
    for open_ in (False, True):
        tools = gate.sync().open() if open_ else gate.sync()
        with ThreadPoolExecutor(1) as threads:
            undo = threads.submit(tools.use, Refuse(), tools={"work"}).result(10)
            threads.submit(tools.add, made(double, "other")).result(10)
            if open_:
                assert tools.call("work", {"n": 1}).outcome is Outcome.DENIED
                assert tools.invoke("other", {"n": 1}) == 2
            threads.submit(undo).result(10)
            threads.submit(tools.remove, "other").result(10)
        if open_:
            assert tools.invoke("work", {"n": 1}) == 2
            with pytest.raises(UnknownTool):
                tools.invoke("other", {"n": 1})
    gate.sync().close()


def test_a_policy_holds_for_calls_of_all_threads_once_use_has_returned() -> None:
    """Threads call while hooks come and go; a call that begins under a policy never escapes it."""
    gate, escaped, over = gate_of([made(double)]), list[Outcome](), threading.Event()
    with gate.sync() as tools, ThreadPoolExecutor(4) as threads:

        def calls() -> None:
            while not over.is_set():
                tools.call("work", {"n": 1})
                tools.hydrate(call())

        callers = [threads.submit(calls) for _ in range(3)]
        for _ in range(40):
            undo = tools.use(Refuse())
            escaped += {tools.call("work", {"n": 1}).outcome} - {Outcome.DENIED}
            undo()
        over.set()
        for one in callers:
            one.result(10)
    assert not escaped
