"""Errors of other code are data: they are read in one place, once, and whatever they do stays without effect.

An exception may have a failing ``__getattr__``, ``__class__`` or property, or be a group that holds errors of ours.
``understood`` returns the error that counts for a call. Everything behind it may use ``isinstance`` and attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TypeGuard
from weakref import WeakSet

from callgate.errors import (
    CallgateError,
    Conflict,
    Control,
    ControlRespond,
    ControlSuspend,
    DeadlineExceeded,
    Denied,
    InFlight,
    Invalid,
    InvocationError,
    OutcomeUnknown,
    RetryLater,
    Suspended,
)

_PRESSED = "callgate_pressed"
MAX_MEMBERS = 256
"""Maximum number of errors of a group that are looked at."""
_READ = ("no_effect", "sqlstate", "orig", "code", "public", "issues", "retry_after", "pending", "stage", "__notes__")
"""Attributes that Callgate reads of an error."""
_STRICTEST = (
    OutcomeUnknown,
    Denied,
    Conflict,
    InFlight,
    Invalid,
    DeadlineExceeded,
    RetryLater,
    InvocationError,
    Suspended,
    ControlSuspend,
    ControlRespond,
)
"""Of several errors in a group, the first kind counts."""
_MEMBERS: dict[str, type | tuple[type, ...]] = {
    "public": str,
    "code": str,
    "correlation_id": (str, type(None)),
    "http_status": int,
    "no_effect": bool,
    "retry_after": int,
    "issues": tuple,
    "stage": str,
}
_plain: WeakSet[type] = WeakSet()
"""Types of errors without code of their own for reading attributes."""


class Unreadable(RuntimeError):
    """Stands for an error that fails when its attributes are read; it names the type."""


def mark_pressed(error: BaseException) -> None:
    """Mark an error as the Ctrl-C of a person: a tool that raises ``KeyboardInterrupt`` itself has crashed."""
    if type(error) is KeyboardInterrupt:
        vars(error)[_PRESSED] = True


def is_pressed(error: object) -> TypeGuard[KeyboardInterrupt]:
    """Return True for the Ctrl-C of a person. It ends the call, and is raised once the call has closed."""
    return type(error) is KeyboardInterrupt and _PRESSED in vars(error)


def understood(error: BaseException) -> BaseException:
    """Return the error that counts: of a group the strictest error of ours, for an unreadable error a stand-in.

    Any other error is returned as it is. A group without errors of ours counts as itself.
    """
    error = as_readable(_of_group(error) if issubclass(type(error), BaseExceptionGroup) else error)
    if isinstance(error, InvocationError):
        _correct(error)
    return error


def as_readable(error: BaseException) -> BaseException:
    """Return the error, or a stand-in with its traceback if reading its attributes may fail."""
    kind = type(error)
    if kind not in _plain:
        if not _has_code(kind):
            _plain.add(kind)
        elif not _is_readable(error, kind):
            return _stand_in(error, kind)
    return error


def _is_readable(error: BaseException, kind: type) -> bool:
    try:
        for name in _READ:
            bool(getattr(error, name, None))
        return error.__class__ is kind and vars(error) is not None
    except BaseException:  # noqa: BLE001  (code of an error may raise anything)
        return False


def _correct(error: InvocationError) -> None:
    """Replace members of an error of ours that have another type by their defaults."""
    kind = type(error)
    for name, wanted in _MEMBERS.items():
        if name in vars(error) and not isinstance(getattr(error, name), wanted):
            with suppress(AttributeError):
                delattr(error, name)  # the default of the class shows again
    if isinstance(error, Invalid):
        sound = tuple(one for one in error.issues if hasattr(one, "pointer") and hasattr(one, "keyword"))
        if len(sound) != len(error.issues):
            error.issues = sound
    if not isinstance(error.code, str):
        codes = (vars(one).get("code") for one in kind.__mro__)
        error.code = next((code for code in codes if isinstance(code, str)), CallgateError.code)


def _stand_in(error: BaseException, kind: type) -> Unreadable:
    made = Unreadable(f"an error of type {kind.__qualname__[:200]} cannot be read")
    with suppress(BaseException):
        made.__traceback__ = error.__traceback__
    return made


def _has_code(kind: type) -> bool:
    """Return True if a type, up to the built-in ones, runs code when an attribute that Callgate reads is read."""
    hooked = {"__getattribute__", "__getattr__", "__class__", "__dict__"}
    for one in kind.__mro__:
        if one.__module__ in {"builtins", "callgate.errors"}:
            continue
        own = vars(one)
        if hooked & own.keys() or any(hasattr(type(own[name]), "__get__") for name in _READ if name in own):
            return True
    return False


def _of_group(group: BaseException) -> BaseException:
    members = list(members_of(group))
    ours = [one for one in members if issubclass(type(one), InvocationError | Control)]
    if not ours:
        return group
    found = min(ours, key=_rank)
    others = [one for one in members if one is not found]
    if others and isinstance(found, InvocationError):
        found.add_note(f"raised in a group, beside {', '.join(type(one).__name__ for one in others[:8])}")
        if found.no_effect and not all(_no_effect(one) for one in others):
            found.no_effect = False  # another member may have had one
    return found


def _no_effect(error: BaseException) -> bool:
    error = understood(error)
    return bool(getattr(error, "no_effect", False))


def _rank(error: BaseException) -> int:
    return next((number for number, kind in enumerate(_STRICTEST) if issubclass(type(error), kind)), len(_STRICTEST))


def members_of(group: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group that are no groups themselves, each once."""
    waiting, seen = [group], set[int]()
    while waiting and len(seen) < MAX_MEMBERS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if issubclass(type(one), BaseExceptionGroup):
            with suppress(Exception):  # a subclass may fail to tell its members
                waiting += reversed(getattr(one, "exceptions", ()))
        else:
            yield one
