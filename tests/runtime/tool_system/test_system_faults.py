"""The tool system under faults: order, cancellation at every point, records that fail; one observation a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import ToolCall, ToolResult
from callgate.testing import LeaseLedger, SweepFailed, SweepReport
from callgate.threads import (
    InMemoryObservations,
    InMemoryState,
    Observation,
    ParsedToolCall,
    ToolSystem,
    ToolSystemFault,
)
from tests.harness.steploop import StepLoop, on_virtual_time, run_virtual
from tests.harness.sweeps import swept
from tests.runtime.gate.making import ANYTHING, double, gate_of, made
from tests.runtime.tool_system.threading_tools import (
    NAMES,
    THREAD,
    TRACE,
    Answering,
    Recording,
    Setting,
    State,
    boom,
    hang,
    planned,
)

# ---------------------------------------------------------------------- order


@on_virtual_time
async def test_results_keep_the_order_of_the_plan_when_calls_end_in_another(loop: StepLoop) -> None:
    """Contract 74, 80."""

    async def wait(n: int) -> int:
        await asyncio.sleep(n)
        return n

    recording, began = Recording(), loop.time()
    async with gate_of([made(wait, "wait")]) as gate:
        system = ToolSystem(gate, observations=recording)
        plan = [planned("wait", {"n": n}, id=str(n)) for n in (30, 10, 20)]
        results = await system.execute_tools(plan, THREAD, TRACE)
    assert [result.output for result in results] == [30, 10, 20]
    assert recording.told == ["10: success", "20: success", "30: success"], "each is recorded as it ends"
    assert loop.time() - began < 31, "they ran together"


@pytest.mark.parametrize("at_once", [1, 2, 16])
async def test_no_more_run_together_than_allowed_and_a_tool_may_insist_on_running_alone(at_once: int) -> None:
    """Contract 74, 80, I11."""
    running: list[str] = []
    peak, beside = 0, list[list[str]]()

    async def work(name: str) -> None:
        nonlocal peak
        running.append(name)
        peak = max(peak, len(running))
        beside.append([*running])
        await asyncio.sleep(0)
        running.remove(name)

    async def free(n: int) -> None:
        await work("free")

    async def alone(n: int) -> None:
        await work("alone")

    async with gate_of([made(free, "free"), made(alone, "alone", parallel=False)]) as gate:
        system = ToolSystem(gate, at_once=at_once)
        await system.execute_tools([planned(name) for name in ["free"] * 5 + ["alone"] + ["free"] * 5], THREAD, TRACE)
    assert peak == min(at_once, 5)
    assert [together for together in beside if "alone" in together] == [["alone"]]


# ---------------------------------------------------------------------- cancellation


@on_virtual_time
async def test_a_cancelled_plan_records_what_ended_what_ran_and_what_never_began(loop: StepLoop) -> None:
    """Contract 74, 78, C1d, C12."""
    setting = Setting(state=State(), at_once=3)
    plan = [planned(id="done"), planned("held", id="first"), planned("held", id="second"), planned("held", id="third")]
    async with setting.gate:
        running = asyncio.ensure_future(setting.run(*plan, planned("double", id="last")))
        await setting.bodies.entered.wait()
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    ends = {one.content.call_id: one.content for one in setting.recording.attempts}
    assert len(setting.recording.attempts) == len(ends) == 5
    assert {name: end.error.code if end.error else "" for name, end in ends.items()} == {
        "done": "",
        "first": "cancelled",
        "second": "cancelled",
        "third": "cancelled",
        "last": "not_started",
    }
    assert setting.bodies.ran == ["double", "held", "held", "held"]
    assert all(end.duration is not None for end in ends.values())


@on_virtual_time
async def test_a_plan_cancelled_while_a_record_is_written_waits_for_that_record(loop: StepLoop) -> None:
    """Contract 78, C1d."""
    setting = Setting(recording=Recording(lambda: asyncio.sleep(3)))
    async with setting.gate:
        running = asyncio.ensure_future(setting.run(planned()))
        await asyncio.sleep(1)
        began = loop.time()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert setting.recording.told == ["c1: success"]
    assert len(setting.recording.of()) == 1, "the record came to its end"
    assert 1 < loop.time() - began < 3


@pytest.mark.parametrize("at_once", [1, 16])
@pytest.mark.parametrize("amount", [1, 5])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manager_that_hangs_delays_a_cancelled_plan_by_its_patience_not_by_its_length(
    when: str, amount: int, at_once: int
) -> None:
    """Contract 78, C1d, C29."""

    @on_virtual_time
    async def scenario(loop: StepLoop) -> None:
        setting = Setting(recording=Recording(hang), patience=7, at_once=at_once)
        async with setting.gate:
            running = asyncio.ensure_future(setting.run(*[planned("held", id=str(i)) for i in range(amount)]))
            if when == "after":
                await setting.bodies.entered.wait()
                await asyncio.sleep(1)
            else:
                await asyncio.sleep(0)
            began = loop.time()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert loop.time() - began < 15
        assert len(setting.recording.attempts) == amount
        assert [fault.event for fault in setting.faults] == ["tool_system.observation_failed"] * amount

    scenario()


async def test_a_tool_that_cancels_its_own_task_has_its_result_among_the_others() -> None:
    """Contract 74, I13."""

    async def suicidal(**_: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    recording = Recording()
    async with gate_of([made(suicidal, "suicidal", parameters=ANYTHING), made(double, "double")]) as gate:
        system = ToolSystem(gate, observations=recording)
        results = await system.execute_tools([planned(), planned("suicidal"), planned()], THREAD, TRACE)
    assert [result.outcome.value for result in results] == ["success", "cancelled", "success"]
    assert len(recording.attempts) == 3
    assert {id(one.content) for one in recording.attempts} == {id(result) for result in results}


class Swept:
    """A plan that waits in the state, the tool and the record; to be cancelled at every point. Counts its records."""

    def __init__(self, make: Callable[..., ToolSystem] = ToolSystem, at_once: int = 16) -> None:
        async def wait(n: int) -> int:
            await asyncio.sleep(n)
            return n

        self.gate = gate_of([made(wait, "wait"), made(wait, "alone", parallel=False)])
        self.make, self.at_once = make, at_once
        self.plan = [planned(name, {"n": n}, id=f"{n}") for n, name in enumerate(["wait", "wait", "alone", "nope"])]

    async def __call__(self, ledger: LeaseLedger) -> Any:
        written: list[str] = []

        class Slow(InMemoryObservations):
            async def record(self, observation: Observation, /) -> None:
                ledger.problems += [f"twice: {observation}"] if observation.content.call_id in written else []
                written.append(observation.content.call_id)
                await asyncio.sleep(0)
                await asyncio.sleep(0.5)
                await super().record(observation)

        async def answer() -> Any:
            await asyncio.sleep(0)
            return ["wait", "alone"]

        kept, began = Slow(), False
        system = self.make(self.gate, state=Answering(answer), observations=kept, at_once=self.at_once)
        try:
            async with self.gate:
                began = True
                results = await system.execute_tools(self.plan, THREAD, TRACE)
                return [(result.call_id, result.outcome.value) for result in results]
        finally:
            if began and sorted(one.content.call_id for one in kept.of(THREAD)) != ["0", "1", "2", "3"]:
                ledger.problems.append(f"lost: {len(kept.of())} of {len(self.plan)} records")


@swept
@pytest.mark.parametrize("at_once", [1, 16])
def test_no_cancellation_at_any_point_loses_a_record_or_writes_one_twice(
    at_once: int, sweep: dict[str, Any], every_cancel_point: Callable[..., SweepReport]
) -> None:
    """Contract 74, 78, C1d. I1, I13."""
    report = every_cancel_point(Swept(at_once=at_once), **sweep)
    assert report.findings == []
    assert report.points >= 135


class Sabotaged(ToolSystem):
    """The control: records only what came back."""

    async def execute_tools(self, calls: Any, thread_id: str, trace_id: str, **options: Any) -> list[ToolResult]:
        recorder: Any = self.observations
        self.observations = None
        results = await super().execute_tools(calls, thread_id, trace_id, **options)
        for result in results:
            await recorder.record(Observation(result, thread_id, trace_id, datetime.now(UTC)))
        return results


def test_the_sweep_notices_a_system_that_records_only_what_came_back(
    every_cancel_point: Callable[..., SweepReport],
) -> None:
    """Contract 78. I1."""
    with pytest.raises(SweepFailed, match="lost"):
        every_cancel_point(Swept(Sabotaged), pairs=10)


# ---------------------------------------------------------------------- records that fail


async def later() -> None:
    await asyncio.sleep(1)
    raise ValueError("SECRET")


DEEDS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (boom(OSError("SECRET")), "OSError"),
    "hangs": (hang, "TimeoutError"),
    "cancels": (boom(asyncio.CancelledError()), "CancelledError"),
    "raises later": (later, "ValueError"),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("told", ["told", "the callback raises", "nobody is told"])
def test_a_record_that_fails_changes_no_result_and_is_told(deed: str, told: str) -> None:
    """Contract 78, C29."""
    act, error = DEEDS[deed]

    @on_virtual_time
    async def scenario(loop: StepLoop) -> None:
        faults: list[ToolSystemFault] = []

        def note(fault: ToolSystemFault) -> None:
            faults.append(fault)
            if told == "the callback raises":
                raise LookupError

        setting = Setting(recording=Recording(act))
        setting.system.on_fault = None if told == "nobody is told" else note
        async with setting.gate:
            good, bad = await setting.run(planned(), planned("raising"))
        assert (good.output, bad.outcome.value) == (4, "error")
        for result in (good, bad):
            assert result.provenance["observation"] == "failed"
            assert "validated" in result.provenance, "what was known before still is"
            assert "observation" not in result.to_status()["metadata"]
        assert len(setting.recording.attempts) == 2
        logged = {"event": "tool_system.observation_failed", "thread_id": THREAD, "trace_id": TRACE, "call_id": "c1"}
        expected = [logged | {"tool": name, "error": error} for name in ("double", "raising")]
        assert [fault.to_log() for fault in faults] == ([] if told == "nobody is told" else expected)

    scenario()


async def test_a_manager_whose_methods_are_plain_will_do() -> None:
    """Contract 73, 78."""
    kept: list[Observation] = []

    class Plain:
        def enabled_tools(self, thread_id: str) -> list[str]:
            return ["double"]

        def record(self, observation: Observation) -> None:
            kept.append(observation)

    plain: Any = Plain()
    async with gate_of([made(double, "double")]) as gate:
        system = ToolSystem(gate, state=plain, observations=plain)
        assert (await system.execute_tools([planned()], THREAD, TRACE))[0].ok
    assert len(kept) == 1


async def test_the_memory_of_observations_is_bounded() -> None:
    """Contract 78, 80."""
    kept = InMemoryObservations(keep=3)
    async with gate_of([made(double, "double")]) as gate:
        system = ToolSystem(gate, observations=kept)
        await system.execute_tools([planned(id=str(i)) for i in range(5)], THREAD, TRACE)
    assert [one.content.call_id for one in kept.of(THREAD)] == ["2", "3", "4"]


# ---------------------------------------------------------------------- as many observations as calls

CALLS = st.builds(
    ParsedToolCall,
    call_id=st.sampled_from(["c1", "c2", ""]),
    tool_name=st.sampled_from([*NAMES, "nope", ""]),
    arguments=st.sampled_from([{"n": 2}, {"n": "x"}, "{", '{"n": 1}', None, []]),
) | st.builds(ToolCall, id=st.text(max_size=2), name=st.sampled_from(NAMES), truncated=st.booleans())
STATES = st.sampled_from(
    [
        lambda: None,
        State,
        lambda: State("double", "held"),
        InMemoryState,
        lambda: Answering(boom(OSError())),
        lambda: Answering(hang),
        lambda: Answering(lambda: asyncio.sleep(1, ["double", "slow"])),
    ]
)
RECORDERS = st.sampled_from([None, boom(OSError()), hang, lambda: asyncio.sleep(1)])


def attempts_of(make: type[ToolSystem], plan: list[Any], state: Any, deed: Any, cancel_at: Any) -> list[Observation]:
    """What a system gave to its observation manager in one run, which is cancelled after so many seconds, if ever."""

    async def go() -> list[Observation]:
        setting = Setting(recording=Recording(deed))
        system = make(setting.gate, state=state(), observations=setting.recording, at_once=2)
        async with setting.gate:
            running = asyncio.ensure_future(system.execute_tools(plan, THREAD, TRACE, deadline=5))
            await asyncio.wait([running], timeout=cancel_at)
            if cancelled := not running.done():
                running.cancel()
                await asyncio.wait([running])
            assert running.cancelled() is cancelled
            if not cancelled:
                assert [result.call_id for result in running.result()] == [
                    getattr(one, "call_id", getattr(one, "id", "")) for one in plan
                ]
        return setting.recording.attempts

    return run_virtual(go())


def check(make: type[ToolSystem], plan: list[Any], state: Any, deed: Any, cancel_at: Any) -> None:
    attempts = attempts_of(make, plan, state, deed, cancel_at)
    told = sorted(one.content.call_id for one in attempts)
    assert told == sorted(getattr(one, "call_id", getattr(one, "id", "")) for one in plan)


@settings(max_examples=200, deadline=None)
@given(st.lists(CALLS, max_size=6), STATES, RECORDERS, st.none() | st.floats(0.0, 12.0))
def test_there_are_as_many_observations_as_calls_whatever_happens(
    plan: list[Any], state: Any, deed: Any, cancel_at: float | None
) -> None:
    """Contract 74, 78, C12, C29."""
    check(ToolSystem, plan, state, deed, cancel_at)


def test_the_count_of_observations_notices_a_system_that_records_only_what_came_back() -> None:
    """Contract 78."""
    check(Sabotaged, [planned()], State, None, None)
    with pytest.raises(AssertionError):
        check(Sabotaged, [planned("slow")], State, None, 1.0)
