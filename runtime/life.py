"""The life of a gate: what is made as it opens, looked after while it runs, and closed as it ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from callgate.providers import logs
from callgate.providers.registry import ProviderRegistry
from callgate.runtime.engine import Engine
from callgate.runtime.factories import Factories


class Life:
    """Opens and closes what a gate holds; one task looks after it in between."""

    def __init__(self, engine: Engine, providers: ProviderRegistry) -> None:
        self._engine = engine
        self._sessions = providers.sessions
        self._globals = Factories(providers)
        self._upkeep: asyncio.Task[None] | None = None

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
        if self._sessions.ttl is not None:
            self._upkeep = asyncio.create_task(self._look_after(self._sessions.ttl), name="callgate upkeep")

    async def end(self) -> None:
        """Wait, at most ``CLOSE_LIMIT`` seconds, for what was left behind; close sessions, then the global instances."""
        upkeep, self._upkeep = self._upkeep, None
        if upkeep is not None:
            upkeep.cancel()
        try:
            await self._engine.drain()
        finally:  # also when waiting is cancelled
            self._sessions.end_all()
            try:
                await self._engine.drain()
                if upkeep is not None:
                    await asyncio.wait([upkeep])
            finally:
                await self._shut()

    async def _shut(self) -> None:
        """What hooks want done, then the global instances, then the store; each, whatever another raises."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._engine.store.close)
            stack.push_async_callback(self._globals.close)
            for close in self._engine.closers:
                stack.push_async_callback(close)

    async def _look_after(self, ttl: float) -> None:
        while True:
            await asyncio.sleep(max(ttl / 4, 0.05))
            try:
                self._sessions.sweep()
            except Exception as error:  # noqa: BLE001  (the next round may do better)
                logs.emit(logs.Event.PROVIDER_FAILED, provider="sessions", phase="sweep", error=error)
