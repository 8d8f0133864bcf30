"""``gate.stream``: one call as a series of events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from callgate.hooks.context import InvokeContext
from callgate.runtime.pipeline.waiting import cancel_and_wait
from callgate.tools.calls import ToolResult

QUEUE = 256
"""Maximum number of queued events. When the queue is full, progress is dropped, and partial outputs block the tool."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a call; ``total`` and ``message`` are optional."""

    tool: str
    progress: float
    total: float | None = None
    message: str | None = None

    def __post_init__(self) -> None:  # a value of another type would pass the mask of secrets
        numbers = isinstance(self.progress, int | float) and isinstance(self.total, int | float | None)
        if not numbers or not isinstance(self.message, str | None):
            raise TypeError("ctx.progress takes two numbers and a text; the total and the text may be left out")


@dataclass(frozen=True, slots=True)
class Partial:
    """Part of the output, shaped like the whole."""

    tool: str
    value: object


@dataclass(frozen=True, slots=True)
class Result:
    """The last event, with the result of the call."""

    result: ToolResult


Event: TypeAlias = Progress | Partial | Result


class Events:
    """The event queue of a streamed call."""

    def __init__(self) -> None:
        # asyncio: a tool puts progress without waiting, and the reader asks whether it is empty
        self.queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE)
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.held: dict[str, Any] = {}  # by tool, where a secret may have begun
        self.in_order = asyncio.Lock()  # fair: parts are shaped and queued in the order of ``ctx.send``

    def progress(self, ctx: InvokeContext, progress: float, total: float | None, message: str | None) -> None:
        """Queue the progress without waiting; drop it when the queue is full. Plain tools call this from their thread."""
        event = Progress(ctx.tool_id, progress, total, message)
        if threading.get_ident() == self.thread:
            self._offer(event)
            return
        try:
            self.loop.call_soon_threadsafe(self._offer, event)
        except RuntimeError:  # the loop has closed: an abandoned thread has no reader
            return

    def _offer(self, event: Event) -> None:
        if not self.queue.full():
            self.queue.put_nowait(event)

    async def partial(self, ctx: InvokeContext, value: object) -> None:
        """Queue a partial output; wait while the queue is full, so that no output is dropped."""
        scrubber = ctx.run.scrubber
        if scrubber is None:
            await self.queue.put(Partial(ctx.tool_id, value))
            return
        if ctx.tool_id not in self.held:
            from callgate.providers.scrubbed_parts import PartScrubber  # few calls have secrets

            self.held[ctx.tool_id] = PartScrubber(scrubber.secrets)
        self.held[ctx.tool_id].secrets = scrubber.secrets
        for part in self.held[ctx.tool_id].feed(value):
            await self.queue.put(Partial(ctx.tool_id, part))

    def left(self) -> list[Partial]:
        """Return the parts that were held back, once the call has ended."""
        return [Partial(tool, part) for tool, held in self.held.items() for part in held.flush()]


async def run_streamed(begin: Callable[[Events], Coroutine[object, None, ToolResult]]) -> AsyncGenerator[Event, None]:
    """Yield the events of the call that *begin* starts. When the reader stops early, cancel it and wait for its end."""
    events = Events()
    # asyncio: a reader that stops cancels the call once; an anyio scope would cancel at each checkpoint
    running = asyncio.ensure_future(begin(events))
    try:
        while not running.done() or not events.queue.empty():
            if not events.queue.empty():
                yield events.queue.get_nowait()
                continue
            # asyncio: one read, which the end of the call cancels
            reading = asyncio.ensure_future(events.queue.get())
            try:
                await asyncio.wait([running, reading], return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not reading.done():
                    reading.cancel()
            if reading.done() and not reading.cancelled():
                yield reading.result()
        for part in events.left():
            yield part
        yield Result(await running)
    finally:
        await cancel_and_wait(running)
