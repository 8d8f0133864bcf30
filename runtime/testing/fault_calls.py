"""Fault injection: which calls fail and in which way, for functions, coroutines and generators."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from typing import TypeAlias, cast

Error: TypeAlias = BaseException | type[BaseException] | Callable[[], BaseException]
"""The error to raise: an exception, its class, or a function that makes one."""


class InjectedFault(ConnectionError):
    """The default error of a faulty provider or store."""


class Faults:
    """The faults of a ``Faulty`` or ``FaultyStore``; ``faults_of`` returns them.

    ``log`` has the name of every call so far, ``injected`` the numbers, from 1, of the calls with a fault.
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
        for number in (*self.at, *(() if every is None else (every,))):
            if isinstance(number, bool) or not isinstance(number, int):  # such as 1.5: no call would have a fault
                raise TypeError(f"calls have numbers from 1: {number!r} is none")
        if every is not None and every < 1:
            raise ValueError(f"every={every!r} must be at least 1: every n-th call fails")
        if any(n < 1 for n in self.at):
            raise ValueError(f"calls are counted from 1: there is no call {min(self.at)}")
        self.error = InjectedFault if error is None and not delay and not hang else error
        self.delay = delay
        self.hang = hang
        self.after = after
        self.log: list[str] = []
        self.injected: list[int] = []
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return len(self.log)

    def count(self, name: str) -> bool:
        """Count one call; True if it gets a fault."""
        with self._lock:
            self.log.append(name)
            number = len(self.log)
            hit = number in self.at or (self.every is not None and number % self.every == 0)
            if hit:
                self.injected.append(number)
        return hit

    async def inject(self, name: str) -> None:
        """Delay, hang or fail in async code."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.hang:
            await asyncio.get_running_loop().create_future()
        self.fail(name)

    def inject_sync(self, name: str) -> None:
        """Delay or fail in sync code, which cannot hang without blocking its thread forever."""
        if self.hang:
            raise TypeError(f"{name} is not async and cannot hang: use error= or delay=")
        if self.delay:
            time.sleep(self.delay)
        self.fail(name)

    def fail(self, name: str) -> None:
        """Raise the error, if there is one."""
        if self.error is None:
            return
        made: object = self.error
        if isinstance(made, type) and issubclass(made, InjectedFault):
            made = made(f"call {self.calls} ({name}) fails on purpose")
        raise cast("BaseException", made() if callable(made) else made)


def counting(call: Callable[..., object], faults: Faults, name: str) -> Callable[..., object]:
    """Wrap *call* with the faults in a function of the same kind."""
    make: Callable[..., Callable[..., object]] = _WRAPPERS.get(kind_of_call(call), _plain)
    return make(call, faults, name)


def kind_of_call(call: object) -> str:
    """The kind of a function: a key of ``_WRAPPERS``, or ``"plain"``."""
    if isinstance(call, functools.partial):
        return kind_of_call(call.func)
    if inspect.isasyncgenfunction(call):
        return "async generator"
    if inspect.iscoroutinefunction(call):
        return "coroutine"
    if inspect.isgeneratorfunction(call):
        return "generator"
    inside = inspect.unwrap(call) if inspect.isfunction(call) else call
    return "async manager" if inside is not call and inspect.isasyncgenfunction(inside) else "plain"


def _coroutine(call: Callable[..., Awaitable[object]], faults: Faults, name: str) -> Callable[..., object]:
    @functools.wraps(call)
    async def faulty(*args: object, **kwargs: object) -> object:
        return await await_with_faults(lambda: call(*args, **kwargs), faults, name)

    return faulty


async def await_with_faults(
    call: Callable[[], Awaitable[object]] | Awaitable[object], faults: Faults, name: str
) -> object:
    """Await *call*, or its result if it is a function, with the faults."""
    if not faults.count(name):
        return await (call() if callable(call) else call)
    if not faults.after:
        try:
            await faults.inject(name)
        except BaseException:
            if inspect.iscoroutine(call):
                call.close()  # avoids the warning about a coroutine that was never awaited
            raise
    result = await (call() if callable(call) else call)
    if faults.after:
        await faults.inject(name)
    return result


def _async_generator(
    call: Callable[..., AsyncGenerator[object, None]], faults: Faults, name: str
) -> Callable[..., AsyncGenerator[object, None]]:
    @functools.wraps(call)
    async def faulty(*args: object, **kwargs: object) -> AsyncGenerator[object, None]:
        due = faults.count(name)
        if due and not faults.after:
            await faults.inject(name)
        made = call(*args, **kwargs)
        try:
            async for item in made:
                yield item
        finally:
            await made.aclose()
        if due and faults.after:
            await faults.inject(name)

    return faulty


def _generator(
    call: Callable[..., Generator[object, object, object]], faults: Faults, name: str
) -> Callable[..., object]:
    @functools.wraps(call)
    def faulty(*args: object, **kwargs: object) -> Generator[object, object, object]:
        if faults.count(name):
            faults.inject_sync(name)
        return (yield from call(*args, **kwargs))

    return faulty


def _plain(call: Callable[..., object], faults: Faults, name: str) -> Callable[..., object]:
    def faulty(*args: object, **kwargs: object) -> object:
        if faults.count(name):
            faults.inject_sync(name)
        return call(*args, **kwargs)

    return faulty if inspect.isclass(call) else functools.wraps(call, updated=())(faulty)


def _async_manager(call: Callable[..., object], faults: Faults, name: str) -> Callable[..., object]:
    """A function with ``@asynccontextmanager``: entering it waits and fails."""
    return contextlib.asynccontextmanager(_async_generator(inspect.unwrap(call), faults, name))


_WRAPPERS: dict[str, Callable[..., Callable[..., object]]] = {
    "coroutine": _coroutine,
    "async generator": _async_generator,
    "generator": _generator,
    "async manager": _async_manager,
}
