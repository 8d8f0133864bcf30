"""A hostile sender on any surface: no exception that nothing declares, no stall of the loop, bounded memory. Issue 38.

``make soak ARGS="tests/attacks/test_fuzzing.py -s"`` gives a million inputs to all surfaces, and prints what they cost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from tests.attacks import fuzzing
from tests.attacks.fuzz_surfaces import SURFACES, sabotaged
from tests.attacks.fuzzing import GROWTH, STALL, Surface, fuzz

BY_NAME = {one.name: one for one in SURFACES}
ALL = pytest.mark.parametrize(
    "surface",
    [
        pytest.param(one, id=name, marks=pytest.mark.needs_data if one.needs_data else ())
        for name, one in BY_NAME.items()
    ],
)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most inputs are refused, and each would be logged."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


@ALL
async def test_hundreds_of_inputs_break_no_surface(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    report = await fuzz(surface, surface.quick, monkeypatch)
    assert report.findings == []
    assert report.inputs == surface.quick


@pytest.mark.soak
@ALL
async def test_a_million_inputs_break_no_surface(
    surface: Surface, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = await fuzz(surface, surface.soak, monkeypatch)
    with capsys.disabled():
        print(f"\n{report}")
    assert report.findings == []


def test_the_inputs_of_all_surfaces_are_a_million() -> None:
    assert sum(surface.soak for surface in SURFACES) >= 1_000_000


def forget(data: bytes) -> None:
    """Look a value up that the hundredth input does not have."""
    _KEPT.append(data)
    if len(_KEPT) == 100:
        raise KeyError("id")


_KEPT: list[bytes] = []


def doze(data: bytes) -> None:
    """Take 300 ms for the hundredth input, each time that it is given."""
    if len(_KEPT) < 100:
        _KEPT.append(data)
    if len(_KEPT) == 100 and data == _KEPT[-1]:
        time.sleep(0.3)


def reckon(data: bytes) -> None:
    """Compute for 300 ms, once: a second try finds the result in a cache."""
    _KEPT.append(data)
    until = time.thread_time() + 0.3
    while len(_KEPT) == 100 and time.thread_time() < until:
        pass


def hoard(data: bytes) -> None:
    """Keep a megabyte for each input."""
    _KEPT.append(b"x" * 2**20)


@pytest.mark.parametrize(
    ("deed", "found"),
    [(forget, "KeyError"), (doze, "stall"), (reckon, "stall"), (hoard, "memory")],
    ids=["raises", "sleeps", "computes once", "keeps"],
)
async def test_control_a_parser_that_breaks_a_promise_is_found(
    deed: Callable[[bytes], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = sabotaged(BY_NAME["openai_chat, whole"], deed)
    try:
        report = await fuzz(surface, 2 * GROWTH // 2**20, monkeypatch)
    finally:
        _KEPT.clear()
    assert any(one.startswith(found) for one in report.findings)
    assert all(one.startswith(found) for one in report.findings)


@pytest.mark.parametrize("waits", [True, False], ids=["without a processor", "control with one"])
async def test_a_step_is_not_longer_for_a_busy_machine(
    waits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The system counts the time in which the thread has no processor."""
    (schedule := tmp_path / "schedstat").write_text("0 0 0")
    monkeypatch.setattr(fuzzing, "SCHEDULE", schedule)

    waited = 0

    def starve(_: bytes) -> None:
        nonlocal waited
        time.sleep(STALL)
        waited += round(STALL * 1e9) * waits
        schedule.write_text(f"0 {waited} 0")

    report = await fuzz(sabotaged(BY_NAME["openai_chat, whole"], starve), 2, monkeypatch)
    assert report.inputs == 2
    assert [one.split()[0] for one in report.findings] == ([] if waits else ["stall:"] * 2)
