"""The pytest plugin of Callgate: its fixtures. pytest finds it by the entry point ``callgate``.

It is outside of the package, and imports Callgate only when a fixture is used, so that it costs other test runs nothing.
``-p no:callgate`` disables it. The fixtures are synchronous: async tests can use them under any runner, or run their
coroutine with ``virtual_time.run``. Annotate them with the types of ``callgate.testing``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CANCEL_POINTS = "callgate cancel points"
"""The property of a test with the number of cancellations that ``every_cancel_point`` tried."""


@pytest.fixture
def every_cancel_point(record_property: Callable[[str, object], None]) -> Callable[..., Any]:
    """An ``EveryCancelPoint``: ``callgate.testing.every_cancel_point``, which also records the number of points with the test."""
    from callgate.runtime.testing import cancel

    def sweep(*args: Any, **options: Any) -> cancel.SweepReport:
        report = cancel.every_cancel_point(*args, **options)
        record_property(CANCEL_POINTS, report.points)
        return report

    return sweep


@pytest.fixture
def fake_clock() -> Any:
    """A ``FakeClock`` for ``Gate(options=Options(clock=...))``, which moves only when the test advances it."""
    from callgate.testing import FakeClock

    return FakeClock()


@pytest.fixture
def recording_hook() -> Any:
    """A ``RecordingHook`` of all stages."""
    from callgate.testing import RecordingHook

    return RecordingHook()


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., Any]]:
    """An ``OpenScriptedModel``: makes ``ScriptedModel`` objects, each open in a thread of its own until the test ends."""
    from callgate.testing import ScriptedModel

    with contextlib.ExitStack() as opened:
        yield lambda *script, **options: opened.enter_context(ScriptedModel(*script, **options))


@pytest.fixture
def virtual_time() -> Iterator[Any]:
    """A ``VirtualTime``, closed after the test; ``virtual_time.run(...)`` does not wait for real."""
    from callgate.testing import VirtualTime

    with VirtualTime() as time:
        yield time


@pytest.fixture
def callgate_trace(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A ``TraceCall``: ``callgate.testing.trace``, whose trace is shown with the test if it fails."""
    from callgate.testing import trace

    async def traced(*args: Any, **options: Any) -> Any:
        seen = await trace(*args, **options)
        request.node.add_report_section("call", "callgate trace", str(seen))
        return seen

    return traced
