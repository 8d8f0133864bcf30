"""What comes and goes a thousand times leaves nothing behind: hooks, tools, servers, sessions. Issue 38, 5."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callgate import (
    Effect,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Options,
    Outcome,
    ToolCall,
    ToolContext,
    ToolDefinition,
    User,
    hooks,
    tool,
)
from callgate.errors import HookError
from callgate.hooks import Audit, CircuitBreaker, Concurrency, Quota, RequireApproval
from callgate.hooks.stock import options as hook_options
from callgate.hooks.stock.policy import authorize
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.gate import gate as gate_module
from callgate.runtime.pipeline.services import Services
from callgate.testing import VirtualTime
from callgate.tools.record import ToolRecord
from tests.runtime.hosts.a2a.making import SEARCH

ANN, KEY = User("ann", tenant="acme"), "the key of the service"
ROUNDS, BLOCK = 100, 20
Round = Callable[[Gate], Awaitable[None]]


@tool(effect="read")
async def look(number: int) -> int:
    """Look."""
    return number


async def _other(arguments: dict[str, Any], _: ToolContext) -> Any:
    return arguments["number"]


PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
OTHER = ToolRecord(ToolDefinition("other", "Look elsewhere.", PARAMETERS, effect=Effect.READ), _other)

# ---------------------------------------------------------------------- what comes and goes

STOCK: dict[str, Callable[[], Hook]] = {
    "audit": Audit,
    "audit to the log": lambda: Audit("log"),
    "breaker": lambda: CircuitBreaker(shared=True),
    "cache": lambda: hooks.Cache(60),
    "concurrency": lambda: Concurrency(2),
    "shared concurrency": lambda: Concurrency(2, shared=True, ttl=3.0),
    "consent": lambda: hooks.Consent(tools={"none"}),
    "deadline": lambda: hooks.Deadline(5),
    "flags": lambda: hooks.FeatureFlags({"callgate.look": True}),
    "metrics": hooks.Metrics,
    "output": lambda: hooks.OutputPolicy(1_000),
    "quota": lambda: Quota("1000000/day"),
    "redact": lambda: hooks.Redact("number"),
    "retry": hooks.Retry,
    "tracing": hooks.Tracing,
}


def used(make: Callable[[], Hook]) -> Round:
    """Use a hook for one call, and take it back."""

    async def once(gate: Gate) -> None:
        undo = gate.use(make())
        assert (await gate.call("look", {"number": 1}, user=ANN)).ok
        undo()

    return once


async def bring(gate: Gate) -> None:
    """Add a tool with hooks of its own, replace it, and remove it."""
    for title in ("first", "second"):
        gate.add(replace(OTHER, hooks=(Audit(),)), replace=title == "second")
        assert (await gate.call("other", {"number": 1}, user=ANN)).ok
    gate.remove("other")


async def offer(gate: Gate) -> None:
    """Serve a task whose client brings a tool."""
    from callgate.runtime.hosts.a2a.client_tools import client_tools

    task = gate.with_tools(client_tools([SEARCH]))
    assert "search" in task.registry
    assert (await task.call("look", {"number": 1}, user=ANN)).ok


async def visit(gate: Gate) -> None:
    """Open a session for one call, and end it."""
    async with gate.session(user=ANN) as session:
        assert (await session.call("look", {"number": 1})).ok


async def listen(gate: Gate) -> None:
    """Listen for changes of the tools, and for the end of the gate."""

    async def close() -> None:
        """Close nothing."""

    gate.on_tools_changed(lambda: None)()
    gate.at_close(close)()


WHAT: dict[str, Round] = {
    **{f"hook: {name}": used(make) for name, make in STOCK.items()},
    "tool with a hook": bring,
    "client tool": offer,
    "session": visit,
    "listener": listen,
}
REGISTERING = ("hook: audit", "hook: audit to the log", "hook: shared concurrency", "tool with a hook", "listener")


# ---------------------------------------------------------------------- what is kept


def kept(gate: Gate) -> Counter[str]:
    """Count what the gate keeps, and the objects of Callgate that live."""
    gc.collect()
    services, found = gate.services, Counter[str]()
    found["closers"] = len(services.closers)
    found["tasks"] = len(asyncio.all_tasks()) + len(services.left_behind.tasks)
    found["sessions"] = len(gate.providers.sessions)
    found["chains"] = len(getattr(gate.store.audit, "noting", ()))
    for one in gc.get_objects():
        kind = type(one)
        if kind.__module__.startswith("callgate.") and kind.__name__ not in {"AuditRow", "LogChain"}:
            found[f"{kind.__module__}.{kind.__name__}"] += 1
    return found


async def grown(gate: Gate, once: Round) -> tuple[dict[str, int], float]:
    """Return what the gate keeps more after 100 rounds, and the bytes of a round."""

    async def rounds(count: int) -> None:
        for number in range(count):
            await once(gate)
            if number % BLOCK == BLOCK - 1:
                await gate.maintain()
        await asyncio.sleep(60)  # virtual
        await gate.maintain()

    await rounds(BLOCK)
    before = kept(gate)
    tracemalloc.start()
    try:
        await rounds(BLOCK)
        memory = tracemalloc.get_traced_memory()[0]
        await rounds(ROUNDS - BLOCK)
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0] - memory
    finally:
        tracemalloc.stop()
    more = kept(gate) - before
    return {name: count for name, count in more.items() if count >= BLOCK}, memory / (ROUNDS - BLOCK)


def measured(virtual_time: VirtualTime, once: Round) -> tuple[dict[str, int], float]:
    store, options = MemoryStore(virtual_time.clock.time), Options(clock=virtual_time.clock, closing=1_000.0)
    store.audit.max_rows = BLOCK  # the rows are no leak

    async def run() -> tuple[dict[str, int], float]:
        given: Any = {"allow_unguarded": True, "effects": Effects(durable=False), "options": options}
        async with Gate([look], store=store, signing_keys=[KEY], **given) as gate:
            return await grown(gate, once)

    found: tuple[dict[str, int], float] = virtual_time.run(run())
    return found


@pytest.mark.parametrize("what", WHAT)
def test_what_comes_and_goes_leaves_nothing_behind(virtual_time: VirtualTime, what: str) -> None:
    """100 times each: closers, tasks, sessions, objects and memory."""
    more, memory = measured(virtual_time, WHAT[what])
    assert more == {}
    assert memory < 500, "bytes a round"


@pytest.mark.parametrize("weak", [True, False], ids=["weak", "control that keeps plans"])
async def test_client_tools_with_ever_new_names_leave_nothing_in_the_hooks(
    weak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client chooses the names of its tools; hooks remember what they know of a tool by its name."""
    from callgate.runtime.hosts.a2a.client_tools import client_tools

    monkeypatch.setattr(hook_options, "MOST_TOOLS", 10)
    if not weak:
        monkeypatch.setattr(authorize, "ref", lambda one: lambda: one)
    store, flags = MemoryStore(), hooks.FeatureFlags(lambda *_: True)
    staying: list[Any] = [hooks.Authorize(roles={"clerk"}), flags, hooks.Consent(lambda _: "use", store=store)]
    user = User("ann", roles={"clerk"})
    plans: list[weakref.ref[object]] = []

    async def one_task(gate: Gate, name: str) -> None:
        task = gate.with_tools(client_tools([{**SEARCH, "name": name}]))
        await staying[2].grant(user, task.registry.get(name).definition)
        call = ToolCall(id=name, name=name, arguments={"query": "x"})
        assert (await task.call(call, user=user)).outcome is Outcome.SUSPENDED
        plans.append(weakref.ref(task._plans.of(name)))

    async with Gate([look], staying, store=store, signing_keys=[KEY], effects=Effects(durable=False)) as gate:
        for number in range(30):
            await one_task(gate, f"search_{number}")
        assert all(0 < len(one._by_tool) <= 10 for one in staying)
        gc.collect()
        assert (sum(one() is not None for one in plans) <= 2) is weak


