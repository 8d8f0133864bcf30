"""A network with a round trip, on loopback: a TCP proxy in a process of its own that delays bytes in each direction.

Each piece is due a fixed time after it came, whatever came before it: the delay limits no throughput.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from typing import Any

from callgate.providers.stores.sql.database.urls import read_url


class Side(asyncio.Protocol):
    """One end of a connection. What it receives goes to the other end, later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._due: deque[bytes] = deque()  # timers of the same time have no order; the pieces must keep theirs
        self.transport: Any = None
        self.other: Side | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._later(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._later(b"")

    def _later(self, data: bytes) -> None:
        self._due.append(data)
        asyncio.get_running_loop().call_later(self._delay, self._pass_on)

    def _pass_on(self) -> None:
        data = self._due.popleft()
        if self.other is None or self.other.transport is None:
            return
        if data:
            self.other.transport.write(data)
        else:
            self.other.transport.close()


class Accepted(Side):
    """The end of a client: it reads only once the server is connected."""

    def __init__(self, host: str, port: int, delay: float) -> None:
        super().__init__(delay)
        self._server = (host, port)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.pause_reading()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            _, other = await asyncio.get_running_loop().create_connection(lambda: Side(self._delay), *self._server)
        except OSError:
            self.transport.abort()
            return
        self.other, other.other = other, self
        self.transport.resume_reading()


async def serve(host: str, port: int, delay: float) -> None:
    """Print the port of the proxy, and run until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Accepted(host, port, delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def delayed(address: str, delay: float) -> Generator[str]:
    """Give the address of a PostgreSQL behind a network that delays each direction by so many seconds."""
    url = read_url(address)
    command = [sys.executable, "-m", __name__, url.host or "127.0.0.1", str(url.port or 5432), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            way = url.set(drivername="postgresql", host="127.0.0.1", port=port)
            yield way.render_as_string(hide_password=False)
        finally:
            process.stdin.close()  # it ends by itself


async def round_trip_ms(address: str) -> float:
    """Measure the time of an empty statement, in milliseconds: the median of nine."""
    import psycopg

    took = []
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        for _ in range(9):
            began = time.perf_counter()
            await connection.execute("SELECT 1")
            took.append((time.perf_counter() - began) * 1e3)
    return median(took)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
