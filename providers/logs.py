"""Every log of Callgate: fixed event names, the call's ids on each, secrets masked before any sink sees them.

Silent unless somebody listens: the application gave the stdlib logger ``callgate`` (or the root) a handler, or called
``configure_logging``. While nobody does, an event costs a look at the handlers, and structlog is not even imported.
A call that succeeds logs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Self, TextIO

from callgate.providers.redaction import Redactor
from callgate.providers.scrubbing import CURRENT

Sink = Callable[[dict[str, Any]], object]
"""Takes one event: ``event``, ``level``, ``timestamp``, the ids, and the fields of that event; in plain data."""

LOGGER = logging.getLogger("callgate")
_NOBODY = logging.NullHandler()
LOGGER.addHandler(_NOBODY)

IDS = ("tool", "request_id", "call_id", "session_id", "tenant", "user")
"""What an event about one call is bound to, as far as it is known."""
_LONG_BY_NATURE = frozenset((*IDS, "job", "key", "segment", "hash", "previous", "input_hash", "output_hash"))

_METHODS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}


class Event(StrEnum):
    """Every event there is. ``level`` is how loud it is, ``about`` when it is sent, ``fields`` what it has beside ids."""

    level: int
    about: str
    fields: tuple[str, ...]

    def __new__(cls, name: str, level: int, fields: str, about: str) -> Self:  # noqa: D102
        member = str.__new__(cls, name)
        member._value_ = name
        member.level, member.about, member.fields = level, about, tuple(fields.split())
        return member

    GATE_OPENED = ("gate.opened", logging.INFO, "tools hooks", "the factories have run, calls may come")
    GATE_CLOSED = ("gate.closed", logging.INFO, "left_behind", "no more calls; `left_behind` bodies still ran")
    PLAN_COMPILED = ("plan.compiled", logging.DEBUG, "tool hooks", "a tool's plan was made")
    DEFINITION_WARNING = (
        "definition.warning",
        logging.WARNING,
        "tool warning",
        "a definition is legal and looks wrong",
    )
    CALL_REFUSED = (
        "call.refused",
        logging.INFO,
        "outcome error stage hook reason",
        "a decision ended the call: invalid, denied, to be tried later, in conflict; `reason` is what a hook gave",
    )
    CALL_SUSPENDED = ("call.suspended", logging.INFO, "stage hook kind", "the call waits for a person or a client")
    CALL_CANCELLED = ("call.cancelled", logging.INFO, "stage hook", "the task was cancelled from outside")
    CALL_FAILED = (
        "call.failed",
        logging.ERROR,
        "outcome error stage hook",
        "the tool, a hook or the deadline ended the call; outcome error or unknown, or denied by a policy that broke",
    )
    CALL_ABANDONED = ("call.abandoned", logging.ERROR, "holds", "the body outlived its deadline and was left behind")
    CALL_SETTLED = ("call.settled", logging.INFO, "", "a body that was left behind has ended and holds nothing")
    EFFECT_UNKNOWN = (
        "effect.unknown",
        logging.ERROR,
        "key",
        "a tool began and nobody knows what came of it; `callgate effects` lists and settles such effects",
    )
    EFFECT_FENCED = (
        "effect.fenced",
        logging.ERROR,
        "tool key fence state",
        "a call came back after its lease was over: how it ended was not written down",
    )
    EFFECT_UNSETTLED = (
        "effect.unsettled",
        logging.ERROR,
        "tool key error",
        "how an effect ended could not be written down; it is tried again, and is `unknown` if the process ends first",
    )
    EFFECTS_ORPHANED = (
        "effects.orphaned",
        logging.ERROR,
        "number",
        "processes ended while effects were under way: these are unknown now",
    )
    EFFECT_RECONCILED = (
        "effect.reconciled",
        logging.INFO,
        "tool key state",
        "a hook has found out what became of an unknown effect",
    )
    JOB_DEAD = ("job.dead", logging.ERROR, "job tool reason", "a job was given up, for the reason given")
    JOB_STORE_FAILED = (
        "job.store_failed",
        logging.ERROR,
        "error",
        "a worker could not take a job, or not write down how it ended; it tries again",
    )
    JOB_NOT_SENT = (
        "job.not_sent",
        logging.WARNING,
        "job error",
        "an engine could not be told of a job: it is written down, and the engine is told again",
    )
    WAIT_RESUMED = ("wait.resumed", logging.INFO, "tool kind decision by", "somebody has decided a call that waited")
    WAIT_EXPIRED = (
        "wait.expired",
        logging.INFO,
        "tool kind",
        "nobody decided a call that waited, and its time is over",
    )
    WAIT_DAMAGED = (
        "wait.damaged",
        logging.ERROR,
        "tool kind",
        "the record of a call that waits was changed by somebody without the signing key; it is not resumed",
    )
    HOOK_FAILED = ("hook.failed", logging.WARNING, "stage hook error", "a hook failed where that changes nothing")
    HOOK_SHADOWED = ("hook.shadowed", logging.INFO, "stage hook error", "what a hook in shadow mode would have done")
    CLEANUP_FAILED = ("cleanup.failed", logging.ERROR, "stage hook error", "giving back what was taken failed")
    PROVIDER_FAILED = (
        "provider.failed",
        logging.ERROR,
        "provider phase error",
        "a provider was not made, or not closed",
    )
    PICK_FAILED = ("pick.failed", logging.WARNING, "tool scorer error", "a scorer failed on a tool, which was left out")
    PICK_FELL_BACK = (
        "pick.fell_back",
        logging.WARNING,
        "scorer error",
        "an embedder failed or took too long: words alone decided",
    )
    SESSION_ENDED = (
        "session.ended",
        logging.INFO,
        "session_id reason",
        "the gate ended a session, for the reason given",
    )
    AUDIT_ROW = (
        "audit.row",
        logging.INFO,
        "kind segment number hash previous input_hash output_hash call",
        'what `Audit(sink="log")` writes about a call: `call` is the rest of the row',
    )
    AUDIT_ANCHORED = (
        "audit.anchored",
        logging.INFO,
        "segment number hash",
        "the head of an audit segment: whoever keeps it can see later whether rows behind it are gone",
    )


class _Setup:
    """Where events go now: ``None`` for *send* means the stdlib logger, if anybody listens to it."""

    def __init__(self) -> None:
        self.send: Any = None
        self.stdlib: Any = None
        self.level = logging.NOTSET
        self.to_stdlib = True
        self.build: Callable[[], Any] = _chain

    def heard(self, level: int) -> bool:
        if level < self.level:
            return False
        return not self.to_stdlib or (LOGGER.isEnabledFor(level) and _has_handler())

    def log(self) -> Any:
        if self.send is None:
            self.send = self.build()
        return self.send


def emit(event: Event, ctx: Any = None, **fields: Any) -> None:
    """Send one event, if anybody listens. *ctx* is the invocation that it is about. Never raises.

    Pass objects as they are (errors, contexts): what is shown of them is worked out, and masked, only when needed.
    """
    setup = _setup
    if not setup.heard(event.level):
        return
    scrubbed = CURRENT.set(getattr(ctx, "scrubber", None))
    try:
        known = {} if ctx is None else ids_of(ctx)
        shown = {name: value for name, value in fields.items() if value is not None}
        log = setup.log().bind(**known)
        getattr(log, _METHODS[event.level])(event.value, **shown)
    except BaseException:  # noqa: BLE001  (no sink may change how a call ends, or keep it from giving back what it holds)
        return
    finally:
        CURRENT.reset(scrubbed)


def emit_suppressed(ctx: Any, error: BaseException) -> None:
    """A failure of the current step that changes nothing: which event that is depends on the step."""
    step = ctx.step
    if step.shadow:
        event = Event.HOOK_SHADOWED
    else:  # a lease is nobody's method
        event = Event.CLEANUP_FAILED if step.row.gives_back or step.hook is None else Event.HOOK_FAILED
    emit(event, ctx, stage=step.stage, hook=step.name, error=error)


def tell_opened(tools: int, hooks: int) -> None:
    """A gate has opened. structlog is imported now, if anybody listens at all: better than at the first failure."""
    if not _setup.to_stdlib or _has_handler():
        _setup.log()
    emit(Event.GATE_OPENED, tools=tools, hooks=hooks)


def tell_warnings(tool: str, warnings: Iterable[str]) -> None:
    """What looks wrong in the definition of a tool that was added to a gate."""
    for warning in warnings:
        emit(Event.DEFINITION_WARNING, tool=tool, warning=warning)


def ids_of(ctx: Any) -> dict[str, Any]:
    """The ids of an invocation, those that it has."""
    call = ctx._call
    tool = ctx.tool_id if ctx.unknown is None else call.tool
    found = (tool, ctx.request_id, call and call.id, ctx.session_id, ctx.user.tenant, ctx.user.id)
    return {name: value for name, value in zip(IDS, found, strict=True) if value is not None}


def configure_logging(
    sink: Sink | TextIO | None = None,
    *,
    level: int | str | None = None,
    form: Literal["text", "json"] = "text",
    processors: Sequence[Callable[[Any, str, Any], Any]] = (),
    secret_keys: Iterable[str] = (),
    errors: Literal["type", "text"] = "type",
) -> None:
    """Say where Callgate's events go. The last call counts; one without arguments restores the default.

    Args:
        sink: an open text file such as ``sys.stderr`` gets one line an event; a callable gets each event as a dict;
            None is the stdlib logger ``callgate`` and its handlers, where a record's ``callgate`` attribute is the dict.
        level: the lowest level that is sent, as ``logging`` names it; default ``"INFO"``, for the stdlib logger its own.
        form: how a line is written.
        processors: structlog processors of the application; they run before the redaction, so nothing they add gets
            round it.
        secret_keys: further names of keys whose values are masked.
        errors: ``"type"`` shows of an exception its type and code; ``"text"`` its message too, with secrets masked.

    Raises:
        ValueError: there is no such level, form, or way to show errors.
        TypeError: the sink is neither.
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
        setup.log()  # structlog is imported now, not at the first failure
    global _setup  # noqa: PLW0603  (one process, one place where logs go)
    _setup = setup


