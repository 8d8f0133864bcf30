"""The structure of the sources: figures that may not get worse, and things that are found by their names."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import house

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<path>[^`]+\.py)`(?:: `(?P<name>\w+)`)? \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str | None]]:
    """The rows of the table in CONTRIBUTING.md: what to look for, the file, and a name in it."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = page.partition("## Where to find it")[2].partition("\n## ")[0]
    return [(found["what"], found["path"], found["name"]) for found in ROW.finditer(table)]


def test_no_figure_of_the_structure_is_worse_than_its_limit() -> None:
    """Issue 37: one script prints them, in a process of its own: here anyio is loaded, which adds frames."""
    command = [sys.executable, str(ROOT / "scripts/house.py"), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = [house.Figure(**one) for one in json.loads(printed)]
    assert len(found) == 8
    assert [one for one in found if one.value > one.limit] == []


def test_who_reads_private_attributes_has_a_reason() -> None:
    assert set(house.private_reads()) == set(house.KNOWN_READS)


def test_a_private_read_is_found() -> None:
    """The control."""
    assert house._foreign_private(ast.parse("def f(gate): return gate._services")) == {"_services"}
    assert (
        house._foreign_private(ast.parse("class A:\n def f(self): return self._own\ndef g(a): return a._own")) == set()
    )


def test_levels_are_counted() -> None:
    """The control."""
    assert house._deepest({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    assert house._deepest({"a": {"b"}, "b": {"a"}}) == 2


def test_fifteen_things_are_listed() -> None:
    assert len(rows()) == 15


@pytest.mark.parametrize(("what", "path", "name"), rows(), ids=str)
def test_each_of_them_is_found_by_its_name(what: str, path: str, name: str | None) -> None:
    """A search for a word of the first column, among the names of files or functions, leads to the place."""
    words = {word.rstrip("s") for word in re.findall(r"[a-z]{4,}", what.lower())}
    searched = path.rpartition("/")[2] if name is None else name
    assert any(word in searched.lower() for word in words), searched
    text = (ROOT / path).read_text("utf-8")
    assert name is None or re.search(rf"\b(?:def|class) {name}\b", text)
