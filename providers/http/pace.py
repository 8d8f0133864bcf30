"""Turns for other tasks of the event loop while a body is read."""

from __future__ import annotations

import asyncio

PARTS = 128
"""Parts of a body that are read in one step of the loop. Each takes up to 0.1 ms."""


class Pace:
    """Counts the parts of a body. One read of the network may bring ten thousand of them, which come without a pause."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = PARTS

    async def turn(self, size: int = 0) -> None:
        """Count a part, which costs more if its *size* in bytes does, and let other tasks run if it is time."""
        self._left -= 1 + size // 512
        if self._left <= 0:
            self._left = PARTS
            await asyncio.sleep(0)
