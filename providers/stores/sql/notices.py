"""Notices about jobs through LISTEN and NOTIFY of PostgreSQL, on one connection of each process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from callgate.errors import StoreError
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.part import statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection

CHANNEL = "callgate_jobs"
MAX_WORDS = 200
"""Words in one notice: PostgreSQL takes 8,000 bytes."""
GATHER = 0.05
"""Seconds in which words are gathered into one notice. A notice takes a lock of the whole server when it commits."""
RETRY = 5.0
"""Seconds until a lost connection is opened again."""

_NOTIFY = "SELECT pg_notify(:channel, :words)"


class JobNotices:
    """Sends words to all processes that listen on the database. A notice may be lost: receivers poll, too, but less often.

    All namespaces share the channel and its connection; a word of a namespace is sent as ``namespace/word``. ``is_live``
    is True when this process gets its own notices; through a pooler that lends connections by the transaction it does
    not.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._words: dict[str, None] = {}
        self._receivers: dict[Callable[[str], None], str] = {}
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.is_live = False

    def announce(self, word: str, namespace: str = "") -> None:
        """Send a word without spaces and slashes, soon and in the background."""
        self._words[f"{namespace}/{word}" if namespace else word] = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="callgate job notices")

    def listen(self, heard: Callable[[str], None], namespace: str = "") -> None:
        """Call *heard* with each word of the namespace, of this and other processes, until ``forget`` or ``close``."""
        self._receivers[heard] = namespace
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="callgate job listener")

    async def forget(self, heard: Callable[[str], None]) -> None:
        """Call *heard* no more. Disconnect if it was the last receiver."""
        self._receivers.pop(heard, None)
        if not self._receivers:
            await self.close()

    async def close(self) -> None:
        """Stop, and disconnect."""
        tasks = {task for task in (self._sender, self._listener) if task is not None}
        self._sender = self._listener = None
        self._receivers.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _send(self) -> None:
        while self._words:
            await asyncio.sleep(GATHER)
            words = list(self._words)[:MAX_WORDS]
            for word in words:
                del self._words[word]
            with suppress(StoreError):  # the receivers poll
                await self._notify(" ".join(words))

    async def _notify(self, words: str) -> None:
        await self._database.write(statement(_NOTIFY), {"channel": CHANNEL, "words": words})

    async def _listen(self) -> None:
        import psycopg

        while True:
            with suppress(psycopg.Error, StoreError, OSError):
                connection, _ = await self._database.engines.connect_driver(0)
                try:
                    await self._receive(connection)
                finally:
                    self.is_live = False
                    await connection.close()
            await asyncio.sleep(RETRY)

    async def _receive(self, connection: AsyncConnection) -> None:
        await connection.execute(f"LISTEN {CHANNEL}")
        mine = uuid.uuid4().hex
        await self._notify(mine)  # on another connection
        async for notice in connection.notifies():
            for given in notice.payload.split():
                namespace, _, word = given.rpartition("/")
                if word == mine:
                    self.is_live = True
                    continue
                for heard in [heard for heard, of in self._receivers.items() if of == namespace]:
                    heard(word)
