"""Dependencies of tools: dependency-injector's own markers, resolved by the gate, never sent by a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import as_int

from callgate import Denied, Gate, Hook, InvokeContext, Outcome, Provide, RetryLater, ToolCall, ToolContext, User, tool
from callgate.errors import ProviderError
from tests.runtime.gate.making import USER

MADE: list[str] = []


class Db:
    def __init__(self, name: str = "real") -> None:
        MADE.append(name)
        self.name = name


async def connect() -> Db:
    return Db("async")


class Inner(containers.DeclarativeContainer):
    """A container in the container."""

    db = providers.Factory(Db, "inner")


class App(containers.DeclarativeContainer):
    """The application's."""

    config = providers.Configuration()
    db = providers.Singleton(Db)
    each = providers.Factory(Db, "each")
    later = providers.Coroutine(connect)
    inner = providers.Container(Inner)


@pytest.fixture
def container() -> App:
    """A fresh one, with a count of what it made."""
    MADE.clear()
    made: Any = App()
    made.config.from_dict({"port": "5432"})
    return made  # type: ignore[no-any-return]


@tool(effect="read")
async def annotated(n: int, *, db: Annotated[Db, Provide[App.db]]) -> str:
    return db.name


@tool(effect="read")
async def defaulted(n: int, db: Db = Provide[App.db]) -> str:
    return db.name


@tool(effect="read")
async def dotted(n: int, *, db: Annotated[Db, Provide["db"]]) -> str:
    return db.name


@tool(effect="read")
async def nested(n: int, *, db: Annotated[Db, Provide["inner.db"]]) -> str:
    return db.name


@tool(effect="read")
async def asynchronous(n: int, *, db: Annotated[Db, Provide[App.later]]) -> str:
    return db.name


@tool(effect="read")
def plain(n: int, *, db: Annotated[Db, Provide[App.db]]) -> str:
    return db.name


@tool(effect="read", inline=True)
def inline(n: int, *, db: Annotated[Db, Provide[App.db]]) -> str:
    return db.name


COUNT: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


@tool(effect="read", parameters=COUNT)
class Classy:
    def __init__(self, arguments: dict[str, Any], *, db: Annotated[Db, Provide[App.db]], ctx: ToolContext) -> None:
        self.db, self.ctx = db, ctx

    async def run(self) -> str:
        assert self.ctx.user == USER
        return self.db.name


@tool(effect="read", parameters=COUNT)
class Defaulting:
    def __init__(self, arguments: dict[str, Any], db: Db = Provide[App.db]) -> None:
        self.db = db

    async def run(self) -> str:
        return self.db.name


ALL: list[Any] = [annotated, defaulted, dotted, nested, asynchronous, plain, inline, Classy, Defaulting]
NAMES = {"nested": "inner", "asynchronous": "async"}


def name_of(item: Any) -> str:
    return str(item.get_definition().name)


@pytest.mark.parametrize("item", ALL, ids=name_of)
async def test_markers_are_resolved_without_wiring(item: Any, container: App) -> None:
    """Contract 81, 82, 85."""
    async with Gate([item], container=container, allow_unguarded=True) as gate:
        assert not MADE, "nothing is made before it is needed"
        result = await gate.call(ToolCall(id="c", name=name_of(item), arguments={"n": 1}), user=USER)
    assert result.output == NAMES.get(name_of(item), "real"), result


@pytest.mark.parametrize("item", ALL, ids=name_of)
def test_an_injected_parameter_is_absent_from_the_schema(item: Any) -> None:
    """Contract 81, 85."""
    assert set(item.get_definition().to_dict()["parameters"]["properties"]) == {"n"}


