"""The life of a gate: what is made as it opens, looked after while it runs, and closed as it ends."""

from __future__ import annotations

from contextlib import AsyncExitStack

from callgate.providers.registry import ProviderRegistry
from callgate.runtime.engine import Engine
from callgate.runtime.lifespan.background import Chore, Upkeep
from callgate.runtime.lifespan.factories import Factories


class Life:
    """Opens and closes what a gate holds; its ``upkeep`` looks after it in between."""

    def __init__(self, engine: Engine, providers: ProviderRegistry) -> None:
        self._engine = engine
        self._sessions = providers.sessions
        self._globals = Factories(providers)
        self.upkeep = Upkeep()
        if self._sessions.ttl is not None:
            self.upkeep.chores.append(Chore("sessions", max(self._sessions.ttl / 4, 0.05), self._sessions.sweep))

    async def begin(self) -> None:
        """Make the global instances; look after sessions from now on.

        Raises:
            ProviderError: a factory failed; what was made before it is closed.
        """
        await self._engine.store.open()
        try:
            await self._globals.open()
        except BaseException:
            await self._engine.store.close()
            raise
        self.upkeep.begin()

    async def end(self) -> None:
        """Wait, at most ``CLOSE_LIMIT`` seconds, for what was left behind; close sessions, then the global instances."""
        try:
            await self.upkeep.end()
            await self._engine.drain()
        finally:  # also when waiting is cancelled
            self._sessions.end_all()
            try:
                await self._engine.drain()
            finally:
                await self._shut()

    async def _shut(self) -> None:
        """What hooks want done, then the global instances, then the store; each, whatever another raises."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._engine.store.close)
            stack.push_async_callback(self._globals.close)
            for close in self._engine.closers:
                stack.push_async_callback(close)
