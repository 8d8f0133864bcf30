"""``gate.stream``: one call as a series of events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from callgate.hooks.context import InvokeContext
from callgate.runtime.call import scopes
from callgate.runtime.call.calls import as_call, refuse_user
from callgate.tools.calls import ToolResult, User

QUEUE = 256
"""Maximum number of queued events. When the queue is full, progress is dropped, and partial outputs block the tool."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a call; ``total`` and ``message`` are optional."""

    tool: str
    progress: float
    total: float | None = None
    message: str | None = None


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
        await self.queue.put(Partial(ctx.tool_id, value))


async def stream(
    gate: Any, tool: Any, arguments: Any, user: User, options: Mapping[str, Any]
) -> AsyncGenerator[Event, None]:
    """See ``Gate.stream``. When the reader stops early, cancel the call and wait for its end."""
    refuse_user(user)
    call, events = as_call(gate.registry, tool, arguments), Events()
    # asyncio: a reader that stops cancels the call once; an anyio scope would cancel at each checkpoint
    running = asyncio.ensure_future(gate.call(call, user=user, events=events, **options))
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
        yield Result(await running)
    finally:
        await cancel_and_wait(running)


async def cancel_and_wait(running: asyncio.Future[Any]) -> None:
    """Cancel *running* and await its end, also while this task is cancelled itself.

    A cancelled scope of anyio cancels at each checkpoint: without a shield, the wait would be a busy loop.
    """
    again: asyncio.CancelledError | None = None
    if not running.done():
        running.cancel()
        shield = scopes.shield()
        try:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError as cancelled:
                    again = cancelled
        finally:
            if shield is not None:
                scopes.leave(shield)
    if not running.cancelled():
        running.exception()  # marks it as retrieved: the reader has gone
    if again is not None:
        raise again
