"""The calls under way in a gate: which calls begin, and what closing waits for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import get_ident
from weakref import WeakValueDictionary

from callgate.errors import GateClosed
from callgate.hooks.context import InvokeContext

_LOOK_EVERY = 0.01
"""Seconds between two looks at the calls under way while the gate closes."""
_NOT_OPEN = "the gate is not open; use it inside `async with gate:`"
_CLOSING = "the gate is closing: calls under way finish, and no new call begins"
_OTHER_LOOP = (
    "the gate was opened in another event loop, and its connections belong to that loop: call it there, or use "
    "gate.sync() from other threads"
)
_CLOSED_LOOP = (
    "the gate was opened in an event loop that is closed now, such as that of an earlier asyncio.run: open it again in "
    "this one with `async with gate:`"
)
FORKED = (
    "the gate was opened before this process was forked, and its connections stayed with the parent: open it after the "
    "fork, in each worker (gunicorn: post_fork, Celery: worker_process_init), and not before"
)

_BLOCK: ContextVar[object] = ContextVar("callgate_block", default=None)


def without_loop(error: RuntimeError) -> RuntimeError:
    """Return the error that says why there is no event loop of asyncio."""
    from callgate.providers.concurrency import loop_error  # a call in asyncio needs none

    return loop_error(error)


_STARTED: WeakValueDictionary[int, UnderWay] = WeakValueDictionary()


def _doubt_in_child() -> None:
    """Let ``admit`` judge the calls of a forked child, which has the loop and the task of its parent."""
    for started in _STARTED.values():
        started.thread = 0


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_doubt_in_child)


class UnderWay(dict[object, "asyncio.Task[object] | None"]):
    """The calls under way, each with its task. Calls begin at once in ``loop``; elsewhere ``admit`` decides.

    Without a lifespan, as in ``invoke_tool``, it admits every call.
    """

    __slots__ = ("__weakref__", "home", "is_gated", "loop", "pid", "thread")

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.home: asyncio.AbstractEventLoop | None = None
        self.thread = self.pid = 0
        self.is_gated = False

    def start(self) -> None:
        """Accept calls in the running loop."""
        from callgate.runtime.pipeline.interrupts import INTERRUPTS  # a program that opens no gate needs none

        self.home = self.loop = asyncio.get_running_loop()
        self.thread, self.pid = get_ident(), os.getpid()
        _STARTED[id(self)] = self
        INTERRUPTS.watch(self)

    def stop(self) -> None:
        """Refuse new calls; those under way finish, with the calls that they make."""
        self.loop = None

    def end(self) -> None:
        """Refuse every call."""
        from callgate.runtime.pipeline.interrupts import INTERRUPTS  # as in ``start``

        self.loop = self.home = None
        INTERRUPTS.forget(self)

    def admit(self, ctx: InvokeContext) -> asyncio.Task[object] | None:
        """Return the task of a call, or refuse a call that the gate does not accept.

        Raises:
            GateClosed: the gate is not open, not in this loop or process, or it closes and the call is a new one.
        """
        try:
            task = asyncio.current_task()
        except RuntimeError as error:  # no event loop of asyncio
            raise without_loop(error) from None
        if self.is_gated:
            self.refuse_foreign()
            if self.home is None:
                raise GateClosed(_NOT_OPEN)
            is_new = ctx.run.outer is None and _BLOCK.get() not in self and task not in self.values()
            if self.loop is None and is_new:
                raise GateClosed(_CLOSING)
        return task

    @property
    def is_orphaned(self) -> bool:
        """True if the loop of an open gate of this process was closed."""
        return self.home is not None and self.home.is_closed() and self.pid == os.getpid()

    def refuse_foreign(self) -> None:
        """Refuse a process or a loop other than that of an open gate.

        Raises:
            GateClosed: the gate was opened elsewhere.
        """
        if self.home is None:
            return
        if self.pid != os.getpid():
            raise GateClosed(FORKED)
        if asyncio.get_running_loop() is not self.home:
            raise GateClosed(_CLOSED_LOOP if self.home.is_closed() else _OTHER_LOOP)

    @contextmanager
    def block(self, *, closing: bool = False) -> Generator[None]:
        """Count a block as a call under way: a closing gate waits for it, and accepts its calls until then.

        With *closing*, also a block that begins while the gate closes.
        """
        if self.loop is None and not (closing and self.home is not None):
            yield
            return
        block = object()
        self[block] = asyncio.current_task()
        token = _BLOCK.set(block)
        try:
            yield
        finally:
            del self[block]
            with suppress(ValueError):  # the block was left in another task than it was entered in
                _BLOCK.reset(token)

    async def drain(self, seconds: float, closing: float) -> int:
        """Wait until all have ended, at most *seconds*; then cancel the rest, and wait *closing* seconds. Return the rest.

        What the calling task itself is in the middle of does not count.
        """
        late: set[asyncio.Task[object]] = set()
        try:
            await self._ended(seconds)
        finally:
            late = self._others()
            for task in late:
                task.cancel("the gate closes")
            await self._ended(closing)
        return len(late)

    async def _ended(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while self._others() and (left := until - clock()) > 0:  # noqa: ASYNC110  (calls that end signal nothing: it would cost each)
            await asyncio.sleep(min(left, _LOOK_EVERY))

    def _others(self) -> set[asyncio.Task[object]]:
        own = asyncio.current_task()
        return {task for task in self.values() if task is not None and task is not own and not task.done()}
