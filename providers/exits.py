"""The end of instances: the code after the ``yield`` of a factory, and the exit of context managers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable
from concurrent.futures import Future
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

from callgate.errors import ProviderError
from callgate.providers.ranks import Rank
from callgate.providers.recipe import GENERATOR_MANAGERS, MISSING, Recipe

T = TypeVar("T")
Within: TypeAlias = Callable[[Coroutine[object, object, None], str], Awaitable[None]]
"""Runs the closing of one instance, whose provider has this name."""


def plainly(closing: Coroutine[object, None, None], _: str) -> Awaitable[None]:
    """Run a closing as it is."""
    return closing


class PlainThreads(Protocol):
    """The thread of an execution whose tool is a plain function: it runs the code of its plain providers, in one context."""

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a function after those that were submitted before; until it begins, ``cancel`` takes it back."""
        ...

    async def start(self, make: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Return what *make* returns; *undo* it if the call is cancelled meanwhile."""
        ...

    async def run(self, call: Callable[..., T], *args: object) -> T:
        """Run a function, and return its result. A cancellation does not take it back."""
        ...

    def end(self) -> None:
        """Give the thread back after the functions that were submitted."""
        ...


def current_task() -> object:
    """Return what runs: a task, or the thread of a plain function."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.current_thread()


TAKING: set[object] = set()
"""The tasks that take capacity, and have not recorded yet how to give it back. Ctrl-C waits while their code runs."""


class Taking:
    """A block in which the task is in ``TAKING``."""

    __slots__ = ("_task",)

    def __enter__(self) -> None:
        task = current_task()
        self._task = None if task in TAKING else task
        TAKING.add(task)

    def __exit__(self, *_: object) -> None:
        TAKING.discard(self._task)


class Exit:
    """The closing of one instance: of a generator, or of a context manager that was entered.

    *threads* run the code of a plain one, else the event loop does.
    """

    __slots__ = ("is_async", "manager", "recipe", "threads")

    def __init__(
        self, recipe: Recipe, manager: Any, threads: PlainThreads | None = None, *, is_async: bool = False
    ) -> None:
        self.recipe = recipe
        self.manager = manager
        self.threads = threads
        self.is_async = is_async

    async def leave(self, error: BaseException | None = None) -> None:
        """Run the code after the ``yield``, or the exit of the context manager.

        The *error* of a request or execution is raised at the ``yield`` of its instances. Instances of a session or of
        the gate outlive the request and do not see its error.

        Raises:
            ProviderError: the generator yields a second time.
        """
        await self.hides(error)

    async def hides(self, error: BaseException | None) -> bool:
        """Leave, and return True if the code of the provider has hidden the error."""
        if self.recipe.rank > Rank.REQUEST:
            error = None
        if self.is_async:
            return await self._leave_async(error)
        return self._leave_plain(error) if self.threads is None else await self.threads.run(self._leave_plain, error)

    def discard(self) -> None:
        """Close a plain instance that the call does not want any longer; nothing is to be committed."""
        self._leave_plain(GeneratorExit())

    def _leave_plain(self, error: BaseException | None) -> bool:
        manager = self.manager
        try:
            if manager.__class__ is not GeneratorType:
                return bool(manager.__class__.__exit__(manager, *_facts(error))) and error is not None
            yields = _advances(manager, error)
        except BaseException as raised:
            if raised is error:
                return False
            raise
        if yields:
            manager.close()
            raise self._yields_again()
        return error is not None

    async def _leave_async(self, error: BaseException | None) -> bool:
        manager = self.manager
        try:
            if manager.__class__ is not AsyncGeneratorType:
                return bool(await manager.__class__.__aexit__(manager, *_facts(error))) and error is not None
            await (manager.__anext__() if error is None else manager.athrow(error))
        except StopAsyncIteration as raised:
            return error is not None and raised is not error
        except BaseException as raised:
            if raised is error:
                return False
            raise
        await manager.aclose()
        raise self._yields_again()

    def _yields_again(self) -> ProviderError:
        return ProviderError(f"the generator of {self.recipe.name} yields a second time")


def _advances(generator: Generator[object], error: BaseException | None) -> bool:
    """Resume a generator, with the error if there is one; return False if it ends normally."""
    try:
        next(generator) if error is None else generator.throw(error)
    except StopIteration:
        return False
    return True


def _facts(
    error: BaseException | None,
) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


async def leave_all(
    exits: Iterable[Exit],
    error: BaseException | None = None,
    on_failure: Callable[[Exit, BaseException], None] = lambda *_: None,
    within: Within = plainly,
) -> None:
    """Close every instance, even when one fails; *on_failure* gets each error, and *within* runs each closing.

    Raises:
        BaseException: the first error; a cancellation comes before other errors.
    """
    failed: list[BaseException] = []
    for one in exits:
        try:
            await within(one.leave(error), one.recipe.name)
        except BaseException as raised:  # noqa: BLE001  (raised below, after the others are closed)
            failed.append(raised)
            on_failure(one, raised)
    if failed:
        raise next((one for one in failed if not isinstance(one, Exception)), failed[0])


Begun: TypeAlias = "tuple[object, Exit | None]"
"""An instance, and its closing if it has one."""


def begin_instance(
    recipe: Recipe, make: Callable[[], Any], given: Collection[object], threads: PlainThreads | None
) -> Begun:
    """Call a factory, and run the plain code that begins its instance; what begins on the event loop is returned as made.

    *given* are the instances that the factory got. If it returns one of them, another provider closes that instance.

    Raises:
        ProviderError: the generator yields no instance.
    """
    made = make()
    kind = made.__class__
    if kind in GENERATOR_MANAGERS:
        made = made.gen
        kind = made.__class__
    if kind is GeneratorType:
        instance = next(made, MISSING)
        if instance is MISSING:
            raise ProviderError(f"the generator of {recipe.name} yields no instance")
        return instance, Exit(recipe, made, threads)
    if hasattr(kind, "__exit__") and not hasattr(kind, "__aexit__") and is_entered(made, given):
        return kind.__enter__(made), Exit(recipe, made, threads)
    return made, None


async def begin_instance_async(recipe: Recipe, made: Any, given: Collection[object]) -> Begun:
    """Run the asynchronous code that begins an instance, if it has any.

    Raises:
        ProviderError: the generator yields no instance.
    """
    kind = made.__class__
    if kind is AsyncGeneratorType:
        try:
            return await made.__anext__(), Exit(recipe, made, is_async=True)
        except StopAsyncIteration:
            raise ProviderError(f"the generator of {recipe.name} yields no instance") from None
    if hasattr(kind, "__aexit__") and is_entered(made, given):
        return await kind.__aenter__(made), Exit(recipe, made, is_async=True)
    return made, None


def is_entered(manager: object, given: Collection[object]) -> bool:
    """Return False for context managers that are not entered: locks, paths, and instances that the factory was given.

    A lock is injected to be acquired by the tool. Entering a path does nothing and warns.
    """
    if any(manager is one for one in given) or isinstance(manager, os.PathLike):
        return False
    return not hasattr(manager, "acquire") or hasattr(manager, "close") or hasattr(manager, "aclose")
