"""``callgate worker --app MODULE:GATE``: a process that runs submitted calls until it gets SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import inspect
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from callgate.errors import CallgateError
from callgate.runtime.commands.common import failed, listed_names, port
from callgate.runtime.gate import Gate
from callgate.runtime.lifespan.probe import StoreProbe
from callgate.runtime.options.job_engine import Tally

ABOUT = """Run the calls that were submitted to a gate. The gate creates or migrates the tables of its store, unless it has
Options(migrate=False)."""
STATUS_EVERY = 10.0
"""Interval between two lines of status, in seconds."""


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate worker ...``; 0: ended by a signal, 2: the worker cannot start."""
    parser = argparse.ArgumentParser(prog="callgate worker", description=ABOUT)
    add = parser.add_argument
    add("--app", required=True, metavar="MODULE:GATE", help="the import path of the gate, such as shop.tools:gate")
    add("--concurrency", type=int, default=4, metavar="N", help="maximum number of concurrent calls; default 4")
    add(
        "--queues",
        type=listed_names,
        default=(),
        metavar="A,B",
        help="only jobs of these queues; default: those of the gate",
    )
    add("--grace", type=float, default=10.0, metavar="SECONDS", help="time for running calls to end; default 10")
    add("--health", type=port, metavar="PORT", help="serve /health and /ready on 127.0.0.1")
    args = parser.parse_args(arguments)
    if args.concurrency < 1 or not 0 <= args.grace < math.inf:
        parser.error("--concurrency is at least 1, --grace at least 0")
    try:
        gate = gate_at(args.app)
        asyncio.run(_work(gate, args, out))
    except (CallgateError, OSError, ImportError) as error:
        return failed(out, f"the worker cannot start: {error}", 2)
    return 0


def gate_at(address: str) -> Gate:
    """Return the gate at ``module:name``, or the gate that the function at this address returns.

    Raises:
        ImportError: the address names no gate.
    """
    module, _, name = address.partition(":")
    if not all(module.split(".")) or "/" in module or "\\" in module:
        raise ImportError(f"{address!r} is no import path of a gate; write MODULE:GATE, such as shop.tools:gate")
    sys.path.insert(0, "")  # as with ``python -m``: the working directory holds the application
    try:
        found: object = importlib.import_module(module)
        for part in (name or "gate").split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ImportError(f"{address}: {error}") from None
    made = found if isinstance(found, Gate) else _made_by(address, found) if callable(found) else found
    if not isinstance(made, Gate):
        raise ImportError(f"{address} is of type {type(made).__name__}, not a Gate")  # noqa: TRY004  (a wrong address)
    return made


def _made_by(address: str, function: Callable[..., object]) -> object:
    """Return what the function at an address makes.

    Raises:
        ImportError: the function needs arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise ImportError(f"{address} is a function with arguments, not a Gate") from None
    return function()


async def _work(gate: Gate, args: argparse.Namespace, out: TextIO) -> None:
    stop, tally = asyncio.Event(), Tally()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # on Windows: Ctrl-C interrupts the run
            loop.add_signal_handler(number, stop.set)
    queues: tuple[str, ...] = args.queues
    shown = queues or tuple(getattr(gate.jobs.backend, "queues", ()))
    async with gate, contextlib.AsyncExitStack() as stack:
        if args.health is not None:
            await stack.enter_async_context(await _health(args.health, gate, stop))
        # asyncio: a report that fails ends nothing else
        status = asyncio.create_task(_report(gate, tally, out))
        out.write(
            f"worker: {args.concurrency} at once, {', '.join(shown) or 'all queues'}; Ctrl-C or SIGTERM ends it\n"
        )
        out.flush()
        try:
            left = await gate.jobs.backend.work(args.concurrency, queues, stop, args.grace, tally)
        finally:
            status.cancel()
    out.write(f"worker: ended; {tally.line()}, {left} handed back\n")


async def _report(gate: Gate, tally: Tally, out: TextIO) -> None:
    """Write a line of status at intervals."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(STATUS_EVERY)
        running = len(gate.jobs.runner.running)
        out.write(f"worker: {running} running, {tally.line()}, up {time.monotonic() - began:.0f} s\n")
        out.flush()


async def _health(port: int, gate: Gate, stop: asyncio.Event) -> asyncio.Server:
    """Serve the liveness and the readiness probe; the worker is ready while its store answers, until it drains."""
    probe = StoreProbe(gate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(5.0):
                request = await reader.readline()
                path = request.split(b" ")[1:2]
                known = path in ([b"/health"], [b"/ready"])
                fine = known and (path == [b"/health"] or (not stop.is_set() and await probe.is_ready()))
                code = "200 OK" if fine else "503 Service Unavailable" if known else "404 Not Found"
                why = b"draining\n" if stop.is_set() else b"the store does not answer\n"
                body = b"ok\n" if fine else why if known else b""
                head = f"HTTP/1.1 {code}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)
