"""A factory with a parameter that nothing supplies is refused before the first call, with the line to write."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pytest
from dependency_injector import containers, providers
from pydantic import BaseModel

from callgate import Gate, Provide, Scoped, tool
from callgate.errors import ProviderError


class Db:
    """What factories forget to mark."""


class Plain:
    """A class."""

    def __init__(self, db: Db) -> None:
        self.db = db


@dataclass
class Data:
    """A dataclass."""

    db: Db


class Called:
    """An object with a call."""

    def __call__(self, *, db: Db) -> Plain:
        return Plain(db)


def function(db: Db) -> Plain:
    return Plain(db)


async def coroutine(db: Db) -> Plain:
    return Plain(db)


def generator(db: Db) -> Iterator[Plain]:
    yield Plain(db)


async def async_generator(db: Db) -> AsyncIterator[Plain]:
    yield Plain(db)


@functools.lru_cache
def cached(db: Db) -> Plain:
    return Plain(db)


FORGETFUL: list[Any] = [
    Plain,
    Data,
    function,
    coroutine,
    generator,
    async_generator,
    contextmanager(generator),  # pyright: ignore[reportDeprecated]
    asynccontextmanager(async_generator),  # pyright: ignore[reportDeprecated]
    cached,
    functools.partial(function),
    Plain(Db()).__init__,  # type: ignore[misc]  # a bound method
]


@pytest.mark.parametrize("factory", FORGETFUL)
@pytest.mark.parametrize("scope", ["plain", "global", "session", "request", "execution"])
async def test_the_parameter_and_the_line_to_write_are_named_before_a_call(factory: Any, scope: Any) -> None:
    gate = Gate([], provide={Db: Db, "made": factory if scope == "plain" else Scoped(scope, factory)})
    with pytest.raises(
        ProviderError, match=r"takes 'db', and nothing supplies it; write db: Annotated\[Db, Provide\[Db\]\]"
    ):
        await gate.open()


async def test_an_object_with_a_call_is_held_to_the_same() -> None:
    with pytest.raises(ProviderError, match="takes 'db'"):
        await Gate([], provide={Db: Db, Plain: Called()}).open()


async def test_a_scoped_in_a_container_is_held_to_the_same() -> None:
    class App(containers.DeclarativeContainer):
        db = providers.Singleton(Db)
        plain = Scoped("request", function)

    with pytest.raises(ProviderError, match=r"Scoped\(scope, factory, App.db\)"):
        await Gate([], container=App()).open()


def supplies(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that it needs no arguments."""

    @functools.wraps(wrapped)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapped(Db(), *args, **kwargs)

    return call


class Meta(type):
    """Supplies the arguments of its classes."""

    def __call__(cls, *args: Any) -> Any:
        return super().__call__(*(args or (Db(),)))


class OfMeta(metaclass=Meta):
    """Is made by its metaclass."""

    def __init__(self, db: Db) -> None:
        self.db = db


class Settings(BaseModel):
    """Its constructor takes what it wants."""

    url: str = "x"


class Pair(NamedTuple):
    """Is made by ``__new__``."""

    a: int = 1
    b: int = 2


def marked(db: Annotated[Db, Provide[Db]], size: int = 3) -> Plain:
    return Plain(db)


def variadic(*args: object, **kwargs: object) -> Plain:
    return Plain(Db())


SUPPLIED: list[Any] = [
    marked,
    variadic,
    supplies(function),
    OfMeta,
    Settings,
    Pair,
    dict,
    functools.partial(function, Db()),
    functools.partial(function, db=Db()),
    functools.partial(functools.partial(function, db=Db())),
    functools.partial(Plain, Db()),
    Scoped("global", function, Db()),
    Scoped("global", function, db=Db()),
    Scoped("global", Plain, Db()),
    Scoped("global", functools.partial(lambda a, db: Plain(db), 1), Db()),
    lambda: Plain(Db()),
]


@pytest.mark.parametrize("factory", SUPPLIED)
async def test_what_gets_its_arguments_another_way_is_not_refused(factory: Any) -> None:
    """The control: none of these calls would fail."""

    @tool(effect="read")
    async def look(made: Annotated[Any, Provide["made"]]) -> str:
        """Look."""
        return type(made).__name__

    async with Gate([look], provide={Db: Db, "made": factory}) as gate:
        assert await gate.invoke(look, {})
