"""Unexpected exceptions: which errors they are, and their traceback as bounded text for a log.

A decision of a hook or a tool, such as ``Denied`` or ``ToolError``, is no fault. An error that only reports a fault, such as
``ToolFailed``, stands for its cause.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, TracebackType

from callgate.errors import Control, InvocationError
from callgate.providers.foreign_errors import as_readable
from callgate.providers.redaction import Rendered, redact_code, redact_known, remember

MAX_LINKS = 16
"""Exceptions of one traceback: causes, contexts and members of groups."""
FIRST_FRAMES, LAST_FRAMES = 4, 20
MAX_LINE = 240
MAX_MESSAGE = 2_048
MAX_TRACEBACK = 32_768
"""Characters of one traceback."""
MAX_GROUP_DEPTH = 3

_REPORTS = frozenset(
    "deadline_exceeded idle_timeout tool_failed hook_failed tool_crashed policy_error not_recorded not_authorized flag_unreadable audit_failed "
    "quota_unavailable semaphore_unavailable".split()
)
"""Codes of errors by which Callgate reports the exception that is their cause."""
_QUIET = (Control, asyncio.CancelledError, GeneratorExit)
_MARK = "__callgate_fault__"

Shown = Callable[[str], str]


def fault_of(error: BaseException) -> BaseException | None:
    """Return the unexpected exception that *error* is or reports; None for a decision and for a cancellation."""
    error = as_readable(error)
    if not isinstance(error, InvocationError):
        return None if isinstance(error, _QUIET) else error
    cause = error.__cause__
    if cause is None or error.code not in _REPORTS:
        return None
    return fault_of(cause)


def logged_as(error: BaseException) -> str | None:
    """Return the id under which the traceback of *error* was logged last; None when it was not."""
    known = getattr(error, "__dict__", {}).get(_MARK)
    return known if isinstance(known, str) else None


def mark_logged(error: BaseException, request_id: str) -> None:
    """Note that the traceback of *error*, with those of its causes, is in the log under *request_id*."""
    for _, one in _links(error):
        vars(one)[_MARK] = request_id


def places_of(error: BaseException) -> str:
    """Return the traceback of *error* with types, files, lines and functions alone: no text and no source code."""
    return "\n".join(
        "".join([*_frames(one.__traceback__, source=False), _name_of(one), relation])
        for relation, one in reversed(_links(error))
    )[:MAX_TRACEBACK]


def traceback_of(error: BaseException, shown: Shown, request_id: str = "") -> Rendered:
    """Return the traceback of *error* with its causes, as Python prints it, without values of local variables.

    Args:
        error: the exception. Its ``__str__`` may fail or be large.
        shown: masks the message of an exception.
        request_id: causes that were logged under this id are named without their frames.
    """
    parts: list[str] = []
    for relation, one in reversed(_links(error)):
        known = one is not error and bool(request_id) and logged_as(one) == request_id
        frames = ["(its traceback is in the log already)\n"] if known else _frames(one.__traceback__)
        parts.append("".join(frames) + redact_code(_last_line(one, shown)) + relation)
    text = redact_known("\n".join(parts))
    if len(text) > MAX_TRACEBACK:
        text = (
            f"{text[: MAX_TRACEBACK // 2]}\n… {len(text) - MAX_TRACEBACK} characters …\n{text[-MAX_TRACEBACK // 2 :]}"
        )
    return Rendered(text)


def _links(error: BaseException) -> list[tuple[str, BaseException]]:
    """Return an exception and all that led to it, each once and the last first, with its relation to the next one."""
    waiting: deque[tuple[str, BaseException, int]] = deque([("", error, 0)])
    seen: set[int] = set()
    found: list[tuple[str, BaseException]] = []
    while waiting and len(seen) < MAX_LINKS:
        relation, given, depth = waiting.popleft()
        if id(given) in seen:
            continue
        seen.add(id(given))
        one = as_readable(given)
        found.append((relation, one))
        if one.__cause__ is not None:
            waiting.append((_CAUSE, one.__cause__, depth))
        elif one.__context__ is not None and not one.__suppress_context__:
            waiting.append((_CONTEXT, one.__context__, depth))
        if isinstance(one, BaseExceptionGroup) and depth < MAX_GROUP_DEPTH:
            waiting.extend((_MEMBER, member, depth + 1) for member in one.exceptions[:MAX_LINKS])
    return found


_CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT = "\n\nDuring handling of the above exception, another exception occurred:\n"
_MEMBER = "\n\nThe above exception is a member of the following group:\n"


def _frames(trace: TracebackType | None, *, source: bool = True) -> list[str]:
    if trace is None:
        return []
    first: list[tuple[FrameType, int]] = []
    last: deque[tuple[FrameType, int]] = deque(maxlen=LAST_FRAMES)
    count = 0
    while trace is not None:
        (first if count < FIRST_FRAMES else last).append((trace.tb_frame, trace.tb_lineno))
        count, trace = count + 1, trace.tb_next
    lines = ["Traceback (most recent call last):\n", *_lines(first, source=source)]
    if (hidden := count - len(first) - len(last)) > 0:
        lines.append(f"  … {hidden} frames …\n")
    return [*lines, *_lines(last, source=source)]


_LINES: dict[tuple[int, int, bool], tuple[CodeType, str]] = {}
"""The lines of frames that were shown before: a tool that fails, fails again at the same place."""


def _lines(frames: Iterable[tuple[FrameType, int]], *, source: bool) -> list[str]:
    lines: list[str] = []
    for frame, number in frames:
        key = id(frame.f_code), number, source  # the entry keeps the code, so that no other one gets its id
        known = _LINES.get(key) or remember(_LINES, key, (frame.f_code, _line(frame, number, source=source)))
        lines.append(known[1])
    return lines


def _line(frame: FrameType, number: int, *, source: bool) -> str:
    (shown,) = traceback.StackSummary.extract(iter([(frame, number)]), lookup_lines=source)
    code = f"    {shown.line[:MAX_LINE]}\n" if source and shown.line else ""
    return redact_code(f'  File "{shown.filename[-MAX_LINE:]}", line {number}, in {shown.name[:MAX_LINE]}\n{code}')


def _name_of(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )
    return name[:MAX_LINE]


def _last_line(error: BaseException, shown: Shown) -> str:
    name = _name_of(error)
    message = _message(lambda: str(error), shown)
    notes = getattr(error, "__notes__", ())
    lines = [_message(lambda note=note: str(note), shown) for note in notes[:8]] if isinstance(notes, list) else []  # type: ignore[misc]
    return "\n  ".join([f"{name}: {message}" if message else name, *lines])


def _message(text: Callable[[], str], shown: Shown) -> str:
    """Return a text of the exception for the log. Further lines are indented, so they cannot look like an event."""
    try:
        return shown(str.__str__(text())).replace("\r", "\n").replace("\n", "\n  ")
    except BaseException as failed:  # noqa: BLE001  (an author's `__str__` may raise anything, and the event must not be lost)
        return f"<its text is not available: {type(failed).__name__}>"
