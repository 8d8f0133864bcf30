"""The page about testing hooks: its code runs, prints what it says, and its tests pass as a user's own."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import callgate.testing

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "test-a-hook.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<prints>.*?)^```$)?", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[int, str, str]]:
    text = PAGE.read_text("utf-8")
    return [
        (text.count("\n", 0, found.start("code")), found["code"], found["prints"] or "")
        for found in BLOCK.finditer(text)
    ]


def test_every_block_runs_and_prints_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4."""
    module = ModuleType("docs_test_a_hook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert len(blocks()) == 11
    for line, code, prints in blocks():
        printed = io.StringIO()
        compiled = compile("\n" * line + code, str(PAGE), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(compiled, vars(module))
        assert printed.getvalue() == prints, f"line {line + 1}"


def test_the_tests_of_the_page_pass_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """Design 4: the fixtures of the plugin that pytest finds by its entry point; no other plugin is needed."""
    (tmp_path / "test_places.py").write_text("\n\n".join(code for _, code, _ in blocks()), "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-W", "error", "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_the_page_names_every_fixture_and_the_face_is_sorted() -> None:
    """Design 4."""
    import pytest_callgate

    page = PAGE.read_text("utf-8")
    fixtures = [
        name for name, value in vars(pytest_callgate).items() if type(value).__name__ == "FixtureFunctionDefinition"
    ]
    assert len(fixtures) == 6
    assert [name for name in fixtures if f"| `{name}` |" not in page] == []
    assert [name for name in vars(callgate.testing)["__all__"] if not hasattr(callgate.testing, name)] == []
