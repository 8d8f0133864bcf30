"""Sending of messages from an event loop: a thread pool, and connections with short timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, LifoQueue
from typing import Any

SEND_TIMEOUT = 10.0
"""Timeout for sending a message, in seconds."""
RESPONSE_TIMEOUT = 4.0
"""Timeout for a response of the broker, in seconds; then the connection is closed and replaced."""
MAX_SENDERS = 4

TIMEOUTS: Mapping[str, dict[str, object]] = {
    "redis": {"socket_timeout": RESPONSE_TIMEOUT, "socket_connect_timeout": RESPONSE_TIMEOUT},
    "amqp": {
        "read_timeout": RESPONSE_TIMEOUT,
        "write_timeout": RESPONSE_TIMEOUT,
        "confirm_publish": True,
    },  # the broker confirms each message
}
"""Options of connections, by type of broker; the options of the application take precedence."""


class SenderPool:
    """Sends tasks by name over connections of its own, because those of the application may have long timeouts."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(MAX_SENDERS, thread_name_prefix="callgate celery")
        self._idle: LifoQueue[Any] = LifoQueue()
        self._closed = False

    async def send(self, task: str, **message: object) -> None:
        """Send a message; errors of the broker's client are raised.

        Raises:
            TimeoutError: sending took longer than ``SEND_TIMEOUT``.
        """
        async with asyncio.timeout(SEND_TIMEOUT):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._send, task, message)

    def close(self) -> None:
        """Accept no more messages and close idle connections; running sends end by themselves."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._close_idle()

    def _send(self, task: str, message: dict[str, object]) -> None:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._connection()
        try:
            self._app.send_task(task, connection=connection, **message)
        except BaseException:
            connection.collect()  # closes without a message to the broker, which may be unreachable
            raise
        self._idle.put(connection)
        if self._closed:
            self._close_idle()

    def _connection(self) -> Any:
        made = self._app.connection_for_write()
        own = TIMEOUTS.get(made.transport.driver_type, {})
        made.transport_options = {**own, **made.transport_options}
        return made

    def _close_idle(self) -> None:
        while True:
            try:
                self._idle.get_nowait().collect()
            except Empty:
                return
