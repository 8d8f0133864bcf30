"""Waiting for an event from another task of this process, and for the end of a task that is cancelled."""

from __future__ import annotations

import asyncio

from callgate.runtime.pipeline.shield import enter_shield, leave_shield


class _Waiter(asyncio.Future[None]):
    may_be_left = True  # it holds nothing: a cancellation needs no grace


class Waiters:
    """Waiters by the key that they wait for; False without waiters."""

    def __init__(self) -> None:
        self._waiting: dict[object, list[_Waiter]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, what: object, seconds: float) -> None:
        """Return when ``wake`` is called for this key, or when the time is over."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop=loop)
        timer = loop.call_later(seconds, _wake, waiter)
        waiting = self._waiting.setdefault(what, [])
        waiting.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            waiting.remove(waiter)
            if not waiting:
                self._waiting.pop(what, None)

    def wake(self, what: object) -> None:
        """Wake the waiters of this key."""
        for waiter in self._waiting.get(what, ()):
            _wake(waiter)


def _wake(waiter: _Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def cancel_and_wait(running: asyncio.Future[object] | asyncio.Task[object]) -> None:
    """Cancel *running* and await its end, also while this task is cancelled itself.

    A cancelled scope of anyio cancels at each checkpoint: without a shield, the wait would be a busy loop.
    """
    late: asyncio.CancelledError | None = None
    if not running.done():
        running.cancel()
        shield = enter_shield()
        try:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError as cancelled:
                    late = cancelled
        finally:
            if shield is not None:
                leave_shield(shield)
    if not running.cancelled():
        running.exception()  # marks it as retrieved: the reader has gone
    if late is not None:
        raise late
