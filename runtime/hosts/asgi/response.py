"""Answers: one JSON document, or a series of server-sent events; and what happens when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

from callgate.runtime.call.streams import Event, Partial, Progress, Result
from callgate.runtime.hosts.asgi.problem_details import PROBLEM_JSON, Disconnected, Problem, problem_of, status_of
from callgate.runtime.hosts.asgi.request import Message, Receive, Send
from callgate.tools.calls import Outcome, ToolResult
from callgate.tools.values import dump

R = TypeVar("R")
_END: Any = object()
_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_PING = b": still running\n\n"


class Reply:
    """The answer to one request; *seconds* is how long a client may take to accept a part of it."""

    def __init__(self, send: Send, seconds: float, *, head: bool = False) -> None:
        self._send = send
        self._seconds = seconds
        self._head = head
        self.started = False
        self.headers: list[tuple[bytes, bytes]] = []

    async def json(self, status: int, body: bytes, media: bytes = b"application/json") -> None:
        """The whole answer."""
        await self._start(status, media, [(b"content-length", str(len(body)).encode())])
        await self._pass({"type": "http.response.body", "body": b"" if self._head else body})

    async def problem(self, problem: Problem) -> None:
        """The whole answer: what is wrong."""
        self.headers += problem.headers
        await self.json(problem.status, problem.body(), PROBLEM_JSON)

    async def part(self, data: bytes) -> None:
        """Part of a series of events; the first begins it."""
        if not self.started:
            await self._start(200, b"text/event-stream; charset=utf-8", [(b"x-accel-buffering", b"no")])
        await self._pass({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The series is over."""
        await self._pass({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, media: bytes, more: Iterable[tuple[bytes, bytes]]) -> None:
        self.started = True
        headers = [(b"content-type", media), *_ALWAYS, *self.headers, *more]
        await self._pass({"type": "http.response.start", "status": status, "headers": headers})

    async def _pass(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except (OSError, TimeoutError) as error:
            raise Disconnected from error


async def send_result(result: ToolResult, reply: Reply, request_id: str) -> None:
    """A result as the whole answer: its output, or what is wrong. A suspended call is accepted, and waits."""
    if result.ok:
        if result.replayed:
            reply.headers.append((b"idempotent-replayed", b"true"))
        await reply.json(200, dump(result.output))
    elif result.outcome is Outcome.SUSPENDED:
        await reply.json(202, dump(suspended(result, request_id)))
    else:
        raise problem_of(result, request_id)


async def send_events(
    events: AsyncGenerator[Event, None], receive: Receive, reply: Reply, request_id: str, ping: float
) -> None:
    """Progress, partial outputs and the result, as they come; nothing for *ping* seconds gets a comment sent.

    Where the first event is a failure, it is the whole answer, with its status. A client that leaves cancels the call.
    """
    gone = asyncio.ensure_future(_left(receive))
    reading: asyncio.Task[Any] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(_next(events))
            while not reading.done():
                await asyncio.wait([reading, gone], timeout=ping, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    raise Disconnected
                if not reading.done():
                    await reply.part(_PING)
            event = reading.result()
            if event is _END:
                break
            if isinstance(event, Result) and not reply.started and not event.result.ok:
                await send_result(event.result, reply, request_id)
                return
            await reply.part(_event(event, request_id))
        await reply.end()
    finally:
        gone.cancel()
        if reading is not None:
            await _ended(reading)
        await _ended(asyncio.ensure_future(_close(events)), cancel=False)


async def until_gone(call: Coroutine[Any, Any, R], receive: Receive) -> R:
    """What *call* gives. A client that leaves cancels it, and so does whoever cancels this; its end is waited for.

    Raises:
        Disconnected: the client has left, and the call is over.
    """
    running = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise Disconnected
    finally:
        gone.cancel()
        await _ended(running)


async def _left(receive: Receive) -> None:
    """Wait until the client leaves; a server that cannot tell any more counts as that."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception:  # noqa: BLE001
        return


async def _ended(task: asyncio.Task[Any], *, cancel: bool = True) -> None:
    """Cancel a task and wait for its end, whoever cancels the waiting meanwhile."""
    again: asyncio.CancelledError | None = None
    if cancel and not task.done():
        task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            again = cancelled
    if not task.cancelled():
        task.exception()  # seen
    if again is not None:
        raise again


async def _next(events: AsyncGenerator[Event, None]) -> Any:
    return await anext(events, _END)


async def _close(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()


def suspended(result: ToolResult, request_id: str) -> dict[str, Any]:
    """What a suspended call tells: the handle to resume it by."""
    return {
        "code": "suspended",
        "detail": result.error.public if result.error else "The call waits for approval or input.",
        "handle": getattr(result.pending, "handle", None),
        "correlation_id": request_id,
    }


def _event(event: Event, request_id: str) -> bytes:
    if isinstance(event, Progress):
        return _written("progress", {"progress": event.progress, "total": event.total, "message": event.message})
    if isinstance(event, Partial):
        return _written("partial", event.value)
    result = event.result
    told: dict[str, Any] = {"outcome": result.outcome.value, "status": status_of(result)}
    if result.ok:
        told |= {"output": result.output, "replayed": result.replayed}
    elif result.outcome is Outcome.SUSPENDED:
        told |= {"suspended": suspended(result, request_id)}
    else:
        told |= {"problem": problem_of(result, request_id).document()}
    return _written("result", told)


def _written(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + dump(data) + b"\n\n"  # JSON has no raw line break
