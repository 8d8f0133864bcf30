"""The arithmetic of quotas: a sliding window, counted in two neighbouring fixed ones.

A window of *seconds* has a number, ``now // seconds``. What was taken in the window before counts for the part of it
that still reaches into the last *seconds*. Every store counts so; where a store counts by itself (SQL, Lua), it holds
the same three figures: the number, what was taken in that window, what was taken in the one before.
"""

from __future__ import annotations

from typing import NamedTuple

from callgate.providers.stores.base import Limit, Taken


class Counts(NamedTuple):
    """What was taken in window *number* and in the one before; *passed* is the part of the window that is over."""

    number: int
    used: int
    before: int
    passed: float

    @property
    def sliding(self) -> float:
        """What counts against the limit now."""
        return self.used + self.before * (1.0 - self.passed)


def window_at(now: float, seconds: float) -> tuple[int, float]:
    """The number of the window, and the part of it that is over, from 0 to 1."""
    number, at = divmod(now, seconds)
    return int(number), at / seconds


def counts_at(now: float, seconds: float, kept: tuple[int, int, int] | None) -> Counts:
    """What was kept as (number, used, before), as it counts now.

    A clock that runs behind another, or is set back, finds a window that is yet to come: that one counts, in full.
    """
    number, passed = window_at(now, seconds)
    if kept is None:
        return Counts(number, 0, 0, passed)
    known, used, before = kept
    if known > number:
        return Counts(known, used, before, 0.0)
    if known == number:
        return Counts(number, used, before, passed)
    return Counts(number, 0, used if known == number - 1 else 0, passed)


def refused(counts: Counts, limit: Limit, cost: int) -> Taken:
    """The answer when *cost* does not fit."""
    return Taken(False, max(0, int(limit.amount - counts.sliding)), wait(counts, limit, cost))


def granted(counts: Counts, limit: Limit) -> Taken:
    """The answer when it was taken: *counts* are those after it."""
    return Taken(True, max(0, int(limit.amount - counts.sliding)))


def looked(counts: Counts, limit: Limit) -> Taken:
    """What taking one unit would answer."""
    if counts.sliding + 1 > limit.amount:
        return refused(counts, limit, 1)
    return Taken(True, max(0, int(limit.amount - counts.sliding)))


def returned(counts: Counts, cost: int) -> tuple[int, int, int]:
    """What is kept when *cost* comes back: out of this window first, then out of the one before."""
    now = min(cost, counts.used)
    return counts.number, counts.used - now, max(0, counts.before - (cost - now))


def wait(counts: Counts, limit: Limit, cost: int) -> float:
    """Seconds until *cost* fits, if nobody takes more; for a cost that never fits, a whole window."""
    room = limit.amount - cost
    if room < 0:
        return limit.seconds
    if counts.before and counts.used <= room:  # the older window leaves, bit by bit
        return max(0.0, (1.0 - (room - counts.used) / counts.before) - counts.passed) * limit.seconds
    until_next = (1.0 - counts.passed) * limit.seconds  # then this window is the older one
    return until_next + max(0.0, 1.0 - room / max(counts.used, 1)) * limit.seconds
