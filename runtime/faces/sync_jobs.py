"""The handle of a job for synchronous hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.jobs.records import JobStatus
from callgate.tools.calls import ToolResult


class SyncJob:
    """The handle of a job whose methods block. See ``JobHandle``."""

    def __init__(self, handle: JobHandle, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self._handle, self._run = handle, run

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
        result: ToolResult = self._run(lambda: asyncio.wait_for(self._handle.result(), timeout))
        return result

    def status(self) -> JobStatus:
        """See ``JobHandle.status``."""
        status: JobStatus = self._run(self._handle.status)
        return status

    def cancel(self) -> bool:
        """See ``JobHandle.cancel``."""
        return bool(self._run(self._handle.cancel))

    def __repr__(self) -> str:
        return repr(self._handle)
