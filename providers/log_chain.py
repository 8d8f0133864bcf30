"""The structlog chain of Callgate's own logs: from an event to a line, a record or a dict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ParamSpec, TextIO

from callgate.providers.log_events import CRITICAL, DEBUG, ERROR, IDS, INFO, WARNING
from callgate.providers.redaction import Redactor

LogSink = Callable[[dict[str, object]], object]
"""Takes one event as plain data: ``event``, ``level``, ``timestamp``, the ids and the fields of that event."""

P = ParamSpec("P")
_first = False
_LONG_BY_NATURE = frozenset((*IDS, "job", "key", "segment", "hash", "previous", "input_hash", "output_hash"))


def redactor_of(keys: Iterable[str] = (), errors: str = "type") -> Redactor:
    """Make the redactor of log events, in which ids are shown."""
    return Redactor(keys, ids=_LONG_BY_NATURE, errors=errors)


def chain(
    target: object,
    sink: LogSink | TextIO | None = None,
    redactor: Redactor | None = None,
    processors: Sequence[Callable[..., Any]] = (),
    form: str = "text",
) -> object:
    """Return a structlog logger that is independent of the structlog configuration of the application."""
    global _first  # noqa: PLW0603  (a module is imported once for the process)
    _first = _first or "structlog" not in sys.modules
    import structlog

    redactor = redactor or redactor_of()
    order = ["timestamp", "level", "event"]
    line: Callable[..., object] = (
        structlog.processors.JSONRenderer(default=_type_name)
        if form == "json"
        else structlog.processors.KeyValueRenderer(key_order=order, drop_missing=True)
    )
    last: list[Callable[..., Any]]
    if sink is None:
        last = [_for_stdlib(line)]
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


def _as_argument(
    _logger: object, _method: str, event: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    return (event,), {}


def _for_stdlib(line: Callable[..., object]) -> Callable[..., object]:
    def render(
        logger: object, method: str, event: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        # A log record has its own time and level.
        fields = {name: value for name, value in event.items() if name not in ("timestamp", "level", "event")}
        text = line(logger, method, fields)
        return ("%s %s", event.get("event"), text), {"extra": {"callgate": dict(event)}}

    return render


def _type_name(value: object) -> str:
    return f"<{type(value).__name__}>"


def imported_by_application() -> bool:
    """Return True unless Callgate was the first to import structlog."""
    return not _first


def awaitable_method(method: Callable[P, None]) -> Callable[P, Coroutine[object, None, None]]:
    """Return the variant of a method of a logger that is awaited."""

    async def logged(*args: P.args, **fields: P.kwargs) -> None:
        method(*args, **fields)

    return logged


class RedactingLog:
    """Redacts events for a logger: one of the application, of the stdlib, or stderr."""

    def __init__(self, logger: object, redactor: Redactor) -> None:
        self.logger, self._redactor = logger, redactor
        self._ids: dict[str, object] = {}

    def bind(self, **ids: object) -> RedactingLog:
        """Set the ids of the next event."""
        self._ids = ids
        return self

    def __getattr__(self, method: str) -> Callable[..., None]:
        def log(event: str, **fields: object) -> None:
            shown = self._redactor.event(None, method, {**self._ids, **fields, "event": event})
            getattr(self.logger, method)(shown.pop("event"), **shown)

        return log


class StderrLog:
    """Reports an event: one line, then the traceback."""

    def _report(self, event: str, **fields: object) -> None:
        trace = fields.pop("exception", None)
        line = " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
        print_line(f"callgate: {event} {line}" + ("" if trace is None else f"\n{trace}"))

    debug = info = warning = error = critical = _report


class _Fields:
    """The fields of an event as the text of a log record, made when a handler writes it."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join([f"{name}={value!r}" for name, value in self._fields.items()])

    __repr__ = __str__  # tools that collect errors keep the arguments of a record


def _recording(level: int, method: str) -> Callable[..., None]:
    def record(self: StdlibLog, event: str, **fields: object) -> None:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        data = {**fields, "event": event, "level": method, "timestamp": now}
        logger, extra = self.logger, {"callgate": data}  # ``log`` would look for the caller, which is this module
        logger.handle(
            logger.makeRecord(logger.name, level, __file__, 0, "%s %s", (event, _Fields(fields)), None, None, extra)
        )

    return record


class StdlibLog:
    """Hands an event to a logger of the stdlib, as the chain without options does; needs no structlog."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    debug, info, warning = _recording(DEBUG, "debug"), _recording(INFO, "info"), _recording(WARNING, "warning")
    error, critical = _recording(ERROR, "error"), _recording(CRITICAL, "critical")


def print_line(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{text}\n")
