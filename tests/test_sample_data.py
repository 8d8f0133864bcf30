"""The tests that read the sample data are known: ``.ci/run`` runs them with an empty folder, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.data_tests import ROOT, data_tests, readers

READS = {
    "shared_data": "def test_it(shared_data): ...",
    "needs_data": "@pytest.mark.needs_data\ndef test_it(): ...",
    "DATA": "from tests.conftest import DATA",
    "CALLGATE_DATA": "import os\nos.environ['CALLGATE_DATA']",
    "from a module": "from tests.reading import read",
    "a module": "import tests.reading",
    "from its folder": "from tests import reading",
    "far away": "def test_it():\n    from tests.between import one",
}
MODULES = {
    "tests.conftest": "DATA = 1",
    "tests.reading": "from tests.conftest import DATA",
    "tests.between": "from tests.reading import read",
}


@pytest.mark.parametrize("text", READS.values(), ids=READS)
def test_a_test_that_reads_the_data_is_found(text: str) -> None:
    assert "tests.test_it" in readers({**MODULES, "tests.test_it": text})


@pytest.mark.parametrize("text", ["import json", "from tests.conftest import gc", "DATABASE = 1"])
def test_a_test_that_does_not_read_the_data_is_not(text: str) -> None:
    """The control."""
    assert "tests.test_it" not in readers({**MODULES, "tests.test_it": text})


def test_the_tests_of_the_benchmarks_are_among_them() -> None:
    """They read it through three modules."""
    assert {"tests/benchmarks/test_harness.py", "tests/runtime/models/test_recordings.py"} <= set(data_tests())
    assert "tests/test_packaging.py" not in data_tests()


@pytest.mark.parametrize("folder", ["none", "empty", "used"])
def test_an_empty_folder_is_no_data(folder: str, tmp_path: Path) -> None:
    for name in ("empty", "used"):
        (tmp_path / name).mkdir()
    (tmp_path / "used" / "recordings").mkdir()
    code = "from tests.conftest import DATA, HAS_DATA; print(DATA, HAS_DATA)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"CALLGATE_DATA": str(tmp_path / folder)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed.split() == [str(tmp_path / folder), str(folder == "used")]
