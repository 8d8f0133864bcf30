"""``Retry``: runs a failed tool again. It runs inside of ``Deadline`` and outside of ``Timeout``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, Unpack

from callgate.errors import (
    CallgateError,
    Conflict,
    DeadlineExceeded,
    Denied,
    HookError,
    InFlight,
    Invalid,
    OutcomeUnknown,
    RetryLater,
    Suspended,
)
from callgate.hooks.base import Hook, Next
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, check_count, check_seconds, checked, set_options
from callgate.providers.kinds import check_fields, refuse_result
from callgate.tools.definition import Effect

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
On: TypeAlias = Errors | Callable[[Exception], bool | float]
"""Exception types, or a function of the error that returns True, False, or seconds to wait."""

DECIDED = (Denied, Invalid, Suspended, Conflict, InFlight, OutcomeUnknown)
"""Errors that are never retried: a retry would repeat the decision, or the effect."""
REPEATABLE = frozenset({Effect.READ, Effect.IDEMPOTENT, Effect.KEYED})
"""Effects that may run twice; each attempt of a keyed tool has the same arguments, and so the same key."""
MAX_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with full jitter.

    Before retry n it waits a random time between 0 and ``initial * factor ** (n - 1)`` seconds, at most *maximum*.

    Args:
        initial: the upper bound before retry 1, in seconds.
        maximum: the largest upper bound, in seconds.
        factor: the growth per retry.
        random: a function that returns numbers from 0 to 1.

    Raises:
        HookError: a setting is of another type.
    """

    initial: float = 0.1
    maximum: float = 5.0
    factor: float = 2.0
    random: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        check_fields(self, HookError)

    def __call__(self, retry: int) -> float:
        """Return the seconds to wait before a retry; the first retry is 1."""
        return min(self.maximum, self.initial * self.factor ** (retry - 1)) * self.random()


class Retry(Hook):
    """Retry: runs a failed tool again if its effect allows that and enough time is left.

    Tools with the effect ``read`` or ``idempotent`` are retried, and ``keyed`` tools with the same key. An
    ``irreversible`` tool is retried only after an error of *safe*, a tool without a declared effect never. Decisions
    (denied, invalid, ...), cancellations and calls whose body was left behind are never retried.

    Args:
        max_attempts: the maximum number of attempts, the first included; up to 100.
        on: errors to retry: types, or a function of the error that returns True, False, or seconds to wait. Default:
            every exception of the tool except ``ToolError``, which is meant for the model. ``RetryLater`` is always
            retried, after the time that it gives. Where this function or *wait* fails, or returns another type, the call
            ends with the tool's error, and the fault is logged.
        wait: seconds before retry 1, 2, ...: a ``Backoff``, or a function of that number.
        max_retry_after: the longest ``retry_after`` of a ``RetryLater`` to wait for, in seconds. A call with a longer one
            ends with that error.
        safe: types of errors that prove that the tool had no effect; they allow a retry of an irreversible tool.
        options: the options of every hook, except ``mode``.

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "retry"
    priority = 200
    repeats = True
    honours_effect = True

    @checked
    def __init__(
        self,
        max_attempts: int = 3,
        *,
        on: On | None = None,
        wait: Callable[[int], float] = Backoff(),
        max_retry_after: float = 10.0,
        safe: Errors = (),
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        check_count("Retry", "max_attempts", max_attempts, maximum=MAX_ATTEMPTS)
        check_seconds("Retry", "max_retry_after", max_retry_after, least=0.0)
        if not callable(wait):
            raise HookError(f"Retry: wait is {wait!r}; give Backoff(...), or a function from the retry to seconds")
        self.max_attempts, self.max_retry_after = max_attempts, max_retry_after
        self._wait = wait
        self._safe = safe
        self._on = _predicate(on)

    async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
        """Run attempts until one succeeds or no retry is allowed. ``on_retry`` runs before each further attempt."""
        now = ctx.run.plan.host.monotonic
        tried, shortest = 0, float("inf")
        while True:
            began = now()
            try:
                return await next()
            except Exception as error:
                tried += 1
                shortest = min(shortest, now() - began)
                pause = self._pause(ctx, error, tried, shortest)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    def _pause(self, ctx: InvokeContext, error: Exception, tried: int, shortest: float) -> float | None:
        """Return the seconds to wait before the next attempt; None when there is none."""
        if (
            tried >= self.max_attempts
            or ctx.run.abandoned
            or isinstance(error, DECIDED)
            or not self._may_repeat(ctx, error)
        ):
            return None
        if isinstance(error, RetryLater):
            pause = error.retry_after / 1000
            if pause > self.max_retry_after:
                return None
        else:
            try:
                wanted = self._wanted(tried, error)
            except Exception as fault:  # noqa: BLE001  (the error of the tool stays that of the call)
                ctx.suppress(fault)
                return None
            if wanted is None:
                return None
            pause = wanted
        left = ctx.remaining()
        return None if left is not None and left <= pause + shortest else max(0.0, pause)

    def _wanted(self, tried: int, error: Exception) -> float | None:
        """Return the seconds that ``on`` and ``wait`` want before the next attempt; None for no attempt."""
        worth: object = self._on(error)
        if worth is False or (worth == 0 and isinstance(worth, int)):
            return None
        setting, seconds = ("wait", self._wait(tried)) if worth is True else ("on", worth)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            give = "seconds" if setting == "wait" else "True, False or seconds"
            refuse_result("Retry", setting, seconds, give)
        return seconds

    def _may_repeat(self, ctx: InvokeContext, error: Exception) -> bool:
        effect = ctx.tool.effect
        return effect in REPEATABLE or (effect is Effect.IRREVERSIBLE and isinstance(error, self._safe))


def _predicate(on: On | None) -> Callable[[Exception], bool | float]:
    if on is None:
        return lambda error: isinstance(error, DeadlineExceeded) or not isinstance(error, CallgateError)
    if isinstance(on, type | tuple):
        types = on if isinstance(on, tuple) else (on,)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
            raise HookError(f"Retry: on is {on!r}; give exception types, or a function of the error")
        return lambda error: isinstance(error, types)
    if not callable(on):
        raise HookError(f"Retry: on is {on!r}; give exception types, or a function of the error")
    return on
