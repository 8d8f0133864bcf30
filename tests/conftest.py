"""Where tests find the sample data, and what they share: no limit of time that a busy machine could break."""

from __future__ import annotations

import gc
import os
import ssl
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.harness import migrated

DATA = Path(os.environ.get("CALLGATE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
HAS_DATA = DATA.is_dir() and any(DATA.iterdir())
"""False for an empty folder, too."""
MISSING = f"NO SAMPLE DATA at {DATA}: tests that need it are skipped; set CALLGATE_DATA to the folder"
CANCEL_POINTS = "callgate cancel points"  # as the plugin records it (src/pytest_callgate.py)

# Hypothesis gives an example 200 ms of real time: on a busy machine that fails tests in which nothing is wrong.
# Where the environment says CI, the examples are the same each time, as Hypothesis has it there: a change meets no luck.
_usual = settings(
    deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow], max_examples=40
)
settings.register_profile("callgate", _usual)
settings.register_profile("soak", _usual, max_examples=1_000)
settings.load_profile("callgate")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of sample data; a test that asks for it is skipped where there is none."""
    if not HAS_DATA:
        pytest.skip(MISSING)
    return DATA


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the length of the mixed load."""
    parser.addoption("--soak-seconds", default="600", help="seconds of mixed load in `make soak`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``needs_data`` where there is none."""
    if not HAS_DATA:
        for item in items:
            if item.get_closest_marker("needs_data"):
                item.add_marker(pytest.mark.skip(reason=MISSING))


_new_context = ssl.create_default_context
_trusting = cache(_new_context)


def _context(*purpose: Any, **given: Any) -> ssl.SSLContext:
    """Return one context for all clients that trust the usual authorities: reading them takes 20 ms a client."""
    usual = given.keys() == {"cafile"} and not purpose
    return (_trusting if usual else _new_context)(*purpose, **given)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector from searching a million new objects that all stay: that is a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the collector off what was imported: it stays until the end, and sweeps collect after each of their findings."""
    migrated.install()
    ssl.create_default_context = _context
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Drop the schemas that this process has made."""
    backends: Any = sys.modules.get("tests.providers.stores.backends")
    if backends is not None:
        backends.drop_schemas()


@pytest.fixture(scope="module", autouse=True)
def _kept_from_the_collector() -> None:
    """Keep it off what earlier modules left, too, such as caches: or each collection takes longer than the one before."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """Say at the top which data is read."""
    return f"sample data: {DATA}" if HAS_DATA else MISSING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end, where it is seen, that data was missing, and how many cancel points were tried."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind if hasattr(report, "when")]
    noted = [pair for report in reports if report.when == "call" for pair in report.user_properties]
    if points := sum(number for name, number in noted if name == CANCEL_POINTS):
        terminalreporter.line(f"cancel points: {points}, nothing leaked, late, lost or invented where tests passed")
    if not HAS_DATA:
        terminalreporter.section("sample data")
        terminalreporter.line(MISSING, yellow=True, bold=True)
