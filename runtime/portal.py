"""``gate.sync()``: the gate for hosts that are not async, such as Django, Flask and Celery.

One event loop in a thread of its own, the *portal*, opens the gate, runs every call and closes the gate. Any number of
other threads hand their calls over and wait. A call runs in a copy of its caller's context variables.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack
from contextvars import Context, copy_context
from typing import Any, Self, TypeVar, Unpack, overload

from callgate.errors import GateClosed
from callgate.runtime.call.streams import Event
from callgate.runtime.engine import CLOSE_LIMIT, CallOptions
from callgate.runtime.faces.deferred import SubmitOptions
from callgate.runtime.faces.placement import RunOn
from callgate.runtime.faces.sync_jobs import SyncJob
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.suspensions import Pending
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.declaring.declare import FunctionTool

R = TypeVar("R")

_NOT_OPEN = (
    "gate.sync() is not open: call open() as the process starts, after any fork, or use it in `with gate.sync() as g:`"
)
_FORKED = (
    "gate.sync() was opened before this process was forked, and its thread and connections stayed with the parent: "
    "open it after the fork, in each worker (gunicorn: post_fork, Celery: worker_process_init), and not before"
)
_IN_A_LOOP = "gate.sync() blocks, and this thread runs an event loop: use the gate itself and await its calls"
_END: Any = object()


class SyncGate:
    """A gate whose methods block: for plain threads, safe from any number of them. ``gate.sync()`` gives it.

    ``open()`` at the start of a process and ``close()`` at its end (also done as the interpreter exits), or ``with`` for
    a while; who enters while it is open shares the one portal, and the last who leaves closes it. A gate that was opened
    before a fork is refused in the child. What interrupts a waiting thread (Ctrl-C, a time limit that raises) cancels
    its call and waits until what it held is given back.
    """

    def __init__(self, gate: Any) -> None:
        self._gate = gate
        self._life = threading.Lock()  # opening and closing
        self._sending = threading.RLock()  # handing over; a finaliser may come in between
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._portal: Any = None
        self._stack = ExitStack()
        self._inside = 0
        self._held = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streams: set[AsyncGenerator[Any, None]] = set()

    # ------------------------------------------------------------------ life

    def open(self) -> Self:
        """Open until ``close``; when it is open so already, nothing happens.

        Raises:
            GateClosed: it was opened before this process was forked.
            RegistrationError: as ``async with gate`` does.
            RuntimeError: this thread runs an event loop.
        """
        self._refuse()
        with self._life:
            if not self._held:
                self._enter()
                self._held = True
        return self

    def close(self) -> None:
        """End what ``open`` began; when it is not open, nothing happens.

        Calls under way have ``CLOSE_LIMIT`` seconds to end, then they are cancelled. New ones are refused at once. Where
        a ``with`` goes on elsewhere, it is the one that closes.
        """
        if self._pid not in {None, os.getpid()}:
            return  # a fork: all of it is the parent's
        with self._life:
            if self._held:
                self._held = False
                self._leave()

    def __enter__(self) -> Self:
        self._refuse()
        with self._life:
            self._enter()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pid not in {None, os.getpid()}:
            return
        with self._life:
            self._leave()

    @property
    def is_open(self) -> bool:
        """Whether calls are taken, in this process."""
        return self._loop is not None and self._pid == os.getpid()

    # ------------------------------------------------------------------ calling

    @overload
    def invoke(
        self,
        tool: FunctionTool[Any, Coroutine[Any, Any, R]],
        arguments: Any = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def invoke(
        self, tool: FunctionTool[Any, R], arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> R: ...

    @overload
    def invoke(self, tool: Any, arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]) -> Any: ...

    def invoke(
        self, tool: Any, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> Any:
        """See ``Gate.invoke``."""
        return self._run(lambda: self._gate.invoke(tool, arguments, user=user, **options))

    def call(
        self,
        call: ToolCall | HydrationResult,
        *,
        user: User = ANONYMOUS,
        trace: bool = False,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """See ``Gate.call``."""
        result: ToolResult = self._run(lambda: self._gate.call(call, user=user, trace=trace, **options))
        return result

    def call_many(
        self,
        calls: Iterable[ToolCall | HydrationResult],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ToolResult]:
        """See ``Gate.call_many``."""
        asked = list(calls)
        results: list[ToolResult] = self._run(
            lambda: self._gate.call_many(asked, user=user, at_once=at_once, trace=trace, run_on=run_on, **options)
        )
        return results

    def stream(
        self, call: ToolCall | HydrationResult, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> SyncStream:
        """See ``Gate.stream``: a plain iterator. Close it, or use it in ``with``, when you may stop before its end."""
        self._refuse()
        if self._loop is None:
            raise GateClosed(_NOT_OPEN)
        return SyncStream(self, self._gate.stream(call, user=user, **options))

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """See ``Gate.definitions``; needs no open portal."""
        return self._gate.definitions(wire, user=user)

    def hydrate(self, call: ToolCall, *, wire: str | None = None) -> HydrationResult:
        """See ``Gate.hydrate``; needs no open portal."""
        hydrated: HydrationResult = self._gate.hydrate(call, wire=wire)
        return hydrated

    def resume(self, handle: str, decision: Decision, *, approver: User, **options: Unpack[CallOptions]) -> ToolResult:
        """See ``Gate.resume``."""
        result: ToolResult = self._run(lambda: self._gate.resume(handle, decision, approver=approver, **options))
        return result

    def pending(self, viewer: User, *, kind: str | None = None, limit: int = 100) -> list[Pending]:
        """See ``Gate.waits``: the calls that wait and that this person may decide."""
        found: list[Pending] = self._run(lambda: self._gate.waits.pending(viewer, kind, limit))
        return found

    def submit(self, call: ToolCall, *, user: User = ANONYMOUS, **options: Unpack[SubmitOptions]) -> SyncJob:
        """See ``Gate.submit``."""
        return SyncJob(self._run(lambda: self._gate.submit(call, user=user, **options)), self._run)

    def job(self, id: str, *, user: User = ANONYMOUS) -> SyncJob:
        """See ``Gate.job``."""
        return SyncJob(self._gate.job(id, user=user), self._run)

    def end_session(self, session_id: str) -> None:
        """See ``Gate.end_session``; a call joins a session by its option ``session_id``."""
        self._run(lambda: self._gate.end_session(session_id))

    # ------------------------------------------------------------------ inside

    def _refuse(self) -> None:
        if self._pid not in {None, os.getpid()}:  # asked before any lock is: a lock may be held for ever in a child
            raise GateClosed(_FORKED)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(_IN_A_LOOP)

    def _enter(self) -> None:
        if not self._inside:
            self._start()
        self._inside += 1

    def _leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._stop()

    def _start(self) -> None:
        from anyio.from_thread import start_blocking_portal

        self._pid = os.getpid()
        try:
            with ExitStack() as stack:  # an interruption cancels what was begun
                self._portal = stack.enter_context(start_blocking_portal())
                stack.enter_context(self._portal.wrap_async_context_manager(self._gate))
                self._loop = self._portal.call(asyncio.get_running_loop)
                self._stack = stack.pop_all()
        except BaseException:
            self._pid = self._loop = None
            raise
        atexit.register(self._at_exit)

    def _stop(self) -> None:
        atexit.unregister(self._at_exit)
        with self._sending:
            self._loop = None  # nothing is handed over from here on, and what was is ahead of `_finish`
        try:
            with self._stack:
                self._portal.call(self._finish)
        finally:
            self._portal = self._pid = None

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            with self._life:
                if self._inside:
                    self._inside, self._held = 0, False
                    self._stop()

    async def _finish(self) -> None:
        """Let the calls under way end, at most so long; close the streams that nobody reads to their end."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_LIMIT)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_LIMIT)
        for events in list(self._streams):
            await events.aclose()
        self._streams.clear()

    def _run(self, make: Callable[[], Coroutine[Any, Any, Any]], context: Context | None = None) -> Any:
        """Run what *make* gives in the portal, and wait for it.

        Raises:
            GateClosed: the portal is not open, or was closed meanwhile.
        """
        self._refuse()
        job = _Job(make, self._tasks)
        try:
            with self._sending:
                job.send(self._loop, context or copy_context())
            return job.future.result()
        except asyncio.CancelledError:
            raise GateClosed("gate.sync() was closed while the call was under way; it was cancelled") from None
        except BaseException:  # the call's own error, or something struck this thread while it waited
            job.give_up()
            raise


