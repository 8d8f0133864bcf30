"""Ids: random ones from a buffer, and what every store can keep as an id of others.

A system call for each random id would cost more than the rest of a tool call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeGuard

from callgate.errors import Invalid

_BUFFERED = 256
LONGEST_ID = 512
"""Maximum size of an id of others, in bytes of UTF-8: PostgreSQL indexes no row of more than 2.7 kB."""
LONGEST_KEY = 255
"""Maximum length, in characters, of an idempotency key that a caller passes."""

_buffer: Iterator[str] = iter(())


def new_id() -> str:
    """Return 128 random bits as 32 hexadecimal digits."""
    return next(_buffer, None) or _refill()


def is_id(value: object) -> TypeGuard[str]:
    """Return True for a text that a store can keep as an id. What others wrote, such as a message of a broker, may be none."""
    return isinstance(value, str) and flaw_of(value) is None


def checked_key(key: object) -> str:
    """Return an idempotency key that a caller passes.

    Raises:
        Invalid: it is not a text of 1 to 255 characters.
    """
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        rule = f"is a text of 1 to {LONGEST_KEY} characters"
        raise Invalid(f"an idempotency key {rule}", code="idempotency_key", public=f"An idempotency key {rule}.")
    return key


def flaw_of(text: object, longest: int = LONGEST_ID) -> str | None:
    """Return why a store cannot keep an id or a text of others, or None. Values of other types are not judged here.

    The rule is the same for all stores, so that a change of the store refuses nothing that the one before has accepted.
    """
    if not isinstance(text, str) or (len(text) <= longest // 4 and text.isprintable()):
        return None
    if "\0" in text:
        return "has a NUL character"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "has half of a surrogate pair"
    return f"has {size:,} bytes, more than {longest:,}" if size > longest else None


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
