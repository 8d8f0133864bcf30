"""What a coroutine tells on its way, as an async generator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from callgate.runtime.call.streams import see_off

T = TypeVar("T")
WAITING = 64
"""Events that may wait for a slow reader; past that, whoever tells one waits, too."""


class _Channel:
    """From whoever tells to whoever reads; both on one loop."""

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.news = asyncio.Event()
        self.room = asyncio.Event()

    async def put(self, event: Any) -> None:
        self.events.append(event)
        self.news.set()
        if len(self.events) >= WAITING:
            self.room.clear()
            await self.room.wait()

    def take(self) -> Any:
        event = self.events.popleft()
        self.room.set()
        return event


async def events_of(
    run: Callable[[Callable[[T], Awaitable[None]]], Coroutine[Any, Any, Any]],
) -> AsyncGenerator[T, None]:
    """What *run* tells, in order; then what it raises, if it does.

    It runs in a task of its own, from the first event that is asked for. A reader that stops early cancels it and waits
    for its end.
    """
    channel = _Channel()
    running = asyncio.ensure_future(run(channel.put))
    running.add_done_callback(lambda _: channel.news.set())
    try:
        while True:
            while channel.events:
                yield channel.take()
            if running.done():
                break
            channel.news.clear()
            await channel.news.wait()
        running.result()
    finally:
        await see_off(running)
