"""The pytest plugin, as a user has it: found by its entry point, in a folder and a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

HOOK = """
import sys

IMPORTED_EARLY = [name for name in sys.modules if name.partition(".")[0] == "callgate"]
"""
TESTS = """
import early


def test_nothing_of_callgate_was_there_before(fake_clock):
    assert early.IMPORTED_EARLY == []


def test_time_jumps(virtual_time, callgate_trace, recording_hook, fake_clock):
    import asyncio

    from callgate import Gate, Options, tool

    @tool(effect="read")
    async def slow(n: int) -> int:
        await asyncio.sleep(3600)
        return n

    async def run():
        async with Gate([slow], [recording_hook], options=Options(clock=virtual_time.clock)) as gate:
            return await callgate_trace(gate, slow, {"n": 1})

    assert virtual_time.run(run()).output == 1
    assert recording_hook.moments
    before = fake_clock.monotonic()
    fake_clock.advance(2)
    assert fake_clock.monotonic() == before + 2


def test_every_point(every_cancel_point):
    import asyncio

    async def scenario(ledger):
        ledger.acquired("lock")
        try:
            await asyncio.sleep(1)
        finally:
            ledger.released("lock")

    assert every_cancel_point(scenario).points > 5
"""
FAILS = """
def test_shows_what_it_saw(virtual_time, callgate_trace):
    from callgate import Gate, tool

    @tool(effect="read")
    async def double(n: int) -> int:
        return n * 2

    async def run():
        async with Gate([double]) as gate:
            return await callgate_trace(gate, double, {"n": 1})

    assert virtual_time.run(run()).output == 3


def test_leaks(every_cancel_point):
    import asyncio

    async def scenario(ledger):
        ledger.acquired("lock")
        await asyncio.sleep(1)
        ledger.released("lock")

    every_cancel_point(scenario)
"""


ALONE = ("-p", "no:asyncio")


def run_pytest(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(options or ALONE), "-W", "error", "--rootdir", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_its_entry_point_is_installed() -> None:
    (found,) = [point for point in metadata.entry_points(group="pytest11") if point.name == "callgate"]
    assert found.value == "pytest_callgate", "run: make install"


def test_its_fixtures_work_in_plain_tests_without_any_other_plugin(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, early=HOOK, conftest="import early  # noqa", test_it=TESTS)
    assert code == 0, said
    assert "3 passed" in said


ASYNC = """
    async def test_it(callgate_trace, recording_hook):
        from callgate import Gate, tool

        @tool(effect="read")
        async def double(n: int) -> int:
            return n * 2

        async with Gate([double], [recording_hook]) as gate:
            assert (await callgate_trace(gate, double, {"n": 1})).output == 2
    """


def test_its_fixtures_work_in_async_tests(tmp_path: Path) -> None:
    runner = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    code, said = run_pytest(tmp_path, *runner, test_it=ASYNC)
    assert code == 0, said
    assert "1 passed" in said


def test_a_test_that_fails_shows_the_trace_and_the_point(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, test_it=FAILS)
    assert code == 1
    assert "Captured callgate trace call" in said
    assert "will_execute                 [tool]                   ok" in said
    assert "leak: lock" in said
    assert "in scenario (test_it.py:" in said


def test_it_can_be_left_out(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, *ALONE, "-p", "no:callgate", test_it=TESTS.replace("import early", ""))
    assert code == 1
    assert "fixture 'virtual_time' not found" in said


def test_a_run_that_asks_for_nothing_imports_nothing_of_callgate(tmp_path: Path) -> None:
    """Control of the test above that looks early: here a plugin that imports Callgate is seen."""
    nothing = """
        import sys

        def test_it():
            assert [name for name in sys.modules if name.partition(".")[0] == "callgate"] == []
        """
    code, said = run_pytest(tmp_path, test_it=nothing)
    assert code == 0, said
    code, said = run_pytest(tmp_path, *ALONE, "-p", "heavy", heavy="import callgate", test_it=nothing)
    assert code == 1, said
