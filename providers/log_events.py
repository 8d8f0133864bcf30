"""The names, levels and fields of the events that Callgate logs, and the members of a call that they show."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol, Self

from callgate.providers.principal import User
from callgate.providers.scrubbing import Scrubber

DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50  # levels, as the stdlib numbers them

IDS = ("tool", "request_id", "call_id", "session_id", "tenant", "user")
"""The ids of an event about a call, as far as they are known."""


class LogEvent(StrEnum):
    """The events. ``about`` says when an event is sent, ``fields`` names its fields beside the ids."""

    level: int
    about: str
    fields: tuple[str, ...]

    def __new__(cls, name: str, level: int, fields: str, about: str) -> Self:  # noqa: D102
        member = str.__new__(cls, name)
        member._value_ = name
        member.level, member.about, member.fields = level, about, tuple(fields.split())
        return member

    GATE_OPENED = ("gate.opened", INFO, "tools hooks", "the gate is open: the global factories have run")
    GATE_CLOSED = (
        "gate.closed",
        INFO,
        "left_behind",
        "the gate is closed; `left_behind` bodies were still running",
    )
    GATE_LOOP_CLOSED = (
        "gate.loop_closed",
        WARNING,
        "instances calls",
        "the event loop was closed before the gate; so many instances were dropped without being closed, and so many calls",
    )
    PLAN_COMPILED = ("plan.compiled", DEBUG, "tool hooks", "the plan of a tool was compiled")
    HYDRATION_ATTEMPTED = (
        "hydration.attempted",
        DEBUG,
        "tool call_id success stage wire definition validator validated rules repaired no_schema_mode",
        "`gate.hydrate` or a model's client read a call, whether or not it runs; `stage` failed",
    )
    DEFINITION_WARNING = (
        "definition.warning",
        WARNING,
        "tool warning",
        "the definition of a tool is valid and probably wrong",
    )
    LINT_FOUND = (
        "lint.found",
        WARNING,
        "tool rule hook advice",
        "the linter has a finding about the gate that opens; `gate.lint()` returns them all",
    )
    CALL_REFUSED = (
        "call.refused",
        INFO,
        "outcome error stage hook reason",
        "the call was refused: invalid, denied, rate limited or in conflict; `reason` comes from a hook",
    )
    CALL_ASKED = (
        "call.asked",
        INFO,
        "tool user verdict code",
        "`gate.would` was asked about a call; no tool ran",
    )
    CALL_SUSPENDED = ("call.suspended", INFO, "stage hook kind", "the call waits for an approver or a client")
    CALL_CANCELLED = ("call.cancelled", INFO, "stage hook", "the caller cancelled the call")
    CALL_FAILED = (
        "call.failed",
        ERROR,
        "outcome error stage hook",
        "the tool, a hook or a timeout failed the call; the outcome is error, unknown, or denied after a policy failed",
    )
    ATTEMPT_FAILED = (
        "call.attempt_failed",
        ERROR,
        "stage hook error",
        "an unexpected exception that a wrapper handled, by a retry, a response or another error, or one beside a decision in a group",
    )
    OUTPUT_INVALID = (
        "output.invalid",
        WARNING,
        "stage hook reason",
        "the output of a tool or a hook is not valid; `reason` names the path, the expected and the found type, no values",
    )
    OUTPUT_DROPPED = (
        "hook.output_dropped",
        WARNING,
        "stage hook",
        "a wrapper returned None after `next()` gave an output; it returns the output of `next()` to keep it",
    )
    CALL_NOT_VALIDATED = (
        "call.not_validated",
        INFO,
        "validated no_schema_mode",
        "a call of a tool without a schema was admitted; every event of such a call has these fields",
    )
    CALL_BLOCKED = (
        "call.blocked",
        WARNING,
        "seconds stage hook where",
        "a call blocked the event loop for longer than 250 ms or its deadline, and all others waited; `where` is the line of code",
    )
    CALL_OVERRAN = (
        "call.overran",
        WARNING,
        "seconds stage hook",
        "a call ended so many seconds after its deadline, because this step swallowed its cancellation or waited in a `finally`",
    )
    CALL_ABANDONED = (
        "call.abandoned",
        ERROR,
        "holds",
        "the tool or a hook still runs after the deadline or a timeout; the call has returned",
    )
    CALL_SETTLED = (
        "call.settled",
        INFO,
        "",
        "a tool or hook that was abandoned has ended, and the permits of its call are released",
    )
    EFFECT_UNKNOWN = (
        "effect.unknown",
        ERROR,
        "key",
        "a tool began and its outcome is unknown; `callgate effects` lists and settles such effects",
    )
    EFFECT_FENCED = (
        "effect.fenced",
        ERROR,
        "tool key fence state",
        "a call ended after its lease had expired; its outcome was not recorded",
    )
    EFFECT_UNSETTLED = (
        "effect.unsettled",
        ERROR,
        "tool key number error",
        "outcomes of effects could not be recorded; they are retried, and `unknown` if the process ends first",
    )
    EFFECT_REFUSED = (
        "effect.refused",
        ERROR,
        "tool key error",
        "the row of an unknown effect does not verify: it was changed, or is not signed; no hook is asked about it",
    )
    EFFECTS_ORPHANED = (
        "effects.orphaned",
        ERROR,
        "number",
        "processes ended while their effects were running; these effects are unknown now",
    )
    EFFECT_RECONCILED = (
        "effect.reconciled",
        INFO,
        "tool key state",
        "a hook has found the outcome of an unknown effect",
    )
    JOB_DEAD = ("job.dead", ERROR, "job tool reason", "a job was abandoned; `reason` says why")
    JOB_FAILED = (
        "job.failed",
        ERROR,
        "job tool error",
        "a worker could not end a job: it is dead, or tried again after an error of the store or of the lookup of its user",
    )
    SCHEDULE_FAILED = (
        "schedule.failed",
        ERROR,
        "schedule tool error",
        "a scheduled call could not be submitted; it is tried again each second, and other schedules go on",
    )
    JOB_LEFT = (
        "job.left",
        WARNING,
        "job tool reason",
        "a worker put a job back that does not fit it, for another worker; `reason` says why",
    )
    JOB_STORE_FAILED = (
        "job.store_failed",
        ERROR,
        "error",
        "a worker could not take a job or record its outcome; it retries",
    )
    JOB_NOT_SENT = (
        "job.not_sent",
        WARNING,
        "job error",
        "a job is stored, and its message to the job engine failed; the message is sent again",
    )
    SUSPENSION_RESUMED = (
        "suspension.resumed",
        INFO,
        "tool kind decision by",
        "an approver has decided a suspended call",
    )
    ROWS_PRUNED = (
        "rows.pruned",
        INFO,
        "rows number done",
        "old rows of the store were deleted; `rows` is their kind, `number` those so far",
    )
    SUSPENSION_EXPIRED = (
        "suspension.expired",
        INFO,
        "tool kind",
        "a suspended call expired without a decision",
    )
    SUSPENSION_DAMAGED = (
        "suspension.damaged",
        ERROR,
        "tool kind",
        "the record of a suspended call has no valid signature; the call is not resumed",
    )
    HOOK_FAILED = (
        "hook.failed",
        WARNING,
        "stage hook error",
        "a hook failed at a stage where failures are ignored",
    )
    HOOK_SHADOWED = ("hook.shadowed", INFO, "stage hook error", "the result of a hook in shadow mode")
    CLEANUP_FAILED = ("cleanup.failed", ERROR, "stage hook error", "the release of a permit or unit failed")
    PROVIDER_FAILED = (
        "provider.failed",
        ERROR,
        "provider phase error",
        "a provider failed to make or to close its instance",
    )
    MODEL_EXCHANGE = (
        "model.exchange",
        INFO,
        "provider status request_bytes response_bytes seconds retries",
        "a request to a model's provider ended, answered or not; no content is logged",
    )
    ANSWER_LOST = (
        "model.answer_lost",
        WARNING,
        "provider problem calls",
        "a model's answer is not known to be whole; none of its calls runs",
    )
    MODEL_RETRIED = (
        "model.retried",
        WARNING,
        "provider round wait",
        "an answer broke off or is lost, and none of its calls has run; the conversation asks the model again",
    )
    PICK_FAILED = (
        "pick.failed",
        WARNING,
        "tool scorer error",
        "a scorer failed on a tool; the tool is not picked",
    )
    PICK_FELL_BACK = (
        "pick.fell_back",
        WARNING,
        "scorer error",
        "an embedder failed or timed out; tools are picked by words only",
    )
    SESSION_ENDED = (
        "session.ended",
        INFO,
        "session_id reason",
        "the gate ended a session; `reason` says why",
    )
    AUDIT_ROW = (
        "audit.row",
        INFO,
        "kind segment number hash previous input_hash output_hash call",
        'the audit row of a call, with `Audit(sink="log")`; `call` is the rest of the row',
    )
    AUDIT_ANCHORED = (
        "audit.anchored",
        INFO,
        "segment number hash",
        "the last row of an audit segment; a stored copy proves later whether rows are missing",
    )
    AUDIT_DROPPED = (
        "audit.dropped",
        WARNING,
        "max_rows",
        "the audit log in memory is full: from now on the oldest rows are dropped; sent once for each log",
    )
    TOOL_SYSTEM_FAILED = (
        "tool_system.failed",
        ERROR,
        "fault thread_id trace_id call_id tool error",
        "a service around the tools of a plan failed; `fault` is the event of the `ToolSystemFault`",
    )


# ---------------------------------------------------------------------- the call that an event is about


class _Row(Protocol):
    @property
    def gives_back(self) -> str | None: ...


class _Step(Protocol):
    @property
    def stage(self) -> str: ...
    @property
    def row(self) -> _Row: ...

    @property
    def name(self) -> str: ...
    @property
    def hook(self) -> object: ...
    @property
    def shadow(self) -> bool: ...


class _Definition(Protocol):
    @property
    def property_names(self) -> frozenset[str]: ...


class _Rules(Protocol):
    def mode_of(self, verdict: Any, /) -> object: ...


class _Checks(Protocol):
    @property
    def unvalidated(self) -> _Rules | None: ...


class _Host(Protocol):
    @property
    def development(self) -> bool: ...


class _Plan(Protocol):
    @property
    def definition(self) -> _Definition: ...
    @property
    def builtins(self) -> _Checks: ...
    @property
    def host(self) -> _Host: ...


class _ToolCall(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


class LoggedRun(Protocol):
    """The state of a call."""

    scrubber: Scrubber | None
    raw_input: object
    input: object
    session_id: str | None
    unknown: BaseException | None

    @property
    def plan(self) -> _Plan: ...  # noqa: D102  (as in ``Run``)

    @property
    def step(self) -> _Step: ...  # noqa: D102

    @property
    def outer(self) -> LoggedRun | None: ...  # noqa: D102

    @property
    def tool_call(self) -> _ToolCall | None: ...  # noqa: D102

    @property
    def no_schema(self) -> object: ...  # noqa: D102


class LoggedCall(Protocol):
    """One call: ``InvokeContext``, which lies above this layer."""

    @property
    def run(self) -> LoggedRun:
        """The state of the call."""
        ...

    @property
    def user(self) -> User:
        """The principal."""
        ...

    @property
    def tool_id(self) -> str:
        """The wire name of the tool."""
        ...

    @property
    def request_id(self) -> str:
        """The correlation id."""
        ...
