"""A marked parameter with a default of its own needs no provider, and gets each value that there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, Provide, Scoped, invoke_tool, tool
from callgate.errors import ProviderError


class Db:
    """What a tool takes."""


class Other:
    """What a provider needs."""


async def made() -> AsyncIterator[Db]:
    yield Db()


def needs_other(other: Annotated[Other, Provide[Other]]) -> Db:
    return Db()


@tool(effect="read")
async def awaits(db: Annotated[Db | None, Provide[Db]] = None) -> bool:
    """Look."""
    return db is not None


@tool(effect="read")
def plain(n: int = 1, *, db: Annotated[Db | None, Provide[Db]] = None) -> bool:
    """Look."""
    return db is not None


@tool(effect="keyed", key=("n",))
async def changes(n: int = 1, db: Annotated[Db | None, Provide[Db]] = None) -> bool:
    """Look."""
    return db is not None


class Around(Hook):
    """A hook with the same parameter."""

    def __init__(self, db: Annotated[Db | None, Provide[Db]] = None) -> None:
        self.db = db

    async def around_execute(self, ctx: InvokeContext, next: Any, db: Annotated[Db | None, Provide[Db]] = None) -> Any:
        output = await next()
        assert output is (db is not None) is (self.db is not None)
        return output


class Binds(Hook):
    binds = (Db,)

    def will_bind_providers(self, ctx: InvokeContext) -> dict[Any, object]:
        return {Db: Db()}


TOOLS = [awaits, plain, changes]
NO_PROVIDER: dict[Any, Any] = {}
PROVIDERS = [{Db: Db}, {Db: Db()}, {Db: Scoped("request", made)}, {Db: Scoped("session", Db)}]


def gate_of(used: Any, hooks: list[Any], provide: dict[Any, Any]) -> Gate:
    return Gate([used], hooks, provide=provide, allow_unguarded=True, effects=Effects(durable=False))


def given(used: Any, n: int) -> dict[str, int]:
    return {} if used is awaits else {"n": n}


@pytest.mark.parametrize("used", TOOLS)
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_without_a_provider_the_default_stays(used: Any, session_id: str | None) -> None:
    async with gate_of(used, [Around], NO_PROVIDER) as gate:
        for n in range(2):
            assert await gate.invoke(used.record.id, given(used, n), session_id=session_id) is False
    if used is not changes:
        assert await invoke_tool(used, {}) is False


@pytest.mark.parametrize("used", TOOLS)
@pytest.mark.parametrize("provide", PROVIDERS)
async def test_with_a_provider_the_parameter_gets_its_value(used: Any, provide: dict[Any, Any]) -> None:
    async with gate_of(used, [Around], provide) as gate:
        for n in range(2):
            assert await gate.invoke(used.record.id, given(used, n)) is True


@pytest.mark.parametrize("used", TOOLS)
async def test_what_a_hook_binds_reaches_the_parameter(used: Any) -> None:
    async with gate_of(used, [Binds()], NO_PROVIDER) as gate:
        assert await gate.invoke(used.record.id, {}) is True


@pytest.mark.parametrize("used", TOOLS)
@pytest.mark.parametrize(
    "fake", [Db(), Db, made, Scoped("request", made)], ids=["object", "class", "generator", "scoped"]
)
async def test_an_override_reaches_the_parameter_for_its_block(used: Any, fake: Any) -> None:
    async with gate_of(used, [Around], NO_PROVIDER) as gate:
        assert await gate.invoke(used.record.id, {}) is False
        with gate.override({Db: fake}):
            assert await gate.invoke(used.record.id, given(used, 2)) is True
        assert await gate.invoke(used.record.id, given(used, 3)) is False


async def test_a_factory_keeps_its_default_too() -> None:
    def make(other: Annotated[Other | None, Provide[Other]] = None) -> Db:
        assert other is None
        return Db()

    async with gate_of(awaits, [], {Db: make}) as gate:
        assert await gate.invoke(awaits, {}) is True


@pytest.mark.parametrize("make", [needs_other, lambda db: None], ids=["needs what is missing", "control"])
def test_control_a_parameter_without_a_default_and_a_broken_provider_are_refused(make: Callable[..., Any]) -> None:
    """The default hides no provider that is there and cannot run."""

    @tool(effect="read")
    async def strict(db: Annotated[Db | None, Provide[Db]]) -> bool:
        """Look."""
        return db is not None

    with pytest.raises(ProviderError, match="has no provider"):
        gate_of(awaits if make is needs_other else strict, [], {Db: make} if make is needs_other else NO_PROVIDER)
