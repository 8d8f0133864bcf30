"""``gate.stream``: one call as a series of events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from callgate.tools.calls import ToolResult, User

QUEUE = 256
"""Events that may wait for a slow reader; past that, progress is dropped and partial outputs make the tool wait."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call is; ``total`` and ``message`` are optional."""

    tool: str
    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """Part of the output, shaped like the whole."""

    tool: str
    value: Any


@dataclass(frozen=True, slots=True)
class Result:
    """The last event."""

    result: ToolResult


Event: TypeAlias = Progress | Partial | Result


class Events:
    """Where a streamed call's context sends its events."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE)
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()

    def progress(self, ctx: Any, progress: float, total: float | None, message: str | None) -> None:
        """Never waits: progress that nobody reads in time is dropped. Plain tools report theirs from their thread."""
        event = Progress(ctx.tool_id, progress, total, message)
        if threading.get_ident() == self.thread:
            self._offer(event)
            return
        try:
            self.loop.call_soon_threadsafe(self._offer, event)
        except RuntimeError:  # the loop has closed: a thread that was left behind reports to nobody
            return

    def _offer(self, event: Event) -> None:
        if not self.queue.full():
            self.queue.put_nowait(event)

    async def partial(self, ctx: Any, value: Any) -> None:
        """Waits while the reader is slow: output is never dropped."""
        await self.queue.put(Partial(ctx.tool_id, value))


async def stream(gate: Any, call: Any, user: User, options: Mapping[str, Any]) -> AsyncGenerator[Event, None]:
    """See ``Gate.stream``. A reader that stops early cancels the call and waits for its end."""
    events = Events()
    running = asyncio.ensure_future(gate.call(call, user=user, events=events, **options))
    try:
        while not running.done() or not events.queue.empty():
            if not events.queue.empty():
                yield events.queue.get_nowait()
                continue
            reading = asyncio.ensure_future(events.queue.get())
            try:
                await asyncio.wait([running, reading], return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not reading.done():
                    reading.cancel()
            if reading.done() and not reading.cancelled():
                yield reading.result()
        yield Result(await running)
    finally:
        await see_off(running)


async def see_off(running: asyncio.Future[Any]) -> None:
    """Cancel what still runs for a reader that stops; whoever cancels the reader meanwhile waits for its end, too."""
    again: asyncio.CancelledError | None = None
    if not running.done():
        running.cancel()
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as cancelled:
            again = cancelled
    if not running.cancelled():
        running.exception()  # seen: nobody reads any more
    if again is not None:
        raise again
