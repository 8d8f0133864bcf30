"""The instances of a block of ``gate.override``: made for tools and plain hooks, in every way to write it, and closed at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, ToolContext, as_tool, tool
from callgate.errors import ProviderError, ToolFailed
from callgate.providers.registry import ProviderRegistry


class Settings:
    """What everything is built from."""

    url = "real"


class Fake(Settings):
    """Stands in its place."""

    url = "fake"


class Pool:
    """Is opened and closed asynchronously."""

    def __init__(self, url: str) -> None:
        self.url = url


class Repo:
    """Is built from the pool."""

    def __init__(self, pool: Annotated[Pool, Provide[Pool]]) -> None:
        self.url = pool.url


class Looks(Hook):
    """A plain hook."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.seen.append(ctx.get(Repo).url)


def gate_of(seen: list[str], log: list[str]) -> Gate:
    """Return a gate whose tool and plain hook write down what they find; the log has the pools that are open."""

    async def pool(settings: Annotated[Settings, Provide[Settings]]) -> AsyncIterator[Pool]:
        await asyncio.sleep(0)  # it connects
        log.append(settings.url)
        yield Pool(settings.url)
        await asyncio.sleep(0)
        log.remove(settings.url)

    @tool(effect="read")
    async def find(repo: Annotated[Repo, Provide[Repo]]) -> None:
        """Find."""
        seen.append(repo.url)

    @tool(effect="read")
    def find_in_thread(ctx: ToolContext) -> None:
        """Find, in a thread."""
        seen.append(ctx.get(Repo).url)

    provided = {Settings: Settings, Pool: pool, Repo: Repo}
    return Gate([find, find_in_thread], [Looks(seen)], provide=provided)


async def settled() -> None:
    """Let the background end: ``with`` closes there what is closed asynchronously."""
    for _ in range(10):
        await asyncio.sleep(0)


async def with_async(gate: Gate, call: Callable[[], Awaitable[None]]) -> None:
    async with gate.override({Settings: Fake}):
        await call()


async def with_plain(gate: Gate, call: Callable[[], Awaitable[None]]) -> None:
    with gate.override({Settings: Fake}):
        await call()


async def both_begin_before(gate: Gate, call: Callable[[], Awaitable[None]]) -> None:
    """Many calls begin at once, and need what does not exist yet."""
    with gate.override({Settings: Fake}):
        await asyncio.gather(call(), call(), call())


