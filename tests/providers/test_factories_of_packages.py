"""A class or a function of another package is a provider as it is, whatever its annotations import for type checkers."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Annotated, Any

import anthropic
import httpx
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa

from callgate import Gate, Provide, Scoped, tool
from callgate.errors import ProviderError

ENGINE = sqlalchemy.create_mock_engine("sqlite://", lambda *_: None)
FACTORIES: dict[str, Any] = {
    "httpx.AsyncClient": Scoped("global", httpx.AsyncClient),
    "httpx.Client": Scoped("request", httpx.Client),
    "anthropic.AsyncAnthropic": Scoped("global", anthropic.AsyncAnthropic, api_key="none"),
    "create_engine": Scoped("global", sqlalchemy.create_engine, "sqlite://"),
    "create_async_engine": Scoped("global", sa.create_async_engine, "sqlite+aiosqlite://"),
    "sessionmaker": Scoped("global", orm.sessionmaker, ENGINE),
    "async_sessionmaker": Scoped("global", sa.async_sessionmaker),
    "Session": Scoped("execution", orm.Session),
    "AsyncSession": Scoped("execution", sa.AsyncSession),
}


@tool(effect="read")
async def look(*, it: Annotated[Any, Provide["it"]]) -> str:
    """Look at the instance."""
    return type(it).__name__


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=[*FACTORIES])
async def test_a_factory_of_another_package_makes_the_instance(factory: Any) -> None:
    """Issue 36: the gate refused it, because a name in its annotations is imported for type checkers only."""
    async with Gate([look], provide={"it": factory}) as gate:
        assert (await gate.invoke(look, {})).lower() in {factory.factory.__name__.lower(), "engine", "asyncengine"}


MODULE = """
from __future__ import annotations
{imports}

def make(one: OnlyForCheckers = None) -> str:
    return "made"
"""


def factory_of_a_module(imports: str, patch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("shop_with_a_factory")
    patch.setitem(sys.modules, module.__name__, module)
    exec(compile(MODULE.format(imports=imports), module.__name__, "exec", dont_inherit=True), vars(module))
    return module.make


@pytest.mark.parametrize(
    "imports",
    [
        "import callgate",
        "import callgate as gates",
        "from callgate import Provide",
        "from dependency_injector.wiring import Provide as Inject",
        "from dependency_injector import wiring",
        "from tests.providers.test_factories_of_packages import Marked",
    ],
)
def test_an_unknown_name_in_a_module_that_may_have_markers_is_refused(
    imports: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marked parameter with a default would silently keep it."""
    with pytest.raises(ProviderError, match=r"OnlyForCheckers.*import it there"):
        Gate([look], provide={"it": factory_of_a_module(imports, monkeypatch)})


async def test_the_control_without_such_an_import_the_same_factory_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Gate([look], provide={"it": factory_of_a_module("import json", monkeypatch)}) as gate:
        assert await gate.invoke(look, {}) == "str"


Marked = Annotated[str, Provide["it"]]
"""A type that another module may import."""
