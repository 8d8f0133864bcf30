"""The gate and the plan of a tool, as a call sees them: both are made whole, and never change.

``C`` is the context itself, ``InvokeContext``; see ``hooks/state/facts.py``. The context is made of these classes, so they
cannot import it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeAlias

from callgate.hooks.effects import C_contra
from callgate.hooks.stages import Stage
from callgate.hooks.state.facts import C, Dependencies, NoSchemaVerdict, OnRepair, Suspension
from callgate.hooks.state.step import PlanStep, StepCall
from callgate.providers.clock import GateClock
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.tools.approval import Demand
from callgate.tools.arguments.hydrated import HydrationResult
from callgate.tools.arguments.hydration import Hydrator
from callgate.tools.arguments.parsing import Parsed
from callgate.tools.definition import NoSchemaMode, ToolDefinition
from callgate.tools.limits import Limits
from callgate.tools.outputs import Dump, HoldsOutput
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.validation import Validator

CLOSING = 10.0
"""The default of ``Options.closing``, in seconds."""


def new_instance(cls: type) -> object:
    """The default of ``Options.resolve``: make a hook class without arguments."""
    return cls()


ThreadContext: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Returns the context manager that a worker thread enters for the plain code of one attempt."""
AroundThreads: TypeAlias = ThreadContext | Literal["auto"] | None
"""See ``Options.around_threads``."""


class SuspendedCalls(Protocol[C_contra]):
    """The suspended calls of a gate (``runtime/suspensions/suspensions.py``)."""

    async def keep(self, ctx: C_contra, asked: Suspension) -> Suspension:
        """Store a suspended call; return its suspension with the handle."""
        ...

    async def was_edited(self, ctx: C_contra, asked: str, ran: str) -> bool:
        """Return True if an approver replaced the arguments of an earlier call with this key."""
        ...


class CallsUnderWay(Protocol[C_contra]):
    """The calls under way, each with its task (``runtime/pipeline/under_way.py``)."""

    loop: asyncio.AbstractEventLoop | None  # in which calls begin at once, and its thread
    thread: int

    def admit(self, ctx: C_contra) -> asyncio.Task[object] | None:
        """Return the task of a call, or refuse the call."""
        ...

    def get(self, ctx: object, /) -> asyncio.Task[object] | None:
        """Return the task of a call under way."""
        ...

    def pop(self, ctx: object, default: None, /) -> object:
        """Remove a call."""
        ...

    def __setitem__(self, ctx: object, task: asyncio.Task[object] | None, /) -> None: ...

    def __delitem__(self, ctx: object, /) -> None: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, kw_only=True)
class Host(ABC, Generic[C]):
    """The gate as its calls see it: time, providers, the store, and what a context asks of the pipeline.

    ``Services`` (``runtime/pipeline/services.py``) is the one class that implements it.
    """

    registry: ProviderRegistry
    store: Store  # of hooks that have none of their own
    clock: GateClock
    monotonic: Callable[[], float]  # of the clock: each call reads it, and a look-up through the clock costs more
    under_way: CallsUnderWay[C]
    surface: Callable[[C], BaseException]  # returns the exception that a failed call raises
    suspensions: SuspendedCalls[C] | None = None  # None if no store keeps them
    audit_keys: SigningKeys | None = None  # keys that sign the rows of the audit log
    closing: float = CLOSING  # seconds that the closing steps of one call may wait
    around_threads: AroundThreads = "auto"  # what surrounds plain code in its thread
    hard_deadline: bool = False  # for tools and hooks: abandon those that outlive the deadline of their call
    development: bool = False  # True prints the tracebacks of faults in full
    on_repair: OnRepair = "approve"
    nested_effects: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # as ``read`` tools called them
    resolve: Callable[[type], object] = new_instance  # makes an instance of a hook class

    @property
    @abstractmethod
    def origin(self) -> Host[C]:
        """The host of the gate itself; of a gate with further tools, that of the gate that it was made from."""

    @abstractmethod
    def own_store(self, store: Store) -> Store:
        """Return a store that a hook was given, with the records of the gate's namespace."""

    @abstractmethod
    def nested(self, ctx: C, tool: object, arguments: object, attempt: int) -> Coroutine[object, None, object]:
        """Return the coroutine that runs another tool on behalf of this attempt of *ctx*."""

    @abstractmethod
    async def lease(self, ctx: C, manager: AbstractAsyncContextManager[object]) -> object:
        """Enter *manager* and record it on the lease ledger."""

    @abstractmethod
    async def send(self, ctx: C, partial: object) -> None:
        """Send a partial output to the consumer of the stream."""

    @abstractmethod
    def at_close(self, close: Callable[[], Awaitable[None]], hook: object = None) -> Callable[[], object]:
        """Await *close* once: when the gate closes, or when *hook* has left it. Return the function that ends this."""

    @abstractmethod
    def abandon(self, ctx: C, body: asyncio.Future[object]) -> None:
        """Abandon a running body, with the resources it holds."""


class ModeRules(Protocol[C_contra]):
    """The rules for calls of a tool without a schema (``runtime/pipeline/no_schema.py``)."""

    own: NoSchemaVerdict

    @property
    def may_ask(self) -> bool:
        """True if some call may need approval, and can be suspended for it."""
        ...

    def demand(self, ctx: C_contra) -> Demand:
        """Return the approval that a call needs."""
        ...

    @property
    def policy(self) -> object:
        """The policy of the gate for such calls, or None."""
        ...

    def mode_of(self, verdict: NoSchemaVerdict | None) -> NoSchemaMode | None:
        """Return the mode that holds for a call with this verdict of the policy."""
        ...


