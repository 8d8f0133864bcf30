"""The structlog chain of Callgate's own logs: from an event to a line, a record or a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from callgate.providers.log_events import IDS
from callgate.providers.redaction import Redactor

LogSink = Callable[[dict[str, Any]], object]
"""Takes one event as plain data: ``event``, ``level``, ``timestamp``, the ids and the fields of that event."""

_LONG_BY_NATURE = frozenset((*IDS, "job", "key", "segment", "hash", "previous", "input_hash", "output_hash"))


def redactor_of(**options: Any) -> Redactor:
    """Make the redactor of log events, in which ids are shown."""
    return Redactor(ids=_LONG_BY_NATURE, **options)


def chain(
    target: Any,
    sink: LogSink | TextIO | None = None,
    redactor: Redactor | None = None,
    processors: Sequence[Any] = (),
    form: str = "text",
) -> Any:
    """Return a structlog logger that is independent of the structlog configuration of the application."""
    import structlog

    redactor = redactor or redactor_of()
    order = ["timestamp", "level", "event"]
    line: Any = (
        structlog.processors.JSONRenderer(default=_type_name)
        if form == "json"
        else structlog.processors.KeyValueRenderer(key_order=order, drop_missing=True)
    )
    last: list[Any]
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


def _as_argument(_logger: object, _method: str, event: dict[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
    return (event,), {}


def _for_stdlib(line: Any) -> object:
    def render(logger: Any, method: str, event: Mapping[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
        # A log record has its own time and level.
        fields = {name: value for name, value in event.items() if name not in ("timestamp", "level", "event")}
        text = line(logger, method, fields)
        return ("%s %s", event.get("event"), text), {"extra": {"callgate": dict(event)}}

    return render


def _type_name(value: object) -> str:
    return f"<{type(value).__name__}>"
