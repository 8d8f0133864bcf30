"""The arithmetic of rate limits: a sliding window, counted in two adjacent fixed windows.

A window of *seconds* has a number, ``now // seconds``. Units of the window before count for the part of it that overlaps
the last *seconds*. Every store counts so and stores three figures: the number of the window, the units taken in it, and
the units taken in the window before.
"""

from __future__ import annotations

from typing import NamedTuple

from callgate.providers.stores.base import Limit, Taken


class Counts(NamedTuple):
    """The units taken in window *number* and in the window before; *passed* is the elapsed part of the window, 0 to 1."""

    number: int
    used: int
    before: int
    passed: float

    @property
    def sliding(self) -> float:
        """The units that count against the limit now."""
        return self.used + self.before * (1.0 - self.passed)


def window_at(now: float, seconds: float) -> tuple[int, float]:
    """Return the number of the window, and the elapsed part of it, from 0 to 1."""
    number, at = divmod(now, seconds)
    return int(number), at / seconds


def counts_at(now: float, seconds: float, stored: tuple[int, int, int] | None) -> Counts:
    """Return the stored figures (number, used, before) as they count now.

    If the stored window is in the future, since this clock is behind or was set back, it counts in full.
    """
    number, passed = window_at(now, seconds)
    if stored is None:
        return Counts(number, 0, 0, passed)
    known, used, before = stored
    if known > number:
        return Counts(known, used, before, 0.0)
    if known == number:
        return Counts(number, used, before, passed)
    return Counts(number, 0, used if known == number - 1 else 0, passed)


def refused(counts: Counts, limit: Limit, cost: int) -> Taken:
    """Return the result when *cost* does not fit."""
    return Taken(False, max(0, int(limit.amount - counts.sliding)), wait(counts, limit, cost))


def granted(counts: Counts, limit: Limit) -> Taken:
    """Return the result when units were taken; *counts* include them."""
    return Taken(True, max(0, int(limit.amount - counts.sliding)))


def looked(counts: Counts, limit: Limit) -> Taken:
    """Return the result that taking one unit would have."""
    if counts.sliding + 1 > limit.amount:
        return refused(counts, limit, 1)
    return Taken(True, max(0, int(limit.amount - counts.sliding)))


def returned(counts: Counts, cost: int) -> tuple[int, int, int]:
    """Return the figures after *cost* units are returned: to this window first, then to the window before."""
    now = min(cost, counts.used)
    return counts.number, counts.used - now, max(0, counts.before - (cost - now))


def wait(counts: Counts, limit: Limit, cost: int) -> float:
    """Return the seconds until *cost* fits if no other units are taken; a whole window for a cost above the limit."""
    room = limit.amount - cost
    if room < 0:
        return limit.seconds
    if counts.before and counts.used <= room:  # the units of the older window expire gradually
        return max(0.0, (1.0 - (room - counts.used) / counts.before) - counts.passed) * limit.seconds
    until_next = (1.0 - counts.passed) * limit.seconds  # then this window becomes the older one
    return until_next + max(0.0, 1.0 - room / max(counts.used, 1)) * limit.seconds
