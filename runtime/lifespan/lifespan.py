"""The lifespan of a gate: open the store and the global instances, run background tasks, close all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from callgate.errors import RegistrationError
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.base import Store
from callgate.runtime.call.leases import Carried, awaited
from callgate.runtime.engine import Engine
from callgate.runtime.lifespan.background import BackgroundTask, BackgroundTasks
from callgate.runtime.lifespan.factories import Factories


class Openable(Protocol):
    """A part of the gate that opens last and closes first: its jobs."""

    async def open(self) -> None:
        """Start."""
        ...

    async def close(self) -> None:
        """Stop and wait."""
        ...


class Lifespan:
    """Opens and closes the resources of a gate, and runs its ``background`` tasks in between."""

    def __init__(self, engine: Engine, providers: ProviderRegistry, drain: float) -> None:
        self._engine = engine
        self._drain = drain
        self._until: float | None = None  # the end of the time for closing
        self._under_way = engine.under_way
        self._under_way.is_gated = True
        self._sessions = providers.sessions
        self._globals = Factories(providers, self._in_time)
        self.background = BackgroundTasks()
        self._stop_watch: Callable[[], None] | None = None
        self._opened = False
        if self._sessions.ttl is not None:
            self.background.tasks.append(
                BackgroundTask("sessions", max(self._sessions.ttl / 4, 0.05), self._sessions.sweep)
            )

    @property
    def is_open(self) -> bool:
        """True while new calls begin."""
        return self._under_way.loop is not None

    async def open(self, prepare: Callable[[], None], jobs: Openable, on_closed: Callable[[], None]) -> None:
        """Run *prepare*, open the store, make the global instances, and start background tasks and *jobs*.

        After a failure, call *on_closed*.

        Raises:
            RegistrationError: it is open already, or *prepare* refuses.
            GateClosed: it is open already, in another event loop or before a fork.
            ProviderError: a factory failed. The instances made before it are closed.
        """
        if self._opened:
            self._under_way.refuse_foreign()
            raise RegistrationError(
                "the gate is open already: call open() once at the start of the service, or close() it first"
            )
        self._opened = True
        try:
            prepare()
            await self._start()
            self._under_way.start()
            await jobs.open()
        except BaseException:
            on_closed()
            if self.is_open:
                await self._end()
            self._opened = False
            raise

    async def close(self, jobs: Openable, on_closed: Callable[[], None]) -> int:
        """Refuse new calls, stop *jobs*, drain, call *on_closed*, and close sessions, global instances and the store.

        Calls under way have the seconds of ``Options.drain`` to end; then they are cancelled, and have those of
        ``Options.closing``. All that follows has as many together, and each step at most half of what is left: bodies
        that were left behind, sessions, functions of ``at_close``, global instances, the store. A step that takes
        longer is cancelled. Return the number of cancelled tasks.

        Raises:
            GateClosed: this is not the loop and process that opened it.
            TimeoutError: a global instance, the store or a function of ``at_close`` did not close in time.
        """
        self._under_way.refuse_foreign()
        self._under_way.stop()
        cancelled = 0
        try:
            await jobs.close()
        finally:
            try:
                cancelled = await self._under_way.drain(self._drain, self._engine.closing)
            finally:
                try:
                    on_closed()
                    await self._end()
                finally:
                    self._opened = False
        return cancelled

    async def _start(self) -> None:
        from callgate.runtime.lifespan.loop_watch import LoopWatch  # a bare call watches no loop

        self._until = None
        await _open_shared(self._engine.store)
        try:
            await self._engine.synchronise()
            await self._globals.open()
        except BaseException:
            await _close_shared(self._engine.store)
            raise
        self.background.start()
        self._stop_watch = LoopWatch(self._under_way).start()

    async def _end(self) -> None:
        self._under_way.end()
        if self._stop_watch is not None:
            self._stop_watch()
            self._stop_watch = None
        try:
            await self.background.stop(self._share())
            await self._engine.drain(self._share())
        finally:  # also when waiting is cancelled
            self._sessions.end_all()
            try:
                await self._engine.drain(self._share())
            finally:
                await self._shut()

    async def _shut(self) -> None:
        """Call the functions of ``at_close``, then close the global instances and the store, even if one of them fails."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._call_in_time, partial(_close_shared, self._engine.store))
            stack.push_async_callback(self._globals.close)
            for close in self._engine.closers:
                stack.push_async_callback(self._call_in_time, close)

    def _share(self) -> float:
        """Return the seconds that one step may take: half of what is left."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._engine.closing
        return max(0.0, self._until - now) / 2

    async def _call_in_time(self, close: Callable[[], Awaitable[None]]) -> None:
        await self._in_time(close())

    async def _in_time(self, step: Awaitable[None]) -> None:
        """Run one step of closing, in this task, within its share of the time; a cancellation is raised after it.

        Raises:
            TimeoutError: the step took longer; it was cancelled.
        """
        carried = Carried(awaited(step), limit=self._share())
        try:
            await carried.run()
        except BaseException as error:
            if carried.held is not None:
                raise carried.held from error
            raise
        if carried.held is not None:
            raise carried.held


_USERS: dict[int, tuple[object, int]] = {}
"""The stores that gates of this process have open, each with the number of the gates."""


async def _open_shared(store: Store) -> None:
    """Open a store for one more gate."""
    await store.open()
    origin: object = getattr(store, "origin", store)
    _USERS[id(origin)] = origin, _USERS.get(id(origin), (origin, 0))[1] + 1


async def _close_shared(store: Store) -> None:
    """Close a store after the last of the gates that have it open."""
    origin: object = getattr(store, "origin", store)
    _, users = _USERS.pop(id(origin), (origin, 1))
    if users > 1:
        _USERS[id(origin)] = origin, users - 1
    else:
        await store.close()