async def from_a_thread(gate: Gate, call: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()

    def block() -> None:
        with gate.override({Settings: Fake}):
            asyncio.run_coroutine_threadsafe(call(), loop).result()  # type: ignore[arg-type]

    await asyncio.to_thread(block)


@pytest.mark.parametrize("block", [with_async, with_plain, both_begin_before, from_a_thread])
@pytest.mark.parametrize("name", ["find", "find_in_thread"])
async def test_tools_and_plain_hooks_find_what_is_made_asynchronously(block: Any, name: str) -> None:
    seen: list[str] = []
    log: list[str] = []
    gate = gate_of(seen, log)

    async def call() -> None:
        await gate.invoke(name, {})
        assert log == ["real", "fake"]

    async with gate:
        await gate.invoke(name, {})
        for _ in range(2):
            await block(gate, call)
            await settled()
            assert log == ["real"]
            await gate.invoke(name, {})
    assert log == []
    assert [one for one in seen if one != "real"] in (["fake"] * 4, ["fake"] * 12)
    assert seen[:2] == seen[-2:] == ["real", "real"]


def test_a_synchronous_host_waits_for_both_ends() -> None:
    seen: list[str] = []
    log: list[str] = []
    gate = gate_of(seen, log)
    with gate.sync() as g:
        with gate.override({Settings: Fake}):
            assert log == ["real", "fake"]
            g.invoke("find", {})
        assert log == ["real"]
        g.invoke("find", {})
    assert seen == ["fake", "fake", "real", "real"]


def test_a_block_between_two_runs_of_the_loop_waits_for_nothing() -> None:
    """As a plain fixture of pytest does, while the loop of the tests stands still."""
    seen: list[str] = []
    log: list[str] = []
    gate = gate_of(seen, log)
    with asyncio.Runner() as runner:
        runner.run(gate.open())
        with gate.override({Settings: Fake}):
            runner.run(gate.invoke("find", {}))
        runner.run(gate.invoke("find", {}))
        runner.run(settled())
        assert log == ["real"]
        runner.run(gate.close())
    assert seen == ["fake", "fake", "real", "real"]
    assert log == []


async def test_a_block_that_ends_in_another_task_while_a_call_makes_its_instances_fails_no_call() -> None:
    """The call makes those of the blocks that are still open."""
    log: list[str] = []
    connecting = asyncio.Event()
    go_on = asyncio.Event()

    async def pool(settings: Annotated[Settings, Provide[Settings]], name: Annotated[str, Provide["name"]]) -> Any:
        connecting.set()
        await go_on.wait()
        made = Pool(f"{settings.url} {name}")
        log.append(made.url)
        yield made
        log.remove(made.url)

    @tool(effect="read")
    async def find(repo: Annotated[Repo, Provide[Repo]]) -> str:
        """Find."""
        return repo.url

    go_on.set()
    async with Gate([find], provide={Settings: Settings, "name": "real", Pool: pool, Repo: Repo}) as gate:
        go_on.clear()
        connecting.clear()
        with gate.override({"name": "fake"}):
            with gate.override({Settings: Fake}):
                # asyncio: the call goes on while the block ends
                calling = asyncio.ensure_future(gate.invoke(find, {}))
                await connecting.wait()
            go_on.set()
            assert await calling == "real fake"
        await settled()
        assert log == ["real real"]


async def test_a_block_in_a_tool_reaches_its_nested_calls_and_gates_with_more_tools() -> None:
    @tool(effect="read")
    async def look(one: Annotated[str, Provide["one"]]) -> str:
        """Look."""
        return one

    @tool(effect="read")
    async def outer(ctx: ToolContext, one: Annotated[str, Provide["one"]]) -> list[str]:
        """Call."""
        with gate.override({"name": "fake"}):
            inside = await ctx.call("look", {})
        return [one, inside, await ctx.call("look", {})]

    @tool(effect="read")
    async def look_too(one: Annotated[str, Provide["one"]]) -> str:
        """Look."""
        return one

    def of_request(name: Annotated[str, Provide["name"]]) -> str:
        return name

    provided = {"name": "real", "one": Scoped("request", of_request)}
    async with Gate([look, outer], provide=provided) as gate:
        assert await gate.invoke(outer, {}) == ["real", "fake", "real"]
        more = gate.with_tools([as_tool(look_too)])
        for opened in (gate, more):
            with opened.override({"name": "fake"}):
                assert [await more.invoke(name, {}) for name in ("look", "look_too")] == ["fake", "fake"]
            assert [await more.invoke(name, {}) for name in ("look", "look_too")] == ["real", "real"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_gate_that_opens_in_the_block_has_the_real_instances_after_it(is_async: bool) -> None:
    seen: list[str] = []
    log: list[str] = []
    gate = gate_of(seen, log)
    block = gate.override({Settings: Fake})
    await block.__aenter__() if is_async else block.__enter__()
    async with gate:
        await gate.invoke("find", {})
        await block.__aexit__(None, None, None) if is_async else block.__exit__(None, None, None)
        await gate.invoke("find", {})
        await settled()
        assert log == ["real"]
    assert seen == ["fake", "fake", "real", "real"]
    assert log == []


async def test_a_gate_that_closes_in_the_block_closes_all() -> None:
    seen: list[str] = []
    log: list[str] = []
    gate = gate_of(seen, log)
    async with gate.override({Settings: Fake}):
        async with gate:
            await gate.invoke("find", {})
        assert log == []
    assert seen == ["fake", "fake"]


async def test_a_call_that_opens_the_block_finds_it_or_is_told_to_await() -> None:
    """Nothing asynchronous begins where nothing can await it."""
    log: list[str] = []
    found: list[str] = []

    @tool(effect="read")
    async def inside(ctx: ToolContext) -> None:
        """Open the block."""
        with gate.override({Settings: Fake}):
            with pytest.raises(ProviderError, match="use `await ctx"):
                ctx.get(Repo)
            view: Any = ctx
            found.append((await view.resolve(Repo)).url)
            found.append(ctx.get(Repo).url)
        found.append(ctx.get(Repo).url)

    gate = gate_of([], log)
    gate.add(inside)
    async with gate:
        await gate.invoke(inside, {})
    assert found == ["fake", "fake", "real"]
    assert log == []


async def test_a_factory_that_fails_is_named_and_leaves_nothing() -> None:
    seen: list[str] = []
    log: list[str] = []

    class Broken(Settings):
        def __init__(self) -> None:
            raise ZeroDivisionError

    gate = gate_of(seen, log)
    async with gate:
        with pytest.raises(ProviderError, match="the factory of Settings failed: ZeroDivisionError"):
            async with gate.override({Settings: Broken}):
                raise AssertionError("the block begins")
        with gate.override({Settings: Broken}), pytest.raises(ToolFailed):
            await gate.invoke("find", {})
        await gate.invoke("find", {})
        assert log == ["real"]
    assert seen == ["real", "real"]


async def test_instances_of_sessions_are_closed_with_the_block_before_what_they_need() -> None:
    log: list[str] = []

    async def base() -> AsyncIterator[str]:
        yield "base"
        log.append("base")

    def of_session(given: Annotated[str, Provide["base"]], name: Annotated[str, Provide["name"]]) -> Iterator[str]:
        yield f"{given} {name}"
        log.append(f"session {name}")

    @tool(effect="read")
    async def look(one: Annotated[str, Provide["session"]]) -> str:
        """Look."""
        return one

    provided = {"name": "real", "base": "real", "session": Scoped("session", of_session)}
    async with Gate([look], provide=provided) as gate, gate.session() as session:
        assert await session.invoke(look, {}) == "real real"
        async with gate.override({"name": "fake", "base": base}):
            assert await session.invoke(look, {}) == "base fake"
            assert await gate.invoke(look, {}) == "base fake"
            assert log == ["session fake"]  # that of the call without a session
        assert log == ["session fake", "session fake", "base"]
        assert await session.invoke(look, {}) == "real real"
        assert log == ["session fake", "session fake", "base"]


async def test_an_override_that_does_not_last_as_long_as_its_dependents_is_refused() -> None:
    from dependency_injector import containers, providers

    class App(containers.DeclarativeContainer):
        settings = providers.Factory(Settings)
        pool = providers.Singleton(lambda settings: Pool(settings.url), settings)

    gate = Gate([], container=App())
    with (
        pytest.raises(ProviderError, match="lasts for one request, and pool, which outlives it"),
        gate.override({App.settings: Scoped("request", Fake)}),
    ):
        pass
    with gate.override({App.settings: Fake}):
        pass


async def test_a_parameter_with_a_default_and_without_a_provider_is_reached_in_factories_too() -> None:
    def of_any(settings: Annotated[Settings | None, Provide[Settings]] = None) -> Pool:
        return Pool("none" if settings is None else settings.url)

    @tool(effect="read")
    async def find(pool: Annotated[Pool, Provide[Pool]]) -> str:
        """Find."""
        return pool.url

    async with Gate([find], provide={Pool: of_any}) as gate:
        assert await gate.invoke(find, {}) == "none"
        with gate.override({Settings: Fake}):
            assert await gate.invoke(find, {}) == "fake"
        assert await gate.invoke(find, {}) == "none"


async def test_a_registry_closes_what_is_closed_at_once_and_names_the_rest() -> None:
    log: list[str] = []

    def plain() -> Iterator[str]:
        yield "plain"
        log.append("plain")

    async def later() -> AsyncIterator[str]:
        yield "later"
        log.append("later")

    registry = ProviderRegistry()
    registry.provide({"a": "real", "b": "real"})

    async def use() -> list[object]:
        async with registry.request() as scope:
            return [await scope.provide(registry.recipes.of(token)) for token in "ab"]

    async with registry.override({"a": plain, "b": later}):
        assert await use() == ["plain", "later"]
    assert log == ["later", "plain"]
    with pytest.raises(ProviderError, match="async with"), registry.override({"a": plain, "b": later}):
        assert await use() == ["plain", "later"]
    assert log == ["later", "plain", "plain"]
    assert await use() == ["real", "real"]
