"""Job engines by name: Callgate's own, and those of other packages, found by entry point and loaded at their first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from callgate import Gate, RegistrationError, ToolCall, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.runtime.jobs.engines import job_engine

ENGINE = """
from callgate.jobs import EmbeddedJobs


class Mine(EmbeddedJobs):
    pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("engine_of_test")]:
        del sys.modules[name]


def install(site: Path, package: str, entry_point: str, **modules: str) -> None:
    """Put a package into the folder as an installer would."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[callgate.job_engines]\n{entry_point}\n", "utf-8")
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text, "utf-8")


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_engine_of_another_package_is_found_by_its_name(site: Path) -> None:
    install(site, "callgate-mine", "mine = engine_of_test:Mine", engine_of_test=ENGINE)
    async with Gate([add], jobs="mine") as gate:
        assert type(gate.jobs.backend).__name__ == "Mine"
        result = await (await gate.submit(ToolCall(name="add", arguments={"a": 1, "b": 2}), user=User("ann")))
    assert result.output == 3


def test_each_gate_has_an_engine_of_its_own() -> None:
    first, second = job_engine("embedded"), job_engine("embedded")
    assert isinstance(first, EmbeddedJobs)
    assert first is not second


def test_an_engine_that_needs_settings_is_refused_with_the_line_to_write() -> None:
    pytest.importorskip("celery")
    with pytest.raises(
        RegistrationError, match=r"needs settings \(app\): .*hosts\.celery and give Gate\(jobs=CeleryJobs"
    ):
        Gate([add], jobs="celery")


def test_an_engine_of_callgate_cannot_be_replaced(site: Path) -> None:
    install(site, "callgate-mine", "embedded = engine_of_test:Mine", engine_of_test=ENGINE)
    assert type(job_engine("embedded")) is EmbeddedJobs


def test_an_unknown_name_lists_the_engines_of_packages_too(site: Path) -> None:
    install(site, "callgate-mine", "mine = engine_of_test:Mine", engine_of_test=ENGINE)
    with pytest.raises(RegistrationError) as caught:
        Gate([add], jobs="nine")
    text = str(caught.value)
    assert text.startswith("no job engine 'nine'; did you mean 'mine'?; known: celery, embedded, mine, procrastinate. ")
    assert "entry point in the group 'callgate.job_engines'" in text
    assert "engine_of_test" not in sys.modules  # listing loads nothing


BROKEN = {
    "raise ValueError('of no use')": "ValueError: of no use",
    "import no_such_module_anywhere": "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    "OTHER = 1": "AttributeError: module 'engine_of_test_broken' has no attribute 'Mine'",
    "Mine = 7": "TypeError: 7 is not a callable object",
    "def Mine(): raise OSError('no disk')": "OSError: no disk",
    "class Mine: work = open = close = print": "what it returns has no bind, submit, submit_many, submitted, retry_later, cancel, recover",
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_broken_engine_is_refused_with_its_package_and_a_remedy(site: Path, source: str) -> None:
    install(site, "callgate-mine", "mine = engine_of_test_broken:Mine", engine_of_test_broken=source)
    with pytest.raises(RegistrationError) as caught:
        Gate([add], jobs="mine")
    assert str(caught.value) == (
        "the job engine 'mine' of the package 'callgate-mine' cannot be loaded from 'engine_of_test_broken:Mine': "
        f"{BROKEN[source]}; upgrade or repair callgate-mine, or uninstall it"
    )


def test_two_packages_with_one_engine_are_refused_by_name(site: Path) -> None:
    install(site, "callgate-b", "mine = engine_of_test:Mine", engine_of_test=ENGINE)
    install(site, "callgate-a", "mine = engine_of_test:Mine")
    with pytest.raises(RegistrationError, match="registered by callgate-a and callgate-b; uninstall all but one"):
        job_engine("mine")


def test_importing_callgate_and_making_a_gate_read_no_entry_points(site: Path) -> None:
    install(site, "callgate-mine", "mine = engine_of_test_broken", engine_of_test_broken="raise SystemExit(3)")
    program = """
        from importlib import metadata

        read = metadata.entry_points

        def watched(**wanted):
            assert wanted.get("group") != "callgate.job_engines", "read too early"
            return read(**wanted)

        metadata.entry_points = watched
        import callgate

        callgate.Gate(jobs="embedded")
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True, env={"PYTHONPATH": str(site)})
