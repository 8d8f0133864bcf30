"""The begin of instances: the factory, the code up to the ``yield`` of a generator, the entry of a context manager."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeAlias

from callgate.errors import ProviderError
from callgate.providers.exits import Exit, PlainThreads
from callgate.providers.managers import GENERATOR_MANAGERS, is_entered
from callgate.providers.recipes import MISSING, Recipe

Begun: TypeAlias = "tuple[Any, Exit | None]"
"""An instance, and its closing if it has one."""


def begin(recipe: Recipe, make: Callable[[], Any], given: Collection[Any], threads: PlainThreads | None) -> Begun:
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


async def begin_async(recipe: Recipe, made: Any, given: Collection[Any]) -> Begun:
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
