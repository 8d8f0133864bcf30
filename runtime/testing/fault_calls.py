"""When a fault strikes, and calls of every nature with faults in them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from typing import Any, TypeAlias, cast

Error: TypeAlias = BaseException | type[BaseException] | Callable[[], BaseException]
"""What to raise: an exception, its class, or a function that makes one."""


class InjectedFault(ConnectionError):
    """What a faulty provider or store raises unless told otherwise."""


class Faults:
    """When a fault strikes, and which. ``faults_of`` gives that of a ``Faulty`` or ``FaultyStore``.

    ``log`` names every call so far, ``struck`` the numbers, from 1, of those that a fault struck.
    """

    def __init__(
        self,
        at: int | Collection[int],
        every: int | None,
        error: Error | None,
        delay: float,
        *,
        hang: bool = False,
        after: bool = False,
    ) -> None:
        self.at = frozenset((at,) if isinstance(at, int) else at)
        self.every = every
        if every is not None and every < 1:
            raise ValueError(f"every={every!r}: give the n of every n-th call, at least 1")
        if any(n < 1 for n in self.at):
            raise ValueError(f"calls are counted from 1, not {min(self.at)}")
        self.error = InjectedFault if error is None and not delay and not hang else error
        self.delay = delay
        self.hang = hang
        self.after = after
        self.log: list[str] = []
        self.struck: list[int] = []
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """How many calls were counted."""
        return len(self.log)

    def due(self, name: str) -> bool:
        """Count one call; whether this one is struck."""
        with self._lock:
            self.log.append(name)
            number = len(self.log)
            struck = number in self.at or (self.every is not None and number % self.every == 0)
            if struck:
                self.struck.append(number)
        return struck

    async def strike(self, name: str) -> None:
        """Be slow, hang, or fail, where waiting is possible."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.hang:
            await asyncio.get_running_loop().create_future()
        self.fail(name)

    def strike_now(self, name: str) -> None:
        """The same in plain code, which cannot hang without blocking its thread for ever."""
        if self.hang:
            raise TypeError(f"{name} is not async: it cannot hang; give error= or delay=")
        if self.delay:
            time.sleep(self.delay)
        self.fail(name)

    def fail(self, name: str) -> None:
        """Raise the error, if there is one."""
        if self.error is None:
            return
        made: Any = self.error
        if isinstance(made, type) and issubclass(made, InjectedFault):
            made = made(f"call {self.calls} ({name}) fails on purpose")
        raise cast("BaseException", made() if callable(made) else made)


def counting(call: Any, faults: Faults, name: str) -> Any:
    """*call*, of the same nature, with the faults."""
    make = _WRAPPERS.get(nature(call), _plain)
    return make(call, faults, name)


def nature(call: Any) -> str:
    """What calling it gives: one of the keys of ``_WRAPPERS``, or ``"plain"``."""
    if isinstance(call, functools.partial):
        return nature(call.func)
    if inspect.isasyncgenfunction(call):
        return "async generator"
    if inspect.iscoroutinefunction(call):
        return "coroutine"
    if inspect.isgeneratorfunction(call):
        return "generator"
    inside = inspect.unwrap(call) if inspect.isfunction(call) else call
    return "async manager" if inside is not call and inspect.isasyncgenfunction(inside) else "plain"


def _coroutine(call: Any, faults: Faults, name: str) -> Any:
    @functools.wraps(call)
    async def struck(*args: Any, **kwargs: Any) -> Any:
        return await awaited(lambda: call(*args, **kwargs), faults, name)

    return struck


async def awaited(call: Any, faults: Faults, name: str) -> Any:
    """Await *call*, or what it gives when called, with the faults."""
    if not faults.due(name):
        return await (call() if inspect.isfunction(call) else call)
    if not faults.after:
        try:
            await faults.strike(name)
        except BaseException:
            if inspect.iscoroutine(call):
                call.close()  # never awaited, and meant so
            raise
    answer = await (call() if inspect.isfunction(call) else call)
    if faults.after:
        await faults.strike(name)
    return answer


def _async_generator(call: Any, faults: Faults, name: str) -> Any:
    @functools.wraps(call)
    async def struck(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        due = faults.due(name)
        if due and not faults.after:
            await faults.strike(name)
        made = call(*args, **kwargs)
        try:
            async for item in made:
                yield item
        finally:
            await made.aclose()
        if due and faults.after:
            await faults.strike(name)

    return struck


def _generator(call: Any, faults: Faults, name: str) -> Any:
    @functools.wraps(call)
    def struck(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if faults.due(name):
            faults.strike_now(name)
        return (yield from call(*args, **kwargs))

    return struck


def _plain(call: Any, faults: Faults, name: str) -> Any:
    def struck(*args: Any, **kwargs: Any) -> Any:
        if faults.due(name):
            faults.strike_now(name)
        return call(*args, **kwargs)

    return struck if inspect.isclass(call) else functools.wraps(call, updated=())(struck)


def _async_manager(call: Any, faults: Faults, name: str) -> Any:
    """A function under ``@asynccontextmanager``: what is entered waits and fails."""
    return contextlib.asynccontextmanager(_async_generator(inspect.unwrap(call), faults, name))


_WRAPPERS: dict[str, Callable[[Any, Faults, str], Any]] = {
    "coroutine": _coroutine,
    "async generator": _async_generator,
    "generator": _generator,
    "async manager": _async_manager,
}
