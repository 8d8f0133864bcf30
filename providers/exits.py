"""The end of instances: the code after the ``yield`` of a factory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import AsyncGeneratorType
from typing import Any, Protocol, TypeAlias

from callgate.errors import ProviderError
from callgate.providers.ranks import Rank
from callgate.providers.recipes import Recipe

Within: TypeAlias = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
"""Runs the closing of one instance."""


def plainly(closing: Coroutine[Any, Any, None]) -> Awaitable[None]:
    """Run a closing as it is."""
    return closing


class PlainThreads(Protocol):
    """Threads for the code of plain generators, which may block."""

    async def start(self, generator: Any, missing: Any) -> Any:
        """Return what the generator yields first, or *missing*."""
        ...

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run a function, and return its result."""
        ...


class Exit:
    """The closing of one instance; *threads* run the code of a plain generator, else the event loop does."""

    __slots__ = ("generator", "recipe", "threads")

    def __init__(self, recipe: Recipe, generator: Any, threads: PlainThreads | None = None) -> None:
        self.recipe = recipe
        self.generator = generator
        self.threads = threads

    async def leave(self, error: BaseException | None = None) -> None:
        """Run the code after the ``yield``. The *error* of a request or execution is raised at the ``yield`` of its instances.

        Instances of a session or of the gate outlive the request and do not see its error.

        Raises:
            ProviderError: the generator yields a second time.
        """
        generator = self.generator
        if self.recipe.rank > Rank.REQUEST:
            error = None
        if generator.__class__ is not AsyncGeneratorType:
            ended = _end(generator, error) if self.threads is None else await self.threads.run(_end, generator, error)
            if ended:
                return
        else:
            try:
                await (generator.__anext__() if error is None else generator.athrow(error))
                await generator.aclose()
            except StopAsyncIteration:
                return
            except BaseException as raised:
                if raised is error:
                    return
                raise
        raise ProviderError(f"the generator of {self.recipe.name} yields a second time")


def _end(generator: Any, error: BaseException | None) -> bool:
    """Run the rest of a plain generator; return False if it yields again."""
    try:
        next(generator) if error is None else generator.throw(error)
        generator.close()
    except StopIteration:
        return True
    except BaseException as raised:
        if raised is error:
            return True
        raise
    return False


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
            await within(one.leave(error))
        except BaseException as raised:  # noqa: BLE001  (raised below, after the others are closed)
            failed.append(raised)
            on_failure(one, raised)
    if failed:
        raise next((one for one in failed if not isinstance(one, Exception)), failed[0])
