"""The harness counts and reports right. Nothing here looks at a clock."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import streams, timing
from benchmarks.counts import count_calls, count_loop_work, loop_work, methods_of
from benchmarks.floors import floor1, floor2
from benchmarks.inflight import cpu
from benchmarks.overhead import idle_gate
from benchmarks.table import Row
from benchmarks.timing import EXPECTED, Effort, Measured, interleave
from benchmarks.twelve import call_of, make_tool, twelve, twelve_gate
from callgate import Gate, Hook
from callgate.hooks.stages import Stage

TINY = Effort(rounds=3, batch_us=50.0, in_flight=20, pairs=1, tools=2_300, builds=3)


# ---------------------------------------------------------------------- timing


async def test_every_case_is_timed_against_every_reference_in_every_round() -> None:
    found = await interleave({"one": floor1(), "two": floor2()}, {"ref": floor2(), "other": floor1()}, TINY)
    assert found.keys() == {"one", "two", "ref", "other"}
    for name in ("one", "two"):
        assert len(found[name].cpu) == TINY.rounds
        assert {key: len(ratios) for key, ratios in found[name].ratios.items()} == {"ref": 3, "other": 3}
    assert len(found["ref"].cpu) == 2 * TINY.rounds + 1, "a flank is shared by its neighbours"


async def test_a_case_with_a_wrong_result_stops_the_run() -> None:
    async def wrong() -> dict[str, int]:
        return {"sum": 4}

    with pytest.raises(SystemExit, match="broken"):
        await interleave({"wrong": wrong}, {"ref": floor1()}, TINY)
    with pytest.raises(SystemExit, match="broken"):
        await cpu(wrong, 3)


def test_the_cost_over_another_case_is_taken_round_by_round() -> None:
    fast = Measured([1.0] * 3, {"ref": [1.0, 2.0, 9.0]})
    slow = Measured([1.0] * 3, {"ref": [1.5, 2.5, 9.5]})
    assert slow.minus(fast, "ref") == 0.5
    assert slow.x("ref") == 2.5


async def test_hooks_of_other_tools_cost_no_function_call() -> None:
    async with Gate([make_tool()]) as bare, idle_gate() as idle:
        assert await count_calls(call_of(idle)) == await count_calls(call_of(bare))


# ---------------------------------------------------------------------- the twelve hooks


def test_there_are_twelve_hooks_with_fourteen_methods_of_which_five_wait() -> None:
    hooks, _ = twelve()
    methods = methods_of(hooks)
    assert len(hooks) == 12
    assert len(methods) == 14
    assert sum(map(inspect.iscoroutinefunction, methods)) == 5
    assert {method.__name__ for method in methods} <= {stage.value for stage in Stage}


async def test_each_of_them_does_its_work_at_each_call() -> None:
    gate, ledger = twelve_gate()
    async with gate:
        call = call_of(gate)
        assert [await call() for _ in range(3)] == [EXPECTED] * 3
        assert str(gate.explain("add")).count("\n") >= 14
    assert ledger.counters == {"calls": 3, "errors": 0}
    assert ledger.used == [0]
    assert [row[:4] for row in ledger.audit] == [(n, "add", "u1", "ok") for n in range(3)]
    ledger.verify()
    ledger.used[0] = 1
    with pytest.raises(SystemExit, match="quota 1"):
        ledger.verify()


# ---------------------------------------------------------------------- counts


def helper() -> int:
    return len("abc")


async def test_calls_are_counted_with_those_of_native_functions() -> None:
    async def body() -> dict[str, int]:
        helper()
        return {"sum": abs(-3)}

    found = await count_calls(lambda: body())  # noqa: PLW0108  (the lambda is the harness's own and is not counted)
    assert found == {"python": 2, "native": 2}


async def test_what_hooks_do_is_counted_apart() -> None:
    def foreign() -> int:
        return abs(-1)

    class Busy(Hook):
        def will_authorize(self, ctx: Any) -> None:
            foreign()
            len("abc")

    async with Gate([make_tool()]) as bare, Gate([make_tool()], [busy := Busy()]) as hooked:
        without = await count_calls(call_of(bare))
        found = await count_calls(call_of(hooked), [busy])
    assert found["hooks"] == 4, "the method, foreign(), its abs() and len()"
    assert found["python"] + found["native"] >= without.total()


async def test_counts_are_the_same_every_time() -> None:
    hooks, _ = twelve()
    async with Gate([make_tool(output=False)], hooks) as gate:
        first, second = [await count_calls(call_of(gate), hooks) for _ in range(2)]
    assert first == second


async def test_tasks_and_callbacks_are_seen() -> None:
    async def waits() -> dict[str, int]:
        await asyncio.sleep(0)
        return await asyncio.create_task(floor1()())  # type: ignore[arg-type]

    loop = asyncio.get_running_loop()
    found = await count_loop_work(waits)
    assert found["tasks"] == 1
    assert found["callbacks"] >= 2
    assert loop.get_task_factory() is None
    with loop_work() as nothing:
        await floor1()()
    assert not nothing


# ---------------------------------------------------------------------- the command


@pytest.fixture(params=[10, pytest.param(None, marks=pytest.mark.soak)], ids=["short streams", "long streams"])
def _streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many deltas the streams have; providers' own clients take up to 50 times as long for one as ours."""
    if request.param is not None:
        from benchmarks import official  # the other tests do without the clients

        monkeypatch.setattr(official, "DELTAS", dict.fromkeys(official.DELTAS, request.param))
        monkeypatch.setattr(timing, "WARM_UP", 1)


