"""The HTTP server of a scripted model: one answer for each request, sent, cut and slowed down as it is told.

HTTP itself is read and written by h11, which comes with httpx and is imported where it is used.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from callgate.runtime.testing.model.script import Ending

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing resets the connection."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request, whole."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """An answer: its body in chunks, and where and how it ends before its end.

    ``length`` is that of the whole body where it is announced; None for a stream. ``ending`` is None where all of it
    is sent. With no ``head`` the connection ends at once.
    """

    status: int
    headers: dict[str, str]
    chunks: tuple[bytes, ...]
    length: int | None = None
    ending: Ending | None = None
    pause: Callable[[int], Any] | None = None
    head: bool = True


class _Gone(Exception):
    """The client closed the connection."""


class Http:
    """Serves on loopback, on a port of its own. ``dropped`` counts answers whose client went before their end."""

    def __init__(self, handle: Callable[[Received], Sent]) -> None:
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.dropped = 0

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection, whatever it waits for."""
        if self._server is not None:
            self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(self, reader, writer).run(self._handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection:
    """One connection: request after request until either side has enough."""

    def __init__(self, server: Http, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self._server, self._reader, self._writer = server, reader, writer
        self._h11 = h11.Connection(h11.SERVER)
        writer.transport.set_write_buffer_limits(0)  # what is drained is sent, whatever ends the connection then

    async def run(self, handle: Callable[[Received], Sent]) -> None:
        """Serve it to its end."""
        import h11

        try:
            while (request := await self._request()) is not None and await self._send(handle(request)):
                self._h11.start_next_cycle()
        except ConnectionError:
            self._server.dropped += 1
        except (_Gone, h11.RemoteProtocolError):
            pass  # gone, or no HTTP, or half a request: nobody is there to be told
        finally:
            self._writer.transport.abort()

    async def _request(self) -> Received | None:
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
                return Received(head.method.decode(), head.target.decode("latin-1"), headers, bytes(body))
            else:
                return None

    async def _send(self, answer: Sent) -> bool:
        """Send it; False where the connection is to be closed."""
        import h11

        if answer.head:
            length = {} if answer.length is None else {"content-length": str(answer.length)}
            headers = [*answer.headers.items(), *length.items()]
            self._write(h11.Response(status_code=answer.status, headers=headers))
        for number, chunk in enumerate(answer.chunks):
            if answer.pause is not None:
                await self._unless_gone(_paused(answer.pause, number))
            self._write(h11.Data(data=chunk))
            await self._writer.drain()
        if answer.ending in {"close", "reset"}:
            await self._break(answer.ending)
            return False
        self._write(h11.EndOfMessage())
        await self._writer.drain()
        if self._h11.our_state is h11.MUST_CLOSE:
            await self._break("close")
            return False
        return True

    def _write(self, event: Any) -> None:
        self._writer.write(self._h11.send(event) or b"")

    async def _unless_gone(self, waited: Awaitable[Any]) -> None:
        """Wait, but no longer than the client is there."""
        pause, heard = asyncio.ensure_future(waited), asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({pause, heard}, return_when=asyncio.FIRST_COMPLETED)
            if heard.done() and heard.result():
                self._h11.receive_data(heard.result())  # its next request has begun
                await pause
            elif not pause.done():
                self._server.dropped += 1
                raise _Gone
            pause.result()
        finally:
            pause.cancel()
            heard.cancel()
            await asyncio.gather(pause, heard, return_exceptions=True)

    async def _break(self, ending: Ending | None) -> None:
        if ending == "reset":
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            self._writer.transport.abort()
            return
        self._writer.close()  # after what is still to be sent
        await self._writer.wait_closed()


async def _paused(pause: Callable[[int], Any], number: int) -> None:
    found = pause(number)
    if inspect.isawaitable(found):
        await found
