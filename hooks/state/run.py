"""``Run``: the runtime's own state of one invocation. Hooks see ``InvokeContext``, tools see ``ToolContext``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeAlias

from callgate.errors import ControlRespond, Invalid, StageError
from callgate.hooks.effects import Claim
from callgate.hooks.stages import STAGES, Stage
from callgate.hooks.state.facts import (
    FROZEN,
    LIVE,
    RAW,
    Answers,
    ArmedDeadline,
    C,
    Consumer,
    IdleLimit,
    Leases,
    NoSchemaVerdict,
    Shield,
    Suppressed,
    Suspension,
    TraceRow,
)
from callgate.hooks.state.frozen_views import input_view, output_view, raw_view
from callgate.hooks.state.history import Entry, Kept, kept_own, snapshot, without_repeats
from callgate.hooks.state.host import CallPlan
from callgate.hooks.state.step import PlanStep
from callgate.providers.ids import new_id
from callgate.providers.registry import MISSING
from callgate.providers.scope import ProviderScope
from callgate.providers.scrubbing import Scrubber
from callgate.tools.arguments.hydrated import HydrationResult, Repair
from callgate.tools.calls import Issue, Outcome, ToolCall, User
from callgate.tools.execution import NO_TASK, TaskIds
from callgate.tools.values import SCALARS, deeper_than, hash_of, thaw

Watch: TypeAlias = Callable[[C, AbstractAsyncContextManager[object]], AbstractAsyncContextManager[object]]


class Run(Generic[C]):
    """The state that the runtime keeps of one invocation, beside the context of its hooks.

    What most invocations set has a slot, which the constructor fills. The rest has class-level defaults. Without slots,
    CPython would keep one table of names for all runs, and close it after the first thirty: each later run that sets
    another name would get a dict of its own, of 1 kB. ``C`` is ``InvokeContext``.
    """

    __slots__ = (
        *("__dict__", "cache_hit", "checked", "deadline_at", "error", "executed", "finished", "input", "input_state"),
        *("leases", "limited", "off_fast_path", "outcome", "output", "output_log", "plan", "raw_input", "read_at"),
        *("request_id", "requests", "returned_at", "scope", "shown_input", "shown_output", "shown_raw", "started"),
        *("step", "tool_call", "user", "validate_response"),
    )

    step: PlanStep
    raw_input: Any
    input: Any

    session_id: str | None = None
    task: TaskIds = NO_TASK
    job: str | None = None  # the id of the job that makes this call
    failed_in: PlanStep | None = None
    deferred: BaseException | None = None  # a cancellation that arrived while a step had to finish
    alarm: ArmedDeadline | None = None  # the armed deadline
    idle: IdleLimit | None = None  # that progress resets
    hydration: HydrationResult | None = None
    no_schema: NoSchemaVerdict | None = None  # the mode that the policy decided for a call without a schema
    repair: Repair | None = None  # the repair of the arguments, before and after
    cancelled_once: bool = False  # scopes of anyio around the call cancel it once
    attempt: int = 1
    tries: int = 0
    depth: int = 0
    idempotency_key: str | None = None
    joins_waiting: bool = False  # a repeat with the same arguments shares its suspension
    pending: Suspension | None = None
    resumed: Answers | None = None  # the answers given to this run of a suspended call
    deciders: tuple[str, ...] = ()  # the ids of the people who decided or answered a suspended call
    claim: Claim | None = None  # its claim in the effect ledger
    replayed: bool = False  # the output or error comes from an earlier call with the same key
    outer: Run[C] | None = None  # the run of the call that made this nested call
    nested: dict[int, dict[tuple[str, ...], int]] | None = None  # by attempt: how often it has called what so far
    beside: dict[tuple[str, ...], int]  # the counts of the attempt that made this nested call
    place: list[object] | None = None  # what identifies this nested call within that attempt
    anchor: str | None = None  # identifies a call that has no other identity, for its nested effects
    body_task: asyncio.Task[object] | None = None  # the task of a body that has one of its own
    asked: dict[str, int] | None = None  # requests to a person or client so far, by stage, hook and kind
    pending_release: bool = False
    shield: Shield | None = None  # keeps cancel scopes off closing steps
    closes_at: float | None = None  # the end of the budget for closing, in seconds of the loop, once a step has waited
    abandoned: bool = False
    body_left: bool = False  # the body may still run
    left: list[asyncio.Future[object]] | None = None  # what was abandoned and has not ended
    grouped: bool = False  # an error left a task group, which may have left a request to cancel
    unknown: BaseException | None = None  # the error of a call that names no tool
    parse_rules: tuple[str, ...] = ()
    events: Consumer[C] | None = None
    shadows: dict[object, C] | None = None  # the contexts of hooks in shadow mode, by registration
    trace: list[TraceRow] | None = None  # the rows of a traced call
    watch: Watch[C] | None = None  # wraps what ``ctx.lease`` enters; for tests
    scrubber: Scrubber | None = None
    maskers: tuple[Callable[[object], object], ...] = ()

    masked: object = MISSING
    masked_by: tuple[float, PlanStep] | None = None  # when, and by which step
    frozen_hash: str | None = None  # the SHA-256 of the frozen arguments, once something asks for it
    sent: tuple[int, int] = (0, 0)  # bytes of JSON and of content in the parts that this attempt has sent
    shown_call: ToolCall | None = None
    input_log: list[Kept] | None = None
    unit: ProviderScope | None = None  # the scope of the execution that runs, where providers need one
    body_error: BaseException | None = None  # with which the body of this execution ended
    ends_scope: bool = True  # False for a nested call, and for a scope that an abandoned body still holds
    suppressed: list[Suppressed] | None = None
    hooks: dict[type, object] | None = None  # instances of hook classes

    def __init__(self, plan: CallPlan[C], arguments: object, user: User, started: float) -> None:
        self.plan = plan
        self.raw_input = self.input = arguments
        self.shown_raw: object = arguments if arguments.__class__ is str else MISSING  # a text is its own view
        self.user = user
        self.started = started
        self.deadline_at: float | None = None  # by the gate's clock
        self.off_fast_path = False  # True with a deadline, an error, a deferred cancellation, or a step that waited
        self.leases: Leases = None
        self.error: BaseException | None = None
        self.input_state: int = RAW
        self.read_at: float = 0.0  # the time at which the arguments were parsed, where a hook may ask for it
        self.checked: Any = MISSING  # the arguments that passed validation before the freeze
        self.requests: int = 0  # to cancel the task, before the call
        self.output: Any = None
        self.limited: object = MISSING  # the output that is known to keep the limits of size and depth
        self.executed = False
        self.returned_at: float | None = None  # the time at which this attempt of the tool returned, as ``read_at``
        self.output_log: list[Kept] | None = None
        self.validate_response = True
        self.outcome: Outcome | None = None
        self.finished: float | None = None
        self.cache_hit: bool | None = None
        self.tool_call: ToolCall | None = None
        self.request_id: str | None = None
        self.scope: ProviderScope | None = None
        self.shown_input = self.shown_output = MISSING  # views that hooks have read

    @property
    def known_request_id(self) -> str:
        """The id of the caller, or a new one."""
        if self.request_id is None:
            self.request_id = new_id()
        return self.request_id

    def show_input(self) -> object:
        """Return what hooks read as ``ctx.input``, or raise ``StageError`` if the arguments are not parsed yet."""
        if self.input_state == RAW:
            if self.input_log is not None:  # a hook has set it
                return input_view(self.input)
            raise StageError(
                f"{self.step.stage} runs before the arguments are parsed; read ctx.raw_input (text or an object, not "
                f"checked), or read ctx.input in {Stage.WILL_VALIDATE_INPUT} or later"
            )
        if self.shown_input is MISSING:
            self.shown_input = input_view(self.input)
        return self.shown_input

    def show_output(self) -> object:
        """Return what hooks read as ``ctx.output``; a scalar is not kept, because the tool may replace it."""
        value = self.output
        if value.__class__ in SCALARS:
            return value
        if self.shown_output is MISSING:
            self.shown_output = output_view(value)
        return self.shown_output

    def show_raw(self) -> object:
        """Return what hooks read as ``ctx.raw_input``."""
        if self.shown_raw is MISSING:
            self.shown_raw = raw_view(self.raw_input)
        return self.shown_raw

    def scrubbed(self, error: BaseException) -> BaseException:
        """Return the error without the secrets of this invocation: the same object if it shows none."""
        return error if self.scrubber is None else self.scrubber.error(error)

    def request_scope(self) -> ProviderScope:
        """The provider scope of this invocation and its nested calls; it closes when the invocation ends."""
        scope = self.scope
        if scope is None:
            owner = (self.user.tenant, self.user.id)
            scope = self.scope = self.plan.host.registry.request(self.session_id, owner)
        return scope

    def innermost_scope(self) -> ProviderScope:
        """The provider scope of the execution that runs, else of this invocation."""
        return self.request_scope() if self.unit is None else self.unit

    def call_view(self) -> ToolCall:
        """Return the call as the caller made it, with raw arguments as an immutable view."""
        call = self.tool_call
        if call is None:
            made, name = f"call_{self.known_request_id}", self.plan.tool_id
            call = self.tool_call = ToolCall(id=made, name=name, arguments=self.raw_input, synthetic_id=True)
        if call.arguments.__class__ in SCALARS:
            return call
        if self.shown_call is None:
            self.shown_call = replace(call, arguments=self.show_raw())
        return self.shown_call

    def put_input(self, value: object) -> None:
        """Make *value* the input, as a copy that no hook holds; the history names the current step.

        Raises:
            Invalid: the value nests too deep.
        """
        deepest = self.plan.builtins.limits.max_depth
        if deeper_than(value, deepest):
            text = f"a hook left arguments that nest deeper than {deepest} levels"
            raise Invalid(text, issues=[Issue("", "too_deep", f"at most {deepest} levels")])
        self.input = thaw(value)
        self.input_log = [*(self.input_log or ()), kept_own(self, self.input)]
        if self.input_state == LIVE:
            self.shown_input = input_view(self.input)

    def settle(self, settled: dict[str, object]) -> None:
        """Make *settled* the input: the arguments with defaults and conversions, just before they are frozen."""
        self.input = settled
        self.shown_input = MISSING

    def masked_view(self) -> object:
        """Return the arguments that records may show."""
        shown = self.masked
        if shown is MISSING:
            shown = self.latest_input()
            for mask in self.maskers:  # for a call that ended before its input was masked
                shown = mask(shown)
        return shown if self.scrubber is None else self.scrubber.value(shown)

    def hash_of_input(self) -> str:
        """Return the SHA-256 of the arguments: of their canonical JSON, or of the text that is not parsed yet."""
        if self.input_state == FROZEN:
            if (known := self.frozen_hash) is None:
                known = self.frozen_hash = self.plan.builtins.hash_of(self.input)
            return known
        value = self.latest_input() if self.input_state == RAW else self.input
        if isinstance(value, str):
            return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        return hash_of(value)

    def latest_input(self) -> object:
        """Return a view of the arguments as they are now: before they are parsed, as given or as a hook set them."""
        return self.show_raw() if self.input_state == RAW and self.input_log is None else self.show_input()

    def take(self, response: ControlRespond) -> None:
        """Make a hook's response the output."""
        self.validate_response = response.validate
        self.put_output(response.value, is_own=response.parsed)

    def put_output(self, value: object, *, is_own: bool = False) -> None:
        """Make *value* the output, as JSON that no hook holds; the history names the current step.

        With *is_own* it is such JSON already.

        Raises:
            Invalid: the value has no JSON form.
        """
        log = self.output_log
        if log is None:
            at = self.returned_at
            log = [] if at is None else [Kept(at, self.plan.running, self.output)]
        self.output = value if is_own else self.plan.builtins.response_as_json(self, value)
        self.output_log = [*log, kept_own(self, self.output)]
        self.shown_output = MISSING

    def returned(self) -> None:
        """Begin the history of the output with the value that this attempt of the tool has returned."""
        self.returned_at = self.plan.now()
        self.output_log = None  # the output itself is the entry, until a hook sets another
        self.shown_output = MISSING  # a hook of will_execute may have read an earlier output

    def defer(self, cancelled: BaseException) -> None:
        """Defer a cancellation that arrived while a step had to finish; the runtime raises it after the step."""
        self.deferred = cancelled
        self.off_fast_path = True


