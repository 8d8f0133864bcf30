"""Permits and context managers that survive a coroutine whose ``close()`` ends it while it waits.

``close()`` does not reach an async generator that waits in ``__aenter__``: it keeps its place in a queue until it is
garbage. So the context managers of a database are plain classes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns:
    """Permits in order of arrival. A waiter of ``asyncio.Lock`` that is closed just after it was woken wakes no other."""

    def __init__(self, size: int = 1) -> None:
        self._free = size
        self._waiters = deque[asyncio.Future[None]]()

    def locked(self) -> bool:
        """Return True if a caller would wait."""
        return self._free == 0

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def acquire(self) -> None:
        """Wait for a permit."""
        if self._free:
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # it has the permit already
                self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Give a permit to the first waiter, or keep it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class KeyedTurns:
    """One turn at a time for each key: ``async with turns.of(key)``. A key without a turn takes no memory."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, tuple[Turns, list[None]]] = {}

    def of(self, key: Hashable) -> Entered[None]:
        """Return the context manager of a turn of this key."""

        async def enter(stack: AsyncExitStack) -> None:
            turns, holders = self._turns.setdefault(key, (Turns(), []))
            holders.append(None)

            def leave() -> None:
                holders.pop()
                if not holders:
                    del self._turns[key]

            stack.callback(leave)
            await turns.acquire()
            stack.callback(turns.release)

        return Entered(enter)


class Entered(Generic[T]):
    """A context manager of a function that enters others on the stack that it gets, and returns what is entered."""

    def __init__(self, enter: Callable[[AsyncExitStack], Awaitable[T]]) -> None:
        self._enter, self._stack = enter, AsyncExitStack()

    async def __aenter__(self) -> T:
        try:
            return await self._enter(self._stack)
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
