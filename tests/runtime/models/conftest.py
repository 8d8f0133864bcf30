"""Fixtures for tests with the providers' own packages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Any]]:
    """The packages' clients that a test made, closed after it; they ask this machine without a proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    made: list[Any] = []
    yield made
    for client in made:
        await client.close()
