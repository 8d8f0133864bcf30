"""``Timeout``, ``Deadline`` and ``Retry``: how long a call may take, and when it is tried again.

They stand about the tool in a fixed order, by their priorities: total deadline, breaker, retry, attempt time limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

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
from callgate.hooks.stock.options import HookOptions, is_number, set_options
from callgate.tools.definition import Effect

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
On: TypeAlias = Errors | Callable[[Exception], bool | float]
"""Types of errors, or a function of the error that says yes, no, or how many seconds to wait."""

DECIDED = (Denied, Invalid, Suspended, Conflict, InFlight, OutcomeUnknown)
"""Errors that are an answer: trying again would only repeat it, or do harm."""
REPEATABLE = frozenset({Effect.READ, Effect.IDEMPOTENT, Effect.KEYED})
"""Effects that are the same when they happen twice; a keyed one has its key, and every attempt the same arguments."""
MOST_ATTEMPTS = 100


class Timeout(Hook):
    """A time limit for each attempt; inside of ``Retry``, so that one attempt that hangs leaves time for the next.

    The body is cancelled and the attempt ends with ``DeadlineExceeded``; a body that is left behind because it does not
    stop (plain functions, ``hard_deadline=True``) ends the call with outcome ``unknown``, which is not tried again.

    Args:
        seconds: for one attempt, hooks of ``will_execute`` and ``did_execute`` included.
        options: those of ``Hook``, but for ``mode``.

    Raises:
        HookError: it is no number of seconds above 0.
    """

    concern = "attempt"
    priority = 100

    def __init__(self, seconds: float, **options: Unpack[HookOptions]) -> None:
        set_options(self, options)
        self.seconds = _seconds("Timeout", seconds)

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        """Go on, for so long."""
        return await _within(ctx, next, self.seconds, "an attempt")


class Deadline(Hook):
    """A time limit for all attempts together, with the waits between them; it counts from the start of the call.

    ``ctx.remaining()`` knows of it from the beginning, so retries, queues and nested calls keep to it. What runs before
    the tool is not interrupted by it; the gate's own ``deadline`` does that.

    Args:
        seconds: for the call.
        options: those of ``Hook``, but for ``mode``.

    Raises:
        HookError: it is no number of seconds above 0.
    """

    concern = "deadline"
    priority = 400

    def __init__(self, seconds: float, **options: Unpack[HookOptions]) -> None:
        set_options(self, options)
        self.seconds = _seconds("Deadline", seconds)

    def will_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Let everybody know how much time there is."""
        ends = ctx.started + self.seconds
        if ctx.deadline_at is None or ends < ctx.deadline_at:
            ctx.deadline_at = ends

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        """Go on, for what is left."""
        return await _within(ctx, next, ctx.started + self.seconds - ctx.host.monotonic(), "the call")


def _seconds(hook: str, seconds: float) -> float:
    if not is_number(seconds, least=0) or not seconds:
        raise HookError(f"{hook}({seconds!r}): give seconds above 0")
    return seconds


async def _within(ctx: InvokeContext, next: Next, seconds: float, what: str) -> Any:
    if seconds <= 0.0:
        raise DeadlineExceeded(f"no time is left for {what} of {ctx.tool_id}")
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await next()
    except TimeoutError as error:
        if not limit.expired():
            raise
        if ctx.abandoned:
            raise OutcomeUnknown(f"{ctx.tool_id} was left behind; it may still take effect") from error
        raise DeadlineExceeded(f"{what} of {ctx.tool_id} took too long") from error


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with full jitter: before retry n a random time up to ``initial * factor ** (n - 1)`` seconds.

    Never more than *most* seconds. *random* gives numbers from 0 to 1.
    """

    initial: float = 0.1
    most: float = 5.0
    factor: float = 2.0
    random: Callable[[], float] = random.random

    def __call__(self, retry: int) -> float:
        """Seconds to wait before a retry; the first is 1."""
        return min(self.most, self.initial * self.factor ** (retry - 1)) * self.random()


class Retry(Hook):
    """Tries a failed tool again, where its effect allows that and time is left.

    A tool that is ``read`` or ``idempotent`` is repeated; one that is ``keyed`` with its key; one that is
    ``irreversible`` only after an error of *safe*; one without a declared effect never. Control errors, cancellations,
    decisions (denied, invalid, …) and calls whose body was left behind are never repeated.

    Args:
        attempts: how often it is tried at most, the first time included; up to 100.
        on: errors that are worth another try: types, or a function of the error to True, False or seconds to wait. By
            default every error that the tool lets out, but for ``ToolError``, which is meant for the model.
            ``RetryLater`` is always tried again, after the time that it says.
        wait: seconds before retry 1, 2, …: a ``Backoff``, or a function of that number.
        patience: the longest time in seconds that ``RetryLater`` is waited for; beyond it the caller gets it.
        safe: types of errors that prove that nothing has happened, so that even an irreversible tool may be repeated.
        options: those of ``Hook``, but for ``mode``.

    Raises:
        HookError: a setting that means nothing.
    """

    concern = "retry"
    priority = 200
    repeats = True
    honours_effect = True

    def __init__(
        self,
        attempts: int = 3,
        *,
        on: On | None = None,
        wait: Callable[[int], float] = Backoff(),
        patience: float = 10.0,
        safe: Errors = (),
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if not (is_number(attempts, least=1, whole=True) and attempts <= MOST_ATTEMPTS):
            raise HookError(f"Retry: attempts={attempts!r}; give a whole number from 1 to {MOST_ATTEMPTS}")
        if not is_number(patience, least=0) or not callable(wait):
            raise HookError(f"Retry: patience={patience!r}, wait={wait!r}; give seconds, and a function of the retry")
        self.attempts, self.patience = attempts, patience
        self._wait = wait
        self._safe = safe
        self._on = _as_question(on)

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        """Go on; again, after a failure that allows it. ``on_retry`` runs before each further attempt."""
        now = ctx.host.monotonic
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
        """Seconds to wait before the next attempt; None where there is none."""
        if tried >= self.attempts or ctx.abandoned or isinstance(error, DECIDED) or not self._may_repeat(ctx, error):
            return None
        if isinstance(error, RetryLater):
            pause = error.retry_after / 1000
            if pause > self.patience:
                return None
        else:
            worth = self._on(error)
            if not worth and not isinstance(worth, float):
                return None
            pause = self._wait(tried) if worth is True else float(worth)
        left = ctx.remaining()
        return None if left is not None and left <= pause + shortest else max(0.0, pause)

    def _may_repeat(self, ctx: InvokeContext, error: Exception) -> bool:
        effect = ctx.tool.effect
        return effect in REPEATABLE or (effect is Effect.IRREVERSIBLE and isinstance(error, self._safe))


def _as_question(on: On | None) -> Callable[[Exception], bool | float]:
    if on is None:
        return lambda error: isinstance(error, DeadlineExceeded) or not isinstance(error, CallgateError)
    if isinstance(on, type | tuple):
        types = on if isinstance(on, tuple) else (on,)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
            raise HookError(f"Retry: on={on!r}; give types of exceptions, or a function of the error")
        return lambda error: isinstance(error, types)
    if not callable(on):
        raise HookError(f"Retry: on={on!r}; give types of exceptions, or a function of the error")
    return on
