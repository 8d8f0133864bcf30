"""What is compared does the same: one instance a scope, of the one singleton, closed at its end, errors included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from benchmarks import scopes
from benchmarks.timing import EXPECTED, Call, Effort


@pytest.mark.parametrize("make", [scopes.with_callgate, scopes.with_dishka, scopes.with_wireup])
async def test_each_makes_a_transaction_a_scope_and_one_engine(
    make: Callable[[AsyncExitStack], Awaitable[Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def count(cls: Any, name: str) -> None:
        real = cls.__init__

        def counting(self: object, *given: object) -> None:
            made.append(name)
            real(self, *given)

        monkeypatch.setattr(cls, "__init__", counting)

    count(scopes.Engine, "engine")
    count(scopes.Transaction, "transaction")
    async with AsyncExitStack() as stack:
        call = await make(stack)
        assert [await call() for _ in range(3)] == [EXPECTED] * 3
    assert sorted(made) == ["engine", *["transaction"] * 3]


async def test_every_figure_is_given() -> None:
    found = await scopes.measure(Effort(rounds=3, batch_us=50.0))
    assert found["scope_x_best_peer"] == max(found["scope_x_dishka"], found["scope_x_wireup"])
    assert {"three_singletons_us_scaled", "three_container_singletons_us_scaled"} <= found.keys()
