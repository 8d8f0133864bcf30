"""A strict-typed project of a user, checked against the wheel that users get, by mypy and by pyright."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache, partial
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


Found = dict[str, dict[int, list[str]]]
CORRECT = ("service.py", "conversations.py", "plugin_fixtures.py")
FILES = (*CORRECT, "mistakes.py")


def by_mypy(site: Path, project: Path) -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", *FILES],
        cwd=project,
        env={**os.environ, "MYPYPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found: Found = {name: {} for name in FILES}
    for name, line, text in re.findall(r"^(\w+\.py):(\d+): error: (.*)", done.stdout, re.MULTILINE):
        found[name].setdefault(int(line), []).append(text)
    return found


def by_pyright(site: Path, project: Path, *, mode: str) -> Found:
    settings = {
        "include": FILES,
        "typeCheckingMode": mode,
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
    assert report["summary"]["filesAnalyzed"] >= len(FILES)
    found: Found = {name: {} for name in FILES}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            of = found[Path(one["file"]).name]
            of.setdefault(one["range"]["start"]["line"] + 1, []).append(one["message"])
    return found


CHECKERS: dict[str, Callable[[Path, Path], Found]] = {
    "mypy": by_mypy,
    "pyright basic": partial(by_pyright, mode="basic"),
    "pyright strict": partial(by_pyright, mode="strict"),
}
MARKS = {"pyright basic": pytest.mark.soak}  # its strict mode reports all that this one does


@pytest.fixture(scope="module")
def findings(site: Path, project: Path) -> Callable[[str], Found]:
    """The errors by file and line; each checker runs once, over all files."""
    return cache(lambda checker: CHECKERS[checker](site, project))


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("checker", [pytest.param(one, marks=MARKS.get(one, ())) for one in CHECKERS])
def test_a_strict_project_compiles_against_the_wheel(checker: str, name: str, findings: Callable[[str], Found]) -> None:
    """Design 4."""
    assert findings(checker)[name] == {}


@pytest.mark.parametrize("checker", [name for name in CHECKERS if name != "pyright basic"])
def test_a_wrong_signature_type_or_result_is_reported(checker: str, findings: Callable[[str], Found]) -> None:
    """Design 4: every marked line, and no other."""
    found = findings(checker)["mistakes.py"]
    assert set(found) == MISTAKES, found


def test_the_project_runs_too() -> None:
    """The example is not only well typed."""
    done = subprocess.run(
        [sys.executable, PROJECT / "service.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["7", "4", "True"]
