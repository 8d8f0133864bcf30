"""Instances that are context managers: entered once, closed once, in each scope, plain and asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import pytest

from callgate import Gate, Provide, Scoped, ToolFailed, tool
from callgate.errors import ProviderError
from callgate.providers.registry import ProviderRegistry

LOG: list[str] = []
SCOPES = ("execution", "request", "session", "global")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    LOG.clear()


class Connection:
    """What tools get; it is closed by ``close`` or ``aclose``."""

    def close(self) -> None:
        """Close it."""
        LOG.append("-")

    async def aclose(self) -> None:
        """Close it."""
        LOG.append("-")


def opened() -> Connection:
    """Open a connection."""
    LOG.append("+")
    return Connection()


class Plain(Connection):
    """A plain context manager that is its own value, as a session is."""

    def __enter__(self) -> Self:
        LOG.append("+")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Async(Connection):
    """An asynchronous one."""

    async def __aenter__(self) -> Self:
        LOG.append("+")
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.sleep(0)
        await self.aclose()


class Both(Async):
    """A client that refuses the plain use, as some do."""

    def __enter__(self) -> Self:
        raise TypeError("use async with")

    def __exit__(self, *error: object) -> None:
        raise AssertionError


class Awaitable(Async):
    """Both an awaitable and a context manager: an awaited one would never be closed."""

    def __await__(self) -> Any:
        raise AssertionError
        yield


class Other:
    """A context manager whose value is another object."""

    def __enter__(self) -> Connection:
        return opened()

    def __exit__(self, *error: object) -> None:
        LOG.append("-")


async def awaited_plain() -> Plain:
    """An async factory."""
    return Plain()


async def awaited_async() -> Async:
    """An async factory."""
    return Async()


def generator() -> Generator[Connection]:
    """A generator."""
    with Other() as it:
        yield it


async def async_generator() -> AsyncGenerator[Connection]:
    """An async generator."""
    with Other() as it:
        yield it


FACTORIES: dict[str, Callable[..., Any]] = {
    "plain class": Plain,
    "async class": Async,
    "class with both": Both,
    "awaitable": Awaitable,
    "another value": Other,
    "plain function": lambda: Plain(),  # noqa: PLW0108
    "async function, plain manager": awaited_plain,
    "async function, async manager": awaited_async,
    "closing": lambda: closing(opened()),
    "aclosing": lambda: aclosing(opened()),
    "contextmanager": contextmanager(generator),
    "asynccontextmanager": asynccontextmanager(async_generator),
    "generator": generator,
    "async generator": async_generator,
}
Held = Annotated[Any, Provide["connection"]]


@tool(effect="read")
async def use(fails: bool = False, *, it: Held) -> str:
    """Use it."""
    LOG.append(type(it).__name__)
    if fails:
        raise ValueError
    return "used"


@tool(name="use", effect="read")
def plain_use(fails: bool = False, *, it: Held) -> str:
    """Use it in a thread."""
    LOG.append(type(it).__name__)
    if fails:
        raise ValueError
    return "used"


@pytest.mark.parametrize("taker", [use, plain_use], ids=["async tool", "plain tool"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", FACTORIES)
async def test_each_instance_is_entered_and_closed_once(name: str, scope: Any, taker: Any) -> None:
    """The gate is left as well, so instances of sessions and of the gate have ended."""
    gate = Gate([taker], provide={"connection": Scoped(scope, FACTORIES[name])})
    async with gate, gate.session("s") as session:
        assert await session.invoke("use", {}) == "used"
        with pytest.raises(ToolFailed):
            await session.invoke("use", {"fails": True})
    (kind,) = {one for one in LOG if one not in "+-"}
    assert kind in {"Connection", "Plain", "Async", "Both", "Awaitable"}
    each = ["+", kind, "-"]
    assert (each * 2 if scope in {"execution", "request"} else ["+", kind, kind, "-"]) == LOG


@pytest.mark.parametrize(
    "value",
    [
        lambda: closing(opened()),
        lambda: aclosing(opened()),
        contextmanager(generator),
        asynccontextmanager(async_generator),
    ],
    ids=["closing", "aclosing", "contextmanager", "asynccontextmanager"],
)
async def test_a_wrapper_of_contextlib_that_is_given_as_a_value_is_entered(value: Callable[[], Any]) -> None:
    async with Gate([use], provide={"connection": value()}) as gate:
        await gate.invoke("use")
    assert LOG == ["+", "Connection", "-"]


async def test_a_connection_that_is_wrapped_by_scope_and_closing_is_closed_with_its_request() -> None:
    source = Scoped("request", closing, Scoped("request", opened))
    async with Gate([use], provide={"connection": source}) as gate:
        await gate.invoke("use")
        assert LOG == ["+", "Connection", "-"]


async def test_values_and_instances_of_other_providers_are_not_entered_again() -> None:
    """A value belongs to the application; what a factory only hands on belongs to the provider that made it."""
    shared = Plain()
    async with Gate([use], provide={"connection": shared}) as gate:
        await gate.invoke("use")
    assert LOG == ["Plain"]
    LOG.clear()

    def alias(it: Annotated[Plain, Provide[Plain]]) -> Plain:
        return it

    provide = {Plain: Scoped("request", Plain), "connection": Scoped("request", alias)}
    async with Gate([use], provide=provide) as gate:
        await gate.invoke("use")
    assert LOG == ["+", "Plain", "-"]


@pytest.mark.parametrize("kind", [threading.Lock, threading.Condition, asyncio.Lock, asyncio.Semaphore, Path])
async def test_locks_and_paths_are_injected_as_they_are(kind: Any) -> None:
    """An entered lock would be held by the provider, and the tool that acquires it would wait for ever."""

    @tool(effect="read")
    async def take(*, it: Held) -> bool:
        return isinstance(it, Path) or not getattr(it, "locked", lambda: False)()

    async with Gate([take], provide={"connection": kind}) as gate:
        assert await gate.invoke(take) is True


@pytest.mark.parametrize("factory", [Async, awaited_plain])
async def test_plain_code_that_asks_for_an_asynchronous_one_is_told_to_resolve_it(factory: Any) -> None:
    registry = ProviderRegistry()
    registry.provide({"connection": Scoped("request", factory)})
    async with registry.request() as scope:
        with pytest.raises(ProviderError, match=r"await ctx\.resolve"):
            scope.take(registry.recipes.of("connection"))


async def test_the_linter_names_a_manager_of_the_request_that_ends_after_the_outcome() -> None:
    @tool(effect="irreversible")
    async def pay(*, it: Held) -> str:
        return "paid"

    for factory, found in ((Plain, True), (Connection, False)):
        gate = Gate([pay], provide={"connection": Scoped("request", factory)}, allow_unguarded=True, mode="development")
        assert ("ends_after_outcome" in {one.rule for one in gate.lint()}) is found
