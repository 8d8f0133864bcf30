"""Sending messages from an event loop: a few threads, and connections on which no answer is waited for long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, LifoQueue
from typing import Any

SENDING = 10.0
"""Seconds that sending may take, at most."""
ANSWER = 4.0
"""Seconds that one answer of the broker may take. A connection that nobody answers on any more is given up, and made anew."""
SENDERS = 4

TIMEOUTS: Mapping[str, dict[str, Any]] = {
    "redis": {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER},
    "amqp": {"read_timeout": ANSWER, "write_timeout": ANSWER, "confirm_publish": True},  # sent is what it has taken
}
"""Options of connections, by the kind of broker; those that the application sets win."""


class Senders:
    """Sends tasks by name. Connections are its own: those of the application wait for as long as it says."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(SENDERS, thread_name_prefix="callgate celery")
        self._idle: LifoQueue[Any] = LifoQueue()
        self._closed = False

    async def send(self, task: str, **message: Any) -> None:
        """Send a message, or raise whatever the broker's client raises.

        Raises:
            TimeoutError: it took too long.
        """
        async with asyncio.timeout(SENDING):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._send, task, message)

    def close(self) -> None:
        """Take no more. What is under way ends by itself."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._let_go()

    def _send(self, task: str, message: dict[str, Any]) -> None:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._connection()
        try:
            self._app.send_task(task, connection=connection, **message)
        except BaseException:
            connection.collect()  # without a last word to somebody who may not hear it
            raise
        self._idle.put(connection)
        if self._closed:
            self._let_go()

    def _connection(self) -> Any:
        made = self._app.connection_for_write()
        own = TIMEOUTS.get(made.transport.driver_type, {})
        made.transport_options = {**own, **made.transport_options}
        return made

    def _let_go(self) -> None:
        while True:
            try:
                self._idle.get_nowait().collect()
            except Empty:
                return
