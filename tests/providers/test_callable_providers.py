"""What may be given as a provider: code and callable objects make an instance; anything else is the instance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Protocol
from unittest.mock import MagicMock

import pytest

from callgate import Gate, Provide, tool


class Settings:
    """What the tool needs."""

    name = "made"


class Own(Settings):
    """An instance that can be called, too."""

    def __call__(self) -> None:
        raise AssertionError("it is the instance")


class Maker:
    """Makes the instance."""

    def __call__(self) -> Settings:
        return Settings()

    async def later(self) -> Settings:
        return Settings()


class AsyncMaker:
    """Makes the instance, and awaits."""

    async def __call__(self) -> Settings:
        return Settings()


class Answers(Protocol):
    """A function that a tool calls."""

    def __call__(self) -> Settings: ...


@functools.lru_cache
def once() -> Settings:
    """Make the instance once, as many services do."""
    return Settings()


class Methods:
    """Cached methods."""

    @functools.cache  # noqa: B019
    def make(self) -> Settings:
        return Settings()


def make() -> Settings:
    """Make the instance."""
    return Settings()


FACTORIES: dict[str, Any] = {
    "a class": Settings,
    "a function": make,
    "a method": Maker().later,
    "a partial": functools.partial(Settings),
    "a function with lru_cache": once,
    "a function with cache": functools.cache(Settings),
    "a cached method": Methods().make,
    "an object with __call__": Maker(),
    "an object with an async __call__": AsyncMaker(),
    "a wrapped function": functools.wraps(once)(make),
}


@tool(effect="read")
async def look(settings: Annotated[Settings, Provide[Settings]]) -> str:
    """Look at the settings."""
    return settings.name


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=[*FACTORIES])
async def test_what_makes_an_instance_is_called(factory: Any) -> None:
    """Issue 36, 1: the tool got the cached function, or the object, instead of the instance."""
    async with Gate([look], provide={Settings: factory}) as gate:
        assert await gate.invoke("look", {}) == "made"


@pytest.mark.parametrize("given", [Settings(), Own(), MagicMock(name="fake"), MagicMock(spec=Settings)])
async def test_an_instance_is_not_called(given: Any) -> None:
    given.name = "given"
    async with Gate([look], provide={Settings: given}) as gate:
        assert await gate.invoke("look", {}) == "given"


async def test_an_object_for_a_protocol_of_functions_is_not_called() -> None:
    """The control: what can be called is the instance where the token says so."""

    @tool(effect="read")
    async def ask(
        answers: Annotated[Answers, Provide[Answers]], named: Annotated[Callable[[], Settings], Provide["named"]]
    ) -> bool:
        return isinstance(answers(), Settings) and isinstance(named(), Settings)

    async with Gate([ask], provide={Answers: Maker(), "named": Maker()}) as gate:
        assert await gate.invoke("ask", {}) is True
