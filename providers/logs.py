"""Structured logs: fixed event names, the ids of the call on each event, secrets masked before any sink.

Events go to the sink of ``configure_logging``, else to structlog where the application has configured it, else to the
handlers of the stdlib logger ``callgate`` or of its parents. Where none of them is configured, only unexpected exceptions
are reported, on stderr; every other event costs one check, and structlog is not imported. A call that succeeds logs nothing.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TextIO

from callgate.providers.argument_mask import ArgumentMask
from callgate.providers.faults import fault_of, logged_as, mark_logged, traceback_of
from callgate.providers.log_chain import (
    LogSink,
    RedactingLog,
    StderrLog,
    StdlibLog,
    awaitable_method,
    chain,
    imported_by_application,
    print_line,
    redactor_of,
)
from callgate.providers.log_events import IDS, LogEvent, LoggedCall, LoggedRun
from callgate.providers.redaction import Redactor, fault_of_key, redact_text
from callgate.providers.scrubbing import CURRENT_SCRUBBER

__all__ = [
    "IDS",
    "LOGGER",
    "CallLog",
    "LogEvent",
    "LogSink",
    "configure_logging",
    "emit",
    "emit_fault",
    "emit_suppressed",
    "ids_of",
    "is_logged",
    "log_warnings",
]

LOGGER = logging.getLogger("callgate")
_PLACEHOLDER = logging.NullHandler()
LOGGER.addHandler(_PLACEHOLDER)

_METHODS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_RESERVED = frozenset(("event", "level", "timestamp", "exception", "exc_info", "stack_info"))


class _Setup:
    """The current configuration of the logs; ``logger`` is a chain of structlog, where the plain ways do not do."""

    def __init__(self) -> None:
        self.logger: object = None
        self.level = logging.NOTSET
        self.to_stdlib = True
        self.redactor: Redactor | None = None

    def target(self, level: int, *, urgent: bool) -> Any:
        """Return the logger for an event of *level*, or None. An *urgent* event reaches stderr where there is no other."""
        if level < self.level:
            return None
        if not self.to_stdlib:
            return self.logger
        if len(LOGGER.handlers) == 1 and (theirs := _structlog_of_application()) is not None:
            return RedactingLog(theirs, self.get_redactor())
        if _has_handler():
            if not LOGGER.isEnabledFor(level):
                return None
            return self.logger or RedactingLog(_STDLIB, self.get_redactor())
        return RedactingLog(_STDERR, self.get_redactor()) if urgent else None

    def get_redactor(self) -> Redactor:
        if self.redactor is None:
            self.redactor = redactor_of()
        return self.redactor


def emit(event: LogEvent, ctx: LoggedCall | None = None, **fields: object) -> None:
    """Log one event about the call of *ctx*, if its level is enabled. Never raises.

    Pass objects such as errors unchanged: they are formatted and masked only when the event is logged. An event about an
    unexpected exception is an error, and its field ``exception`` is the traceback. One call logs a traceback once.
    """
    error = fields.get("error")
    fault = fault_of(error) if isinstance(error, BaseException) else None
    _send(
        str.__str__(event),
        event.level,
        ctx,
        {name: value for name, value in fields.items() if value is not None},
        fault,
    )


def is_logged(event: LogEvent) -> bool:
    """Return True if a sink gets events of this kind."""
    return _setup.target(event.level, urgent=False) is not None


def debugs() -> bool:
    """Return True if events of the level debug are logged; the usual no is quick."""
    if _setup.to_stdlib and not LOGGER.isEnabledFor(logging.DEBUG) and "structlog" not in sys.modules:
        return False
    return _setup.target(logging.DEBUG, urgent=False) is not None


def emit_fault(event: LogEvent, error: BaseException, ctx: LoggedCall | None = None, **fields: object) -> None:
    """Log *error* where it is an unexpected exception; a decision is not logged."""
    if fault_of(error) is not None:
        emit(event, ctx, error=error, **fields)


def _send(
    name: str,
    level: int,
    ctx: LoggedCall | None,
    fields: dict[str, object],
    fault: BaseException | None,
    aloud: bool = False,
) -> None:
    try:
        known = None if fault is None else logged_as(fault)
        fresh = fault is not None and (known is None or (ctx is not None and known != ctx.request_id))
        level = max(level, logging.ERROR) if fresh else level
        target = _setup.target(level, urgent=aloud or fault is not None)
        if target is None:
            return
    except BaseException:  # noqa: BLE001  (as below)
        return
    scrubbed = CURRENT_SCRUBBER.set(None if ctx is None else ctx.run.scrubber)
    try:
        ids = {} if ctx is None else ids_of(ctx)
        if fault is not None and known is not None and ctx is None:
            ids["request_id"] = known
        if fault is not None and fresh:
            fields["exception"] = _traceback(fault, ctx, target, fields)
            mark_logged(fault, str(ids.get("request_id", "")))
        getattr(target.bind(**ids), _METHODS[level])(name, **fields)
    except BaseException:  # noqa: BLE001  (a failing sink must not change the outcome of a call or keep its permits)
        return
    finally:
        CURRENT_SCRUBBER.reset(scrubbed)


def _traceback(
    fault: BaseException, ctx: LoggedCall | None, target: object, fields: Mapping[str, object]
) -> str | None:
    """Return the traceback of a fault without arguments and secrets. In development mode, print it in full."""
    if ctx is None:
        return traceback_of(fault, redact_text)
    if ctx.run.plan.host.development:
        place = ".".join(str(fields[part]) for part in ("hook", "stage") if part in fields)
        print_line(f"callgate: {ctx.tool_id}: {place} failed\n{''.join(traceback.format_exception(fault)).rstrip()}")
        if isinstance(target, RedactingLog) and target.logger is _STDERR:
            return None
    mask = ArgumentMask(_arguments_of(ctx.run), ctx.run.plan.definition.property_names)
    return traceback_of(fault, lambda text: redact_text(mask(text)), ctx.request_id)


def _arguments_of(run: LoggedRun | None) -> Iterable[object]:
    """Yield the arguments of a call and of the calls that it is nested in, as received and as parsed."""
    while run is not None:
        yield run.raw_input
        if run.input is not run.raw_input:
            yield run.input
        run = run.outer


def emit_invalid_output(ctx: LoggedCall, reason: str, **fields: object) -> None:
    """Log why an output is not valid; in development mode, print it. Never raises."""
    emit(LogEvent.OUTPUT_INVALID, ctx, reason=reason, **fields)
    if ctx.run.plan.host.development:
        with suppress(Exception):
            print_line(f"callgate: {ctx.tool_id}: {reason}")


def emit_overran(ctx: LoggedCall, seconds: float, *, stage: str, hook: str) -> None:
    """Log which step made a call end later than its deadline; in development mode, print it. Never raises."""
    emit(LogEvent.CALL_OVERRAN, ctx, seconds=round(seconds, 3), stage=stage, hook=hook)
    if ctx.run.plan.host.development:
        with suppress(Exception):
            print_line(
                f"callgate: {ctx.tool_id} ended {seconds:.3f} s after its deadline: {hook} at {stage} swallowed its "
                "cancellation or waited in a `finally`; let asyncio.CancelledError pass, or set hard_deadline=True"
            )


def emit_suppressed(ctx: LoggedCall, error: BaseException) -> None:
    """Log an ignored failure of the current step; the event depends on the step."""
    step = ctx.run.step
    if step.shadow:
        event = LogEvent.HOOK_SHADOWED
    else:  # the release of a lease has no hook
        event = LogEvent.CLEANUP_FAILED if step.row.gives_back or step.hook is None else LogEvent.HOOK_FAILED
    emit(event, ctx, stage=step.stage, hook=step.name, error=error)


def log_warnings(tool: str, warnings: Iterable[str]) -> None:
    """Log the warnings about the definition of a tool that was added to a gate."""
    for warning in warnings:
        emit(LogEvent.DEFINITION_WARNING, tool=tool, warning=warning)


class CallLog:
    """The logger of one call, for its tool and its hooks: each event has the ids of the call, and secrets are masked.

    Events go where Callgate's own events go. Where nothing is configured, warnings and errors go to stderr.
    """

    __slots__ = ("_ctx", "_fields")

    def __init__(self, ctx: LoggedCall, fields: Mapping[str, object] | None = None) -> None:
        self._ctx, self._fields = ctx, dict(fields or {})

    def bind(self, **fields: object) -> CallLog:
        """Return a logger whose events have these fields as well."""
        return CallLog(self._ctx, {**self._fields, **fields})

    def new(self, **fields: object) -> CallLog:
        """Return a logger whose events have only these fields, and the ids."""
        return CallLog(self._ctx, fields)

    def unbind(self, *names: str) -> CallLog:
        """Return a logger without these fields.

        Raises:
            KeyError: a field is not bound.
        """
        kept = dict(self._fields)
        for name in names:
            del kept[name]
        return CallLog(self._ctx, kept)

    def try_unbind(self, *names: str) -> CallLog:
        """Return a logger without these fields, as far as they are bound."""
        return CallLog(self._ctx, {name: value for name, value in self._fields.items() if name not in names})

    def log(self, level: int | str, event: str, /, *args: object, **fields: object) -> None:
        """Log an event at a level of the stdlib, by its number or its name."""
        number = _level(level, logging.NOTSET)
        self._log(max((one for one in _METHODS if one <= number), default=logging.DEBUG), event, args, fields)

    def debug(self, event: str, /, *args: object, **fields: object) -> None:
        """Log an event for developers. With *args*, the text is ``event % args``, here and in the other methods."""
        self._log(logging.DEBUG, event, args, fields)

    def info(self, event: str, /, *args: object, **fields: object) -> None:
        """Log an event."""
        self._log(logging.INFO, event, args, fields)

    def warning(self, event: str, /, *args: object, **fields: object) -> None:
        """Log a warning."""
        self._log(logging.WARNING, event, args, fields)

    def error(self, event: str, /, *args: object, **fields: object) -> None:
        """Log an error."""
        self._log(logging.ERROR, event, args, fields)

    def critical(self, event: str, /, *args: object, **fields: object) -> None:
        """Log an error that needs attention now."""
        self._log(logging.CRITICAL, event, args, fields)

    def exception(self, event: str, /, *args: object, **fields: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, args, fields, sys.exc_info()[1])

    msg, warn, fatal = info, warning, critical
    adebug, ainfo, awarning = awaitable_method(debug), awaitable_method(info), awaitable_method(warning)
    aerror, acritical, alog = awaitable_method(error), awaitable_method(critical), awaitable_method(log)
    aexception, amsg, awarn, afatal = awaitable_method(exception), ainfo, awarning, acritical

    def _log(
        self,
        level: int,
        event: str,
        args: tuple[object, ...],
        fields: dict[str, object],
        fault: BaseException | None = None,
    ) -> None:
        named = {**self._fields, **fields}
        free = {f"{name}_" if name in _RESERVED or name in IDS else name: value for name, value in named.items()}
        with suppress(TypeError, ValueError):  # a text that does not fit its arguments is logged as it is
            event = event % args if args else event
        _send(event, level, self._ctx, free, fault, aloud=level >= logging.WARNING)


def ids_of(ctx: LoggedCall) -> dict[str, object]:
    """Return the known ids of a call, and the mark of a call of a tool without a schema."""
    call, user = ctx.run.tool_call, ctx.user
    tool = ctx.tool_id if call is None or ctx.run.unknown is None else call.name
    found = (tool, ctx.request_id, call and call.id, ctx.run.session_id, user.tenant, user.id)
    known: dict[str, object] = {name: value for name, value in zip(IDS, found, strict=True) if value is not None}
    rules = ctx.run.plan.builtins.unvalidated
    return known if rules is None else {**known, "validated": False, "no_schema_mode": rules.mode_of(ctx.run.no_schema)}


def configure_logging(
    sink: LogSink | TextIO | None = None,
    *,
    level: int | str | None = None,
    form: Literal["text", "json"] = "text",
    processors: Sequence[Callable[..., object]] = (),
    secret_keys: Iterable[str] = (),
    errors: Literal["type", "text"] = "type",
) -> None:
    """Configure the logs of Callgate. A call replaces the earlier configuration; without arguments it restores the default.

    Args:
        sink: an open text file such as ``sys.stderr`` gets one line for each event; a callable gets each event as a dict;
            None is the structlog configuration of the application, where it has one, else the stdlib logger
            ``callgate``, whose records have the dict as attribute ``callgate``.
        level: the lowest level to log, as in ``logging``; default ``"INFO"``, or the level of the stdlib logger.
        form: the format of a line.
        processors: structlog processors of the application. They run before the redaction, which masks their fields, too.
        secret_keys: further names of keys whose values are masked.
        errors: what the field ``error`` shows: ``"type"`` the type and code of an exception, ``"text"`` its message too,
            with secrets masked. The traceback of an unexpected exception is not affected.

    Raises:
        ValueError: the level, form or value of *errors* is unknown, or a secret key is a path.
        TypeError: the sink is neither a text file nor a callable.
    """
    if form not in ("text", "json"):
        raise ValueError(f"form is {form!r}; choose 'text' or 'json'")
    if not (sink is None or callable(sink) or hasattr(sink, "write")):
        raise TypeError(f"a sink is a text file or a callable, not {type(sink).__name__}")
    if isinstance(secret_keys, str):
        raise TypeError(f"secret_keys takes names; write secret_keys=[{secret_keys!r}]")
    secret_keys = tuple(secret_keys)
    for key in secret_keys:
        if (fault := fault_of_key(key)) is not None:
            raise ValueError(f"secret_keys: one of them {fault}")
    redactor = redactor_of(keys=secret_keys, errors=errors)
    setup = _Setup()
    setup.to_stdlib = sink is None
    setup.level = _level(level, logging.NOTSET if sink is None else logging.INFO)
    setup.redactor = redactor
    if sink is not None or processors or form == "json":
        setup.logger = chain(LOGGER, sink, redactor, processors, form)
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


def _structlog_of_application() -> object:
    """Return a logger of the application's structlog configuration; None where it has none."""
    structlog = sys.modules.get("structlog")
    return structlog.get_logger("callgate") if structlog is not None and structlog.is_configured() else None


def binds_ids() -> bool:
    """Return True if the application has loggers of structlog that show context variables. Callgate's own do not count."""
    structlog = sys.modules.get("structlog")
    if structlog is None or (not imported_by_application() and not structlog.is_configured()):
        return False
    merge = getattr(sys.modules.get("structlog.contextvars"), "merge_contextvars", None)
    return merge is not None and merge in structlog.get_config()["processors"]


def bind_ids(ctx: LoggedCall) -> None:
    """Bind the ids of a call for the loggers of the application, in context variables; the call undoes it at its end."""
    sys.modules["structlog.contextvars"].bind_contextvars(**ids_of(ctx))


_STDERR, _STDLIB = StderrLog(), StdlibLog(LOGGER)
_setup = _Setup()
