"""The event stream of a call for synchronous hosts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextvars import copy_context
from typing import Any, Self

from callgate.errors import GateClosed
from callgate.runtime.call.streams import Event
from callgate.runtime.faces.portal import Portal

_END: Any = object()


class SyncStream(Iterator[Event]):
    """The events of one call; the last is its result. Closing the stream earlier cancels the call."""

    def __init__(self, portal: Portal, events: AsyncGenerator[Event, None]) -> None:
        self._portal = portal
        self._events = events
        self._context = copy_context()
        self._over = False
        portal.streams.add(events)

    def __next__(self) -> Event:
        if self._over:
            raise StopIteration
        try:
            event: Event = self._portal.run(self._step, self._context)
        except BaseException:
            self.close()
            raise
        if event is _END:
            self._end()
            raise StopIteration
        return event

    def close(self) -> None:
        """Cancel the call, unless it has ended, and wait for its end."""
        if self._over:
            return
        self._end()
        try:
            self._portal.run(self._shut, self._context)
        except GateClosed:  # the portal has closed, and its streams with it
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _step(self) -> Any:
        return await anext(self._events, _END)

    async def _shut(self) -> None:
        await self._events.aclose()

    def _end(self) -> None:
        self._over = True
        self._portal.streams.discard(self._events)
