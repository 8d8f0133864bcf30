"""Overrides of a gate: their instances are made and closed in the event loop of the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType

from callgate.providers.exits import Exit
from callgate.providers.overriding import OverrideBlock, Overriding
from callgate.runtime.pipeline.services import Services, close_all


class GateOverride(OverrideBlock):
    """A block of ``gate.override``: ``async with``, or ``with``."""

    def __init__(
        self, overriding: Overriding, sources: Mapping[object, object], services: Services, held: Iterable[object]
    ) -> None:
        super().__init__(overriding, sources, held)
        self._services = services

    def __enter__(self) -> None:
        super().__enter__()
        home = self._running_elsewhere()
        if home is None:
            return  # the next call makes what is missing
        try:
            asyncio.run_coroutine_threadsafe(self._overriding.prepare(), home).result()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    async def __aenter__(self) -> None:
        await super().__aenter__()
        if self._services.under_way.home is None:
            return  # the gate makes all when it opens
        try:
            await self._overriding.prepare()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, where)
        if self._services.under_way.loop is not None:  # a gate that opened in the block has not made what it replaced
            await self._overriding.prepare()

    def _leave(self, exits: list[Exit]) -> None:
        elsewhere, home = self._running_elsewhere(), self._services.under_way.home
        if exits and elsewhere is not None:
            asyncio.run_coroutine_threadsafe(close_all(exits), elsewhere).result()
        elif not any(one.is_async for one in exits):
            super()._leave(exits)
        elif _is_here():
            self._services.left_behind.start(close_all(exits))
        elif home is not None and not home.is_closed():  # it stands still, as between two run_until_complete
            home.call_soon_threadsafe(self._services.left_behind.start, close_all(exits))
        else:
            super()._leave(exits)

    def _running_elsewhere(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop of the open gate if it runs in another thread, so that this one may wait for it."""
        home = self._services.under_way.home
        return home if home is not None and home.is_running() and not _is_here() else None


def _is_here() -> bool:
    """Return True if this thread runs an event loop, which must not wait for another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
