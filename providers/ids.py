"""Ids that nobody can guess, from a buffer: asking the system for each one would cost more than the rest of a call."""

from __future__ import annotations

import os
from collections.abc import Iterator

AT_ONCE = 256

_made: Iterator[str] = iter(())


def new_id() -> str:
    """128 random bits, as 32 hex digits."""
    return next(_made, None) or _refill()


def _refill() -> str:
    global _made  # noqa: PLW0603  (a list's iterator is safe between threads; a race only throws a buffer away)
    digits = os.urandom(16 * AT_ONCE).hex()
    made = [digits[at : at + 32] for at in range(0, len(digits), 32)]
    _made = iter(made[1:])
    return made[0]


def _forget() -> None:
    global _made  # noqa: PLW0603
    _made = iter(())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # or parent and child would give out the same
