"""The time limit of requests to the server of a store, and its circuit breaker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar

from callgate.errors import StoreConflict, StoreError
from callgate.providers.circuits import LocalCircuits, Probe, Refused, Settings

GRACE = 0.25
"""Seconds that a release has in any case, also after the deadline."""
RECORD_GRACE = 1.0
"""Seconds that the caller waits for a record, such as an outcome, also after the deadline; it may be written later."""
MARGIN = 0.05
"""Seconds before the deadline at which a request is given up: a request that the deadline cancels would wait for the server."""
SILENCE = 0.2
"""A request that failed after so many seconds counts as one without an answer."""
BREAKER = Settings(failures=5, window=60.0, open_for=1.0, probes=1)
"""Requests in a row without an answer that open the circuit; any answer closes it."""

LOCK_WAIT: ContextVar[int | None] = ContextVar("callgate_lock_wait", default=None)
"""See ``waiting_for_locks``."""
_UNLIMITED = nullcontext()
_ENDS: ContextVar[float | None] = ContextVar("callgate_store_answer_ends", default=None)


def answer_within(seconds: float | None) -> AbstractContextManager[None]:
    """Limit the time of all requests to a store in this context together; None leaves it as it is."""
    return _UNLIMITED if seconds is None else _within(seconds)


@contextmanager
def _within(seconds: float) -> Generator[None, None, None]:
    token = _ENDS.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _ENDS.reset(token)


def before_deadline(left: float | None) -> float | None:
    """Return the seconds for requests in a call that has *left* seconds; see ``MARGIN``."""
    return None if left is None else left - min(MARGIN, left / 4)


def time_left(maximum: float) -> float:
    """Return the seconds that are left for a request, at most *maximum*."""
    ends = _ENDS.get()
    return maximum if ends is None else min(maximum, max(0.0, ends - asyncio.get_running_loop().time()))


@contextmanager
def waiting_for_locks(milliseconds: int | None) -> Generator[None, None, None]:
    """Limit the time that each statement waits for a locked row, in the transactions that begin in this context."""
    token = LOCK_WAIT.set(milliseconds)
    try:
        yield
    finally:
        LOCK_WAIT.reset(token)


def is_locked(error: BaseException) -> bool:
    """Return True if the server has answered that the wait for a lock was too long."""
    return getattr(error, "sqlstate", None) == "55P03"  # lock_not_available


class ServerAnswers:
    """The circuit breaker of one server."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._circuits = LocalCircuits(BREAKER)

    @asynccontextmanager
    async def awaited(self, disconnect: Callable[[], bool] | None = None) -> AsyncGenerator[None, None]:
        """Wait for one request, at most for the time that ``answer_within`` gives.

        Args:
            disconnect: ends the request by closing its connection. It returns False while there is no connection; then
                the request is cancelled.

        Raises:
            StoreError: the server did not answer in time, or is not asked because it did not answer before.
        """
        loop = asyncio.get_running_loop()
        began, ends = loop.time(), _ENDS.get()
        probe = self._enter(began)
        failed: bool | None = None
        gave_up = False

        def give_up() -> None:
            nonlocal gave_up
            gave_up = True
            if disconnect is None or not disconnect():
                limit.reschedule(loop.time())

        timer = None if ends is None else loop.call_at(ends, give_up)
        try:
            async with asyncio.timeout(None) as limit:
                yield
            failed = False
        except (StoreError, TimeoutError) as error:
            waited = loop.time() - began
            failed = None if waited < SILENCE or isinstance(error, StoreConflict) or is_locked(error) else True
            if gave_up:
                raise StoreError(
                    f"{self._backend}: no answer within {waited:.1f} seconds, all that the call had left"
                ) from error
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._circuits.leave(self._backend, probe, failed, loop.time())
            if failed is False:
                self._circuits.known.pop(self._backend, None)

    def _enter(self, now: float) -> Probe | None:
        try:
            return self._circuits.enter(self._backend, now)
        except Refused as refused:
            raise StoreError(
                f"{self._backend}: the server did not answer {BREAKER.failures} times in a row; it is asked again in "
                f"{refused.seconds:.1f} seconds; check the server and the network to it"
            ) from None


def shut_socket(descriptor: int) -> None:
    """Shut down a socket that a driver waits for, so that the driver sees the end of the connection at once."""
    with socket.socket(fileno=os.dup(descriptor)) as shared:
        shared.shutdown(socket.SHUT_RDWR)
