"""The progress of one call, sent to its client in order. A call without progress pays for an object only."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import TypeAlias

from mcp.server.session import ServerSession

from callgate.hooks.context import InvokeContext

QUEUE = 256
"""Maximum number of reports that wait for the client; when it is reached, new ones are dropped."""

Report: TypeAlias = tuple[float, float | None, str | None]


class Reports:
    """Takes the progress of a call (``Consumer`` of ``hooks/state/facts.py``). Parts of an output have no form in MCP."""

    __slots__ = ("_loop", "_sending", "_session", "_thread", "_waiting", "in_order")

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._waiting: deque[Report] = deque()
        self._sending: asyncio.Future[None] | None = None
        self.in_order = asyncio.Lock()

    def progress(self, ctx: InvokeContext, progress: float, total: float | None, message: str | None) -> None:
        """Queue a report without waiting. Plain tools call this from their thread."""
        report = progress, total, message
        if threading.get_ident() == self._thread:
            self._offer(report)
            return
        with suppress(RuntimeError):  # the loop has closed: an abandoned thread has no reader
            self._loop.call_soon_threadsafe(self._offer, report)

    async def partial(self, ctx: InvokeContext, value: object) -> None:
        """Leave the part out: the result has the whole output."""

    async def sent(self) -> None:
        """Wait until all reports are with the client, so that the result comes last."""
        if self._sending is not None:
            await self._sending

    def _offer(self, report: Report) -> None:
        if len(self._waiting) >= QUEUE:
            return
        self._waiting.append(report)
        if self._sending is None or self._sending.done():
            # asyncio: a tool reports without waiting, and most calls report nothing
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._waiting:
            with suppress(Exception):  # a client that has gone needs no progress
                await self._session.report_progress(*self._waiting.popleft())