@pytest.mark.parametrize("item", ALL, ids=name_of)
@pytest.mark.parametrize("name", ["db", "ctx"])
async def test_a_model_that_sends_an_injected_parameter_is_refused_by_name(
    item: Any, name: str, container: App
) -> None:
    """Contract 81, I2, I7."""
    async with Gate([item], container=container, allow_unguarded=True) as gate:
        result = await gate.call(ToolCall(id="c", name=name_of(item), arguments={"n": 1, name: "mine"}), user=USER)
    assert result.outcome is Outcome.INVALID
    assert result.error is not None
    assert name in result.error.public
    assert not MADE


async def test_an_override_of_the_container_is_honoured_at_the_next_call(container: Any) -> None:
    """Contract 85."""
    fake = Db("fake")
    async with Gate([annotated, dotted], container=container, allow_unguarded=True) as gate:
        for name in ("annotated", "dotted"):
            assert await gate.invoke(name, {"n": 1}, user=USER) == "real"
            with container.db.override(fake):
                assert await gate.invoke(name, {"n": 1}, user=USER) == "fake"
            assert await gate.invoke(name, {"n": 1}, user=USER) == "real"


async def test_scopes_of_the_container_are_kept(container: App) -> None:
    """Contract 84."""

    @tool(effect="read")
    async def both(*, one: Annotated[Db, Provide[App.db]], each: Annotated[Db, Provide[App.each]]) -> None: ...

    async with Gate([both], container=container, allow_unguarded=True) as gate:
        for _ in range(3):
            await gate.invoke("both", user=USER)
    assert sorted(MADE) == ["each", "each", "each", "real"]


async def test_what_an_invocation_binds_under_the_markers_provider_wins(container: App) -> None:
    """Contract 85, 86."""

    class Replacing(Hook):
        def will_bind_providers(self, ctx: InvokeContext) -> Mapping[Any, Any]:
            return {App.db: Db("bound")} if ctx.user.id == "bound" else {}

    async with Gate([annotated], [Replacing()], container=container, allow_unguarded=True) as gate:
        assert await gate.invoke(annotated, {"n": 1}, user=User("bound")) == "bound"
        assert await gate.invoke(annotated, {"n": 1}, user=USER) == "real"


def test_a_modifier_of_a_marker_applies_to_what_the_container_gives(container: App) -> None:
    """Contract 85."""
    gate = Gate(container=container)
    assert gate.providers.find_global("config.port") == "5432"
    assert gate.providers.find_global("config.port", as_int()) == 5432


async def test_a_tool_gets_what_the_modifier_of_its_marker_makes(container: App) -> None:
    """Contract 85."""

    @tool(effect="read")
    async def port(*, number: Annotated[int, Provide["config.port", as_int()]]) -> int:
        return number + 1

    async with Gate([port], container=container, allow_unguarded=True) as gate:
        assert await gate.invoke("port", user=USER) == 5433


# ---------------------------------------------------------------------- missing


class Other(containers.DeclarativeContainer):
    """A type without a provider."""

    db = providers.Factory(Db)


@tool(effect="read")
async def foreign(*, store: Annotated[Db, Provide[Other.db]]) -> None: ...


@tool(effect="read")
async def misspelt(*, store: Annotated[Db, Provide["dbb"]]) -> None: ...


@tool(effect="read", parameters=COUNT)
class ForeignClass:
    def __init__(self, arguments: dict[str, Any], *, store: Annotated[Db, Provide["dbb"]]) -> None: ...

    async def run(self) -> None: ...


@pytest.mark.parametrize("item", [foreign, misspelt, ForeignClass], ids=name_of)
@pytest.mark.parametrize("containers", [0, 1])
def test_a_dependency_that_nobody_provides_is_refused_at_registration(
    item: Any, containers: int, container: App
) -> None:
    """Contract 85, I19."""
    with pytest.raises(ProviderError) as caught:
        Gate([item], container=container if containers else None, allow_unguarded=True)
    said = str(caught.value)
    assert name_of(item) in said
    assert "'store'" in said
    assert "Factory" in said if item is foreign else "'dbb'" in said


