"""Random ids from a buffer: a system call for each id would cost more than the rest of a tool call."""

from __future__ import annotations

import os
from collections.abc import Iterator

_BUFFERED = 256

_buffer: Iterator[str] = iter(())


def new_id() -> str:
    """Return 128 random bits as 32 hexadecimal digits."""
    return next(_buffer, None) or _refill()


def _refill() -> str:
    global _buffer  # noqa: PLW0603  (list iterators are thread-safe; a race only discards a buffer)
    digits = os.urandom(16 * _BUFFERED).hex()
    ids = [digits[at : at + 32] for at in range(0, len(digits), 32)]
    _buffer = iter(ids[1:])
    return ids[0]


def _clear() -> None:
    global _buffer  # noqa: PLW0603
    _buffer = iter(())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear)  # or parent and child would return the same ids
