"""The prose of the library, its pages and examples follows the rules of style that CONTRIBUTING.md explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import voice


def test_no_text_breaks_a_rule_of_style() -> None:
    """0 banned subjects, 0 citations of documents that do not ship, 0 contract numbers in public pages."""
    assert [str(found) for found in voice.findings([voice.ROOT / one for one in voice.PROSE])] == []


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""Whoever calls this waits."""', "subject"),
        ('"""Run a tool (contract 83)."""', "citation"),
        ('"""Run a tool, as design 10.4 says."""', "citation"),
        ('"""What a call returns."""', "opening"),
        ('raise ValueError("nobody knows")', "subject"),
        ("x = 1  # see schemas.md", "citation"),
        ('"""' + "word " * 26 + '."""', "length"),
    ],
)
def test_the_control_finds_each_offence(source: str, rule: str) -> None:
    """The same check over a text that breaks one rule."""
    assert [found.rule for found in voice.findings_in_code(source + "\n", "x.py")] == [rule]


def test_pages_for_maintainers_may_cite_the_contract(tmp_path: Path) -> None:
    """Only they: the same words in another page are found."""
    page = tmp_path / "page.md"
    page.write_text("This proves Contract 83.\n", "utf-8")
    assert [found.rule for found in voice.findings([page])] == ["citation"]
