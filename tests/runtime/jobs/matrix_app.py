"""The stage matrix as an application, in the tests' own process and in workers: one gate, and a tool for each cell.

Whatever runs a call leaves the trace of its hooks in a file, under the id of the request.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

from callgate import Gate, InvocationError, Jobs, Stage, ToolCall, ToolRecord, ToolResult, User
from callgate.runtime.hosts.celery import CeleryJobs, register
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.jobs.calls import JobCalls
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.result_json import result_as_json
from callgate.testing import RecordingHook
from tests.harness.gate_options import gate_options
from tests.hooks.making import DEFINITION, record
from tests.hooks.verbs import NOTHING, VERBS
from tests.runtime.jobs.engine_app import KEY, celery_app, folder
from tests.runtime.pipeline.lifecycle_cases import NEIGHBOURS, SCENARIOS, Cell, cells, deadline_cells
from tests.runtime.pipeline.lifecycle_gates import JOURNALS, body_of, meddler, others, seen

Trace = Mapping[str, Any]


def chosen() -> Iterator[tuple[Cell, bool]]:
    """A cell of each verb in each stage, of each stage whose hook outlasts the deadline, and those where nobody meddles.

    With each, whether it is tried every time: of the verbs that is a third in each stage.
    """
    turn = count()
    for (place, stage), (number, verb) in product(enumerate(Stage), enumerate(VERBS)):
        found = list(cells(stage, verb))
        yield found[next(turn) % len(found)], (place + number) % 3 == 0
    late: dict[tuple[Stage, str], list[Cell]] = defaultdict(list)
    for cell in deadline_cells():
        late[cell.stage, cell.verb].append(cell)
    for found in late.values():
        yield found[next(turn) % len(found)], True
    for scenario in SCENARIOS:
        yield Cell(scenario, Stage.WILL_EXECUTE, NOTHING, True, True, *HERE), True


HERE = ("gate object", "everywhere")
CHOSEN = [(f"cell_{number}", *one) for number, one in enumerate(chosen())]
LATE = "late"
"""Its deadline is over before a worker comes."""
CELLS = {name: cell for name, cell, _ in CHOSEN} | {
    LATE: Cell(SCENARIOS[0], Stage.WILL_EXECUTE, NOTHING, True, True, *HERE)
}
"""By tool, which is also the id of the request: each is called once."""
ALL, USUAL = tuple(CELLS), (*(name for name, _, usual in CHOSEN if usual), LATE)
UNTOUCHED = tuple(name for name in USUAL if CELLS[name].verb == NOTHING and name != LATE)
"""Together these come to every stage."""


def call_of(name: str) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments={"n": 2})


class NotedCalls:
    """The calls of jobs, whose traces are written down."""

    def __init__(self, gate: Recorded, calls: JobCalls) -> None:
        self.gate, self.calls = gate, calls
        self.refresh, self.version_of, self.fits = calls.refresh, calls.version_of, calls.fits

    async def make(self, call: ToolCall, user: User, options: CallOptions, job: str) -> ToolResult:
        return self.gate.noted(await self.calls.make(call, user, options, job), call, options)

    async def refuse(self, error: InvocationError, call: ToolCall, user: User, options: CallOptions) -> ToolResult:
        return self.gate.noted(await self.calls.refuse(error, call, user, options), call, options)


class Recorded(Gate):
    """A gate for the cells of these names; *without* is a stage that its hooks are not told of, for the controls."""

    def __init__(self, names: Collection[str], folder: Path, *, without: Stage | None = None, **options: Any) -> None:
        self.path, self.without = folder / "traces", without
        self.recorders: dict[str, RecordingHook] = {}
        self.wide: list[Any] = []
        self.by_stage: dict[Stage, list[Any]] = defaultdict(list)
        self.used: list[tuple[Any, str]] = []
        tools = [self.tool_of(name, CELLS[name]) for name in names]
        hooks = [*self.wide, self.by_stage]
        super().__init__(tools, hooks, allow_unguarded=True, signing_keys=[KEY], **gate_options(**options))
        for hook, name in self.used:
            self.use(hook, tools={name})
        runner: Any = self.jobs.runner
        self.calls = runner._calls = NotedCalls(self, runner._calls)

    def tool_of(self, name: str, cell: Cell) -> ToolRecord:
        """The tool of a cell. Hooks that the cell has on the gate are limited to it, for there they meet those of others."""
        left_out = frozenset() if self.without is None else {self.without}
        recorder = self.recorders[name] = RecordingHook(NEIGHBOURS[cell.neighbour] - left_out)
        own = [*others(cell), recorder]
        own[0].leaves_out = left_out
        made: Any = meddler(cell.stage, cell.verb, cell.is_async, cell.first)
        hook = made = type(made.__name__, (made,), {"tools": {name}, "leaves_out": left_out})
        if not cell.where.endswith("class"):
            hook = made()
        own_by_stage: dict[Stage, list[Any]] = {}
        match cell.where:
            case "gate object" | "gate class":
                self.wide.append(hook)
            case "gate use":
                self.used.append((hook, name))
            case "gate by stage":
                self.by_stage[cell.stage].append(hook)
            case "tool by stage":
                own_by_stage = {cell.stage: [hook]}
            case _:
                own.append(hook)
        definition = replace(DEFINITION, name=name)
        return record(body_of(cell, name), definition, hooks=own, hooks_by_stage=own_by_stage)

    async def call(self, tool: Any, arguments: Any = None, **options: Any) -> ToolResult:
        """Run a call, and write down its trace."""
        return self.noted(await super().call(tool, arguments, **options), tool, options)

    def noted(self, result: ToolResult, call: ToolCall, options: Mapping[str, Any]) -> ToolResult:
        """Write down the trace of a call that has ended."""
        line = json.dumps({options["request_id"]: self.trace_of(call.name, result)}, default=repr)
        number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(number, f"{line}\n".encode())
        os.close(number)
        return result

    def trace_of(self, name: str, result: ToolResult) -> Trace:
        """What hooks saw of a call, in their order, and how it ended."""
        recorder = self.recorders[name]
        moments = [
            (moment.step, moment.input, moment.output, moment.verdict, moment.outcome) for moment in recorder.moments
        ]
        recorder.clear()
        return {**seen(JOURNALS.pop(name), result), "moments": moments, "result": result_as_json(result)}


def gate(jobs: Any, where: Path, store: str | None, names: Collection[str], **options: Any) -> Recorded:
    """A gate of one process. A call that is to be tried later is not: its first trace is what counts."""
    return Recorded(names, where, jobs=jobs, store=store, job_options=Jobs(max_attempts=1), lazy=True, **options)


def with_procrastinate() -> Recorded:
    """For ``callgate worker``."""
    return of_worker(ProcrastinateJobs())


def of_worker(jobs: Any) -> Recorded:
    """The gate of a worker process."""
    names = ALL if os.environ["CALLGATE_TEST_CELLS"] == "all" else USUAL
    return gate(jobs, folder(), os.environ["CALLGATE_TEST_STORE"], names)


if "celery" in Path(sys.argv[0]).parts:  # a worker: `celery -A tests.runtime.jobs.matrix_app worker`
    prefix = os.environ["CALLGATE_TEST_PREFIX"]
    app = celery_app(os.environ["CALLGATE_TEST_BROKER"], prefix)
    celery_gate = of_worker(CeleryJobs(app, queue_prefix=f"{prefix}."))
    register(app, celery_gate)