class CallContext(Protocol):
    """The members of ``InvokeContext`` that modules below it use."""

    @property
    def run(self) -> Run[Any]:
        """The state of the call."""
        ...

    @property
    def input_hash(self) -> str:
        """The SHA-256 of the arguments."""
        ...

    @property
    def masked_input(self) -> Any:
        """The arguments that records may show."""
        ...


# ---------------------------------------------------------------------- histories

_UNPARSED = frozenset(stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position)


def input_entries(ctx: CallContext) -> tuple[Entry, ...]:
    """Return the input as given, as parsed, and as hooks set it; equal neighbours are one entry, of the first writer.

    After a hook has masked the input, the history shows only the masked value.
    """
    run = ctx.run
    if run.masked is not MISSING or run.maskers or run.scrubber is not None:
        at, step = run.masked_by or (run.started, run.plan.start)
        return (Entry(at, Stage.WILL_REDACT_INPUT, snapshot(ctx.masked_input), step.name),)
    log: list[Kept] = run.input_log or []
    early = [kept for kept in log if kept.step.stage in _UNPARSED]
    entries = [Entry(run.started, None, snapshot(run.raw_input), "caller"), *(kept.entry() for kept in early)]
    if run.input_state != RAW:
        parsed = run.plan.builtins.parse_again(run.hydration, run.input, early[-1].value() if early else run.raw_input)
        entries.append(Entry(run.read_at, Stage.WILL_PARSE_INPUT, parsed, "parse"))
    entries += [kept.entry() for kept in log[len(early) :]]
    return without_repeats(entries)


def output_entries(ctx: CallContext) -> tuple[Entry, ...]:
    """Return the output as the tool returned it, and as wrappers and hooks set it."""
    run = ctx.run
    entries = [kept.entry() for kept in run.output_log or ()]
    if not entries and run.executed:  # no hook has changed it
        at, tool = run.returned_at or run.finished or run.plan.now(), run.plan.running
        entries.append(Entry(at, tool.stage, snapshot(run.output), tool.name))
    return without_repeats(entries)
