"""Timeouts and the retry policy of a client. Pure; clock, random numbers and sleep can be replaced."""

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
"""Statuses below 500 after which the same request is retried; all statuses from 500 on are."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; None means no timeout.

    ``connect`` limits the time to open a connection. ``read`` limits the provider's silence: before the response begins
    and between two pieces of it. ``total`` limits the whole request: all attempts, the waits between them, and the
    response to its last byte, including the time that the reader of a stream takes.

    Raises:
        RegistrationError: a timeout is not above 0.
    """

    connect: float | None = 10.0
    read: float | None = 60.0
    total: float | None = 600.0

    def __post_init__(self) -> None:
        for limit in (self.connect, self.read, self.total):
            if limit is not None and not limit > 0:
                raise RegistrationError("a timeout in seconds must be above 0; None means no timeout")

    @classmethod
    def of(cls, given: float | Timeouts | None) -> Timeouts:
        """Read the ``timeout=`` of a client: a number is ``read``, and may extend ``total``; None means no timeout at all."""
        if isinstance(given, Timeouts):
            return given
        if given is None:
            return cls(None, None, None)
        return cls(connect=min(10.0, given), read=given, total=max(600.0, given))


@dataclass(frozen=True, slots=True)
class Retries:
    """The retry policy: after status 408, 409, 429 or 5xx, or a connection that fails before the response begins.

    Args:
        times: the maximum number of retries.
        base: the upper bound of the first wait in seconds; it doubles with each retry. The wait is random.
        cap: the upper bound of every random wait.
        max_retry_after: the maximum wait that a provider may ask for by ``Retry-After`` (seconds or a date) or
            ``retry-after-ms``. Such a wait replaces the random one. If the provider asks for more, there is no retry,
            and the error has the wait.
        sleep, random, now: replacements for tests: sleeping, a random number from 0 to 1, seconds since the epoch.

    Raises:
        RegistrationError: a number is below 0.
    """

    times: int = 2
    base: float = 0.5
    cap: float = 8.0
    max_retry_after: float = 60.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if not all(number >= 0 for number in (self.times, self.base, self.cap, self.max_retry_after)):
            raise RegistrationError("Retries: times, base, cap and max_retry_after must be at least 0")

    @classmethod
    def of(cls, given: int | Retries) -> Retries:
        """Read the ``retries=`` of a client: a number is ``times``."""
        return given if isinstance(given, Retries) else cls(times=given)

    def wait(self, failures: int, retry_after: float | None) -> float | None:
        """Seconds to wait after a number of failures; *retry_after* is the provider's wish. None means no retry."""
        if failures > self.times or (retry_after is not None and retry_after > self.max_retry_after):
            return None
        if retry_after is not None:
            return retry_after
        return self.random() * min(self.cap, self.base * 2.0 ** min(failures - 1, 60))


def is_retryable(status: int, headers: Mapping[str, str]) -> bool:
    """True if a retry may succeed; a provider forbids retries by ``x-should-retry: false``."""
    return (status in RETRIED or status >= 500) and headers.get("x-should-retry", "").lower() != "false"


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """The wait in seconds that a response asks for; None if it asks for none, or in an unknown format."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return seconds / 1000
    header = headers.get("retry-after", "")
    seconds = _number(header)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
