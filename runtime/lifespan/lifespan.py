"""The lifespan of a gate: open the store and the global instances, run background tasks, close all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from callgate.errors import RegistrationError
from callgate.hooks.base import name_of
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.base import Store
from callgate.runtime.lifespan.background import BackgroundTask, BackgroundTasks
from callgate.runtime.lifespan.factories import Factories, as_failure
from callgate.runtime.pipeline import scopes
from callgate.runtime.pipeline.services import Services, close_all
from callgate.runtime.pipeline.shield import awaited, under_shield


class Openable(Protocol):
    """A part of the gate that opens last and closes first: its jobs."""

    async def open(self) -> None:
        """Start."""
        ...

    async def close(self) -> None:
        """Stop and wait."""
        ...


class EffectRecords(Protocol):
    """The effect ledger, when the gate closes."""

    async def close(self) -> None:
        """Record the outcomes that are left when all calls have ended."""
        ...

    async def closed(self) -> None:
        """Log what is not recorded, after the store has closed."""
        ...


class Lifespan:
    """Opens and closes the resources of a gate, and runs its ``background`` tasks in between."""

    def __init__(
        self,
        services: Services,
        providers: ProviderRegistry,
        drain: float,
        effects: EffectRecords,
    ) -> None:
        self._services, self._effects = services, effects
        self._drain = drain
        self._drains_until = 0.0
        self._until: float | None = None  # the end of the time for closing
        self._under_way = services.under_way
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
        return self._under_way.loop is not None and not self._under_way.is_orphaned

    async def open(self, prepare: Callable[[], None], jobs: Openable, on_closed: Callable[[], None]) -> None:
        """Run *prepare*, open the store, make the global instances, and start background tasks and *jobs*.

        If the gate is open in a loop that was closed, drop what belonged to that loop first. After a failure, call *on_closed*.

        Raises:
            RegistrationError: it is open already, or *prepare* refuses.
            GateClosed: it is open already, in another event loop that is not closed, or before a fork.
            ProviderError: a factory failed. The instances made before it are closed.
            RuntimeError: this is the event loop of trio.
        """
        from callgate.providers.concurrency import refuse_green_threads, refuse_trio

        refuse_trio()
        refuse_green_threads()
        if self._opened and self._under_way.is_orphaned:
            await self._drop(jobs, on_closed)
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
        longer is cancelled. Outcomes of effects that are left have what is left of ``Options.drain`` besides. Return the
        number of cancelled tasks.

        Raises:
            GateClosed: this is not the loop and process that opened it.
            TimeoutError: a global instance, the store or a function of ``at_close`` did not close in time.
        """
        return await scopes.once(self._close(jobs, on_closed), closing=True)

    async def maintain(self) -> None:
        """See ``Gate.maintain``."""
        self._under_way.refuse_foreign()
        await self.background.run_all()

    async def end_session(self, session_id: str) -> None:
        """See ``Gate.end_session``."""
        self._under_way.refuse_foreign()
        await close_all(self._sessions.end(session_id))

    async def _close(self, jobs: Openable, on_closed: Callable[[], None]) -> int:
        self._under_way.refuse_foreign()
        self._under_way.stop()
        cancelled = 0
        try:
            await jobs.close()
        finally:
            self._drains_until = asyncio.get_running_loop().time() + self._drain
            try:
                cancelled = await self._under_way.drain(self._drain, self._services.closing)
            finally:
                try:
                    on_closed()
                    await self._end()
                finally:
                    self._opened = False
        return cancelled

    async def _drop(self, jobs: Openable, on_closed: Callable[[], None]) -> None:
        from callgate.runtime.lifespan.closed_loops import drop_gate, drop_old  # most gates are closed in their loop

        if self._stop_watch is not None:
            self._stop_watch()
            self._stop_watch = None
        await drop_old(jobs.close)
        on_closed()
        await drop_gate(self._services, self._under_way, self._sessions, self._globals, self.background)
        self._opened = False

    async def _start(self) -> None:
        from callgate.runtime.lifespan.loop_watch import LoopWatch  # a bare call watches no loop

        self._until = None
        await _open_shared(self._services.store)
        try:
            await self._services.clock.synchronise()
            await self._globals.open()
        except BaseException:
            await _close_shared(self._services.store)
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
            await self._services.left_behind.drain(self._share())
        finally:  # also when waiting is cancelled
            self._sessions.end_all()
            try:
                await self._services.left_behind.drain(self._share())
            finally:
                await self._shut()

    async def _shut(self) -> None:
        """Record what is left, call the functions of ``at_close``, close the global instances and the store.

        Each step runs even if another one fails.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._effects.closed)
            store = self._services.store
            stack.push_async_callback(self._call_in_time, partial(_close_shared, store), f"the store {store.name}")
            stack.push_async_callback(self._globals.close)
            for close, hook in list(self._services.closers.items()):
                stack.push_async_callback(self._call_in_time, close, f"the function {name_of(close)}")
                if hook is not None:  # it registers anew in an opening to come
                    del self._services.closers[close]
            stack.push_async_callback(self._record_left)

    async def _record_left(self) -> None:
        """Record the outcomes of effects that are left. What is left of the time to drain is besides that for closing."""
        clock = asyncio.get_running_loop().time
        share, began = self._share(), clock()
        left = max(0.0, self._drains_until - began)
        try:
            await _named(under_shield(awaited(self._effects.close()), left + share), "the records of effects")
        finally:
            self._until = (self._until or began) + min(left, clock() - began)

    def _share(self) -> float:
        """Return the seconds that one step may take: half of what is left."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._services.closing
        return max(0.0, self._until - now) / 2

    async def _call_in_time(self, close: Callable[[], Awaitable[None]], name: str) -> None:
        await self._in_time(close(), name)

    async def _in_time(self, step: Awaitable[None], name: str) -> None:
        """Run one step of closing, in this task, within its share of the time; a cancellation is raised after it.

        Raises:
            TimeoutError: the step took longer; it was cancelled.
            RuntimeError: the step raised ``CancelledError`` by itself.
        """
        await _named(under_shield(awaited(step), self._share()), name)


async def _named(step: Awaitable[object], name: str) -> None:
    """Run one step of closing; its error names what was closed."""
    try:
        await step
    except TimeoutError as error:
        raise TimeoutError(f"{name} did not close in time: {error}; see Options(closing=)") from error
    except asyncio.CancelledError as error:
        if (failure := as_failure(error)) is error:
            raise
        failure.add_note(f"The gate was closing {name}.")
        raise failure from error
    except Exception as error:
        error.add_note(f"The gate was closing {name}.")
        raise


_USERS: dict[int, tuple[object, int, asyncio.AbstractEventLoop]] = {}
"""The stores that gates of this process have open, each with the number of the gates and their event loop."""


async def _open_shared(store: Store) -> None:
    """Open a store for one more gate; what belonged to a closed loop is dropped first."""
    origin: object = getattr(store, "origin", store)
    loop = asyncio.get_running_loop()
    _, users, home = _USERS.get(id(origin), (origin, 0, loop))
    if home.is_closed():
        from callgate.runtime.lifespan.closed_loops import drop_old

        del _USERS[id(origin)]
        users, home = 0, loop
        await drop_old(store.close)
    await store.open()
    _USERS[id(origin)] = origin, users + 1, home


async def _close_shared(store: Store) -> None:
    """Close a store after the last of the gates that have it open."""
    origin: object = getattr(store, "origin", store)
    known = _USERS.pop(id(origin), None)
    if known is not None and known[1] > 1:
        _USERS[id(origin)] = origin, known[1] - 1, known[2]
    else:
        await store.close()
