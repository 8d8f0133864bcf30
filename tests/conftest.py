"""Where tests find the sample data: recorded exchanges, tool catalogues, schemas, malformed arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("CALLGATE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
MISSING = f"NO SAMPLE DATA at {DATA}: tests that need it are skipped; set CALLGATE_DATA to the folder"
CANCEL_POINTS = "cancel points"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of sample data; a test that asks for it is skipped where there is none."""
    if not DATA.is_dir():
        pytest.skip(MISSING)
    return DATA


@pytest.fixture
def every_cancel_point(record_property: Callable[[str, object], None]) -> Callable[..., Any]:
    """``tests.harness.cancel.every_cancel_point``; its cancel points are added up at the end of the run."""
    from tests.harness import cancel

    def sweep(*args: Any, **options: Any) -> cancel.Report:
        report = cancel.every_cancel_point(*args, **options)
        record_property(CANCEL_POINTS, report.points)
        return report

    return sweep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``needs_data`` where there is none."""
    if not DATA.is_dir():
        for item in items:
            if item.get_closest_marker("needs_data"):
                item.add_marker(pytest.mark.skip(reason=MISSING))


def pytest_report_header() -> str:
    """Say at the top which data is read."""
    return f"sample data: {DATA}" if DATA.is_dir() else MISSING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end, where it is seen, that data was missing, and how many cancel points were tried."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind if hasattr(report, "when")]
    noted = [pair for report in reports if report.when == "call" for pair in report.user_properties]
    if points := sum(number for name, number in noted if name == CANCEL_POINTS):
        terminalreporter.line(f"cancel points: {points}, nothing leaked, late, lost or invented where tests passed")
    if not DATA.is_dir():
        terminalreporter.section("sample data")
        terminalreporter.line(MISSING, yellow=True, bold=True)
