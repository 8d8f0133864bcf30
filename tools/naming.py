"""Did-you-mean, for errors that developers read."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known name, or a short list of what is known."""
    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {str(near[0])!r}?"
    shown = ", ".join(sorted(map(str, known))[:8])
    more = ", …" if len(known) > 8 else ""
    return f"; known: {shown}{more}" if known else "; none is registered"
