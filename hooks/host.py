"""The services of the runtime that invocation contexts use, and the plan of their tool.

``C`` is the context itself, ``InvokeContext``; see ``hooks/facts.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from callgate.hooks.effects import C_contra
from callgate.hooks.facts import C, Dependencies, NoSchemaVerdict, OnRepair, Suspension
from callgate.hooks.stages import Stage
from callgate.hooks.step import Compiled, Step
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.providers.stores.base import Store
from callgate.tools.arguments.hydrated import HydrationResult
from callgate.tools.definition import NoSchemaMode, ToolDefinition
from callgate.tools.limits import Limits
from callgate.tools.outputs import Dump
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.validation import Validator


class SuspendedCalls(Protocol[C_contra]):
    """The suspended calls of a gate (``runtime/suspensions/suspensions.py``)."""

    async def keep(self, ctx: C_contra, asked: Suspension) -> Suspension:
        """Store a suspended call; return its suspension with the handle."""
        ...

    async def was_edited(self, ctx: C_contra, asked: str, ran: str) -> bool:
        """Return True if an approver replaced the arguments of an earlier call with this key."""
        ...


class CallsUnderWay(Protocol[C_contra]):
    """The calls under way, each with its task (``runtime/call/under_way.py``)."""

    loop: asyncio.AbstractEventLoop | None

    def admit(self, ctx: C_contra) -> asyncio.Task[Any] | None:
        """Return the task of a call, or refuse the call."""
        ...

    def get(self, ctx: object, /) -> asyncio.Task[Any] | None:
        """Return the task of a call under way."""
        ...

    def pop(self, ctx: object, default: None, /) -> object:
        """Remove a call."""
        ...

    def __setitem__(self, ctx: object, task: asyncio.Task[Any] | None, /) -> None: ...

    def __delitem__(self, ctx: object, /) -> None: ...


class Host(Protocol[C_contra]):
    """The services that a context uses: time, providers, the store, and the operations of the engine."""

    registry: ProviderRegistry
    store: Store
    monotonic: Callable[[], float]
    wall_offset: float
    closing: float  # seconds that the closing steps of one call may wait
    hard_deadline: bool  # the default for tools and hooks: abandon those that outlive the deadline of their call
    development: bool  # True prints the tracebacks of faults in full
    on_repair: OnRepair
    nested_effects: dict[str, set[str]]  # the effects that read tools were seen to call, for the linter

    @property
    def waits(self) -> SuspendedCalls[C_contra] | None:
        """The suspended calls; None if no store keeps them."""
        ...

    @property
    def under_way(self) -> CallsUnderWay[C_contra]:
        """The calls under way."""
        ...

    def own_store(self, store: Store) -> Store:
        """Return a store that a hook was given, with the records of the gate's namespace."""
        ...

    def nested(self, ctx: C_contra, tool: Any, arguments: Any, attempt: int) -> Coroutine[Any, Any, Any]:
        """Return the coroutine that runs another tool on behalf of this attempt of *ctx*."""
        ...

    async def lease(self, ctx: C_contra, manager: AbstractAsyncContextManager[Any]) -> Any:
        """Enter *manager* and record it on the lease ledger."""
        ...

    async def send(self, ctx: C_contra, partial: Any) -> None:
        """Send a partial output to the consumer of the stream."""
        ...

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register a coroutine function to await when the gate closes; it runs once, even if it is registered again."""
        ...

    def abandon(self, ctx: C_contra, body: asyncio.Future[Any]) -> None:
        """Abandon a running body, with the resources it holds."""
        ...


class ModeRules(Protocol):
    """The rules for calls of a tool without a schema."""

    def mode_of(self, verdict: NoSchemaVerdict | None) -> NoSchemaMode | None:
        """Return the mode that holds for a call with this verdict of the policy."""
        ...


class HoldsOutput(Protocol):
    """The part of ``Run`` that knows which output keeps the limits."""

    limited: Any


class Checks(Protocol[C_contra]):
    """The built-in steps of a tool, as its calls use them (``hooks/builtin.py``)."""

    limits: Limits
    flat: bool
    arguments: Validator | None
    output: Validator | None

    @property
    def unvalidated(self) -> ModeRules | None:
        """The rules for calls without a schema; None for a tool that has one."""
        ...

    def hash_of(self, arguments: Any) -> str:
        """Return the SHA-256 of settled arguments, the same for equal values."""
        ...

    def differ(self, given: Any, settled: Any) -> bool:
        """Return True if settled arguments are others than the *given* ones, beyond defaults and conversions."""
        ...

    dump: Dump

    @property
    def copied(self) -> Callable[[HoldsOutput, Any], Any]:
        """Copies an output that is plain JSON; returns MISSING for others."""
        ...

    def response_as_json(self, run: HoldsOutput, output: Any) -> Any:
        """Return an output that a hook gave as JSON."""
        ...

    def size_of(self, output: Any, before: int = 0) -> int:
        """Return the bytes of an output, or refuse it."""
        ...

    def limit_output(self, ctx: C_contra) -> None:
        """Check that the output is finite JSON within its limits."""
        ...

    def judged(self, ctx: C_contra) -> dict[str, Any]:
        """Return the facts about the validation of a call for records."""
        ...


class Now(Protocol):
    """Returns the time on the monotonic clock. pyright takes a function in a slot for a method, but not this."""

    def __call__(self) -> float:
        """Return the time in seconds."""
        ...


class Surface(Protocol[C_contra]):
    """Returns the exception that a failed call raises; see ``Now``."""

    def __call__(self, ctx: C_contra, /) -> BaseException:
        """Return the exception."""
        ...


class CallPlan(Protocol[C]):
    """The plan of a tool, as its calls use it; see ``Plan``."""

    before: tuple[Compiled, ...]
    cache_hit: tuple[Compiled, ...]
    around: tuple[Compiled, ...]
    will_execute: tuple[Compiled, ...]
    did_execute: tuple[Compiled, ...]
    on_retry: tuple[Compiled, ...]
    on_give_up: tuple[Compiled, ...]
    on_error: tuple[Compiled, ...]
    shaping: tuple[Compiled, ...]
    after_response: tuple[Compiled, ...]
    unchecked_shaping: tuple[Compiled, ...]
    partial_shaping: tuple[Compiled, ...]
    records: tuple[Compiled, ...]
    finals: tuple[Compiled, ...]
    closing: tuple[Compiled, ...]
    early: tuple[Compiled, ...]
    late: tuple[Compiled, ...]
    late_finals: tuple[Compiled, ...]
    straight: Callable[..., Awaitable[Any]] | None
    copied: Callable[[HoldsOutput, Any], Any]  # copies plain JSON; see ``Checks``
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None
    ended: ProviderScope
    in_units: bool
    effect_in_unit: bool
    repeats: bool
    watched: bool

    record: ToolRecord
    definition: ToolDefinition
    tool_id: str
    host: Host[C]
    limit: float | None
    start: Step
    running: Step
    recorders: frozenset[int]
    releases_alone: dict[Stage, tuple[Compiled, ...]]
    observed: bool
    restores: bool
    typed: bool
    look: Callable[[C], Awaitable[None]] | None

    def execute(self, ctx: C, /) -> Awaitable[Any]:
        """Run the attempts of the tool inside its middleware."""
        ...

    def now(self) -> float:
        """Return the time on the monotonic clock."""
        ...

    def surface(self, ctx: C, /) -> BaseException:
        """Return the exception that a failed call raises."""
        ...

    def resolve(self, cls: type, /) -> Any:
        """Make an instance of a hook class."""
        ...

    def parse_again(self, hydration: HydrationResult | None, parsed: Any, raw: Any) -> Any:
        """Return the arguments as they were parsed."""
        ...

    @property
    def builtins(self) -> Checks[C]:
        """The built-in steps."""
        ...

    @property
    def supplies(self) -> Mapping[object, Dependencies[C]]:
        """The values of marked parameters, by tool record, function or class."""
        ...