@pytest.mark.needs_data
@pytest.mark.usefixtures("_streams")
def test_a_whole_run_gives_every_figure_of_the_file_and_the_table() -> None:
    found = asyncio.run(command.run(list(command.SECTIONS), TINY, lambda _: None))
    on_request = {row.key for row in command.ROWS if row.key.startswith(("instructions", "promise_"))}
    assert {row.key for row in command.ROWS} - found.keys() == on_request
    written = command.as_json(found)
    assert list(written) == [*command.KEYS, "more"]
    assert [key for key in command.KEYS if not isinstance(written[key], int | float)] == []


def test_without_sample_data_the_streams_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "HAS_DATA", False)
    assert asyncio.run(command.run(["streams"], TINY, print)) == {}
    assert "streams: NO SAMPLE DATA" in capsys.readouterr().out


def test_one_section_is_written_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "counts.json"
    assert command.main(["--quick", "--only", "counts", "--json", str(path)]) == 0
    written = json.loads(path.read_text("utf-8"))
    assert written["tasks_twelve_hooks"] == 0
    assert written["zero_hooks_x_floor2s"] is None
    assert "tasks made, 12 hooks" in capsys.readouterr().out


def test_a_missed_target_is_said_and_fails_all_but_a_quick_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def slow(*_: Any) -> dict[str, float]:
        return {"twelve_hooks_x_floor2s": 9.0, "tools_1e5_x_10": 0.5, "tasks_twelve_hooks": 0.0}

    monkeypatch.setattr(command, "run", slow)
    assert command.main(["--only", "counts"]) == 1
    said = capsys.readouterr().out
    assert said.count("MISSED") == 2
    assert "2 targets missed" in said
    assert command.main(["--only", "counts", "--quick"]) == 0


def test_the_table_is_plain_text_where_rich_is_absent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert [row.key for row in command.report({"twelve_hooks_x_floor2s": 9.0})] == ["twelve_hooks_x_floor2s"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["12", "hooks", "at", "work,", "times", "floor2s", "9.00", "≤", "3.2", "MISSED"]


@pytest.mark.parametrize(("value", "missed"), [(0.89, True), (0.9, False), (1.1, False), (1.11, True)])
def test_a_target_may_have_two_ends(value: float, missed: bool) -> None:
    row = Row("x", "x", 1.1, 0.9)
    assert row.missed(value) is missed
    assert row.target == "0.9 to 1.1"
