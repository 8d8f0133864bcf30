"""How long a client waits for a provider, and when it asks again. Pure; time, chance and sleep can be replaced."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from callgate.errors import RegistrationError

RETRIED = frozenset({408, 409, 429})
"""Statuses, beside those from 500 on, after which the same request may succeed."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None means no limit.

    ``connect`` is for a connection to be made, ``read`` for the provider's silence: until its answer begins, and
    between two pieces of it. ``total`` is for everything: every attempt, every wait between them, and the answer to its
    last byte, with the time that whoever reads a stream takes for it.

    Raises:
        RegistrationError: one of them is not above 0.
    """

    connect: float | None = 10.0
    read: float | None = 60.0
    total: float | None = 600.0

    def __post_init__(self) -> None:
        for limit in (self.connect, self.read, self.total):
            if limit is not None and not limit > 0:
                raise RegistrationError("a time limit is in seconds and must be above 0; None means no limit")

    @classmethod
    def of(cls, given: float | Timeouts | None) -> Timeouts:
        """From what a client is given: a number is ``read``, and stretches ``total``; None means no limit at all."""
        if isinstance(given, Timeouts):
            return given
        if given is None:
            return cls(None, None, None)
        return cls(connect=min(10.0, given), read=given, total=max(600.0, given))


@dataclass(frozen=True, slots=True)
class Retries:
    """When to ask again: after 408, 409, 429, 5xx, or a connection that failed before the answer began.

    At most ``times`` times. The wait is what the provider asks for (``retry-after-ms``, ``Retry-After`` in seconds or as
    a date); otherwise anything up to ``base`` seconds, doubled each time, at most ``cap``. A provider that asks for more
    than ``longest`` seconds is not asked again: the error says when. ``sleep``, ``random`` (0 to 1) and ``now`` (seconds
    since the epoch) are for tests.

    Raises:
        RegistrationError: a number is below 0.
    """

    times: int = 2
    base: float = 0.5
    cap: float = 8.0
    longest: float = 60.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if not all(number >= 0 for number in (self.times, self.base, self.cap, self.longest)):
            raise RegistrationError("Retries: times, base, cap and longest may not be below 0")

    @classmethod
    def of(cls, given: int | Retries) -> Retries:
        """From what a client is given: a number is ``times``."""
        return given if isinstance(given, Retries) else cls(times=given)

    def wait(self, failures: int, asked: float | None) -> float | None:
        """Seconds to wait after so many failures, the provider having *asked* for some; None: do not ask again."""
        if failures > self.times or (asked is not None and asked > self.longest):
            return None
        if asked is not None:
            return asked
        return self.random() * min(self.cap, self.base * 2.0 ** min(failures - 1, 60))


def may_pass(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the same request may succeed later; a provider can say no by ``x-should-retry: false``."""
    return (status in RETRIED or status >= 500) and headers.get("x-should-retry", "").lower() != "false"


def asked_for(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a provider asks to wait, from now on; None where it does not say so in a way that can be read."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return seconds / 1000
    said = headers.get("retry-after", "")
    seconds = _number(said)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
