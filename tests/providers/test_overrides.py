"""``gate.override`` reaches all that was built from what it replaces, and everything is as before when the block ends."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, tool
from callgate.errors import ProviderError
from callgate.providers.overriding import Overriding


class Part:
    """What the application is made of."""

    def __init__(self, name: str = "real") -> None:
        self.name = name


class Left(Part):
    """One dependency."""


class Right(Part):
    """Another."""


class Service:
    """Is built from both."""

    def __init__(self, left: Annotated[Left, Provide[Left]], right: Annotated[Right, Provide[Right]]) -> None:
        self.parts = f"{left.name} {right.name}"


class Plain:
    """The same, for a container, which needs no marks."""

    def __init__(self, left: Left, right: Right) -> None:
        self.parts = f"{left.name} {right.name}"


def function(left: Annotated[Left, Provide[Left]], right: Annotated[Right, Provide[Right]]) -> Service:
    return Service(left, right)


async def coroutine(left: Annotated[Left, Provide[Left]], right: Annotated[Right, Provide[Right]]) -> Service:
    return Service(left, right)


async def generator(
    left: Annotated[Left, Provide[Left]], right: Annotated[Right, Provide[Right]]
) -> AsyncIterator[Service]:
    yield Service(left, right)


class Around:
    """Is built from the service, so only through it from the parts."""

    def __init__(self, service: Plain) -> None:
        self.parts = service.parts


class App(containers.DeclarativeContainer):
    left = providers.Singleton(Left)
    right = providers.Singleton(Right)
    factory = providers.Factory(Plain, left, right)
    singleton = providers.Singleton(Plain, left=left, right=right)
    thread_safe = providers.ThreadSafeSingleton(Plain, left, right)
    outer = providers.Singleton(Around, singleton)
    nested = providers.Factory(Around, service=providers.Singleton(Plain, left, right))
    scoped = Scoped("global", Plain, left, right)
    session = Scoped("session", Plain, left, right)


SOURCES = [Service, function, coroutine, generator]
BUILT: dict[str, Any] = {
    **{f"{source.__name__}, global": source for source in SOURCES},
    **{
        f"{source.__name__}, {scope}": Scoped(scope, source)
        for source in SOURCES
        for scope in ("global", "session", "request", "execution")
    },
}
IN_CONTAINER = ["factory", "singleton", "thread_safe", "outer", "nested", "scoped", "session"]


def world(built: str) -> tuple[Gate, Any, Any]:
    """Return a gate with one tool that says what its service was built from, and the tokens of the parts."""
    token: Any = getattr(App, built) if built in IN_CONTAINER else Service

    @tool(effect="read")
    async def parts(service: Annotated[Any, Provide[token]]) -> str:
        """Return the names."""
        return str(service.parts)

    if built in IN_CONTAINER:
        return Gate([parts], container=App()), App.left, App.right
    return Gate([parts], provide={Left: Left, Right: Right, Service: BUILT[built]}), Left, Right


@pytest.mark.parametrize("built", [*BUILT, *IN_CONTAINER])
async def test_an_override_reaches_what_was_built_from_it_and_ends_with_its_block(built: str) -> None:
    gate, left, right = world(built)
    async with gate:

        async def parts() -> Any:
            return await gate.invoke("parts", {}, session_id="s")

        assert await parts() == "real real"
        with gate.override({left: Left("fake")}):
            assert await parts() == "fake real"
            with gate.override({right: lambda: Right("false")}):
                assert await parts() == "fake false"
            assert await parts() == "fake real"
        assert await parts() == "real real"
        with pytest.raises(ZeroDivisionError), gate.override({left: Left("fake"), right: Right("false")}):
            assert await parts() == "fake false"
            raise ZeroDivisionError
        assert await parts() == "real real"


ORDERS = [
    order
    for order in itertools.permutations(["+a", "-a", "+b", "-b", "+c", "-c"])
    if all(order.index(f"+{name}") < order.index(f"-{name}") for name in "abc")
]


@pytest.mark.parametrize("built", ["Service, global", "coroutine, session", "singleton", "outer", "nested"])
async def test_overlapping_blocks_end_in_any_order(built: str) -> None:
    """All 90 orders of three blocks: two of one token, where the later one wins, and one of another."""
    gate, left, right = world(built)
    blocks: dict[str, dict[Any, Any]] = {
        "a": {left: Left("a")},
        "b": {left: Left("b")},
        "c": {right: Right("c")},
    }
    async with gate:
        for order in ORDERS:
            opened: dict[str, ExitStack] = {}
            for step in order:
                name = step[1]
                if step[0] == "+":
                    opened[name] = ExitStack()
                    opened[name].enter_context(gate.override(blocks[name]))
                else:
                    opened.pop(name).close()
                lefts = [one for one in opened if one in "ab"]
                expected = f"{lefts[-1] if lefts else 'real'} {'c' if 'c' in opened else 'real'}"
                assert await gate.invoke("parts", {}, session_id="s") == expected, (order, step)


async def test_the_overrides_of_the_application_stay() -> None:
    app = App()
    app.left.override(providers.Object(Left("theirs")))

    @tool(effect="read")
    async def parts(service: Annotated[Any, Provide[App.factory]]) -> str:
        """Return the names."""
        return str(service.parts)

    async with Gate([parts], container=app) as gate:
        with gate.override({App.left: Left("fake")}):
            assert await gate.invoke(parts, {}) == "fake real"
        assert await gate.invoke(parts, {}) == "theirs real"
    assert len(app.left.overridden) == 1


async def test_synchronous_code_sees_the_new_instance_of_a_global_factory() -> None:
    seen: list[str] = []

    class Looks(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            seen.append(ctx.get(Service).parts)

    @tool(effect="read")
    def nothing() -> None:
        """Do nothing."""

    async with Gate([nothing], [Looks()], provide={Left: Left, Right: Right, Service: Service}) as gate:
        with gate.override({Left: Left("fake")}):
            await gate.invoke("nothing", {})
        await gate.invoke("nothing", {})
    assert seen == ["fake real", "real real"]


def test_a_resource_that_was_made_from_it_is_named() -> None:
    """A resource is opened once; the block cannot open another one, and would leave a fake behind."""

    def opened(left: Left) -> Iterator[Plain]:
        yield Plain(left, Right())

    class Holds(containers.DeclarativeContainer):
        left = providers.Singleton(Left)
        pool = providers.Resource(opened, left)

    gate = Gate([], container=Holds())
    with (
        pytest.raises(ProviderError, match=r"does not reach pool.*override pool as well"),
        gate.override({Holds.left: Left()}),
    ):
        pass
    with gate.override({Holds.left: Left(), Holds.pool: 1}):
        pass
    with pytest.raises(ProviderError, match="no provider"), gate.override({Service: 1}):
        pass


async def test_control_without_the_dependents_an_override_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged control of the tests above."""
    monkeypatch.setattr(Overriding, "_origins", lambda *_: frozenset())
    for built in ("Service, global", "singleton"):
        gate, left, _ = world(built)
        async with gate:
            await gate.invoke("parts", {})
            with gate.override({left: Left("fake")}):
                assert await gate.invoke("parts", {}) == "real real"
