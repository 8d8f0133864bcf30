"""Legal names for the names of others, and suggestions of names for errors that developers read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
MAX_NAME = 64
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_START = re.compile(r"^(?![A-Za-z_])")


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


def explain_attributes(lines: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Refuse guessed attributes with the line to write; type checkers and other attributes see no difference.

    Args:
        lines: the line to write for each attribute that callers are likely to guess.
    """

    def decorate(kind: type[T]) -> type[T]:
        for name, line in lines.items():
            setattr(kind, name, _Guess(kind.__name__, name, line))
        return kind

    return decorate


class _Guess:
    """A descriptor in place of a guessed attribute: a ``__getattr__`` would slow down the attributes that exist."""

    def __init__(self, owner: str, name: str, line: str) -> None:
        self._message = f"{owner} has no attribute {name!r}; write: {line}"

    def __get__(self, instance: Any, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._message)
