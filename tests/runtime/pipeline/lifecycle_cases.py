"""The cells of the stage matrix, and a model of what must happen in each, made from the stage table alone.

A cell is one invocation: a scenario, a stage, what a hook does there, how the hook is written, where it is registered,
and whether it runs before or after its neighbour in the stage.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product
from typing import Any

from callgate import (
    DeadlineExceeded,
    Denied,
    Invalid,
    InvocationError,
    Outcome,
    RetryLater,
    Stage,
    Suspended,
    ToolError,
    ToolFailed,
)
from callgate.errors import StageError
from callgate.hooks.stages import RELEASE_OF, STAGES, OnFailure, Row, Section, stages_in
from tests.hooks.verbs import NOTHING, OUTLAST, POWER, VERBS

# ---------------------------------------------------------------------- the cells

ATTEMPTS = 2
NEIGHBOURS = {  # plans differ by which stages have hooks at all
    "everywhere": frozenset(Stage),
    "not around": frozenset(Stage) - {Stage.AROUND_EXECUTE},
    "where leases are": frozenset(stages_in(Section.CLOSING)) | {stage for stage in Stage if STAGES[stage].acquires},
    "where nothing is shaped": frozenset(Stage) - {row.stage for row in STAGES.values() if row.built_in},
}
WHERE = ("gate object", "gate class", "gate use", "tool object", "tool class", "gate by stage", "tool by stage")


@dataclass(frozen=True)
class Scenario:
    """What the tool and the cache do: how often the tool fails, whether somebody retries, whether there is a hit.

    A tool that overruns does not end before the deadline.
    """

    name: str
    failures: int = 0
    retries: bool = False
    hit: bool = False
    overruns: bool = False

    @property
    def stages(self) -> set[Stage]:
        """The stages that are reached when no hook interferes."""
        never = {Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}
        if self.hit:
            return set(Stage) - {*stages_in(Section.EXECUTE, Section.ERROR), Stage.DID_CACHE_MISS}
        if self.failures >= ATTEMPTS or self.overruns:
            again = {Stage.ON_RETRY, Stage.ON_GIVE_UP} if self.overruns else set()
            return set(Stage) - {*stages_in(Section.SHAPING), Stage.DID_CACHE_HIT, Stage.DID_EXECUTE} - again
        return set(Stage) - (never - {Stage.ON_RETRY} if self.failures else never)


SCENARIOS = (
    Scenario("runs"),
    Scenario("hit", hit=True),
    Scenario("retried", failures=1, retries=True),
    Scenario("fails", failures=ATTEMPTS, retries=True),
)
OVERRUNS = Scenario("overruns", overruns=True)


@dataclass(frozen=True)
class Cell:
    scenario: Scenario
    stage: Stage
    verb: str
    is_async: bool
    first: bool
    where: str
    neighbour: str

    @property
    def deadline(self) -> float | None:
        """In seconds; it passes only where somebody lets it."""
        return 3600.0 if self.verb == OUTLAST or self.scenario.overruns else None


def cells(stage: Stage, verb: str) -> Iterator[Cell]:
    """Every scenario of a stage and a verb, sync and async; the other dimensions rotate."""
    turn = count(list(Stage).index(stage) + 3 * list(VERBS).index(verb))
    for scenario, is_async in product(SCENARIOS, (False, True)):
        if stage in scenario.stages and (is_async or verb != "lease"):
            number = next(turn)
            where, neighbour = WHERE[number % len(WHERE)], list(NEIGHBOURS)[number % len(NEIGHBOURS)]
            yield Cell(scenario, stage, verb, is_async, number // len(NEIGHBOURS) % 2 == 0, where, neighbour)


def deadline_cells() -> Iterator[Cell]:
    """A hook of each stage outlasts the deadline, in every scenario that comes there; and so does the tool."""
    turn = count()
    never = {*stages_in(Section.ERROR), *stages_in(Section.CLOSING)}
    for stage, scenario in product(Stage, SCENARIOS):
        if stage in scenario.stages - never and stage is not Stage.ON_GIVE_UP:
            number = next(turn)
            where, near = WHERE[number % len(WHERE)], list(NEIGHBOURS)[number % len(NEIGHBOURS)]
            yield Cell(scenario, stage, OUTLAST, True, number // 2 % 2 == 0, where, near)
    yield from (
        Cell(OVERRUNS, Stage.WILL_EXECUTE, NOTHING, is_async, True, WHERE[0], near)
        for is_async in (False, True)
        for near in NEIGHBOURS
    )


def every_cell(stage: Stage, verb: str) -> Iterator[Cell]:
    """The whole product."""
    for scenario, is_async, first, where, near in product(SCENARIOS, (False, True), (False, True), WHERE, NEIGHBOURS):
        if stage in scenario.stages and (is_async or verb != "lease"):
            yield Cell(scenario, stage, verb, is_async, first, where, near)


# ---------------------------------------------------------------------- the model


class Flaky(ValueError):
    """What the tool raises when it fails; the only error that the retrying hook retries."""


class Stop(Exception):
    """The model's way out of the straight road."""

    def __init__(self, error: type[BaseException], outcome: Outcome) -> None:
        self.error, self.outcome = error, outcome


