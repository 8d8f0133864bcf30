"""Legal names for the names of others, and suggestions of names for errors that developers read."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Container, Mapping
from difflib import get_close_matches
from typing import ParamSpec, TypeAlias, TypeVar, cast

from callgate.providers.kinds import fault_of_kind, truth

Enabled: TypeAlias = Container[str] | Callable[[str], bool]
"""Names of enabled tools, or a function of a name."""

P = ParamSpec("P")
R = TypeVar("R")
MAX_NAME = 64
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_START = re.compile(r"^(?![A-Za-z_])")


def fault_of_names(what: str, given: object) -> str | None:
    """Return why *given* are not names of *what*: tools, tags, tenants, roles, or scopes; None if they are.

    Names are compared as they are: ``*`` would select nothing, or forbid nothing. A scope such as ``mail:*`` is a name.
    """
    if (fault := fault_of_kind(given, Collection[str])) is not None:
        return fault
    patterns = [one for one in cast("Collection[str]", given) if one == "*" or (what == "tools" and "*" in one)]
    return f"has the pattern {patterns[0]!r}; list the names, or leave it out to match all" if patterns else None


def check_enabled(owner: str, enabled: Enabled | None) -> None:
    """Refuse a text, which contains its substrings, and a mapping, which contains also the names that it maps to False.

    Raises:
        TypeError: *enabled* is one of them.
    """
    if isinstance(enabled, str):
        raise TypeError(f"{owner}: enabled is a collection of names, not a text")
    if isinstance(enabled, Mapping):
        raise TypeError(
            f"{owner}: enabled is a collection of names, not a mapping; write {{name for name, on in flags.items() if on}}"
        )


def is_enabled(owner: str, enabled: Enabled | None, name: str) -> bool:
    """Return True if a tool of this name is enabled; None enables all.

    Raises:
        TypeError: the function returned another type than a boolean.
    """
    if enabled is None:
        return True
    return truth(owner, "enabled", enabled(name)) if callable(enabled) else name in enabled


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or a short list of the known names."""
    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {str(near[0])!r}?"
    shown = ", ".join(sorted(map(str, known))[:8])
    more = ", …" if len(known) > 8 else ""
    return f"; known: {shown}{more}" if known else "; none is registered"


def legal_tool_name(name: str, taken: Collection[str] = ()) -> str:
    """Return a legal tool name for another name: its legal characters, and 8 or more hex digits of its SHA-256.

    The result depends on the name alone, unless it is *taken*; then it has more digits.
    """
    stem = _START.sub("_", _REFUSED.sub("_", name))
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    candidates = (f"{stem[: MAX_NAME - 1 - length]}_{mark[:length]}" for length in (8, 16, 32, MAX_NAME - 1))
    return next(candidate for candidate in candidates if candidate not in taken)


def explain_arguments(line: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse missing and unknown arguments with the line to write, besides the text of Python."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError:  # the call failed, and not the body
                    text = str(error)
                    if function.__name__ == "__init__":  # name the class that was called, which may be a subclass
                        text = text.replace(function.__qualname__, type(args[0]).__name__)
                    raise TypeError(f"{text}; write: {line}") from None
                raise

        return checked

    return decorate
