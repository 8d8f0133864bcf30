"""Structured logs: fixed event names, the ids of the call on each event, secrets masked before any sink.

Logs are silent until the application adds a handler to the stdlib logger ``callgate`` (or to the root logger), or calls
``configure_logging``. Until then an event costs one check of the handlers, and structlog is not imported. A call that
succeeds logs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Self, TextIO

from callgate.providers.redaction import Redactor
from callgate.providers.scrubbing import CURRENT_SCRUBBER

LogSink = Callable[[dict[str, Any]], object]
"""Takes one event as plain data: ``event``, ``level``, ``timestamp``, the ids and the fields of that event."""

LOGGER = logging.getLogger("callgate")
_PLACEHOLDER = logging.NullHandler()
LOGGER.addHandler(_PLACEHOLDER)

IDS = ("tool", "request_id", "call_id", "session_id", "tenant", "user")
"""The ids of an event about a call, as far as they are known."""
_LONG_BY_NATURE = frozenset((*IDS, "job", "key", "segment", "hash", "previous", "input_hash", "output_hash"))

_METHODS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}


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

    GATE_OPENED = ("gate.opened", logging.INFO, "tools hooks", "the gate is open: the global factories have run")
    GATE_CLOSED = (
        "gate.closed",
        logging.INFO,
        "left_behind",
        "the gate is closed; `left_behind` bodies were still running",
    )
    PLAN_COMPILED = ("plan.compiled", logging.DEBUG, "tool hooks", "the plan of a tool was compiled")
    DEFINITION_WARNING = (
        "definition.warning",
        logging.WARNING,
        "tool warning",
        "the definition of a tool is valid and probably wrong",
    )
    CALL_REFUSED = (
        "call.refused",
        logging.INFO,
        "outcome error stage hook reason",
        "the call was refused: invalid, denied, rate limited or in conflict; `reason` comes from a hook",
    )
    CALL_SUSPENDED = ("call.suspended", logging.INFO, "stage hook kind", "the call waits for an approver or a client")
    CALL_CANCELLED = ("call.cancelled", logging.INFO, "stage hook", "the caller cancelled the call")
    CALL_FAILED = (
        "call.failed",
        logging.ERROR,
        "outcome error stage hook",
        "the tool, a hook or a timeout failed the call; the outcome is error, unknown, or denied after a policy failed",
    )
    CALL_ABANDONED = (
        "call.abandoned",
        logging.ERROR,
        "holds",
        "the tool still runs after its timeout; the call has returned",
    )
    CALL_SETTLED = (
        "call.settled",
        logging.INFO,
        "",
        "a tool that ran after its timeout has ended and released its permits",
    )
    EFFECT_UNKNOWN = (
        "effect.unknown",
        logging.ERROR,
        "key",
        "a tool began and its outcome is unknown; `callgate effects` lists and settles such effects",
    )
    EFFECT_FENCED = (
        "effect.fenced",
        logging.ERROR,
        "tool key fence state",
        "a call ended after its lease had expired; its outcome was not recorded",
    )
    EFFECT_UNSETTLED = (
        "effect.unsettled",
        logging.ERROR,
        "tool key error",
        "the outcome of an effect could not be recorded; it is retried, and `unknown` if the process ends first",
    )
    EFFECTS_ORPHANED = (
        "effects.orphaned",
        logging.ERROR,
        "number",
        "processes ended while their effects were running; these effects are unknown now",
    )
    EFFECT_RECONCILED = (
        "effect.reconciled",
        logging.INFO,
        "tool key state",
        "a hook has found the outcome of an unknown effect",
    )
    JOB_DEAD = ("job.dead", logging.ERROR, "job tool reason", "a job was abandoned; `reason` says why")
    JOB_STORE_FAILED = (
        "job.store_failed",
        logging.ERROR,
        "error",
        "a worker could not take a job or record its outcome; it retries",
    )
    JOB_NOT_SENT = (
        "job.not_sent",
        logging.WARNING,
        "job error",
        "a job is stored, and its message to the job engine failed; the message is sent again",
    )
    SUSPENSION_RESUMED = (
        "suspension.resumed",
        logging.INFO,
        "tool kind decision by",
        "an approver has decided a suspended call",
    )
    SUSPENSION_EXPIRED = (
        "suspension.expired",
        logging.INFO,
        "tool kind",
        "a suspended call expired without a decision",
    )
    SUSPENSION_DAMAGED = (
        "suspension.damaged",
        logging.ERROR,
        "tool kind",
        "the record of a suspended call has no valid signature; the call is not resumed",
    )
    HOOK_FAILED = (
        "hook.failed",
        logging.WARNING,
        "stage hook error",
        "a hook failed at a stage where failures are ignored",
    )
    HOOK_SHADOWED = ("hook.shadowed", logging.INFO, "stage hook error", "the result of a hook in shadow mode")
    CLEANUP_FAILED = ("cleanup.failed", logging.ERROR, "stage hook error", "the release of a permit or unit failed")
    PROVIDER_FAILED = (
        "provider.failed",
        logging.ERROR,
        "provider phase error",
        "a provider failed to make or to close its instance",
    )
    PICK_FAILED = (
        "pick.failed",
        logging.WARNING,
        "tool scorer error",
        "a scorer failed on a tool; the tool is not picked",
    )
    PICK_FELL_BACK = (
        "pick.fell_back",
        logging.WARNING,
        "scorer error",
        "an embedder failed or timed out; tools are picked by words only",
    )
    SESSION_ENDED = (
        "session.ended",
        logging.INFO,
        "session_id reason",
        "the gate ended a session; `reason` says why",
    )
    AUDIT_ROW = (
        "audit.row",
        logging.INFO,
        "kind segment number hash previous input_hash output_hash call",
        'the audit row of a call, with `Audit(sink="log")`; `call` is the rest of the row',
    )
    AUDIT_ANCHORED = (
        "audit.anchored",
        logging.INFO,
        "segment number hash",
        "the last row of an audit segment; a stored copy proves later whether rows are missing",
    )


class _Setup:
    """The current configuration of the logs; ``logger`` is built on first use."""

    def __init__(self) -> None:
        self.logger: Any = None
        self.level = logging.NOTSET
        self.to_stdlib = True
        self.build: Callable[[], Any] = _chain

    def is_enabled(self, level: int) -> bool:
        if level < self.level:
            return False
        return not self.to_stdlib or (LOGGER.isEnabledFor(level) and _has_handler())

    def get_logger(self) -> Any:
        if self.logger is None:
            self.logger = self.build()
        return self.logger


def emit(event: LogEvent, ctx: Any = None, **fields: Any) -> None:
    """Log one event about the call of *ctx*, if its level is enabled. Never raises.

    Pass objects such as errors unchanged: they are formatted and masked only when the event is logged.
    """
    setup = _setup
    if not setup.is_enabled(event.level):
        return
    scrubbed = CURRENT_SCRUBBER.set(None if ctx is None else ctx.run.scrubber)
    try:
        known = {} if ctx is None else ids_of(ctx)
        shown = {name: value for name, value in fields.items() if value is not None}
        log = setup.get_logger().bind(**known)
        getattr(log, _METHODS[event.level])(event.value, **shown)
    except BaseException:  # noqa: BLE001  (a failing sink must not change the outcome of a call or keep its permits)
        return
    finally:
        CURRENT_SCRUBBER.reset(scrubbed)


def emit_suppressed(ctx: Any, error: BaseException) -> None:
    """Log an ignored failure of the current step; the event depends on the step."""
    step = ctx.run.step
    if step.shadow:
        event = LogEvent.HOOK_SHADOWED
    else:  # the release of a lease has no hook
        event = LogEvent.CLEANUP_FAILED if step.row.gives_back or step.hook is None else LogEvent.HOOK_FAILED
    emit(event, ctx, stage=step.stage, hook=step.name, error=error)


def log_opened(tools: int, hooks: int) -> None:
    """Log that a gate has opened. If logs are enabled, this imports structlog before the first failure."""
    if not _setup.to_stdlib or _has_handler():
        _setup.get_logger()
    emit(LogEvent.GATE_OPENED, tools=tools, hooks=hooks)


def log_warnings(tool: str, warnings: Iterable[str]) -> None:
    """Log the warnings about the definition of a tool that was added to a gate."""
    for warning in warnings:
        emit(LogEvent.DEFINITION_WARNING, tool=tool, warning=warning)


def ids_of(ctx: Any) -> dict[str, Any]:
    """Return the known ids of a call."""
    call = ctx.run.tool_call
    tool = ctx.tool_id if ctx.run.unknown is None else call.name
    found = (tool, ctx.request_id, call and call.id, ctx.run.session_id, ctx.user.tenant, ctx.user.id)
    return {name: value for name, value in zip(IDS, found, strict=True) if value is not None}


def configure_logging(
    sink: LogSink | TextIO | None = None,
    *,
    level: int | str | None = None,
    form: Literal["text", "json"] = "text",
    processors: Sequence[Callable[[Any, str, Any], Any]] = (),
    secret_keys: Iterable[str] = (),
    errors: Literal["type", "text"] = "type",
) -> None:
    """Configure the logs of Callgate. A call replaces the earlier configuration; without arguments it restores the default.

    Args:
        sink: an open text file such as ``sys.stderr`` gets one line for each event; a callable gets each event as a dict;
            None is the stdlib logger ``callgate``, whose records have the dict as attribute ``callgate``.
        level: the lowest level to log, as in ``logging``; default ``"INFO"``, or the level of the stdlib logger.
        form: the format of a line.
        processors: structlog processors of the application. They run before the redaction, which masks their fields, too.
        secret_keys: further names of keys whose values are masked.
        errors: ``"type"`` shows the type and code of an exception; ``"text"`` its message too, with secrets masked.

    Raises:
        ValueError: the level, form or value of *errors* is unknown.
        TypeError: the sink is neither a text file nor a callable.
    """
    if form not in ("text", "json"):
        raise ValueError(f"form is {form!r}; choose 'text' or 'json'")
    if not (sink is None or callable(sink) or hasattr(sink, "write")):
        raise TypeError(f"a sink is a text file or a callable, not {type(sink).__name__}")
    redactor = Redactor(secret_keys, ids=_LONG_BY_NATURE, errors=errors)
    setup = _Setup()
    setup.to_stdlib = sink is None
    setup.level = _level(level, logging.NOTSET if sink is None else logging.INFO)
    setup.build = lambda: _chain(sink, redactor, processors, form)
    if sink is not None:
        setup.get_logger()  # imports structlog now, not at the first failure
    global _setup  # noqa: PLW0603  (the configuration is one for the process)
    _setup = setup


def _level(level: int | str | None, default: int) -> int:
    if isinstance(level, str):
        known = logging.getLevelNamesMapping()
        if level.upper() not in known:
            raise ValueError(f"level is {level!r}; choose one of {', '.join(known)}")
        return known[level.upper()]
    return default if level is None else level


def _has_handler() -> bool:
    """Return True when the stdlib logger has a handler other than the placeholder of this module."""
    node: logging.Logger | None = LOGGER
    while node is not None:
        for handler in node.handlers:
            if handler is not _PLACEHOLDER:
                return True
        node = node.parent if node.propagate else None
    return False


def _chain(
    sink: LogSink | TextIO | None = None,
    redactor: Redactor | None = None,
    processors: Sequence[Any] = (),
    form: str = "text",
) -> Any:
    """Return a structlog logger that is independent of the structlog configuration of the application."""
    import structlog

    redactor = redactor or Redactor(ids=_LONG_BY_NATURE)
    order = ["timestamp", "level", "event"]
    line: Any = (
        structlog.processors.JSONRenderer(default=_type_name)
        if form == "json"
        else structlog.processors.KeyValueRenderer(key_order=order, drop_missing=True)
    )
    last: list[Any]
    target: Any
    if sink is None:
        target, last = LOGGER, [_for_stdlib(line)]
    elif callable(sink):
        target, last = _CallableSink(sink), [_as_argument]
    else:
        target, last = structlog.WriteLogger(sink), [line]
    return structlog.wrap_logger(
        target,
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *processors,
            redactor.event,
            *last,
        ],
        wrapper_class=structlog.BoundLogger,
        context_class=dict,
    ).bind()


class _CallableSink:
    """A logger that calls a callable sink."""

    def __init__(self, sink: LogSink) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = sink


def _as_argument(_logger: Any, _method: str, event: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (event,), {}


def _for_stdlib(line: Any) -> Any:
    def render(logger: Any, method: str, event: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # A log record has its own time and level.
        fields = {name: value for name, value in event.items() if name not in ("timestamp", "level", "event")}
        text = line(logger, method, fields)
        return ("%s %s", event.get("event"), text), {"extra": {"callgate": dict(event)}}

    return render


def _type_name(value: Any) -> str:
    return f"<{type(value).__name__}>"


_setup = _Setup()
