"""Random graphs of scoped providers, asked at once, failing, slow and cancelled half-way: against a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from callgate.providers.scope import ProviderScope
from tests.providers.graphs import Plot, judge, plots

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
SEARCH = settings(max_examples=1000, deadline=None, suppress_health_check=SLOW, database=None, phases=[Phase.generate])


@given(plots())
@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
def test_instances_are_made_once_a_scope_and_closed_once_in_reverse_whatever_fails_or_is_cancelled(plot: Plot) -> None:
    """Contract 84, C26, I19. Never used after close; what failed or was cancelled is made by the next who asks."""
    assert judge(plot) == []


# ---------------------------------------------------------------------- sabotage: each must be found


def in_order(patch: pytest.MonkeyPatch) -> None:
    """Exits in the order of making."""
    end = ProviderScope.end
    patch.setattr(ProviderScope, "end", lambda self: end(self)[::-1])


def not_evicted(patch: pytest.MonkeyPatch) -> None:
    """A failure is kept, and given to the next who asks."""
    make = ProviderScope._make

    async def make_once(self: ProviderScope, recipe: Any, task: object) -> Any:
        if (id(self), recipe) in FAILED:
            raise FAILED[id(self), recipe]
        try:
            return await make(self, recipe, task)
        except BaseException as error:
            FAILED[id(self), recipe] = error
            raise

    patch.setattr(ProviderScope, "_make", make_once)


FAILED: dict[Any, Any] = {}


def twice(patch: pytest.MonkeyPatch) -> None:
    """A scope that does not check for a concurrent maker."""

    class Careless(dict[Any, Any]):
        def setdefault(self, key: Any, value: Any = None) -> Any:
            self[key] = value
            return value

        def __delitem__(self, key: Any) -> None:
            self.pop(key, None)

    init = ProviderScope.__init__

    def careless(self: ProviderScope, *given: Any) -> None:
        init(self, *given)
        self._making = Careless()

    patch.setattr(ProviderScope, "__init__", careless)


def left_open(patch: pytest.MonkeyPatch) -> None:
    """The last instance is not closed."""

    def end(self: ProviderScope) -> list[Any]:
        self.closed = True
        return self.exits[:-1][::-1]

    patch.setattr(ProviderScope, "end", end)


def never_left(patch: pytest.MonkeyPatch) -> None:
    """Requests do not end their scope."""
    patch.setattr(ProviderScope, "leave", lambda self: [])


@pytest.mark.parametrize("sabotage", [in_order, not_evicted, twice, left_open, never_left])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is left open ends somehow
def test_the_model_finds_what_is_wrong(sabotage: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Contract 84: the control."""
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch)

        def is_found(plot: Plot) -> bool:
            FAILED.clear()
            return judge(plot) != []

        find(plots(), is_found, settings=SEARCH)
