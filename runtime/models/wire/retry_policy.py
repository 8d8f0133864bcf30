"""Timeouts and the retry policy of a client. Pure; clock, random numbers and sleep can be replaced."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from callgate.errors import RegistrationError
from callgate.providers.kinds import check_fields

RETRIED = frozenset({408, 409, 429})
"""Statuses below 500 after which the same request is retried; all statuses from 500 on are."""
MAX_RETRY_AFTER = 86_400.0
"""Maximum in seconds of the wait that an error names: a provider may send any number."""

_RATE_LIMIT_RESET = re.compile(r"ratelimit-(?:.+-)?reset(?:-.+)?$")
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:d|h|ms|us|µs|μs|ns|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d*)?)([^\d.]+)")
_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_EPOCH = 1e9
"""A larger number is a time in seconds since the epoch, because no provider asks for a wait of 30 years."""
_EPOCH_MS = 1e11
"""A larger number is a time in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; None means no timeout.

    ``connect`` limits the time to open a connection. ``read`` limits the provider's silence: before the response begins
    and between two pieces of it. It is long because a model that reasons may be silent until its answer is complete.
    ``total`` limits the whole request: all attempts, the waits between them, and the response to its last byte,
    including the time that the reader of a stream takes.

    ``idle`` limits the time without content in a stream; None means the same as ``read``. Comments, blank lines and
    pings only keep the connection open, so they do not count. Neither does the time that the reader takes.

    A request whose response did not begin in time is not retried: the provider may have run it, and bill it.

    Raises:
        RegistrationError: a timeout is not above 0.
    """

    connect: float | None = 10.0
    read: float | None = 300.0
    total: float | None = 600.0
    idle: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError)
        for limit in (self.connect, self.read, self.total, self.idle):
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
        max_retry_after: the maximum wait that a provider may ask for. Such a wait replaces the random one; see
            ``retry_after_seconds``. If the provider asks for more, there is no retry, and the error has the wait.
        sleep, random, now: replacements for tests: sleeping, a random number from 0 to 1, seconds since the epoch.

    Raises:
        RegistrationError: a number is below 0, or a setting is of another type.
    """

    times: int = 2
    base: float = 0.5
    cap: float = 8.0
    max_retry_after: float = 60.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError)
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


def retry_after_seconds(
    headers: Mapping[str, str], now: float, *, status: int = 429, in_body: float | None = None
) -> float | None:
    """The wait in seconds that a response asks for, finite and at least 0; None if it asks for none.

    The first of these counts: ``retry-after-ms``; ``Retry-After``; *in_body*, the wait that the body names; and with
    status 429 the reset of a rate limit, such as ``x-ratelimit-reset-tokens``. Other responses have these, too, but did
    not fail because of them. Each is a number of seconds, a duration such as ``6m0s``, a date, or a time since the epoch.
    """
    known = {name.lower(): value for name, value in headers.items()}
    millis = _number(known.get("retry-after-ms", ""))
    waits = (None if millis is None else millis / 1000, _seconds(known.get("retry-after", ""), now), in_body)
    found = next((wait for wait in waits if wait is not None), None)
    if found is None and status == 429:
        return _until_reset(known, now)
    return found


def milliseconds(seconds: float | None) -> int | None:
    """The ``retry_after`` of a ``ModelError``, at most ``MAX_RETRY_AFTER``."""
    return None if seconds is None else round(min(seconds, MAX_RETRY_AFTER) * 1000)


def _until_reset(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until the rate limits that are used up are reset.

    A limit whose ``remaining`` is not known may be used up. A reset in the past says nothing.
    """
    used_up: list[float] = []
    unknown: list[float] = []
    for name, value in headers.items():
        if _RATE_LIMIT_RESET.search(name) and (wait := _seconds(value, now)):
            remaining = _number(headers.get(name.replace("reset", "remaining"), ""))
            if not remaining:
                (unknown if remaining is None else used_up).append(wait)
    return max(used_up or unknown, default=None)


def _seconds(text: str, now: float) -> float | None:
    """The seconds from *now* that a header names; None if its format is unknown."""
    text = text.strip()
    number = _number(text)
    if number is not None:
        return number if number < _EPOCH else max(0.0, (number if number < _EPOCH_MS else number / 1000) - now)
    if _DURATION.fullmatch(text):
        return finite(sum(float(value) * _UNITS[unit] for value, unit in _PART.findall(text)))
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = read(text)
            return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def _number(text: str) -> float | None:
    try:
        return finite(float(text))
    except ValueError:
        return None


def finite(seconds: float) -> float | None:
    """The number, if it is finite and at least 0."""
    return seconds if 0 <= seconds < math.inf else None
