"""The HTTP server of a scripted model. It sends each response, and can delay it, cut it or reset the connection.

h11, a dependency of httpx, reads and writes HTTP; it is imported where it is used.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from callgate.runtime.testing.model.script import CutEnding

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing resets the connection."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A complete request."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """A response: its body in chunks, and the way in which it is cut.

    ``length`` is the announced length of the body, or None for a stream. ``ending`` is None if the whole body is sent.
    Without ``head`` the connection ends at once.
    """

    status: int
    headers: dict[str, str]
    chunks: tuple[bytes, ...]
    length: int | None = None
    ending: CutEnding | None = None
    pause: Callable[[int], object] | None = None
    head: bool = True


class _Gone(Exception):
    """The client closed the connection, or the script failed."""


class HttpServer:
    """A server on a free loopback port.

    ``dropped`` counts responses whose client disconnected early. ``failure`` is the first error of a script.
    """

    def __init__(self, handle: Callable[[ReceivedRequest], ScriptedResponse]) -> None:
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.dropped = 0
        self.failure: Exception | None = None

    async def start(self) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections, and cancel what they wait for."""
        if self._server is not None:
            self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    @contextmanager
    def noting_failures(self) -> Generator[None, None, None]:
        """Keep the first error of the script, which is raised when the model closes, and end the connection."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise _Gone from error

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(self, reader, writer).run(self._handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection:
    """One connection, which serves requests until one side closes it."""

    def __init__(self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self._server, self._reader, self._writer = server, reader, writer
        self._h11 = h11.Connection(h11.SERVER)
        writer.transport.set_write_buffer_limits(0)  # so that drained bytes are sent before the connection ends

    async def run(self, handle: Callable[[ReceivedRequest], ScriptedResponse]) -> None:
        """Serve the connection until it ends."""
        import h11

        try:
            while (request := await self._request()) is not None:
                with self._server.noting_failures():
                    response = handle(request)
                if not await self._send(response):
                    break
                self._h11.start_next_cycle()
        except ConnectionError:
            self._server.dropped += 1
        except (_Gone, h11.RemoteProtocolError):
            pass  # the client is gone, or sent an invalid request: no response is possible
        finally:
            self._writer.transport.abort()

    async def _request(self) -> ReceivedRequest | None:
        import h11

        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    self._write(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
                return ReceivedRequest(head.method.decode(), head.target.decode("latin-1"), headers, bytes(body))
            else:
                return None

    async def _send(self, response: ScriptedResponse) -> bool:
        """Send a response; False if the connection must be closed."""
        import h11

        if response.head:
            length = {} if response.length is None else {"content-length": str(response.length)}
            headers = [*response.headers.items(), *length.items()]
            self._write(h11.Response(status_code=response.status, headers=headers))
        for number, chunk in enumerate(response.chunks):
            if response.pause is not None:
                await self._unless_gone(self._paused(response.pause, number))
            self._write(h11.Data(data=chunk))
            await self._writer.drain()
        if response.ending in {"close", "reset"}:
            await self._break(response.ending)
            return False
        self._write(h11.EndOfMessage())
        await self._writer.drain()
        if self._h11.our_state is h11.MUST_CLOSE:
            await self._break("close")
            return False
        return True

    def _write(self, event: Any) -> None:
        self._writer.write(self._h11.send(event) or b"")

    async def _unless_gone(self, waited: Awaitable[object]) -> None:
        """Wait until *waited* is done or the client disconnects."""
        pause, heard = asyncio.ensure_future(waited), asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({pause, heard}, return_when=asyncio.FIRST_COMPLETED)
            if heard.done() and heard.result():
                self._h11.receive_data(heard.result())  # the client's next request has begun
                await pause
            elif not pause.done():
                self._server.dropped += 1
                raise _Gone
            pause.result()
        finally:
            pause.cancel()
            heard.cancel()
            await asyncio.gather(pause, heard, return_exceptions=True)

    async def _paused(self, pause: Callable[[int], object], number: int) -> None:
        with self._server.noting_failures():
            found = pause(number)
            if inspect.isawaitable(found):
                await found

    async def _break(self, ending: CutEnding | None) -> None:
        if ending == "reset":
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            self._writer.transport.abort()
            return
        self._writer.close()  # after the remaining bytes
        await self._writer.wait_closed()