class SyncStream(Iterator[Event]):
    """The events of one call, as they come; the last is its result. Stopping early cancels the call."""

    def __init__(self, owner: SyncGate, events: AsyncGenerator[Event, None]) -> None:
        self._owner = owner
        self._events = events
        self._context = copy_context()
        self._over = False
        owner._streams.add(events)

    def __next__(self) -> Event:
        if self._over:
            raise StopIteration
        try:
            event: Event = self._owner._run(self._step, self._context)
        except BaseException:
            self.close()
            raise
        if event is _END:
            self._end()
            raise StopIteration
        return event

    def close(self) -> None:
        """End the call, if it has not ended, and wait until it has."""
        if self._over:
            return
        self._end()
        try:
            self._owner._run(self._shut, self._context)
        except GateClosed:  # as the portal closed, it closed its streams
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _step(self) -> Any:
        return await anext(self._events, _END)

    async def _shut(self) -> None:
        await self._events.aclose()

    def _end(self) -> None:
        self._over = True
        self._owner._streams.discard(self._events)


class _Job:
    """One coroutine on its way through the portal, and the future that its caller waits for."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]], tasks: set[asyncio.Task[Any]]) -> None:
        self.make = make
        self.tasks = tasks
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None

    def send(self, loop: asyncio.AbstractEventLoop | None, context: Context) -> None:
        """Hand over to the loop; from here on ``give_up`` has something to cancel.

        Raises:
            GateClosed: there is no loop.
        """
        if loop is None:
            raise GateClosed(_NOT_OPEN)
        self.loop = loop
        loop.call_soon_threadsafe(self._start, context=context.copy())

    def _start(self) -> None:
        try:
            self.task = asyncio.ensure_future(self.make())
        except Exception as error:  # noqa: BLE001  (it is the caller's)
            self.future.set_exception(error)
            return
        self.tasks.add(self.task)
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if task.cancelled():
            self.future.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def give_up(self) -> None:
        """Cancel, and wait for the end, which the gate bounds; whoever interrupts that, too, need not wait."""
        if self.loop is None or self.future.done():
            return
        try:
            self.loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop has closed
            return
        concurrent.futures.wait([self.future], timeout=CLOSE_LIMIT)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


__all__ = ["SyncGate", "SyncStream"]
