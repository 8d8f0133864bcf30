"""The recipe of one provided instance."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from typing import Any

from callgate.providers.injector import AnyProvider
from callgate.providers.ranks import Rank


@contextmanager
def _generator() -> Generator[None]:
    yield


@asynccontextmanager
async def _async_generator() -> AsyncGenerator[None]:
    yield


GENERATOR_MANAGERS = (type(_generator()), type(_async_generator()))
"""The types that ``@contextmanager`` and ``@asynccontextmanager`` return."""
WRAPPERS = (*GENERATOR_MANAGERS, closing, aclosing)
"""The types of objects that serve only to be entered. Such an object is entered even if it is given as a value."""


MISSING: object = object()


class Recipe:
    """The recipe of the instance for one token.

    ``rank`` is the scope that keeps the instance. ``factory`` makes it from ``args`` and ``kwargs``; ``foreign`` is a
    provider of dependency-injector that makes it, after the scoped instances among ``needs``; ``value`` is a given
    instance. Without any of the three the token has no provider, and a hook may bind it. ``is_async`` is True when the
    factory may await, and ``begins_on_loop`` when it is asynchronous itself. ``maybe`` are parameters with a default whose
    token has no provider, by name and key. ``is_over`` is True when the recipe is one of an override that has ended.
    """

    __slots__ = (
        "args",
        "begins_on_loop",
        "factory",
        "foreign",
        "is_async",
        "is_over",
        "key",
        "kwargs",
        "maybe",
        "name",
        "needs",
        "rank",
        "scoped",
        "step",
        "value",
    )

    def __init__(self, key: object, name: str, rank: Rank = Rank.GLOBAL) -> None:
        self.key = key
        self.name = name
        self.rank = rank
        self.value: object = MISSING
        self.factory: Callable[..., object] | None = None
        self.foreign: AnyProvider | None = None
        self.scoped: AnyProvider | None = None
        self.args: tuple[Recipe, ...] = ()
        self.kwargs: tuple[tuple[str, Recipe], ...] = ()
        self.needs: tuple[Recipe, ...] = ()
        self.maybe: tuple[tuple[str, object], ...] = ()
        self.is_async = self.begins_on_loop = self.is_over = False
        self.step: Any = None

    @property
    def is_provided(self) -> bool:
        """True when the token has a provider."""
        return self.value is not MISSING or self.factory is not None or self.foreign is not None

    @property
    def is_overridden(self) -> bool:
        """True when the container overrides the scoped provider of the recipe."""
        return self.scoped is not None and self.scoped.last_overriding is not None

    @property
    def has_end(self) -> bool:
        """True when the factory is a generator function, or a class of context managers: its instances have an end."""
        if self.factory is None:
            return False
        function = inspect.unwrap(function_of(self.factory))
        is_manager = inspect.isclass(function) and (hasattr(function, "__exit__") or hasattr(function, "__aexit__"))
        return is_manager or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)

    def __repr__(self) -> str:
        return f"<recipe of {self.name}>"


def function_of(factory: Callable[..., object]) -> Callable[..., object]:
    """Return the function or class of a factory, without ``functools.partial``."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory
