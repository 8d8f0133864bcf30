"""Facts that an invocation keeps: the state of its input, its suspension, recorded failures, and parts of the runtime.

``C`` is the context of hooks, ``InvokeContext``. It is made of these parts, so they cannot import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from callgate.hooks.effects import C_contra
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import PlanStep, StepCall
from callgate.providers.principal import User
from callgate.providers.recipe import Recipe
from callgate.providers.stores.effects import SuspensionRecord
from callgate.tools.approval import Approval, Question
from callgate.tools.definition import NoSchemaMode

LIVE, RAW, FROZEN = range(3)
"""States of the input: parsed, raw, frozen. LIVE is 0 because most reads test for it."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """The suspension of an invocation, as ``result.pending`` returns it.

    ``prompt`` is the text for the approver, ``schema`` describes the answer, and ``expires`` is in seconds from the
    suspension. ``handle`` is the argument of ``gate.resume``; it is None until the suspension is stored.
    ``rules`` name the users who may answer; without rules, the caller may. ``place`` is the point of the lifecycle.
    ``name`` is that of the question, if it has one. ``decided`` is True once ``gate.proceed`` can run the call.
    ``questions`` are those that still wait for an answer, by name, of a call that asks several at once.
    """

    kind: str
    prompt: str
    schema: Mapping[str, object] | None = None
    expires: float | None = None
    handle: str | None = None
    rules: tuple[Approval, ...] = ()
    place: str = ""
    name: str | None = None
    decided: bool = False
    questions: Mapping[str, Question] | None = None


OnRepair: TypeAlias = Literal["approve", "run", "refuse"]
"""What a gate does with a call whose arguments a repairer wrote: ask for approval, run it, or refuse it."""


class NoSchemaVerdict(NamedTuple):
    """The mode that holds for a call of a tool without a schema, and the rule for its approval."""

    mode: NoSchemaMode | None
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A failure that was recorded and did not change the outcome."""

    stage: Stage
    hook: str
    error: BaseException


# ---------------------------------------------------------------------- parts that the runtime makes

C = TypeVar("C")

Leases: TypeAlias = "tuple[StepCall, Leases] | None"
"""The lease ledger, a linked stack: the release of the last lease, and the rest."""

TraceRow: TypeAlias = list[Any]
"""The stage, hook, verdict and seconds of one step of a traced call."""


class IdleLimit:
    """The idle limit of a call: the call ends where it reports no progress for *seconds*, by *clock*.

    *last* is the time of its last progress, at first of its start. *around* is the limit of the call that made it.
    """

    __slots__ = ("around", "clock", "last", "seconds")

    def __init__(
        self, seconds: float, clock: Callable[[], float], last: float, around: IdleLimit | None = None
    ) -> None:
        self.seconds, self.clock, self.last, self.around = seconds, clock, last, around

    def progressed(self) -> None:
        """Note that the call, and so each call around it, has made progress. Any thread may call this."""
        self.last = self.clock()
        if self.around is not None:
            self.around.progressed()

    def left(self) -> float:
        """Return the seconds until the limit, if nothing happens."""
        return self.last + self.seconds - self.clock()


class ArmedDeadline(Protocol):
    """The armed deadline of a call."""

    before: int
    fired: bool
    late: PlanStep | None  # the step that still ran some time after it fired
    idle: IdleLimit | None  # the idle limit that it also keeps
    was_idle: bool  # it fired because the call made no progress
    task: asyncio.Task[object]
    when: float

    @property
    def alone(self) -> bool:
        """True if it fired and nothing else cancelled the task since it was armed."""
        ...

    def came_second(self, error: BaseException) -> bool:
        """Return True if the task was already ending because of another cancellation when this deadline fired."""
        ...

    def disarm(self) -> None:
        """Disarm the deadline after the work."""
        ...

    def later(self, seconds: float) -> ArmedDeadline:
        """Disarm, and return a deadline that fires this much later."""
        ...

    def pause(self) -> bool:
        """Disarm; return True if it was armed, so that ``resume`` has to follow."""
        ...

    def resume(self, seconds: float) -> None:
        """Arm again after ``pause``; the seconds since then do not count."""
        ...

    def forget(self) -> bool:
        """Consume the cancellation that this deadline sent; return the value of ``alone``."""
        ...


class Shield(Protocol):
    """A cancel scope that keeps others off the closing steps."""

    shield: bool

    def __exit__(self, *error: object) -> object:
        """Leave the scope."""
        ...


class GivenAnswer(Protocol):
    """The answer to a suspension at one place of the lifecycle."""

    def take(self) -> Any:
        """Return the value, or raise ``ToolError`` if the answer is an error."""
        ...


class Decided(Protocol):
    """The suspended call that a resumed call continues."""

    @property
    def changed(self) -> bool:
        """True if a hook or an approver has changed the arguments of the caller."""
        ...

    @property
    def schema(self) -> Mapping[str, object] | None:
        """The schema of the answer, if it was asked for one."""
        ...

    @property
    def approvals(self) -> tuple[tuple[str, User, float], ...]:
        """The place, the approver and the seconds waited of each approval."""
        ...

    @property
    def more_keys(self) -> Sequence[str]:
        """The keys of callers who repeated the call under its declared key."""
        ...


class Answers(Protocol):
    """The answers given to this run of a suspended call, and the record that its effect uses up."""

    id: str
    wait: SuspensionRecord

    @property
    def bound(self) -> Decided:
        """The facts that the call is bound to."""
        ...

    def answer_at(self, place: str, input_hash: str | None) -> GivenAnswer | None:
        """Return the answer at a place; None if it applies to other arguments."""
        ...

    def is_answered_at(self, place: str) -> bool:
        """Return True if a place has an answer, for any arguments."""
        ...

    def approved(self, rules: Sequence[Approval], input_hash: str) -> bool:
        """Return True if the approvals of these arguments satisfy the rules."""
        ...

    def used(self) -> SuspensionRecord:
        """Return the next version of the record, in which the call no longer waits."""
        ...


class Consumer(Protocol[C_contra]):
    """The consumer of a call's progress and of its partial outputs."""

    in_order: asyncio.Lock

    def progress(self, ctx: C_contra, progress: float, total: float | None, message: str | None) -> None:
        """Take the progress, without waiting."""
        ...

    async def partial(self, ctx: C_contra, value: object) -> None:
        """Take a partial output."""
        ...


class Dependencies(Protocol[C_contra]):
    """The values of the marked parameters of one function or class."""

    in_unit: bool
    carries: bool
    wanted: tuple[tuple[str, Recipe], ...]

    def take(self, ctx: C_contra) -> dict[str, object]:
        """Return the values by parameter, without waiting."""
        ...

    def ready(self, ctx: C_contra) -> dict[str, object] | None:
        """Return the cached values, or None if a provider has to run."""
        ...

    async def get(self, ctx: C_contra) -> dict[str, object]:
        """Return the values by parameter."""
        ...