@pytest.mark.parametrize("what", REGISTERING)
def test_control_without_the_giving_back_a_gate_keeps_each(
    virtual_time: VirtualTime, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_close = Services.at_close

    async def nothing(*_: object) -> None:
        """Close no hook that has left."""

    def for_ever(self: Services, *given: Any) -> Callable[[], object]:
        at_close(self, *given)
        return lambda: None

    monkeypatch.setattr(gate_module, "close_left_hooks", nothing)
    monkeypatch.setattr(Services, "at_close", for_ever)
    more, _ = measured(virtual_time, WHAT[what])
    assert more["closers"] >= ROUNDS


@pytest.mark.parametrize("left", [True, False], ids=["left", "control that stays"])
async def test_the_segment_of_a_hook_that_left_ends_with_an_anchor(tmp_path: Path, left: bool) -> None:
    """Otherwise nobody would notice that its last rows were cut off. Rows that come later begin another segment."""
    async with Gate([look], allow_unguarded=True, store=f"sqlite:///{tmp_path}/a.db", signing_keys=[KEY]) as gate:
        audit = Audit()
        for number in (1, 2):
            undo = gate.use(audit)
            await gate.call("look", {"number": 1}, user=ANN)
            if left:
                undo()
            await gate.maintain()
            assert len(await gate.store.audit.anchors()) == (number if left else 0)
        assert len({row.segment async for row in gate.store.audit.read(None)}) == (2 if left else 1)


async def test_a_hook_that_left_is_closed_after_its_calls_have_ended() -> None:
    """A call that began with it writes its row in the same segment."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> None:
        """Wait."""
        begun.set()
        await go_on.wait()

    async with Gate([wait, look], allow_unguarded=True, signing_keys=[KEY]) as gate:
        undo = gate.use(Audit())
        await gate.call("look", {"number": 1}, user=ANN)
        running = asyncio.ensure_future(gate.call("wait", user=ANN))
        await begun.wait()
        undo()
        await gate.maintain()
        assert len(gate.services.closers) == 1
        go_on.set()
        await running
        await gate.maintain()
        assert not gate.services.closers
        rows = [(row.segment, row.number) async for row in gate.store.audit.read(None)]
        assert sorted(rows) == [(rows[0][0], 1), (rows[0][0], 2)]


@contextlib.asynccontextmanager
async def in_turn(gate: Gate) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Yield a function that mounts a remote server and closes it."""
    pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")
    from tests.runtime.remote.mcp.test_mounted import at, toy_served

    async with toy_served() as (_, running):

        async def once() -> None:
            mounted = await gate.mount(at(running))
            assert mounted.is_up
            await mounted.close()

        yield once


@pytest.mark.parametrize("given_back", [True, False], ids=["given back", "control that is not"])
async def test_a_server_that_was_mounted_and_closed_leaves_nothing_behind(
    given_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not given_back:
        at_close = Services.at_close
        monkeypatch.setattr(Services, "at_close", lambda self, *given: (at_close(self, *given), lambda: None)[1])
    async with Gate([look], allow_unguarded=True) as gate, in_turn(gate) as once:
        await once()
        tasks, closers = len(asyncio.all_tasks()), len(gate.services.closers)
        for _ in range(10):
            await once()
        assert (len(asyncio.all_tasks()) - tasks, len(gate.services.closers) - closers) == (0, 0 if given_back else 10)


# ---------------------------------------------------------------------- hook classes

CLASSES: dict[str, Any] = {"audit": Audit, "breaker": CircuitBreaker, "limit": Concurrency, "quota": Quota}


@pytest.mark.parametrize("name", CLASSES)
def test_a_hook_whose_state_is_that_of_many_calls_is_no_class(name: str) -> None:
    """An instance for each call would count one call, or write a segment for each."""
    with pytest.raises(HookError, match="hold for many calls: register an object"):
        Gate([look], [CLASSES[name]], allow_unguarded=True)
    assert Gate([look], [CLASSES[name]], allow_unguarded=True, options=Options(resolve=lambda _: CLASSES[name](1)))


async def test_control_an_audit_class_would_write_a_segment_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Audit, "keeps_state", False)
    async with Gate([look], [Audit], allow_unguarded=True) as gate:
        for _ in range(5):
            await gate.call("look", {"number": 1}, user=ANN)
        assert len({row.segment async for row in gate.store.audit.read(None)}) == 5


def test_a_hook_class_with_a_method_that_no_call_asks_is_refused() -> None:
    """It would hide no tool, and ask for no approval."""

    class Hides(Hook):
        """A hook."""

        def may_see(self, _user: User, _definition: object) -> bool:
            """Hide all tools."""
            return False

        def will_authorize(self, ctx: InvokeContext) -> None:
            """Permit all calls."""

    for one in (Hides, RequireApproval):
        with pytest.raises(HookError, match=rf"write {one.__name__}\(\)"):
            Gate([look], [one], allow_unguarded=True)
    assert Gate([look], [Hides()], allow_unguarded=True).tools_for(ANN) == []
