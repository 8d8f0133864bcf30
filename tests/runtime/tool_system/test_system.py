"""The tool system: which tools a thread may see and run, and what becomes of each call of its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from callgate import Outcome, ToolCall, ToolContext, ToolResult, User, tool
from callgate.providers.clock import FakeClock
from callgate.threads import ExecutionContext, InMemoryState, ParsedToolCall, ToolSystem
from callgate.tools import ToolSchema
from callgate.tools.calculator import CalculatorTool
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.gate.making import call, double, gate_of, made
from tests.runtime.tool_system.threading_tools import (
    NAMES,
    THREAD,
    TRACE,
    USER,
    Answering,
    Recording,
    Setting,
    State,
    boom,
    hang,
    planned,
)

# ---------------------------------------------------------------------- the matrix

ENDS: dict[str, tuple[ParsedToolCall, Callable[[], Any], str, str]] = {
    # what is planned, the state, the outcome, the code of the error
    "enabled": (planned(), State, "success", ""),
    "no state at all": (planned(), lambda: None, "success", ""),
    "not enabled": (planned(), lambda: State("double"), "denied", "not_enabled"),
    "unknown": (planned("nope"), lambda: None, "invalid", "unknown_tool"),
    "unknown, yet enabled": (planned("nope"), lambda: State(also=["nope"]), "invalid", "unknown_tool"),
    "unknown and not enabled": (planned("nope"), State, "denied", "not_enabled"),
    "invalid": (planned(arguments={"n": "SECRET"}), State, "invalid", "invalid_arguments"),
    "invalid text": (planned(arguments="{SECRET"), State, "invalid", "invalid_json"),
    "invalid and not enabled": (planned(arguments={"n": "x"}), lambda: State("double"), "denied", "not_enabled"),
    "denied": (planned("denied"), State, "denied", "denied"),
    "raising": (planned("raising"), State, "error", "tool_failed"),
    "slow": (planned("slow"), State, "error", "deadline_exceeded"),
    "nothing is enabled": (planned(), lambda: InMemoryState({THREAD: []}), "denied", "not_enabled"),
    "not configured": (planned(), InMemoryState, "denied", "not_enabled"),
    "state raises": (planned(), lambda: Answering(boom(OSError("SECRET"))), "denied", "not_enabled"),
    "state hangs": (planned(), lambda: Answering(hang), "denied", "not_enabled"),
    "state cancels": (planned(), lambda: Answering(boom(asyncio.CancelledError())), "denied", "not_enabled"),
    "state says one string": (planned(), lambda: Answering(lambda: "double"), "denied", "not_enabled"),
    "state says a number": (planned(), lambda: Answering(lambda: 7), "denied", "not_enabled"),
    "a name that is no text": (ParsedToolCall("c1", ["double"]), State, "denied", "not_enabled"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("recorded", ["recorded", "recording fails"])
@pytest.mark.parametrize("amount", [1, 3])
@pytest.mark.parametrize("end", ENDS)
def test_every_call_has_one_result_and_is_recorded_once_however_it_ends(end: str, amount: int, recorded: str) -> None:
    """Contract 74, 76, 77, 78, C12, C28, C29, I9."""
    one, make_state, outcome, code = ENDS[end]
    plan = [ParsedToolCall(f"c{i}", one.tool_name, one.arguments) for i in range(amount)]

    @on_virtual_time
    async def scenario(loop: StepLoop) -> None:
        fails = recorded == "recording fails"
        setting = Setting(state=make_state(), recording=Recording(boom(OSError("SECRET"))) if fails else None)
        async with setting.gate:
            results = await setting.run(*plan, deadline=5)
        assert loop.time() < 1_000 + 15, "nothing hangs for longer than the deadline or the patience"
        assert [result.call_id for result in results] == [each.call_id for each in plan]
        assert {result.tool for result in results} == {one.tool_name} if isinstance(one.tool_name, str) else True
        for result in results:
            assert result.outcome.value == outcome
            assert (result.error.code if result.error else "") == code
            assert result.duration is not None
            shown = result.to_status()
            assert shown["status"] == ("success" if outcome == "success" else "error")
            assert ("output" in shown) is (outcome == "success") is not ("error" in shown)
            assert "SECRET" not in f"{shown} {result.error} {result.provenance}"
            assert bool(result.provenance and result.provenance.get("observation") == "failed") is fails
        assert sorted(setting.recording.told) == [f"{each.call_id}: {outcome}" for each in plan]
        assert len(setting.bodies.ran) == (amount if code in {"", "tool_failed", "deadline_exceeded"} else 0)
        assert "SECRET" not in str([fault.to_log() for fault in setting.faults])

    scenario()


async def test_a_plan_of_all_kinds_ends_each_in_its_own_way_and_in_its_place() -> None:
    """Contract 74, 77, 78."""
    setting = Setting(state=State("slow"))
    names = ["double", "slow", "nope", "raising", "denied", "double"]
    plan = [planned(name, id=str(i)) for i, name in enumerate(names)]
    async with setting.gate:
        results = await setting.run(*plan)
    ends = ["success", "denied", "denied", "error", "denied", "success"]
    assert [(result.call_id, result.outcome.value) for result in results] == list(zip("012345", ends, strict=True))
    assert sorted(setting.recording.told) == [f"{i}: {end}" for i, end in enumerate(ends)]


# ---------------------------------------------------------------------- seen and run: one rule


@pytest.mark.parametrize(
    "state",
    [None, State(), State("double"), InMemoryState({THREAD: []}), InMemoryState(), Answering(boom(OSError()))],
    ids=["none", "all", "one less", "empty", "not configured", "failing"],
)
async def test_what_a_thread_may_see_is_what_it_may_run(state: Any) -> None:
    """Contract 72, 73, C28."""
    system = Setting(state=state).system
    plan = [planned(name, id=name) for name in NAMES if name not in {"slow", "held"}]
    async with system.gate:
        seen = {schema.name for schema in await system.available_tools(THREAD)}
        told = {definition.name for definition in await system.definitions(THREAD)}
        enabled = {name for name in NAMES if await system.is_tool_enabled(THREAD, name)}
        results = await system.execute_tools(plan, THREAD, TRACE)
    assert seen == told == enabled
    for result in results:
        assert (result.error is not None and result.error.code == "not_enabled") is (result.tool not in seen)


async def test_a_planner_is_told_schemas_in_the_order_of_registration() -> None:
    """Contract 71, 72."""
    gate = gate_of([made(double, "second"), made(double, "first"), made(double, "third")])
    system = ToolSystem(gate, state=InMemoryState({"a": ["first", "second", "gone"], "b": ["third"]}))
    schemas = await system.available_tools("a")
    assert [schema.name for schema in schemas] == ["second", "first"]
    assert schemas[0] == ToolSchema.from_definition(gate.definitions()[0])
    assert [one["name"] for one in (await system.definitions("b", "anthropic"))["tools"]] == ["third"]


async def test_roles_hide_a_tool_from_a_thread_for_which_it_is_enabled() -> None:
    """Contract 10, 72, C28."""

    @tool(effect="read", allowed_roles={"admin"})
    async def secret() -> int:
        return 1

    async with gate_of([secret]) as gate:
        system = ToolSystem(gate, state=InMemoryState({THREAD: ["secret"]}))
        for user, sees in [(USER, False), (User("a", roles={"admin"}), True)]:
            assert bool(await system.available_tools(THREAD, user=user)) is sees
            (result,) = await system.execute_tools([planned("secret", {})], THREAD, TRACE, user=user)
            assert result.ok is sees


async def test_threads_do_not_share_their_tools() -> None:
    """Contract 73."""
    state = InMemoryState({"a": ["double"], "b": ["raising"]})
    setting = Setting(state=state)
    async with setting.gate:
        assert [(await setting.run(planned(), thread=thread))[0].ok for thread in "abc"] == [True, False, False]
        state.enable_only("b", ["double"])
        state.forget("a")
        assert [(await setting.run(planned(), thread=thread))[0].ok for thread in "abc"] == [False, True, False]
    with pytest.raises(TypeError, match="one string"):
        state.enable_only("a", "double")


async def test_a_tool_taken_from_a_thread_while_its_plan_runs_does_not_run_any_more() -> None:
    """Contract 74, C28."""
    state = InMemoryState({THREAD: ["revoke", "double"]})

    async def revoke(n: int) -> None:
        state.enable_only(THREAD, ["revoke"])

    async with gate_of([made(double, "double"), made(revoke, "revoke", parallel=False)]) as gate:
        system = ToolSystem(gate, state=state)
        results = await system.execute_tools([planned(), planned("revoke"), planned()], THREAD, TRACE)
    assert [result.ok for result in results] == [True, True, False]


async def test_a_tool_that_is_not_enabled_looks_like_one_that_does_not_exist() -> None:
    """Contract 74, C29: the record for developers and what a model reads are the same, but for the name."""
    setting = Setting(state=State("double"))
    async with setting.gate:
        there, missing = await setting.run(planned("double"), planned("doubel"))
    assert there.error == missing.error
    assert there.provenance == missing.provenance == {"not_enabled": "not_listed"}
    assert there.error is not None
    assert "doub" not in there.error.public
    assert setting.bodies.ran == []


@pytest.mark.parametrize(
    ("state", "event", "error", "reason"),
    [
        (InMemoryState(), "tool_system.state_missing", None, "not_configured"),
        (Answering(boom(OSError("SECRET"))), "tool_system.state_failed", "OSError", "state_failed"),
        (Answering(lambda: "double"), "tool_system.state_failed", "TypeError", "state_failed"),
    ],
)
async def test_why_nothing_is_enabled_is_told_to_developers(state: Any, event: str, error: Any, reason: str) -> None:
    """Contract 73, C28."""
    setting = Setting(state=state)
    async with setting.gate:
        (result,) = await setting.run(planned())
        assert await setting.system.available_tools(THREAD) == []
    assert result.provenance == {"not_enabled": reason}
    first, second = (fault.to_log() for fault in setting.faults)
    common = {"event": event, "thread_id": THREAD} | ({"error": error} if error else {})
    assert first == common | {"trace_id": TRACE, "call_id": "c1", "tool": "double"}
    assert second == common


async def test_each_call_is_asked_for_once_and_none_without_a_state() -> None:
    """Contract 74."""
    state = State()
    setting = Setting(state=state)
    async with setting.gate:
        await setting.run(planned(), planned(), planned("nope"))
    assert state.asked == 3


# ---------------------------------------------------------------------- calls, contexts, results


async def test_all_spellings_of_a_call_are_taken_and_what_is_none_has_a_result_too() -> None:
    """Contract 75, C12."""
    setting = Setting()
    wrong: Any = [None, 7, object()]
    async with setting.gate:
        plan = [
            planned(id="a"),
            ToolCall(id="b", name="double", arguments='{"n": 2}'),
            setting.gate.hydrate(call({"n": 2}, "double", id="c")),
            {"callId": "d", "toolName": "double", "arguments": {"n": 2}},
            {"toolName": "double"},
            *wrong,
        ]
        results = await setting.run(*plan)
    assert [(result.call_id, result.output) for result in results[:4]] == [(letter, 4) for letter in "abcd"]
    assert [result.error.code for result in results[4:] if result.error] == ["invalid_arguments"] + ["unknown_tool"] * 3
    assert len(setting.recording.attempts) == len(plan)


async def test_an_empty_plan_has_no_results() -> None:
    """Contract 74."""
    setting = Setting()
    async with setting.gate:
        assert await setting.run() == []
    assert setting.recording.attempts == []


async def test_a_tool_learns_its_thread_trace_user_and_session() -> None:
    """Contract 75."""
    seen: list[Any] = []

    async def look(n: int) -> None:
        seen.append(ExecutionContext.current())

    def look_in_a_thread(n: int) -> None:
        seen.append(ExecutionContext.current())

    tools = [made(look, "look"), made(look_in_a_thread, "plain", is_async=False)]
    async with gate_of(tools) as gate:
        system = ToolSystem(gate)
        for name in ("look", "plain"):
            await system.execute_tools([planned(name)] * 2, "t", "x", user=USER, session_id="s")
        await system.execute_tools([planned("look")], "t", "x")
        await gate.call(call(name="look"))
    assert seen == [ExecutionContext("t", "x", "u", "s")] * 4 + [ExecutionContext("t", "x")] + [None]
    assert ExecutionContext.current() is None


async def test_a_tool_reads_its_thread_and_trace_from_its_context() -> None:
    """Contract 75. A nested call belongs to the same thread; a call outside a plan has its request id as the trace."""
    seen: list[Any] = []

    @tool(effect="read")
    def inner(ctx: ToolContext) -> None:
        """Look."""
        seen.append((ctx.thread_id, ctx.trace_id))

    @tool(effect="read")
    async def outer(ctx: ToolContext) -> None:
        """Look, and call another tool that looks."""
        seen.append((ctx.thread_id, ctx.trace_id))
        await ctx.call(inner)

    async with gate_of([outer, inner]) as gate:
        await ToolSystem(gate).execute_tools([planned("outer", {})], "t", "x", user=USER)
        await gate.call(call(name="inner", arguments={}), user=USER, request_id="r")
    assert seen == [("t", "x"), ("t", "x"), (None, "r")]


async def test_a_result_has_the_documents_shape_and_the_trace_as_its_correlation_id() -> None:
    """Contract 76, C11."""
    setting = Setting(state=State("denied"))
    async with setting.gate:
        good, *bad = await setting.run(planned(), planned("raising"), planned("denied"), planned("slow"), deadline=0.01)
    shown = good.to_status()
    assert {**shown, "metadata": {}} == {
        "callId": "c1",
        "toolName": "double",
        "status": "success",
        "output": 4,
        "metadata": {},
    }
    assert shown["metadata"]["outcome"] == "success"
    assert 0 <= shown["metadata"]["duration"] < 60
    for result in bad:
        assert result.error is not None
        assert result.error.correlation_id == TRACE
        assert result.to_status()["error"] == result.error.public


async def test_an_observation_tells_thread_trace_time_and_result() -> None:
    """Contract 78."""
    clock, recording = FakeClock(), Recording()
    async with gate_of([made(double, "double")], clock=clock) as gate:
        system = ToolSystem(gate, observations=recording)
        (result,) = await system.execute_tools([planned()], THREAD, TRACE)
        await system.execute_tools([planned()], "other", TRACE)
    observation, other = recording.attempts
    assert observation.content is result
    assert observation.to_dict() == {
        "type": "TOOL_EXECUTION",
        "threadId": THREAD,
        "traceId": TRACE,
        "timestamp": datetime.fromtimestamp(clock.now, UTC).isoformat(),
        "content": result.to_status(),
    }
    assert recording.of(THREAD) == recording.of(THREAD, TRACE) == [observation]
    assert recording.of("other") == [other]
    assert recording.of(trace_id=TRACE) == recording.of() == recording.attempts
    assert recording.of(THREAD, "elsewhere") == []


async def test_a_closed_gate_is_a_result_for_each_call() -> None:
    """Contract 74, C12."""
    setting = Setting(state=State())
    results = await setting.run(planned(id="1"), planned(id="2"))
    assert [result.outcome for result in results] == [Outcome.ERROR] * 2
    assert {result.error.code for result in results if result.error} == {"gate_closed"}
    assert setting.recording.told == ["1: error", "2: error"]
    assert [fault.event for fault in setting.faults] == ["tool_system.call_failed"] * 2


@pytest.mark.parametrize("wrong", [{"at_once": 0}, {"patience": 0}, {"patience": float("nan")}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Contract 74."""
    with pytest.raises(ValueError, match="must be"):
        ToolSystem(gate_of([]), **wrong)


async def test_the_calculator_runs_for_a_thread_as_the_guide_shows() -> None:
    """Contract 71, 79."""
    async with gate_of([CalculatorTool()]) as gate:
        system = ToolSystem(gate, state=InMemoryState({THREAD: ["CalculatorTool"]}))
        assert [schema.name for schema in await system.available_tools(THREAD)] == ["CalculatorTool"]

        async def work_out(expression: str) -> ToolResult:
            return (await system.execute_tools([planned("CalculatorTool", {"expression": expression})], THREAD, TRACE))[
                0
            ]

        assert (await work_out("sqrt(16) + 2^3")).to_status()["output"] == {"result": 12}
        assert (await work_out("1 / 0")).to_status()["error"].startswith("Calculation failed: ")
