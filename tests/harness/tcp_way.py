"""A way to a server on this machine that can be cut, silenced or slowed: a TCP proxy on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal
from urllib.parse import urlsplit

PORTS = {"postgresql": 5432, "redis": 6379, "amqp": 5672}
AT_ONCE = struct.pack("ii", 1, 0)
"""``SO_LINGER``: closing resets the connection. Only on the side of clients: servers get all that was sent on."""


class Way:
    """Carries bytes both ways while it is open. Its methods may be called from any thread, and return when it is done."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        # Bound twice: while nobody listens connections are refused, and nobody else is given the port meanwhile.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]
        self._listener: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp way", daemon=True)
        self._through = asyncio.Event()
        self._countdown: tuple[int, Literal["before", "after"]] | None = None
        self.delay = 0.0
        """Seconds that each piece takes, in each direction."""
        self.pieces = 0
        """How many came from clients."""
        self._thread.start()
        self.let_through()

    def let_through(self) -> None:
        """Take connections, and carry what comes."""
        self._do(self._listen)

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        self._do(self._cut)

    def silence(self) -> None:
        """Keep connections, and take new ones, but carry nothing."""
        self._loop.call_soon_threadsafe(self._through.clear)

    def forsake(self) -> None:
        """Connections that there are stay, and nothing comes through them any more; new ones are as good as ever."""
        self._do(self._forsake)

    def cut_at(self, piece: int, when: Literal["before", "after"]) -> None:
        """Cut when the so-manyth piece from now on comes from a client, before it or after it is sent on."""
        self._countdown = (piece, when)

    @property
    def is_cut(self) -> bool:
        """Whether connections are refused."""
        return self._listener is None

    def close(self) -> None:
        """It is not needed any more."""
        self._do(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._place.close()

    # ------------------------------------------------------------------ in its thread

    def _do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    async def _listen(self) -> None:
        self._countdown = None
        self._through.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, sock=_bound(self.port))

    async def _forsake(self) -> None:
        self._through.clear()
        self._through = asyncio.Event()
        await self._listen()

    async def _cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for writer in self._clients:
            with suppress(OSError):  # it is closing already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            writer.transport.abort()
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        if carrying:
            await asyncio.wait(carrying)
        await asyncio.sleep(0)  # what was closed is gone after a turn of the loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        task = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(task)

        def is_over(task: asyncio.Task[None]) -> None:
            self._carrying.discard(task)
            self._clients.discard(writer)
            writer.close()

        task.add_done_callback(is_over)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        through = self._through
        there, back = await asyncio.open_connection(*self._server)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, back, through, from_client=True))
                group.create_task(self._pump(there, writer, through, from_client=False))
        finally:
            back.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, through: asyncio.Event, *, from_client: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                cutting = from_client and self._counted()
                await through.wait()
                if cutting != "before":
                    writer.write(data)
                    await writer.drain()
                if cutting:
                    self._cutting = asyncio.create_task(self._cut())
                    return
            writer.close()

    def _counted(self) -> Literal["before", "after"] | None:
        self.pieces += 1
        if self._countdown is None:
            return None
        left, when = self._countdown
        self._countdown = (left - 1, when) if left > 1 else None
        return when if left == 1 else None


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


@contextmanager
def way_to(address: str) -> Generator[tuple[Way, str]]:
    """A way to the server of an address, and the address that leads through it."""
    parts = urlsplit(address)
    way = Way(parts.hostname or "127.0.0.1", parts.port or PORTS[parts.scheme])
    user, at, _ = parts.netloc.rpartition("@")
    try:
        yield way, parts._replace(netloc=f"{user}{at}127.0.0.1:{way.port}").geturl()
    finally:
        way.close()
