"""The lifespan of a gate: open the store and the global instances, run background tasks, close all of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol

from callgate.errors import RegistrationError
from callgate.providers.registry import ProviderRegistry
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

    def __init__(self, engine: Engine, providers: ProviderRegistry) -> None:
        self._engine = engine
        self._sessions = providers.sessions
        self._globals = Factories(providers)
        self.background = BackgroundTasks()
        self._opened = self.is_open = False
        if self._sessions.ttl is not None:
            self.background.tasks.append(
                BackgroundTask("sessions", max(self._sessions.ttl / 4, 0.05), self._sessions.sweep)
            )

    async def open(self, prepare: Callable[[], None], jobs: Openable) -> None:
        """Run *prepare*, open the store, make the global instances, and start background tasks and *jobs*.

        Raises:
            RegistrationError: it is open already, or *prepare* refuses.
            ProviderError: a factory failed. The instances made before it are closed.
        """
        if self._opened:
            raise RegistrationError(
                "the gate is open already: call open() once at the start of the service, or close() it first"
            )
        self._opened = True
        try:
            prepare()
            await self._start()
            self.is_open = True
            await jobs.open()
        except BaseException:
            if self.is_open:
                await self._end()
            self._opened = False
            raise

    async def close(self, jobs: Openable, on_closed: Callable[[], None]) -> None:
        """Stop *jobs*, refuse calls, call *on_closed*, and close sessions, global instances and the store.

        Bodies that were left behind have at most ``CLOSE_LIMIT`` seconds to end.
        """
        try:
            await jobs.close()
        finally:
            try:
                on_closed()
                await self._end()
            finally:
                self._opened = False

    async def _start(self) -> None:
        await self._engine.store.open()
        try:
            await self._globals.open()
        except BaseException:
            await self._engine.store.close()
            raise
        self.background.start()

    async def _end(self) -> None:
        self.is_open = False
        try:
            await self.background.stop()
            await self._engine.drain()
        finally:  # also when waiting is cancelled
            self._sessions.end_all()
            try:
                await self._engine.drain()
            finally:
                await self._shut()

    async def _shut(self) -> None:
        """Call the functions of ``at_close``, then close the global instances and the store, even if one of them fails."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._engine.store.close)
            stack.push_async_callback(self._globals.close)
            for close in self._engine.closers:
                stack.push_async_callback(close)
