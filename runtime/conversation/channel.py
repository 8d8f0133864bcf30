"""The events of a coroutine as an async generator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Generic, TypeVar

from callgate.runtime.pipeline.waiting import cancel_and_wait

T = TypeVar("T")
WAITING = 64
"""Maximum number of events in the queue of a slow reader; beyond it, the sender waits."""


class _Channel(Generic[T]):
    """A bounded queue between a sender and a reader on one event loop."""

    def __init__(self) -> None:
        self.events: deque[T] = deque()
        self.news = asyncio.Event()
        self.room = asyncio.Event()

    async def put(self, event: T) -> None:
        self.events.append(event)
        self.news.set()
        if len(self.events) >= WAITING:
            self.room.clear()
            await self.room.wait()

    def take(self) -> T:
        event = self.events.popleft()
        self.room.set()
        return event


async def events_of(
    run: Callable[[Callable[[T], Awaitable[None]]], Coroutine[object, None, object]],
) -> AsyncGenerator[T, None]:
    """Yield the events of *run* in order, then raise its error, if any.

    *run* starts in its own task when the reader asks for the first event. An early stop cancels the task and
    waits for its end.
    """
    channel = _Channel[T]()
    # asyncio: a reader that stops cancels the conversation once, not at each checkpoint
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
        await cancel_and_wait(running)
