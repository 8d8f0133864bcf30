"""The time limit of requests to the server of a store, and its circuit breaker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import TracebackType

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
    return _UNLIMITED if seconds is None else _Within(seconds)


class _Within(AbstractContextManager[None]):
    __slots__ = ("_seconds", "_token")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._token = _ENDS.set(asyncio.get_running_loop().time() + self._seconds)

    def __exit__(self, *_: object) -> None:
        _ENDS.reset(self._token)


def before_deadline(left: float) -> float:
    """Return the seconds for requests in a call that has *left* seconds; see ``MARGIN``."""
    return left - min(MARGIN, left / 4)


def has_limit() -> bool:
    """Return True if the time of requests is limited here."""
    return _ENDS.get() is not None


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


def is_locked(error: BaseException | None) -> bool:
    """Return True if the server has answered that the wait for a lock was too long."""
    return getattr(error, "sqlstate", None) == "55P03"  # lock_not_available


class ServerAnswers:
    """The circuit breaker of one server."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._circuits = LocalCircuits(BREAKER)

    def awaited(self, disconnect: Callable[[], bool] | None = None) -> AbstractAsyncContextManager[None]:
        """Wait for one request, at most for the time that ``answer_within`` gives.

        Args:
            disconnect: ends the request by closing its connection. It returns False while there is no connection; then
                the request is cancelled.

        Raises:
            StoreError: the server did not answer in time, or is not asked because it did not answer before.
        """
        return _Request(self, disconnect)

    def enter(self, now: float) -> Probe | None:
        """Begin a request; see ``LocalCircuits.enter``.

        Raises:
            StoreError: the server is not asked.
        """
        if not self._circuits.known:
            return None
        try:
            return self._circuits.enter(self.backend, now)
        except Refused as refused:
            raise StoreError(
                f"{self.backend}: the server did not answer {BREAKER.failures} times in a row; it is asked again in "
                f"{refused.seconds:.1f} seconds; check the server and the network to it"
            ) from None

    def leave(self, probe: Probe | None, failed: bool | None, now: float) -> None:
        """End a request; see ``LocalCircuits.leave``. Any answer closes the circuit."""
        if failed or self._circuits.known:
            self._circuits.leave(self.backend, probe, failed, now)
            if failed is False:
                self._circuits.known.pop(self.backend, None)


class _Request:
    """A request that a server answers; see ``ServerAnswers.awaited``. Each change of a call is one: a generator costs more."""

    __slots__ = ("_answers", "_began", "_disconnect", "_gave_up", "_limit", "_loop", "_probe", "_timer")

    def __init__(self, answers: ServerAnswers, disconnect: Callable[[], bool] | None) -> None:
        self._answers, self._disconnect = answers, disconnect
        self._limit: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gave_up = False

    async def __aenter__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._probe = self._answers.enter(self._began)
        if (ends := _ENDS.get()) is not None:
            self._limit = asyncio.timeout(None)
            await self._limit.__aenter__()
            self._timer = loop.call_at(ends, self._give_up, self._limit)

    def _give_up(self, limit: asyncio.Timeout) -> None:
        self._gave_up = True
        if self._disconnect is None or not self._disconnect():
            limit.reschedule(self._loop.time())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        raised = error
        try:
            if self._limit is not None:
                await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raised = late
        waited = self._loop.time() - self._began
        known = isinstance(raised, StoreError | TimeoutError)
        failed = None if raised is not None else False
        if known and waited >= SILENCE and not isinstance(raised, StoreConflict) and not is_locked(raised):
            failed = True
        self._answers.leave(self._probe, failed, self._began + waited)
        if known and self._gave_up:
            raise StoreError(
                f"{self._answers.backend}: no answer within {waited:.1f} seconds, all that the call had left"
            ) from raised


def shut_socket(descriptor: int) -> None:
    """Shut down a socket that a driver waits for, so that the driver sees the end of the connection at once."""
    with socket.socket(fileno=os.dup(descriptor)) as shared:
        shared.shutdown(socket.SHUT_RDWR)
