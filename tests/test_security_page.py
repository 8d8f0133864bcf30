"""The page of threats names a test for each attack, and each test of an attack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/explanation/security.md"
_NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def absent(text: str) -> Iterator[str]:
    """The tests that a page names and that do not exist."""
    for file, name in _NAMED.findall(text):
        path = ROOT / "tests" / file
        if not path.is_file() or not re.search(rf"^(async )?def {name}\(", path.read_text("utf-8"), re.MULTILINE):
            yield f"{file}::{name}"


def rows_without_a_test(text: str) -> list[str]:
    """The rows of tables with the column "Test" that name none."""
    found: list[str] = []
    tests = False
    for line in text.splitlines():
        if not line.startswith("| "):
            tests = False
        elif line.endswith("| Test |"):
            tests = True
        elif tests and not line.startswith("| ---") and not _NAMED.search(line):
            found.append(line)
    return found


def test_each_attack_names_a_test_that_exists() -> None:
    text = PAGE.read_text("utf-8")
    assert list(absent(text)) == []
    assert rows_without_a_test(text) == []
    assert len(_NAMED.findall(text)) > 30


def test_each_file_of_attacks_is_on_the_page() -> None:
    named = {file for file, _ in _NAMED.findall(PAGE.read_text("utf-8"))}
    files = {path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests/attacks").glob("test_*.py")}
    assert files - named == set()


def without_a_control(text: str, read: Callable[[str], str]) -> list[str]:
    """The tests of attacks on a page that have no control: in themselves, as a parameter, or behind them in their file."""
    found: list[str] = []
    for file, name in _NAMED.findall(text):
        if not file.startswith("attacks/"):
            continue
        _, _, rest = read(file).partition(f"def {name}(")
        before = read(file).partition(f"def {name}(")[0].rpartition("\n\n\n")[2]
        if "control" not in f"{before}{rest}".lower():
            found.append(f"{file}::{name}")
    return found


def read_test(file: str) -> str:
    return (ROOT / "tests" / file).read_text("utf-8")


def test_each_attack_has_a_control() -> None:
    """A gate that is sabotaged, or an input without the attack, shows that the test would fail."""
    assert without_a_control(PAGE.read_text("utf-8"), read_test) == []


def test_control_an_attack_without_a_control_is_found() -> None:
    name = "test_no_spelling_that_changes_the_meaning_is_accepted"
    page = f"`attacks/test_argument_meaning.py::{name}`"
    assert without_a_control(page, read_test) == []
    assert without_a_control(page, lambda file: read_test(file).lower().replace("control", "")) == [page.strip("`")]


def test_control_a_test_that_was_renamed_and_a_row_without_one_are_found() -> None:
    text = PAGE.read_text("utf-8")
    renamed = text.replace("::test_an_attack_fails", "::test_an_attack_fail")
    assert list(absent(renamed)) == ["runtime/hosts/mcp/test_hostile_clients.py::test_an_attack_fail"]
    bare = text.replace("`runtime/hosts/mcp/test_hostile_clients.py::test_an_attack_fails`", "each is tried")
    assert len(rows_without_a_test(bare)) == 1
