"""Group commit for Redis: the commands of one turn of the event loop are sent together, and read one after another.

A batch is no transaction: each command has its own response or error. No timer delays a batch. It waits only while as
many batches as the pool has connections are under way.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from callgate.errors import StoreError
from callgate.providers.concurrency import refuse_other_loop
from callgate.providers.stores.group_commit import CLOSE_LIMIT
from callgate.providers.stores.server_answers import SILENCE

BATCH = 8
"""Commands in one batch, while connections are free: Redis runs one batch while this process reads another."""
MAX_BATCH = 128
"""The maximum number of commands in the batch of the last free connection."""
ANSWER_LIMIT = 5.0
"""Seconds until a server that does not answer is given up, and with it the connection."""


class _Entry:
    """A command, the text of its script, the future of its response, and the batch that sends it.

    ``refused``: a server that cannot serve it has refused it once.
    """

    __slots__ = ("batch", "command", "done", "refused", "text", "withdraw")

    def __init__(
        self, command: Sequence[object], text: str | None, done: asyncio.Future[object], *, withdraw: bool
    ) -> None:
        self.command, self.text, self.done, self.withdraw = command, text, done, withdraw
        self.batch: _Batch | None = None
        self.refused = False

    def settle(self, response: object) -> None:
        if not self.done.done():
            self.done.set_result(response)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Batch:
    """Entries that are sent together. ``task`` runs the exchange until the last response is there."""

    __slots__ = ("entries", "task")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries, self.task = entries, asyncio.current_task()
        for entry in entries:
            entry.batch = self

    def left(self) -> None:
        """End the exchange if no caller waits any more: a silent server would keep the connection from other callers."""
        if self.task is not None and all(entry.done.done() for entry in self.entries):
            self.task.cancel()


class RedisBatches:
    """The queue of commands, and a task for each batch.

    A failure shows that the server or the way to it has changed. Each connection is closed before its next use if it was
    used before the last failure: all of them may be dead, and each would let its callers wait. ``_used`` has the number of
    failures at its last use.

    Args:
        opened: returns the client of ``redis.asyncio``, or raises ``StoreError`` if the store is not open.
        connections: the maximum number of batches at a time: the size of the pool.
    """

    def __init__(self, opened: Callable[[], Any], connections: int) -> None:
        self._opened, self._connections = opened, connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Entry] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = True
        self._failures = 0
        self._used = WeakKeyDictionary[object, int]()

    async def send(self, command: Sequence[object], *, text: str | None = None, withdraw: bool = False) -> object:
        """Send a command once, and return its response. A command that waits for its batch survives its caller.

        Args:
            command: the name and the arguments. Redis must not block on it.
            text: the script of an ``EVALSHA``, which a batch sends if Redis has not loaded it.
            withdraw: a cancelled caller takes back a command that waits for its batch.

        Raises:
            RedisError: the response is an error, or the connection failed.
            StoreError: the same for a batch: it is unknown whether Redis has run the command.
            TimeoutError: there was no response.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the event loop of earlier tasks has ended
            refuse_other_loop(self._loop)
            self._loop, self._waiting, self._tasks = loop, deque(), set()
        if self._alone and not self._waiting:
            return await self._send_alone(command, text, loop)
        entry = _Entry(command, text, loop.create_future(), withdraw=withdraw)
        self._waiting.append(entry)
        if len(self._waiting) == 1:
            self._start(loop)
        try:
            return await entry.done
        except asyncio.CancelledError:
            if entry.batch is not None:
                entry.batch.left()
            raise

    async def _send_alone(self, command: Sequence[object], text: str | None, loop: asyncio.AbstractEventLoop) -> object:
        """Send a command without a task, which takes more turns of the event loop."""
        self._alone = False  # other commands of this time share a batch
        entry = _Entry(command, text, loop.create_future(), withdraw=False)
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                await self._exchange([entry])
        finally:
            self._alone = not self._tasks
        return entry.done.result()

    async def close(self) -> None:
        """Wait until all commands have their response, for a limited time."""
        if self._tasks and self._loop is asyncio.get_running_loop():
            await asyncio.wait(self._tasks, timeout=CLOSE_LIMIT)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._tasks) < self._connections:
            # It runs after the callers that are ready in this turn, so that their commands are in the batch.
            task = loop.create_task(self._serve(), name="redis batch", context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._start(task.get_loop())

    async def _serve(self) -> None:
        """Send the next batch, and give each caller its own response or error."""
        maximum = BATCH if len(self._tasks) < self._connections else MAX_BATCH
        entries = [self._waiting.popleft() for _ in range(min(maximum, len(self._waiting)))]
        batch = _Batch([entry for entry in entries if not (entry.withdraw and entry.done.cancelled())])
        if self._waiting:
            self._start(asyncio.get_running_loop())
        if not batch.entries:
            return
        self._alone = len(batch.entries) == 1 and len(self._tasks) == 1
        try:
            with redis_errors():
                async with asyncio.timeout(ANSWER_LIMIT):
                    await self._exchange(batch.entries, batch)
        except BaseException as error:
            for entry in batch.entries:
                # One exception for each caller: a shared one would collect the tracebacks of all.
                failure = StoreError(str(error) or "redis: the request was stopped")
                failure.__cause__ = error
                entry.fail(failure)
            if not isinstance(error, Exception):
                raise

    async def _exchange(self, entries: list[_Entry], batch: _Batch | None = None) -> None:
        client, began = self._opened(), asyncio.get_running_loop().time()
        pool = client.connection_pool
        connection = await pool.get_connection()
        try:
            if self._used.get(connection, self._failures) != self._failures:
                await connection.disconnect()  # sending connects it again
            self._used[connection] = self._failures
            while entries:
                entries = await _exchange_on(connection, client, entries)
                if any(entry.refused for entry in entries):
                    self._failures += 1
                    self._used[connection] = self._failures
                    await connection.disconnect()
        except BaseException as error:
            if isinstance(error, Exception) or asyncio.get_running_loop().time() - began >= SILENCE:
                self._failures += 1
            raise
        finally:
            if batch is not None:
                batch.task = None  # a cancelled release would lose the connection
            await pool.release(connection)


async def _exchange_on(connection: Any, client: Any, entries: Sequence[_Entry]) -> list[_Entry]:
    """Send commands, and settle them. Return those to send again: their caller may have left.

    These are commands whose script is to be sent, and those that the server has refused for the first time.
    """
    from redis.exceptions import NoScriptError, ResponseError

    packed, sent, again = list[bytes](), list[_Entry](), list[_Entry]()
    for entry in entries:
        try:
            packed += connection.pack_command(*entry.command)
        except Exception as error:  # noqa: BLE001  (an argument that cannot be sent fails its own caller)
            entry.fail(error)
        else:
            sent.append(entry)
    if sent:
        await connection.send_packed_command(packed)
    for entry in sent:
        try:
            entry.settle(await client.parse_response(connection, entry.command[0]))
        except ResponseError as error:
            if entry.text is not None and isinstance(error, NoScriptError):
                entry.command, entry.text = ("EVAL", entry.text, *entry.command[2:]), None
            elif not entry.refused and _is_refusal(error):
                entry.refused = True
            else:
                entry.fail(error)
                continue
            again.append(entry)
    return again


def _is_refusal(error: Exception) -> bool:
    """Return True if a server that became a replica has refused a command, so that it did nothing.

    After a failover the address leads to another server, but a connection stays with the old one.
    """
    from redis.exceptions import MasterDownError, ReadOnlyError

    return isinstance(error, ReadOnlyError | MasterDownError) or "-READONLY " in str(error)  # Redis 6: from a script


@contextmanager
def redis_errors() -> Generator[None, None, None]:
    """Raise errors of the client as errors of the store. Only errors whose text has no value are quoted."""
    shown_errors, moved, other_errors = _error_types()
    try:
        yield
    except shown_errors as error:
        raise StoreError(f"redis: {error}") from error
    except TimeoutError as error:
        raise StoreError(f"redis: no answer in {ANSWER_LIMIT:.0f} seconds") from error
    except moved as error:
        raise StoreError(f"redis: {type(error).__name__}: {_CLUSTER}") from error
    except other_errors as error:
        text = str(error)
        shown = text if text.partition(" ")[0] in _STATES else type(error).__name__
        raise StoreError(f"redis: {shown}") from error


_STATES = frozenset({"BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE"})
"""Codes of errors about the state of the server, for which the client has no class."""
_CLUSTER = "the server is a node of a cluster; write RedisStore(url, client=...) with a RedisCluster of redis.asyncio"


@cache
def _error_types() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """Return the errors that are quoted, those of a cluster, and all others. Those of a cluster client have no base."""
    from redis import exceptions

    return (
        (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            exceptions.NoPermissionError,
            exceptions.ReadOnlyError,
            exceptions.OutOfMemoryError,
            exceptions.ClusterDownError,
            exceptions.TryAgainError,
            exceptions.RedisClusterException,
        ),
        (exceptions.AskError,),
        (exceptions.RedisError, OSError),
    )
