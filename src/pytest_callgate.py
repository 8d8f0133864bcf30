"""The pytest plugin of Callgate: its fixtures. pytest finds it by its entry point, ``callgate``.

It lies beside the package: a module inside would bring all of Callgate into every pytest run. So Callgate is imported
only when a fixture is used; ``-p no:callgate`` leaves the plugin out. The fixtures are plain: async tests may use
them under any runner, or run what waits with ``virtual_time.run``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CANCEL_POINTS = "callgate cancel points"
"""The property of a test that holds how many cancellations ``every_cancel_point`` tried."""


@pytest.fixture
def every_cancel_point(record_property: Callable[[str, object], None]) -> Callable[..., Any]:
    """``callgate.testing.every_cancel_point``; the cancel points it tried are recorded with the test."""
    from callgate.runtime.testing import cancel

    def sweep(*args: Any, **options: Any) -> cancel.SweepReport:
        report = cancel.every_cancel_point(*args, **options)
        record_property(CANCEL_POINTS, report.points)
        return report

    return sweep


@pytest.fixture
def fake_clock() -> Any:
    """A ``callgate.testing.FakeClock`` for ``Gate(clock=...)``: it moves only when told to."""
    from callgate.testing import FakeClock

    return FakeClock()


@pytest.fixture
def recording_hook() -> Any:
    """A ``callgate.testing.RecordingHook`` of all stages."""
    from callgate.testing import RecordingHook

    return RecordingHook()


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., Any]]:
    """Makes ``callgate.testing.ScriptedModel``s, each open in a thread of its own until the test ends."""
    from callgate.testing import ScriptedModel

    with contextlib.ExitStack() as opened:
        yield lambda *script, **options: opened.enter_context(ScriptedModel(*script, **options))


@pytest.fixture
def virtual_time() -> Iterator[Any]:
    """A ``callgate.testing.VirtualTime``, closed after the test: ``virtual_time.run(...)`` waits for nothing."""
    from callgate.testing import VirtualTime

    with VirtualTime() as time:
        yield time


@pytest.fixture
def callgate_trace(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """``callgate.testing.trace``; what it saw is shown with the test if that fails."""
    from callgate.testing import trace

    async def traced(*args: Any, **options: Any) -> Any:
        seen = await trace(*args, **options)
        request.node.add_report_section("call", "callgate trace", str(seen))
        return seen

    return traced