class Checks(Protocol[C_contra]):
    """The built-in steps of a tool, as its calls use them (``runtime/pipeline/builtin.py``)."""

    limits: Limits
    flat: bool
    # what identifies settled arguments, if that is not themselves
    identity: Callable[[dict[str, object]], dict[str, object]] | None
    refuses: bool  # there is no approver
    arguments: Validator | None
    output: Validator | None

    @property
    def unvalidated(self) -> ModeRules[C_contra] | None:
        """The rules for calls without a schema; None for a tool that has one."""
        ...

    def hydrator(self, record: ToolRecord, lazy: bool, *, gated: bool = True) -> Hydrator:
        """Return the reader of this tool's calls outside of an invocation."""
        ...

    def parsed(self, given: object) -> Parsed:
        """Parse arguments as the calls of the tool do."""
        ...

    def settled(self, arguments: dict[str, object]) -> dict[str, object]:
        """Return valid arguments with the defaults and conversions of the tool's types, as JSON."""
        ...

    def parse_again(self, hydration: HydrationResult | None, parsed: object, raw: object) -> object:
        """Return the arguments as they were parsed, for the history."""
        ...

    def hash_of(self, arguments: object) -> str:
        """Return the SHA-256 of settled arguments, the same for equal values."""
        ...

    def differ(self, given: object, settled: object) -> bool:
        """Return True if settled arguments are others than the *given* ones, beyond defaults and conversions."""
        ...

    dump: Dump

    @property
    def copied(self) -> Callable[[HoldsOutput, object], object]:
        """Copies an output that is plain JSON; returns MISSING for others."""
        ...

    def response_as_json(self, run: HoldsOutput, output: object) -> object:
        """Return an output that a hook gave as JSON."""
        ...

    def measure(self, output: object, before: tuple[int, int]) -> tuple[int, int]:
        """Return the bytes of JSON and of content with a part that follows *before*, or refuse it."""
        ...

    def limit_output(self, ctx: C_contra) -> None:
        """Check that the output is finite JSON within its limits."""
        ...

    def judged(self, ctx: C_contra) -> dict[str, object]:
        """Return the facts about the validation of a call for records."""
        ...


Steps: TypeAlias = "tuple[StepCall, ...]"


class EffectOfTool(Protocol[C_contra]):
    """The effect ledger for the calls of one tool (``runtime/effects/steps.py``)."""

    @property
    def step(self) -> PlanStep:
        """The step that claims the effect."""
        ...

    async def look(self, ctx: C_contra) -> None:
        """Answer a repeat of an effect; return if the effect may run. Nothing is claimed."""
        ...


class Execute(Protocol[C_contra]):
    """Runs the tool inside its middleware, and sets the output of the call.

    ``attempt`` (``run.py``) does it for a tool without middleware, ``wrap_attempt`` (``around.py``) makes it for tools with
    middleware or a unit of work, and ``supplied_call`` (``bodies.py``) for tools that run once, in their task.
    """

    def __call__(self, ctx: C_contra, /) -> Awaitable[object]:
        """Run the attempts of the tool."""
        ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, kw_only=True)
class CallPlan(Generic[C]):
    """The plan of a tool, as its calls read it; ``compile_plan`` makes it whole. ``Plan`` also has its hooks.

    Sections have the names of ``runtime/pipeline/run.py``; each is a tuple of steps. Most stages have no hook, and a
    plan leaves them out, so they cost nothing.
    """

    record: ToolRecord
    definition: ToolDefinition
    tool_id: str
    host: Host[C]
    builtins: Checks[C]
    supplies: Mapping[object, Dependencies[C]]  # the values of marked parameters, by tool record, function or class
    effect: EffectOfTool[C] | None
    start: PlanStep  # before all others
    running: PlanStep  # while the body runs
    before: Steps  # the claim of the effect is the last one
    cache_hit: Steps
    around: Steps
    will_execute: Steps
    did_execute: Steps
    on_retry: Steps
    on_give_up: Steps
    on_error: Steps
    shaping: Steps  # after the tool
    after_response: Steps  # after a response in place of the tool: without ``did_execute``
    unchecked_shaping: Steps  # the same, without the output schema
    partial_shaping: Steps  # of a part of an output
    records: Steps
    finals: Steps
    closing: Steps  # records and finals, for a call without leases
    early: Steps  # the records before the first that may wait
    late: Steps
    releases_alone: Mapping[Stage, Steps]  # without an acquire, by the stage of the acquire
    recorders: frozenset[int]  # the identities of hooks with records
    # the tool's own function, if a call needs nothing else around it
    fast_path: Callable[..., Awaitable[object]] | None
    execute: Execute[C]  # runs all other tools
    body: Execute[C]  # for each attempt
    prepare: Callable[[dict[str, object]], dict[str, object]] | None  # converts frozen arguments to those of the tool
    copied: Callable[[HoldsOutput, object], object]  # see ``Checks``
    in_units: bool  # each attempt has a unit of work (``runtime/pipeline/units.py``)
    effect_in_unit: bool  # and the tool takes a part of it
    repeats: bool  # a hook may run the tool again
    watched: bool  # a hook may set the output
    limit: float | None  # the deadline, in seconds
    idle: float | None  # seconds without progress
    timed: bool  # there is one of them
    hard: bool  # the body is abandoned if it does not end soon after the deadline
    observed: bool  # a hook may ask when the arguments were parsed
    restores: bool  # the call may leave context variables behind, and is undone in them
    binds: bool  # the loggers of the application bind the ids of the call
    typed: bool  # a caller who names the tool object gets a typed output
    ended: ProviderScope  # of calls that have ended
    now: Callable[[], float]
    surface: Callable[[C], BaseException]  # returns the exception that a failed call raises