class Answer(Exception):
    """``respond``."""

    def __init__(self, value: Any, checked: bool = True) -> None:
        self.value, self.checked = value, checked


class Short(Exception):
    """A wrapper returned without going on."""


OUTCOMES: dict[Any, Outcome] = {
    Denied: Outcome.DENIED,
    RetryLater: Outcome.RETRY_LATER,
    Suspended: Outcome.SUSPENDED,
}
RAISED: dict[str, type[Exception]] = {
    "abort": Denied,
    "retry_after": RetryLater,
    "suspend": Suspended,
    "raise ValueError": ValueError,
    "raise ToolError": ToolError,
    OUTLAST: DeadlineExceeded,
}
ANSWERS = {
    "respond": Answer(99),
    "respond wrongly": Answer("no number"),
    "respond unchecked": Answer("prove who you are", checked=False),
}


class Model:
    """What must happen in a cell, worked out from the columns ``section``, ``may``, ``on_failure`` and ``gives_back``."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.trail: list[Any] = []
        self.held: list[Any] = []
        self.ran_with: list[int] = []
        self.n, self.attempt, self.checked = 2, 0, True
        self.output: Any = None
        self.error: type[BaseException] | None = None
        self.cause: type[BaseException] | None = None
        self.outcome, self.suppressed, self.bound, self.masked = Outcome.SUCCESS, 0, False, False
        self.at = Stage.WILL_CREATE_INVOKE_CONTEXT
        try:
            self.before_and_execute()
            self.shaping()
        except Stop as stop:
            self.failing(stop)
        self.closing()
        if self.error is not None:
            self.output = None

    # the lifecycle

    def before_and_execute(self) -> None:
        try:
            for stage in stages_in(Section.BEFORE):
                self.visit(stage)
            if self.cell.scenario.hit:
                raise Answer(50)
            self.visit(Stage.DID_CACHE_MISS)
            self.visit(Stage.AROUND_EXECUTE)
            self.attempts()
            if (self.cell.stage, self.cell.verb) == (Stage.AROUND_EXECUTE, "set output"):
                self.output = 77  # a wrapper that does so when the tool has run
        except Answer as answer:
            self.take(answer)
        except Short:
            self.output = False

    def attempts(self) -> None:
        for self.attempt in range(1, ATTEMPTS + 1):
            if self.attempt > 1:
                self.visit(Stage.ON_RETRY)
            self.visit(Stage.WILL_EXECUTE)
            self.ran_with.append(self.n)
            if self.cell.scenario.overruns:
                raise Stop(DeadlineExceeded, Outcome.ERROR)
            if self.attempt > self.cell.scenario.failures:
                self.output = 2 * self.n
                return self.visit(Stage.DID_EXECUTE)
        raise Stop(Flaky, Outcome.ERROR)

    def take(self, answer: Answer) -> None:
        self.output, self.checked = answer.value, answer.checked
        if self.at is Stage.WILL_READ_CACHE:
            try:
                self.visit(Stage.DID_CACHE_HIT)
            except Answer as again:
                self.take(again)

    def shaping(self) -> None:
        for stage in stages_in(Section.SHAPING):
            try:
                self.visit(stage)
            except Answer as answer:  # the rest of the stage is skipped, the next follows
                self.take(answer)
            if stage is Stage.WILL_VALIDATE_OUTPUT and self.checked and type(self.output) is not int:
                raise Stop(Invalid, Outcome.ERROR)

    def failing(self, stop: Stop) -> None:
        self.cause = CancelledError if stop.error is DeadlineExceeded else None  # that is how it strikes
        self.fail(stop.error, stop.outcome)
        if stop.outcome is Outcome.SUSPENDED:
            return
        within = self.attempt > 0 and STAGES[self.at].section is Section.EXECUTE
        if self.cell.scenario.retries and within and stop.outcome is Outcome.ERROR:
            self.visit(Stage.ON_GIVE_UP)
        self.visit(Stage.ON_ERROR)

    def closing(self) -> None:
        for stage in stages_in(Section.CLOSING):
            if STAGES[stage].gives_back is None and stage is not Stage.WILL_FINALIZE_INVOKE:
                self.visit(stage)
        for held in reversed(self.held):
            if held in RELEASE_OF:
                self.visit(RELEASE_OF[held])
            else:
                self.trail.append("given back")
        self.visit(Stage.WILL_FINALIZE_INVOKE)

    def fail(self, error: type[BaseException], outcome: Outcome) -> None:
        """What callers get: the error itself, or an ``InvocationError`` that says no more than it should."""
        itself = issubclass(error, InvocationError) and (outcome is not Outcome.DENIED or issubclass(error, Denied))
        self.cause = self.cause or self.error if itself else error
        self.error = error if itself else Denied if outcome is Outcome.DENIED else ToolFailed
        self.outcome = outcome

    # one stage

    def visit(self, stage: Stage) -> None:
        row, self.at = STAGES[stage], stage
        early = self.cell.first is not row.mirrored
        if early and stage is self.cell.stage:
            self.act(row)
        if stage in NEIGHBOURS[self.cell.neighbour]:
            self.trail.append(stage)
        if row.acquires:
            self.held.append(stage)
        if not early and stage is self.cell.stage:
            self.act(row)

    def act(self, row: Row) -> None:
        verb, allowed = self.cell.verb, POWER.get(self.cell.verb) in row.may
        closed = row.section in {Section.ERROR, Section.CLOSING}
        raised = RAISED.get(verb)
        if verb in ANSWERS:
            if allowed:
                raise ANSWERS[verb]
            self.suppressed += 1  # only where the invocation has ended
            return
        if verb in POWER and not allowed and not (closed and raised in {Denied, RetryLater}):
            raised = StageError
        if verb == "return False" and row.stage is not Stage.AROUND_EXECUTE:
            raised = TypeError
        if raised is None:
            self.effect(verb, row)
        elif not closed:
            denies = row.on_failure is OnFailure.DENY
            raise Stop(raised, OUTCOMES.get(raised, Outcome.DENIED if denies else Outcome.ERROR))
        elif row.section is Section.ERROR and issubclass(raised, InvocationError):
            self.cause = Flaky
            self.fail(raised, OUTCOMES.get(raised, Outcome.ERROR))
        else:
            self.suppressed += 1

    def effect(self, verb: str, row: Row) -> None:
        if verb == "set input":
            self.n = 5
        elif verb == "set output":
            self.output = 77
        elif verb == "return False" and row.stage is Stage.AROUND_EXECUTE:
            raise Short
        elif verb == "lease":
            self.trail.append("taken")
            self.held.append("lease")
        self.bound |= verb == "bind_provider"
        self.masked |= verb == "set masked_input"

    def expected(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "output": self.output,
            "error": self.error,
            "cause": self.cause,
            "trail": self.trail,
            "tool ran with": self.ran_with,
            "suppressed": self.suppressed,
            "bound": self.bound,
            "masked": self.masked,
        }
