"""``Timeout`` and ``Deadline``: the time limit of one attempt, and that of a call.

Their priorities give a fixed order around the tool: deadline (outermost), circuit breaker, retry, timeout (innermost).
"""

from __future__ import annotations

import asyncio
from typing import Unpack

from callgate.errors import DeadlineExceeded, HookError, OutcomeUnknown
from callgate.hooks.base import Hook, Next
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import IdleLimit
from callgate.hooks.stock.options import HookOptions, check_seconds, checked, set_options


class Timeout(Hook):
    """Timeout of one attempt. It runs inside of ``Retry``, so an attempt that hangs leaves time for the next one.

    The tool is cancelled, and the attempt ends with ``DeadlineExceeded``. A body that cannot be stopped (a plain
    function, or ``hard_deadline=True``) is left behind, and the call ends with outcome ``unknown``, without a retry.

    Args:
        seconds: seconds for one attempt, hooks at ``will_execute`` and ``did_execute`` included.
        options: the options of every hook, except ``mode``.

    Raises:
        HookError: *seconds* is not a number above 0.
    """

    concern = "attempt"
    priority = 100

    @checked
    def __init__(self, seconds: float, **options: Unpack[HookOptions]) -> None:
        set_options(self, options)
        check_seconds("Timeout", "seconds", seconds)
        self.seconds = seconds

    async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
        """Run the attempt within the timeout."""
        return await _within(ctx, next, self.seconds, "an attempt")


class Deadline(Hook):
    """Deadline of a call: one time limit for all attempts and the waits between them, from the start of the call.

    ``ctx.remaining()`` includes it from the start, so retries, wait queues and nested calls keep to it. It does not
    interrupt stages before the tool; the ``deadline`` of the gate does.

    Args:
        seconds: seconds for the call.
        idle: maximum number of seconds without progress, from the first attempt on; see ``ctx.progress``.
        options: the options of every hook, except ``mode``.

    Raises:
        HookError: a limit is not a number above 0, or there is none.
    """

    concern = "deadline"
    priority = 400
    whole = True

    @checked
    def __init__(
        self, seconds: float | None = None, *, idle: float | None = None, **options: Unpack[HookOptions]
    ) -> None:
        set_options(self, options)
        if seconds is None and idle is None:
            raise HookError("Deadline needs a limit: Deadline(5), Deadline(idle=5), or both")
        for name, value in (("seconds", seconds), ("idle", idle)):
            if value is not None:
                check_seconds("Deadline", name, value)
        self.seconds, self.idle = seconds, idle

    def will_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Set the deadline of the context, unless an earlier one is set."""
        if self.seconds is not None:
            ends = ctx.run.started + self.seconds
            if ctx.run.deadline_at is None or ends < ctx.run.deadline_at:
                ctx.run.deadline_at = ends

    async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
        """Run all attempts within the remaining time, as long as they report progress."""
        run = ctx.run
        now = run.plan.host.monotonic()
        seconds = None if self.seconds is None else run.started + self.seconds - now
        if self.idle is None:
            return await _within(ctx, next, seconds, "the call")
        before = run.idle
        run.idle = idle = IdleLimit(self.idle, run.plan.host.monotonic, now, before)
        try:
            return await _within(ctx, next, seconds, "the call", idle)
        finally:
            run.idle = before


async def _within(
    ctx: InvokeContext, next: Next, seconds: float | None, what: str, idle: IdleLimit | None = None
) -> object:
    if seconds is not None and seconds <= 0.0:
        raise DeadlineExceeded(f"no time is left for {what} of {ctx.tool_id}")
    limit = asyncio.timeout(seconds)
    quiet = None
    try:
        async with limit:
            quiet = None if idle is None else _Quiet(limit, idle)
            return await next()
    except TimeoutError as error:
        if not limit.expired():
            raise
        if ctx.run.abandoned:
            raise OutcomeUnknown(f"{ctx.tool_id} did not stop and was left behind; it may still take effect") from error
        if idle is not None and quiet is not None and quiet.too_long:
            raise DeadlineExceeded(
                f"{ctx.tool_id} reported no progress for {idle.seconds:g} s; call ctx.progress more often, or raise idle=",
                public="The call made no progress for too long.",
                code="idle_timeout",
            ) from error
        raise DeadlineExceeded(f"{what} of {ctx.tool_id} took too long") from error
    finally:
        if quiet is not None:
            quiet.timer.cancel()


class _Quiet:
    """Ends a timeout when its call has made no progress for too long."""

    def __init__(self, limit: asyncio.Timeout, idle: IdleLimit) -> None:
        self._limit, self._idle, self.too_long = limit, idle, False
        self.timer = asyncio.get_running_loop().call_later(idle.seconds, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if (left := self._idle.left()) > 0:
            self.timer = loop.call_later(left, self._look)
        elif not self._limit.expired():
            self.too_long = True
            self._limit.reschedule(loop.time())
