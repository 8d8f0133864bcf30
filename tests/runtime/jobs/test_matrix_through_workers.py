"""Nothing is bypassed in a worker: its hooks leave the trace that they leave where the call is made in process (Issue 8).

The cases are those of the stage matrix, ``tests/runtime/pipeline/lifecycle_cases.py``; ``matrix_app`` makes one gate of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from callgate import DeadlineExceeded, Gate, JobHandle, Stage, ToolCall, ToolResult, User
from callgate.hooks.stages import RELEASE_OF, Section, stages_in
from callgate.jobs import EmbeddedJobs
from callgate.runtime.hosts.celery import CeleryJobs
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json
from callgate.stores import JobState
from tests.hooks.making import USER
from tests.hooks.verbs import DOES
from tests.providers.stores.backends import schema
from tests.runtime.jobs import matrix_app
from tests.runtime.jobs.engine_app import until
from tests.runtime.jobs.engine_brokers import ROOT, broker
from tests.runtime.jobs.matrix_app import ALL, CELLS, LATE, UNTOUCHED, USUAL, Trace, call_of
from tests.runtime.pipeline.lifecycle_cases import WHERE, Model

Traces = Mapping[str, list[Trace]]
LIMIT = 100
"""Seconds, far more than any of it takes."""


def traces(folder: Path) -> Traces:
    """What calls left there, by request: of each there should be one."""
    found: dict[str, list[Trace]] = {}
    path = folder / "traces"
    for line in path.read_text().splitlines() if path.exists() else []:
        for request, trace in json.loads(line).items():
            found.setdefault(request, []).append(trace)
    return found


def differing(expected: Traces, found: Traces) -> set[str]:
    """Requests whose traces are not the same ones."""
    return {request for request in {*expected, *found} if expected.get(request) != found.get(request)}


async def called(folder: Path, names: Collection[str]) -> Traces:
    """The traces of the cells in process."""
    async with matrix_app.gate(EmbeddedJobs(0), folder, None, names) as gate:
        for name in names:
            if name == LATE:
                await gate.calls.refuse(DeadlineExceeded(), call_of(name), USER, {"request_id": name})
            else:
                await gate.call(call_of(name), user=USER, request_id=name, deadline=CELLS[name].deadline)
    return traces(folder)


async def submitted(gate: Gate, names: Collection[str]) -> dict[str, Any]:
    """Their results through workers."""

    async def all_are_over() -> bool:
        counted = await gate.store.jobs.count()
        return not counted[JobState.QUEUED] + counted[JobState.RUNNING]

    async with asyncio.timeout(LIMIT):
        jobs: dict[str, JobHandle] = {}
        for name in names:
            delay, deadline = (0.2, 0.1) if name == LATE else (None, CELLS[name].deadline)
            jobs[name] = await gate.submit(call_of(name), user=USER, request_id=name, delay=delay, deadline=deadline)
        await until(all_are_over)
        return {name: _plain(result_as_json(await job.settled())) for name, job in jobs.items()}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=repr))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    return asyncio.run(called(tmp_path_factory.mktemp("in-process"), USUAL))


# ---------------------------------------------------------------------- the engines


@asynccontextmanager
async def embedded(folder: Path, kind: str, names: Collection[str]) -> AsyncGenerator[Gate]:
    store = None if kind == "memory" else f"sqlite:///{folder}/store.db"
    async with matrix_app.gate(EmbeddedJobs(), folder, store, names) as gate:
        yield gate


@asynccontextmanager
async def procrastinate(folder: Path, kind: str, names: Collection[str]) -> AsyncGenerator[Gate]:
    """One process of ``callgate worker``."""
    command = ("-m", "callgate", "worker", "--app", "tests.runtime.jobs.matrix_app:with_procrastinate")
    with schema() as store:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "CALLGATE_TEST_STORE": store}
        worker = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, env=env, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            async with matrix_app.gate(ProcrastinateJobs(), folder, store, names) as gate:
                yield gate
        finally:
            worker.kill()
            await worker.wait()


@asynccontextmanager
async def celery(folder: Path, kind: str, names: Collection[str]) -> AsyncGenerator[Gate]:
    """One worker of Celery, which forks its processes."""
    with broker("redis") as one:
        one.start("tests.runtime.jobs.matrix_app")
        jobs = CeleryJobs(one.app, queue_prefix=f"{one.prefix}.")
        async with matrix_app.gate(jobs, folder, one.store, names) as gate:
            yield gate


ENGINES: dict[str, Any] = {"memory": embedded, "sqlite": embedded, "procrastinate": procrastinate, "celery": celery}


async def through(engine: str, folder: Path, names: Collection[str]) -> tuple[Traces, dict[str, Any]]:
    """What calls leave that a worker runs, and what whoever submitted them is told."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CALLGATE_TEST_FOLDER", str(folder))
        environment.setenv("CALLGATE_TEST_CELLS", "all" if names is ALL else "usual")
        async with ENGINES[engine](folder, engine, names) as gate:
            results = await submitted(gate, names)
    return traces(folder), results


