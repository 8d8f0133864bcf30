"""``python -m callgate worker --app MODULE:GATE``: a process that runs submitted calls, until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from callgate.errors import CallgateError
from callgate.runtime.gate import Gate
from callgate.runtime.jobs.jobs import Tally

STATUS_EVERY = 10.0
"""Seconds between two lines of status."""


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate worker ...``; 0 when it ended as it was told, 2 when it could not begin."""
    parser = argparse.ArgumentParser(prog="callgate worker", description="Run the calls that were submitted to a gate.")
    parser.add_argument(
        "--app", required=True, metavar="MODULE:GATE", help="where the gate is, such as shop.tools:gate"
    )
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="calls at once; default 4")
    parser.add_argument("--queues", default="", metavar="A,B", help="only jobs of these queues")
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="SECONDS", help="to end calls under way; default 10"
    )
    parser.add_argument("--health", type=int, metavar="PORT", help="answer /health and /ready on 127.0.0.1")
    asked = parser.parse_args(arguments)
    if asked.concurrency < 1 or asked.grace < 0:
        parser.error("--concurrency is at least 1, --grace at least 0")
    try:
        gate = gate_at(asked.app)
        asyncio.run(_work(gate, asked, out))
    except (CallgateError, OSError, ImportError) as error:
        out.write(f"the worker cannot begin: {error}\n")
        return 2
    return 0


def gate_at(address: str) -> Gate:
    """The gate at ``module:name``; a function there is called for it.

    Raises:
        ImportError: there is none.
    """
    module, _, name = address.partition(":")
    sys.path.insert(0, "")  # as ``python -m`` has it: the application is where the worker was started
    try:
        found: Any = importlib.import_module(module)
        for part in (name or "gate").split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ImportError(f"{address}: {error}") from None
    made = found if isinstance(found, Gate) else found() if callable(found) else found
    if not isinstance(made, Gate):
        raise ImportError(f"{address} is {type(made).__name__}, and not a gate")  # noqa: TRY004  (a wrong address)
    return made


async def _work(gate: Gate, asked: Any, out: TextIO) -> None:
    stop, tally = asyncio.Event(), Tally()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # on Windows: Ctrl-C interrupts the run
            loop.add_signal_handler(number, stop.set)
    queues = tuple(name for name in asked.queues.split(",") if name)
    async with gate, contextlib.AsyncExitStack() as stack:
        if asked.health is not None:
            await stack.enter_async_context(await _health(asked.health, stop))
        status = asyncio.create_task(_tell(gate, tally, out))
        out.write(
            f"worker: {asked.concurrency} at once, {', '.join(queues) or 'all queues'}; Ctrl-C or SIGTERM ends it\n"
        )
        out.flush()
        try:
            left = await gate.jobs.backend.work(asked.concurrency, queues, stop, asked.grace, tally)
        finally:
            status.cancel()
    out.write(f"worker: ended; {tally.line()}, {left} handed back\n")


async def _tell(gate: Gate, tally: Tally, out: TextIO) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(STATUS_EVERY)
        running = len(gate.jobs.runner.running)
        out.write(f"worker: {running} running, {tally.line()}, up {time.monotonic() - began:.0f} s\n")
        out.flush()


async def _health(port: int, stop: asyncio.Event) -> asyncio.Server:
    """Alive as long as it answers; ready until it drains."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(5.0):
                asked = await reader.readline()
                path = asked.split(b" ")[1:2]
                known = path in ([b"/health"], [b"/ready"])
                fine = known and not (path == [b"/ready"] and stop.is_set())
                code = "200 OK" if fine else "503 Service Unavailable" if known else "404 Not Found"
                body = b"ok\n" if fine else b"draining\n" if known else b""
                head = f"HTTP/1.1 {code}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)
