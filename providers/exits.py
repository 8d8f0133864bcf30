"""The end of instances: the code after the ``yield`` of a factory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import AsyncGeneratorType
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.ranks import Rank
from callgate.providers.recipes import Recipe


class Exit:
    """The closing of one instance."""

    __slots__ = ("generator", "recipe")

    def __init__(self, recipe: Recipe, generator: Any) -> None:
        self.recipe = recipe
        self.generator = generator

    async def leave(self, error: BaseException | None = None) -> None:
        """Run the code after the ``yield``. The *error* of a request is raised at the ``yield`` of its own instances.

        Instances of a session or of the gate outlive the request and do not see its error.

        Raises:
            ProviderError: the generator yields a second time.
        """
        generator = self.generator
        if self.recipe.rank is not Rank.REQUEST:
            error = None
        try:
            if generator.__class__ is AsyncGeneratorType:
                await (generator.__anext__() if error is None else generator.athrow(error))
                await generator.aclose()
            else:
                next(generator) if error is None else generator.throw(error)
                generator.close()
        except (StopAsyncIteration, StopIteration):
            return
        except BaseException as raised:
            if raised is error:
                return
            raise
        raise ProviderError(f"the generator of {self.recipe.name} yields a second time")


async def leave_all(
    exits: Iterable[Exit],
    error: BaseException | None = None,
    on_failure: Callable[[Exit, BaseException], None] = lambda *_: None,
) -> None:
    """Close every instance, even when one fails; *on_failure* gets each error.

    Raises:
        BaseException: the first error; a cancellation comes before other errors.
    """
    failed: list[BaseException] = []
    for one in exits:
        try:
            await one.leave(error)
        except BaseException as raised:  # noqa: BLE001  (raised below, after the others are closed)
            failed.append(raised)
            on_failure(one, raised)
    if failed:
        raise next((one for one in failed if not isinstance(one, Exception)), failed[0])
