"""What scopes cost: a request scope against dishka's and wireup's in the same process, and a tool's singletons.

A request scope is entered, one instance of an async generator that takes a singleton is asked for by its token, and the
scope is left. The peers run as their documentation tells for speed: one task a scope, so no locks in it. Callgate's is
safe for tasks that ask for the same at once. Exceptions reach the generators in all three.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated, Any

import dishka
import wireup
from dependency_injector import containers, providers

from benchmarks.floors import IN_SCHEMA, OUT_SCHEMA, Sum, add, floor2s
from benchmarks.timing import Call, Effort, interleave
from benchmarks.twelve import call_of
from callgate import Gate, Provide, Scoped, tool
from callgate.providers.registry import ProviderRegistry
from callgate.runtime.lifespan.factories import Factories


class Engine:
    """The singleton."""

    def __init__(self) -> None:
        self.sum: Sum = {"sum": 3}


class Transaction:
    """What lives as long as a request."""

    __slots__ = ("engine",)

    def __init__(self, engine: Engine) -> None:
        self.engine = engine


async def begin(engine: Engine) -> AsyncGenerator[Transaction, None]:
    yield Transaction(engine)


async def begin_marked(engine: Annotated[Engine, Provide[Engine]]) -> AsyncGenerator[Transaction, None]:
    yield Transaction(engine)


# ---------------------------------------------------------------------- the same with each


async def with_callgate(stack: AsyncExitStack) -> Call:
    registry = ProviderRegistry()
    registry.provide({Engine: Engine, Transaction: Scoped("request", begin_marked)})
    factories = Factories(registry)
    await factories.open()
    stack.push_async_callback(factories.close)
    recipe_of, request_scope = registry.recipes.of, registry.request

    async def call() -> Sum:
        async with request_scope() as scope:
            return (await scope.provide(recipe_of(Transaction))).engine.sum  # type: ignore[no-any-return]

    return call


async def with_dishka(stack: AsyncExitStack) -> Call:
    provider = dishka.Provider()
    provider.provide(Engine, scope=dishka.Scope.APP)
    provider.provide(begin, scope=dishka.Scope.REQUEST, provides=Transaction)
    container = dishka.make_async_container(provider)
    stack.push_async_callback(container.close)

    async def call() -> Sum:
        async with container() as scope:
            return (await scope.get(Transaction)).engine.sum

    return call


async def with_wireup(stack: AsyncExitStack) -> Call:
    engine: Any = wireup.injectable(lifetime="singleton")(type("Engine", (Engine,), {}))

    async def begin_mine(engine: Any) -> AsyncGenerator[Transaction, None]:
        yield Transaction(engine)

    begin_mine.__annotations__ = {"engine": engine, "return": AsyncGenerator[Transaction, None]}
    container = wireup.create_async_container(injectables=[engine, wireup.injectable(lifetime="scoped")(begin_mine)])
    stack.push_async_callback(container.close)

    async def call() -> Sum:
        async with container.enter_scope() as scope:
            return (await scope.get(Transaction)).engine.sum

    return call


# ---------------------------------------------------------------------- a tool that takes three singletons


class App(containers.DeclarativeContainer):
    one = providers.Singleton(Engine)
    two = providers.Singleton(Engine)
    three = providers.Singleton(Engine)


async def of_gate(
    a: int,
    b: int,
    note: str | None = None,
    *,
    one: Annotated[Engine, Provide["one"]],
    two: Annotated[Engine, Provide["two"]],
    three: Annotated[Engine, Provide["three"]],
) -> Sum:
    return {"sum": a + b}


async def of_container(
    a: int,
    b: int,
    note: str | None = None,
    *,
    one: Annotated[Engine, Provide[App.one]],
    two: Annotated[Engine, Provide[App.two]],
    three: Annotated[Engine, Provide[App.three]],
) -> Sum:
    return {"sum": a + b}


def gate_for(body: Any, **options: Any) -> Gate:
    """A gate with one tool, without hooks."""
    make = tool(name="add", parameters=IN_SCHEMA, output_schema=OUT_SCHEMA, effect="read")
    return Gate([make(body)], **options)


async def measure(effort: Effort) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        scopes = await interleave(
            {"callgate": await with_callgate(stack)},
            {"dishka": await with_dishka(stack), "wireup": await with_wireup(stack)},
            effort,
        )
        gates = {
            "none": gate_for(add),
            "provided": gate_for(of_gate, provide={"one": Engine, "two": Engine, "three": Engine}),
            "container": gate_for(of_container, container=App()),
        }
        calls = {name: call_of(await stack.enter_async_context(gate)) for name, gate in gates.items()}
        found = await interleave(calls, {"floor2s": floor2s()}, effort)
    mine = scopes["callgate"]
    return {
        "scope_us": mine.us,
        "scope_dishka_us": scopes["dishka"].us,
        "scope_wireup_us": scopes["wireup"].us,
        "scope_x_dishka": mine.x("dishka"),
        "scope_x_wireup": mine.x("wireup"),
        "scope_x_best_peer": max(mine.x("dishka"), mine.x("wireup")),
        "three_singletons_us_scaled": found["provided"].minus(found["none"], "floor2s") * 4.0,
        "three_container_singletons_us_scaled": found["container"].minus(found["none"], "floor2s") * 4.0,
    }