async def test_a_tool_added_later_is_held_to_the_same(container: App) -> None:
    """Contract 85."""
    async with Gate(container=container, allow_unguarded=True) as gate:
        with pytest.raises(ProviderError, match="misspelt"):
            gate.add(misspelt)


async def test_a_hook_that_declares_what_it_binds_satisfies_the_check() -> None:
    """Contract 85, 89."""

    class Supplying(Hook):
        binds = ("dbb",)

        def will_bind_providers(self, ctx: InvokeContext) -> Mapping[Any, Any]:
            return {"dbb": Db()} if ctx.user.id == "u" else {}

    async with Gate([misspelt], [Supplying()], allow_unguarded=True) as gate:
        assert (await gate.call(ToolCall(id="c", name="misspelt"), user=USER)).ok
        result = await gate.call(ToolCall(id="c", name="misspelt"), user=User("other"))
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert "dbb" not in result.error.public


async def test_a_provider_that_fails_is_an_error_without_internals() -> None:
    """Contract C25, I9."""

    class Failing(containers.DeclarativeContainer):
        db = providers.Factory(lambda: int("dsn=SECRET"))

    @tool(effect="read")
    async def needs(*, db: Annotated[Any, Provide[Failing.db]]) -> None: ...

    async with Gate([needs], container=Failing(), allow_unguarded=True) as gate:
        result = await gate.call(ToolCall(id="c", name="needs"), user=USER)
    assert result.outcome is Outcome.ERROR
    assert "SECRET" not in f"{result} {result.to_status()} {result.to_success()}"


# ---------------------------------------------------------------------- never for nothing


class Stopping(Hook):
    """Ends the call before the tool, in one way or another."""

    def __init__(self, stage: str, error: BaseException | None) -> None:
        def act(ctx: InvokeContext) -> None:
            if error is None:
                ctx.respond("instead")
            raise error

        setattr(type(self), stage, lambda self, ctx: act(ctx))


STOPS: list[tuple[str, BaseException | None, Outcome]] = [
    ("will_authorize", Denied("no"), Outcome.DENIED),
    ("will_authorize_input", Denied("no"), Outcome.DENIED),
    ("will_authorize", ValueError(), Outcome.DENIED),
    ("will_acquire_quota", RetryLater(10), Outcome.RETRY_LATER),
    ("will_normalize_input", ValueError(), Outcome.ERROR),
    ("will_read_cache", None, Outcome.SUCCESS),
]


@pytest.mark.parametrize(("stage", "error", "outcome"), STOPS, ids=[f"{s}-{o}" for s, _, o in STOPS])
@pytest.mark.parametrize("item", ALL, ids=name_of)
async def test_a_call_that_is_stopped_resolves_none_of_the_tools_dependencies(
    item: Any, stage: str, error: BaseException | None, outcome: Outcome, container: App
) -> None:
    """Contract 55, I7."""
    stopping = type("Stopping", (Stopping,), {})
    made = stopping(stage, error)
    async with Gate([item], [made], container=container, allow_unguarded=True) as gate:
        for call in (
            ToolCall(id="c", name=name_of(item), arguments={"n": 1}),
            gate.hydrate(ToolCall(id="c", name=name_of(item), arguments={"n": 1})),
        ):
            assert (await gate.call(call, user=USER)).outcome is outcome
    assert not MADE


@pytest.mark.parametrize("arguments", ["nonsense", {"n": "x"}, {"m": 1}, [1]], ids=range(4))
@pytest.mark.parametrize("item", ALL, ids=name_of)
async def test_an_invalid_call_resolves_none_of_the_tools_dependencies(
    item: Any, arguments: Any, container: App
) -> None:
    """Contract 44, 55, I7."""
    async with Gate([item], container=container, allow_unguarded=True) as gate:
        call = ToolCall(id="c", name=name_of(item), arguments=arguments)
        assert (await gate.call(call, user=USER)).outcome is Outcome.INVALID
        assert (await gate.call(gate.hydrate(call), user=USER)).outcome is Outcome.INVALID
    assert not MADE