# ---------------------------------------------------------------------- in process and through a worker


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_call_leaves_the_same_trace_through_a_worker_of_each_engine(
    engine: str, expected: Traces, tmp_path: Path
) -> None:
    """Issue 8, I20: each once, deadlines and wrappers included; and whoever submitted it gets the result of the call."""
    found, results = await through(engine, tmp_path, USUAL)
    assert differing(expected, found) == set()
    assert results == {name: trace["result"] for name, (trace,) in expected.items()}


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
async def test_every_verb_in_every_stage_leaves_the_same_trace_through_a_worker(engine: str, tmp_path: Path) -> None:
    """Issue 8."""
    in_process = tmp_path / "in-process"
    in_process.mkdir()
    assert differing(await called(in_process, ALL), (await through(engine, tmp_path, ALL))[0]) == set()


def _with_lease_last(trail: list[str]) -> list[str]:
    """Return a trail with the end of its leases at the end, if they ended while the call closed."""
    ended = [one for one in trail if one == "given back"]
    closing = {str(stage) for stage in stages_in(Section.CLOSING)}
    first = next(number for number, one in enumerate(trail) if one in closing)
    assert "given back" not in trail[:first]
    return [one for one in trail if one != "given back"] + ended


def test_the_cells_come_to_every_stage_and_end_as_the_model_foretells(expected: Traces) -> None:
    """The traces that others are held to are right."""
    for name in set(USUAL) - {LATE}:
        foretold, found = _plain(Model(CELLS[name]).expected()), dict(expected[name][0])
        for one in (foretold, found):  # a lease is given back before the first record that may wait: a closing stage
            one["trail"] = _with_lease_last(one["trail"])
        assert foretold == {key: found[key] for key in foretold}, CELLS[name]
    (late,) = expected[LATE]
    assert (late["error"], late["tool ran with"]) == (repr(DeadlineExceeded), [])
    releases = RELEASE_OF.values()
    assert late["trail"] == [Stage.ON_ERROR, *(one for one in stages_in(Section.CLOSING) if one not in releases)]
    assert {stage for name in UNTOUCHED for stage in expected[name][0]["trail"]} == set(Stage)
    assert {CELLS[name].stage for name in USUAL} == set(Stage)
    assert {CELLS[name].verb for name in USUAL} == set(DOES)
    assert {CELLS[name].where for name in USUAL} == set(WHERE)


# ---------------------------------------------------------------------- controls: workers that are sabotaged


async def sabotaged(gate: Gate, folder: Path, names: Collection[str], expected: Traces) -> set[str]:
    """The cells that tell a sabotaged worker from a good one."""
    async with gate:
        await submitted(gate, names)
    return differing({name: expected[name] for name in names}, traces(folder))


@pytest.mark.parametrize("stage", Stage)
async def test_a_worker_that_leaves_out_one_stage_is_found_out(stage: Stage, expected: Traces, tmp_path: Path) -> None:
    """The control, for each stage: calls that nobody meddles with suffice."""
    gate = matrix_app.gate(EmbeddedJobs(), tmp_path, None, UNTOUCHED, without=stage)
    assert await sabotaged(gate, tmp_path, UNTOUCHED, expected)


async def test_a_worker_that_calls_the_function_of_the_tool_is_found_out(
    expected: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: even where it gives the right results."""
    gate = matrix_app.gate(EmbeddedJobs(), tmp_path, None, UNTOUCHED)

    async def call_directly(call: ToolCall, *_: Any) -> ToolResult:
        result = expected[call.name][0]["result"]
        return result_from_json(result)

    monkeypatch.setattr(gate.calls, "make", call_directly)
    assert await sabotaged(gate, tmp_path, UNTOUCHED, expected) == set(UNTOUCHED)


async def test_a_worker_that_forgets_deadlines_is_found_out(
    expected: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    names = [LATE, *(name for name in USUAL if CELLS[name].deadline is not None)]
    gate = matrix_app.gate(EmbeddedJobs(), tmp_path, None, names)

    async def without_deadline(call: ToolCall, user: User, options: Any, _: str) -> ToolResult:
        return await gate.call(call, user=user, **{**options, "deadline": None})

    async def runs_all_the_same(_: Any, call: ToolCall, user: User, options: Any) -> ToolResult:
        return await gate.call(call, user=user, **options)

    monkeypatch.setattr(gate.calls, "make", without_deadline)
    monkeypatch.setattr(gate.calls, "refuse", runs_all_the_same)
    assert await sabotaged(gate, tmp_path, names, expected) == set(names)


async def test_a_worker_that_runs_a_call_twice_is_found_out(
    expected: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    gate = matrix_app.gate(EmbeddedJobs(), tmp_path, None, UNTOUCHED)

    async def twice(call: ToolCall, user: User, options: Any, _: str) -> ToolResult:
        await gate.call(call, user=user, **options)
        return await gate.call(call, user=user, **options)

    monkeypatch.setattr(gate.calls, "make", twice)
    assert await sabotaged(gate, tmp_path, UNTOUCHED, expected) == set(UNTOUCHED)
