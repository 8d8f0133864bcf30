"""``backend``: each store in turn, open and empty; ``durable``: those that keep an audit record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.providers.stores.backends import DURABLE, KINDS, SHARED, Backend, opened, place
from tests.providers.stores.job_rows import clear
from tests.providers.stores.ledger import empty

Places = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Places, ExitStack, Path]]:
    """The places of stores that the tests of a module share; each test has its own tenant."""
    with ExitStack() as stack:
        yield {}, stack, tmp_path_factory.mktemp("stores")


async def at(kind: str, places: tuple[Places, ExitStack, Path]) -> AsyncGenerator[Backend, None]:
    known, stack, folder = places
    if kind not in known:
        known[kind] = stack.enter_context(place(kind, folder))
    async with opened(kind, known[kind]) as backend:
        yield backend


@pytest.fixture(params=KINDS)
async def backend(
    request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Path]
) -> AsyncGenerator[Backend, None]:
    async for each in at(request.param, places):
        yield each


@pytest.fixture(params=DURABLE)
async def durable(
    request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Path]
) -> AsyncGenerator[Backend, None]:
    async for each in at(request.param, places):
        yield each


@pytest.fixture(params=DURABLE)
async def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Backend]:
    """A store with rows of this test alone: a verification reads the whole log."""
    with place(request.param, tmp_path) as at:
        async with opened(request.param, at) as backend:
            yield backend


@pytest.fixture
async def ledger(durable: Backend) -> Backend:
    """The same, with nothing in its effect ledger that is not of this test."""
    await empty(durable.store)
    return durable


@pytest.fixture
async def queue(durable: Backend) -> Backend:
    """The same, with no jobs but those of this test: workers take those of all tenants."""
    await clear(durable.store)
    return durable


@pytest.fixture(params=SHARED)
async def shared(
    request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Path]
) -> AsyncGenerator[Backend, None]:
    async for each in at(request.param, places):
        yield each
