"""Overrides of what dependency-injector provides: by every name of a provider, of a configuration, of nested containers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, ToolContext, tool
from callgate.errors import ProviderError


class Db:
    """What is replaced."""

    def __init__(self, name: str = "real") -> None:
        self.name = name


class Marked:
    """Is built from it, by a mark."""

    def __init__(self, db: Annotated[Db, Provide[Db]]) -> None:
        self.name = db.name


class Plain:
    """Is built from it, by the container."""

    def __init__(self, db: Db) -> None:
        self.name = db.name


def gate_of(token: Any, hooks: Any = (), **options: Any) -> Gate:
    """Return a gate whose tool says what its parameter was built from."""

    @tool(effect="read")
    async def look(found: Annotated[Any, Provide[token]]) -> str:
        """Look."""
        return str(found.name)

    return Gate([look], hooks, **options)


async def assert_reached(gate: Gate, overrides: dict[Any, Any], fake: str = "fake") -> None:
    """The tool sees the real thing before the block and after it, and the fake inside, in both ways to write it."""
    async with gate:

        async def look() -> Any:
            return await gate.invoke("look", {}, session_id="s")

        for _ in range(2):
            assert await look() == "real"
            with gate.override(overrides):
                assert await look() == fake
            assert await look() == "real"
            async with gate.override(overrides):
                assert await look() == fake


class App(containers.DeclarativeContainer):
    singleton = providers.Singleton(Db)
    factory = providers.Factory(Db)
    scoped = Scoped("global", Db)


SOURCES = ["of the object", "of the class", "called by Scoped"]
NAMES = ["token", "provider", "provider of the class", "dotted name"]


def is_known(kind: str, has_container: bool, source: str, named: str) -> bool:
    """Return True for what the gate can know: without a container only the provider that it was given; a Scoped is not called."""
    if source == "called by Scoped" and (kind == "scoped" or named != "token"):
        return False
    return has_container or (kind != "scoped" and source != "of the class" and named in ("token", "provider"))


CASES = [
    case
    for case in itertools.product(["singleton", "factory", "scoped"], [True, False], SOURCES, NAMES)
    if is_known(*case)
]


@pytest.mark.parametrize(("kind", "has_container", "source", "named"), CASES)
@pytest.mark.parametrize("built", [Db, Marked])
async def test_a_provider_that_stands_as_a_source_is_reached_by_each_of_its_names(
    kind: str, built: Any, has_container: bool, source: str, named: str
) -> None:
    app = App()
    own, of_class = getattr(app, kind), getattr(App, kind)
    given: Any = {"of the object": own, "of the class": of_class, "called by Scoped": Scoped("global", own)}[source]
    token: Any = {"token": Db, "provider": own, "provider of the class": of_class, "dotted name": kind}[named]
    options: dict[str, Any] = {"container": app} if has_container else {}
    gate = gate_of(built, provide={Db: given, Marked: Marked}, **options)
    await assert_reached(gate, {token: Db("fake")})
    await assert_reached(gate, {token: lambda: Db("fake")})


async def later() -> Db:
    """Connect."""
    await asyncio.sleep(0)
    return Db("fake")


class Deep(containers.DeclarativeContainer):
    __self__ = providers.Self()
    config = providers.Configuration(default={"db": {"name": "real", "port": 1}, "other": "x"})
    db = providers.Singleton(Db, config.db.name)
    required = providers.Singleton(Db, config.db.name.required())
    typed = providers.Singleton(Db, config.db["name"].as_(str))
    whole = providers.Singleton(lambda config: Db(config["db"]["name"]), config)
    section = providers.Singleton(lambda config: Db(config["name"]), config.db)
    factory = providers.Factory(Db, config.db.name)
    scoped = Scoped("global", Db, config.db.name)
    session = Scoped("session", Db, name=config.db.name)
    locator = providers.Singleton(lambda container: Plain(container.db()), __self__)


@pytest.mark.parametrize(
    "built", ["db", "required", "typed", "whole", "section", "factory", "scoped", "session", "locator"]
)
@pytest.mark.parametrize(
    "overrides",
    [
        {Deep.config.db.name: "fake"},
        {Deep.config.db: {"name": "fake"}},
        {Deep.config: {"db": {"name": "fake"}}},
        {"config.db.name": "fake"},
        {Deep.config: {"db": {"name": "lost"}}, Deep.config.db.name: "fake"},
    ],
)
async def test_an_override_of_a_configuration_reaches_what_reads_it(built: str, overrides: Any) -> None:
    await assert_reached(gate_of(getattr(Deep, built), container=Deep()), overrides)


async def test_an_override_of_a_configuration_leaves_the_other_options_and_the_applications_own_values() -> None:
    app = Deep()
    app.config.from_dict({"db": {"name": "theirs"}})
    async with Gate([], container=app) as gate:
        with gate.override({Deep.config.db.name: "a"}):
            with gate.override({Deep.config: {"other": "y"}}):
                assert app.config() == {"db": {"name": "a", "port": 1}, "other": "y"}
            assert app.config() == {"db": {"name": "a", "port": 1}, "other": "x"}
        assert app.config() == {"db": {"name": "theirs", "port": 1}, "other": "x"}


async def test_an_option_that_a_nested_container_takes_over_is_reached() -> None:
    class Core(containers.DeclarativeContainer):
        config = providers.Configuration()
        db = providers.Singleton(Db, config.name)

    class Outer(containers.DeclarativeContainer):
        config = providers.Configuration(default={"core": {"name": "real"}})
        core = providers.Container(Core, config=config.core)

    for overrides in ({Outer.config.core.name: "fake"}, {Outer.config: {"core": {"name": "fake"}}}):
        await assert_reached(gate_of(Outer.core.db, container=Outer()), overrides)


def opened(name: str) -> Iterator[Db]:
    yield Db(name)


class WithResource(containers.DeclarativeContainer):
    config = providers.Configuration(default={"name": "real", "other": "x"})
    resource = providers.Resource(opened, config.name)
    db = providers.Singleton(lambda db: db, resource)


async def test_a_resource_is_refused_only_if_it_reads_the_option() -> None:
    gate = gate_of(WithResource.db, container=WithResource())
    with pytest.raises(ProviderError, match="does not reach resource"), gate.override({WithResource.config.name: "x"}):
        pass
    with gate.override({WithResource.config.other: "y"}):
        pass
    await assert_reached(gate, {WithResource.config.name: "x", WithResource.resource: Db("fake")})


class Core(containers.DeclarativeContainer):
    db = providers.Singleton(Db)


class Outer(containers.DeclarativeContainer):
    core = providers.Container(Core)
    db = providers.Singleton(Plain, core.db)


async def test_a_nested_container_is_reached_by_its_provider_or_as_a_whole() -> None:
    class Other(containers.DeclarativeContainer):
        db = providers.Singleton(Db, "fake")

    for overrides in ({Outer.core.db: Db("fake")}, {"core.db": later}, {Outer.core: Other()}):
        for built in (Outer.db, Outer.core.db):
            await assert_reached(gate_of(built, container=Outer()), overrides)


MISTAKES: list[tuple[Any, Any, str]] = [
    (Outer, {Core.db: Db()}, "it belongs to a nested container, so write Outer.core.db"),
    (Outer, {Outer.core: Db()}, "override one of its providers"),
    (Deep, {Deep.config: dict}, "write the value"),
    (Deep, {Deep.config.db.name: lambda: "x"}, "write the value"),
]


@pytest.mark.parametrize(("container", "overrides", "advice"), MISTAKES)
def test_what_cannot_be_overridden_is_refused_with_the_line_to_write(
    container: Any, overrides: Any, advice: str
) -> None:
    gate = Gate([], container=container())
    with pytest.raises(ProviderError, match=advice), gate.override(overrides):
        pass
    with gate.override({}):
        assert not gate.providers.world.overrides


def test_a_parameter_with_the_provider_of_a_nested_class_is_told_the_name() -> None:
    with pytest.raises(ProviderError, match=r"so write Outer\.core\.db"):
        gate_of(Core.db, container=Outer())


@pytest.mark.parametrize("fake", [later, Scoped("request", later), Scoped("global", later)])
async def test_a_provider_of_the_container_takes_a_fake_that_is_made_asynchronously(fake: Any) -> None:
    class Small(containers.DeclarativeContainer):
        db = providers.Factory(Db)
        user = providers.Factory(Plain, db)

    for built in (Small.db, Small.user):
        await assert_reached(gate_of(built, container=Small()), {Small.db: fake})


class Keeps(Hook):
    """A hook that the container makes."""

    def __init__(self, db: Db) -> None:
        self.name = db.name

    def will_execute(self, ctx: InvokeContext) -> None:
        ctx.data["name"] = self.name


class Finder:
    """Has a method that is a tool."""

    def __init__(self, db: Db) -> None:
        self.name = db.name

    def find(self) -> str:
        """Find."""
        return self.name


class Makes(containers.DeclarativeContainer):
    db = providers.Singleton(Db)
    hook = providers.Singleton(Keeps, db)
    finder = providers.Singleton(Finder, db)


def test_an_object_that_the_container_made_before_the_gate_is_refused() -> None:
    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        return str(ctx.data["name"])

    app = Makes()
    gates = {
        "Keeps": [Gate([look], [app.hook()], container=app)],
        "Finder": [Gate([app.finder().find], container=app), Gate([], provide={Finder: app.finder()}, container=app)],
    }
    for gate, kind in ((gate, kind) for kind, found in gates.items() for gate in found):
        with (
            pytest.raises(ProviderError, match=f"does not reach the {kind}.*as an object"),
            gate.override({Makes.db: Db()}),
        ):
            pass
    with Gate([look], [Keeps(Db())], container=app).override({Makes.db: Db()}):
        pass  # this object is of the application, and of no container
