"""The handles that a synchronous gate returns: of the events of a call, and of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Self

from callgate.errors import GateClosed
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.jobs.records import JobStatus
from callgate.runtime.pipeline.streams import Event
from callgate.runtime.sync.portal import Portal
from callgate.tools.calls import ToolResult


class SyncStream(Iterator[Event]):
    """The events of one call; the last is its result. Closing the stream earlier cancels the call."""

    def __init__(self, portal: Portal, events: AsyncGenerator[Event, None]) -> None:
        portal.require_open()
        self._portal, self._events, self._context = portal, events, copy_context()
        self._over = False
        portal.streams.add(events)

    def __next__(self) -> Event:
        if self._over:
            raise StopIteration
        try:
            event = self._portal.run(self._step, self._context)
        except BaseException:
            self.close()
            raise
        if event is None:
            self._end()
            raise StopIteration
        return event

    def close(self) -> None:
        """Cancel the call, unless it has ended, and wait for its end."""
        if not self._over:
            self._end()
            with suppress(GateClosed):  # the portal has closed, and its streams with it
                self._portal.run(self._shut, self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _step(self) -> Event | None:
        return await anext(self._events, None)

    async def _shut(self) -> None:
        await self._events.aclose()

    def _end(self) -> None:
        self._over = True
        self._portal.streams.discard(self._events)


class SyncJob:
    """The handle of a job whose methods block. See ``JobHandle``."""

    def __init__(self, handle: JobHandle, portal: Portal) -> None:
        self._handle, self._portal = handle, portal

    @property
    def id(self) -> str:
        """The id, for ``gate.job``."""
        return self._handle.id

    def result(self, timeout: float | None = None) -> ToolResult:
        """Wait for the result, at most *timeout* seconds.

        Raises:
            TimeoutError: the job has no result yet; it goes on.
            NotPending: there is no such job of this user.
        """
        return self._portal.run(lambda: asyncio.wait_for(self._handle.result(), timeout))

    def status(self) -> JobStatus:
        """See ``JobHandle.status``."""
        return self._portal.run(self._handle.status)

    def cancel(self) -> bool:
        """See ``JobHandle.cancel``."""
        return self._portal.run(self._handle.cancel)

    def __repr__(self) -> str:
        return repr(self._handle)