def _level(level: int | str | None, default: int) -> int:
    if isinstance(level, str):
        known = logging.getLevelNamesMapping()
        if level.upper() not in known:
            raise ValueError(f"level is {level!r}; choose one of {', '.join(known)}")
        return known[level.upper()]
    return default if level is None else level


def _has_handler() -> bool:
    """Whether anybody but our own placeholder would get a record of the stdlib logger."""
    node: logging.Logger | None = LOGGER
    while node is not None:
        for handler in node.handlers:
            if handler is not _NOBODY:
                return True
        node = node.parent if node.propagate else None
    return False


def _chain(
    sink: Sink | TextIO | None = None,
    redactor: Redactor | None = None,
    processors: Sequence[Any] = (),
    form: str = "text",
) -> Any:
    """A structlog logger of our own: what the application configured for its own logs does not apply to ours."""
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
        target, last = _Called(sink), [_as_argument]
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


class _Called:
    """A sink that is a callable, as a logger."""

    def __init__(self, sink: Sink) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = sink


def _as_argument(_logger: Any, _method: str, event: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (event,), {}


def _for_stdlib(line: Any) -> Any:
    def render(logger: Any, method: str, event: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # A record has its own time and level.
        fields = {name: value for name, value in event.items() if name not in ("timestamp", "level", "event")}
        text = line(logger, method, fields)
        return ("%s %s", event.get("event"), text), {"extra": {"callgate": dict(event)}}

    return render


def _type_name(value: Any) -> str:
    return f"<{type(value).__name__}>"


_setup = _Setup()
