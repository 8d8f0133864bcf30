"""Random graphs of providers under random blocks of overrides: every dependent sees them, nothing is left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from callgate.providers.overriding import Overriding
from callgate.providers.scope import ProviderScope
from tests.providers.override_graphs import Plot, judge, plots

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
SEARCH = settings(max_examples=500, deadline=None, suppress_health_check=SLOW, database=None, phases=[Phase.generate])


@given(plots())
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
def test_every_dependent_sees_the_overrides_of_the_open_blocks_and_the_real_thing_after_them(plot: Plot) -> None:
    """For tools, their parameters and plain hooks; what a block made is closed at its end, and the real thing is not."""
    assert judge(plot) == []


# ---------------------------------------------------------------------- sabotage: each must be found


def reaches_nothing(patch: pytest.MonkeyPatch) -> None:
    """Dependents keep what they were built from."""
    patch.setattr(Overriding, "_origins", lambda *_: frozenset())


def prepares_nothing(patch: pytest.MonkeyPatch) -> None:
    """Synchronous code meets instances that nobody has made."""

    async def nothing(*_: object) -> None: ...

    patch.setattr(Overriding, "prepare", nothing)


def keeps_open(patch: pytest.MonkeyPatch) -> None:
    """A block forgets what it made."""
    take_out = ProviderScope.take_out

    def forget(self: ProviderScope, recipes: Any) -> list[Any]:
        take_out(self, recipes)
        return []

    patch.setattr(ProviderScope, "take_out", forget)


@pytest.mark.parametrize("sabotage", [reaches_nothing, prepares_nothing, keeps_open])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is left open ends somehow
def test_the_model_finds_what_is_wrong(sabotage: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The control of the test above."""
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch)
        find(plots(), lambda plot: judge(plot) != [], settings=SEARCH)
