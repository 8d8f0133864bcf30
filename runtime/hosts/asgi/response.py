"""Responses: a JSON document, or a stream of server-sent events; a client that disconnects cancels its call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

from callgate.runtime.hosts.asgi.problem_details import PROBLEM_JSON, Disconnected, Problem, problem_of, status_of
from callgate.runtime.hosts.asgi.request import Message, Receive, Send
from callgate.runtime.pipeline.streams import Event, Partial, Progress, Result
from callgate.tools.calls import Outcome, ToolResult
from callgate.tools.values import dump

R = TypeVar("R")
_END: object = object()
_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
MAX_SHOWN_ARGUMENTS = 4096
"""Maximum number of bytes of the arguments in a header; proxies refuse long ones."""
_PING = b": still running\n\n"


class Response:
    """The response to one request; *seconds* is the timeout for sending each part of it."""

    def __init__(self, send: Send, seconds: float, *, head: bool = False) -> None:
        self._send = send
        self._seconds = seconds
        self._head = head
        self.started = False
        self.headers: list[tuple[bytes, bytes]] = []

    async def json(self, status: int, body: bytes, media: bytes = b"application/json") -> None:
        """Send a JSON document as the whole response."""
        await self._start(status, media, [(b"content-length", str(len(body)).encode())])
        await self._send_part({"type": "http.response.body", "body": b"" if self._head else body})

    async def problem(self, problem: Problem) -> None:
        """Send a problem as the whole response."""
        self.headers += problem.headers
        await self.json(problem.status, problem.body(), PROBLEM_JSON)

    async def chunk(self, data: bytes) -> None:
        """Send a chunk of the event stream; the first chunk starts the response."""
        if not self.started:
            await self._start(200, b"text/event-stream; charset=utf-8", [(b"x-accel-buffering", b"no")])
        await self._send_part({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the event stream."""
        await self._send_part({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, media: bytes, more: Iterable[tuple[bytes, bytes]]) -> None:
        self.started = True
        headers = [(b"content-type", media), *_HEADERS, *self.headers, *more]
        await self._send_part({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_part(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except (OSError, TimeoutError) as error:
            raise Disconnected from error


async def send_result(result: ToolResult, response: Response, request_id: str) -> None:
    """Send a result as the whole response: the output, or a problem. A suspended call gets 202."""
    response.headers += ran_with_header(result)
    if result.ok:
        if result.replayed:
            response.headers.append((b"idempotent-replayed", b"true"))
        await response.json(200, dump(result.output))
    elif result.outcome is Outcome.SUSPENDED:
        await response.json(202, dump(suspended(result, request_id)))
    else:
        raise problem_of(result, request_id)


def ran_with_header(result: ToolResult) -> list[tuple[bytes, bytes]]:
    """Return the header with the arguments that ran if they are not the caller's; long ones are left out."""
    if result.ran_with is None:
        return []
    shown = json.dumps(result.ran_with, separators=(",", ":")).encode()  # in ASCII, as headers are
    return [(b"callgate-ran-with", shown if len(shown) <= MAX_SHOWN_ARGUMENTS else b"{}")]


async def send_events(
    events: AsyncGenerator[Event, None], receive: Receive, response: Response, request_id: str, ping: float
) -> None:
    """Send progress, partial outputs and the result as events, with a comment after *ping* seconds without an event.

    If the first event is a failure, the response is a problem with its status. A client that disconnects cancels the call.
    """
    # asyncio: a disconnect cancels the call once; an anyio scope would cancel at each checkpoint of its cleanup
    disconnect = asyncio.ensure_future(_disconnected(receive))
    reading: asyncio.Task[Any] | None = None
    try:
        while True:
            # asyncio: one read at a time, which a ping does not cancel
            reading = asyncio.ensure_future(_next(events))
            while not reading.done():
                await asyncio.wait([reading, disconnect], timeout=ping, return_when=asyncio.FIRST_COMPLETED)
                if disconnect.done():
                    raise Disconnected
                if not reading.done():
                    await response.chunk(_PING)
            event = reading.result()
            if event is _END:
                break
            if isinstance(event, Result) and not response.started and not event.result.ok:
                await send_result(event.result, response, request_id)
                return
            await response.chunk(_event(event, request_id))
        await response.end()
    finally:
        disconnect.cancel()
        if reading is not None:
            await _finish(reading)
        # asyncio: the end of the events survives a cancellation of the request
        await _finish(asyncio.ensure_future(_close(events)), cancel=False)


async def run_until_disconnect(call: Coroutine[object, None, R], receive: Receive) -> R:
    """Await *call* and return its result. A disconnect of the client cancels the call, and awaits its end.

    Raises:
        Disconnected: the client has disconnected, and the call has ended.
    """
    # asyncio: as in ``send_events``
    running = asyncio.ensure_future(call)
    disconnect = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait([running, disconnect], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise Disconnected
    finally:
        disconnect.cancel()
        await _finish(running)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client disconnects; an error of the server counts as a disconnect."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception:  # noqa: BLE001
        return


async def _finish(task: asyncio.Task[Any], *, cancel: bool = True) -> None:
    """Cancel a task and await its end, also if the caller is cancelled meanwhile."""
    cancelled_while_waiting: asyncio.CancelledError | None = None
    if cancel and not task.done():
        task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            cancelled_while_waiting = cancelled
    if not task.cancelled():
        task.exception()  # mark it as retrieved
    if cancelled_while_waiting is not None:
        raise cancelled_while_waiting


async def _next(events: AsyncGenerator[Event, None]) -> object:
    return await anext(events, _END)


async def _close(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()


def suspended(result: ToolResult, request_id: str) -> dict[str, object]:
    """Return the body of a suspended call, with the handle that resumes it."""
    return {
        "code": "suspended",
        "detail": result.error.public if result.error else "The call waits for approval or input.",
        "handle": getattr(result.pending, "handle", None),
        "correlation_id": request_id,
    }


def _event(event: Event, request_id: str) -> bytes:
    if isinstance(event, Progress):
        return _sse("progress", {"progress": event.progress, "total": event.total, "message": event.message})
    if isinstance(event, Partial):
        return _sse("partial", event.value)
    result = event.result
    data: dict[str, object] = {"outcome": result.outcome.value, "status": status_of(result)}
    if result.ok:
        data |= {"output": result.output, "replayed": result.replayed}
    elif result.outcome is Outcome.SUSPENDED:
        data |= {"suspended": suspended(result, request_id)}
    else:
        data |= {"problem": problem_of(result, request_id).document()}
    if result.ran_with is not None:
        data["ran_with"] = result.ran_with
    return _sse("result", data)


def _sse(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + dump(data) + b"\n\n"  # JSON has no raw line break
