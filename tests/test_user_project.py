"""A strict-typed project of a user, checked against the wheel that users get, by mypy and by pyright."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.test_packaging import ROOT, build

PROJECT = ROOT / "tests" / "user_project"
MISTAKES = {
    number
    for number, line in enumerate((PROJECT / "mistakes.py").read_text("utf-8").splitlines(), 1)
    if "# mistake" in line
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel unpacked, as an installer would."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's project, far from the sources."""
    folder = tmp_path_factory.mktemp("project")
    for path in PROJECT.glob("*.py"):
        (folder / path.name).write_text(path.read_text("utf-8"), "utf-8")
    return folder


def by_mypy(site: Path, project: Path, name: str) -> dict[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", name],
        cwd=project,
        env={**os.environ, "MYPYPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[int, list[str]] = {}
    for line, text in re.findall(rf"{name}:(\d+): error: (.*)", done.stdout):
        found.setdefault(int(line), []).append(text)
    return found


def by_pyright(site: Path, project: Path, name: str) -> dict[int, list[str]]:
    settings = {
        "include": [name],
        "typeCheckingMode": "strict",
        "extraPaths": [str(site)],
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
    }
    (project / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(project)],
        cwd=project,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= 1
    found: dict[int, list[str]] = {}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(one["range"]["start"]["line"] + 1, []).append(one["message"])
    return found


CHECKERS = {"mypy": by_mypy, "pyright": by_pyright}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_strict_project_compiles_against_the_wheel(checker: str, site: Path, project: Path) -> None:
    """Design 4."""
    assert CHECKERS[checker](site, project, "service.py") == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_wrong_signature_type_or_result_is_reported(checker: str, site: Path, project: Path) -> None:
    """Design 4: every marked line, and no other."""
    found = CHECKERS[checker](site, project, "mistakes.py")
    assert set(found) == MISTAKES, found


def test_the_project_runs_too() -> None:
    """The example is not only well typed."""
    done = subprocess.run(
        [sys.executable, PROJECT / "service.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["7", "4", "True"]
