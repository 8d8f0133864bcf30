"""Resources of a dependency-injector container, and singletons: who closes them, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Closing

from callgate import Gate, Provide, tool
from callgate.errors import ProviderError
from callgate.runtime.lifespan import factories

LOG: list[str] = []


@pytest.fixture(autouse=True)
def log() -> Iterator[list[str]]:
    LOG.clear()
    yield LOG
    LOG.clear()


def plain(name: str, needs: object = None, fails: bool = False) -> Iterator[str]:
    LOG.append(f"+{name}")
    yield name
    LOG.append(f"-{name}")
    if fails:
        raise OSError(name)


async def asynchronous(name: str, needs: object = None) -> AsyncIterator[str]:
    LOG.append(f"+{name}")
    yield name
    LOG.append(f"-{name}")


class App(containers.DeclarativeContainer):
    pool = providers.Resource(plain, "pool")
    client = providers.Resource(asynchronous, "client", pool)
    unused = providers.Resource(plain, "unused")
    service: providers.Provider[Any] = providers.Factory(
        dict, client=client, inner=providers.Resource(plain, "inner", pool)
    )


@tool(effect="read")
async def use(service: Annotated[dict[str, Any], Provide[App.service]]) -> str:
    """Use it."""
    return ",".join(sorted(service))


async def test_the_gate_closes_the_resources_that_it_opened_each_before_what_it_needs() -> None:
    app = App()
    for _ in range(2):
        async with Gate([use], container=app) as gate:
            assert await gate.invoke(use, {}) == await gate.invoke(use, {}) == "client,inner"
            assert sorted(LOG) == ["+client", "+inner", "+pool"]
        assert sorted(LOG[3:]) == ["-client", "-inner", "-pool"]
        assert LOG[-1] == "-pool"
        LOG.clear()


async def test_a_resource_that_the_application_opened_stays_open() -> None:
    app = App()
    app.pool.init()
    async with Gate([use], container=app) as gate:
        await gate.invoke(use, {})
    assert "-client" in LOG
    assert "-pool" not in LOG
    app.pool.shutdown()


async def test_a_resource_that_fails_to_close_keeps_no_other_open() -> None:
    class Fails(containers.DeclarativeContainer):
        first = providers.Resource(plain, "first")
        second = providers.Resource(plain, "second", first, fails=True)

    @tool(effect="read")
    async def both(second: Annotated[str, Provide[Fails.second]]) -> str:
        """Use both."""
        return second

    with pytest.raises(OSError, match="second"):
        async with Gate([both], container=Fails()) as gate:
            await gate.invoke(both, {})
    assert LOG == ["+first", "+second", "-second", "-first"]


async def test_control_without_the_closing_a_resource_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factories, "open_resources", lambda _: [])
    async with Gate([use], container=App()) as gate:
        await gate.invoke(use, {})
    assert not [one for one in LOG if one.startswith("-")]


def test_closing_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(ProviderError, match=r"'a' is marked Closing.*Annotated\[T, Provide"):

        @tool(effect="read")
        async def annotated(a: Annotated[str, Closing[Provide[App.pool]]]) -> None: ...

    with pytest.raises(ProviderError, match=r"'a' is marked Closing.*Scoped\('request', factory\)"):

        @tool(effect="read")
        async def default(a: str = Closing[Provide[App.pool]]) -> None: ...


class Db:
    """A token."""


class Special(Db):
    """A kind of it."""


def make() -> Db:
    return Db()


@pytest.mark.parametrize("source", [Db, Special, make, lambda: Db()])  # noqa: PLW0108  (a lambda is the case)
async def test_a_class_or_function_in_place_of_a_singleton_is_refused(source: Any) -> None:
    """``provide`` calls it, and the tool would get the class itself from ``register_singletons``."""

    @tool(effect="read")
    async def kind(db: Annotated[Db, Provide[Db]]) -> str:
        """Say what it is."""
        return type(db).__name__

    gate = Gate()
    with pytest.raises(ProviderError, match=r"write register_singletons\(\{Db: Db\(\.\.\.\)\}\), or provide\("):
        gate.providers.register_singletons({Db: source})
    gate.providers.register_singletons({Db: Db(), "function": make})
    gate.add(kind)
    other = Gate([kind], provide={Db: source})
    async with gate, other:
        assert await gate.invoke(kind, {}) == "Db"
        assert await other.invoke(kind, {}) in {"Db", "Special"}
