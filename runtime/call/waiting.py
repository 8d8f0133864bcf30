"""Waiting for an event from another task of this process, with a timeout after which the caller checks again."""

from __future__ import annotations

import asyncio
from typing import Any


class _Waiter(asyncio.Future[None]):
    may_be_left = True  # it holds nothing: a cancellation needs no grace


class Waiters:
    """Waiters by the key that they wait for; False without waiters."""

    def __init__(self) -> None:
        self._waiting: dict[Any, list[_Waiter]] = {}

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
