"""Waiting for what another task of this process may bring: told at once, or looked at again after some time."""

from __future__ import annotations

import asyncio
from typing import Any


class _Waiter(asyncio.Future[None]):
    may_be_left = True  # nothing is taken while it waits: a cancellation need not wait for it


class Waiters:
    """Those who wait, by what they wait for. False while nobody does."""

    def __init__(self) -> None:
        self._waiting: dict[Any, list[_Waiter]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, what: Any, seconds: float) -> None:
        """Return when somebody says that there is news of it, or when the time is over."""
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

    def wake(self, what: Any) -> None:
        """There is news of it."""
        for waiter in self._waiting.get(what, ()):
            _wake(waiter)


def _wake(waiter: _Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)
