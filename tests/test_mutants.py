"""``scripts/mutants.py`` changes each kind of place, and every mutant is a program."""

from __future__ import annotations

import ast

import pytest

from scripts.mutants import ROOMS, ROOT, edits

SOURCE = '''"""A page."""
def work(n: int = 3, é: str = "ü") -> None:
    """Work."""
    if not (n is not None and n <= 2):
        raise ValueError(é)
    self.n += True
    log.info("é", n)
'''


def mutants(source: str) -> list[str]:
    text = source.encode()
    return [(text[:begin] + after.encode() + text[end:]).decode() for begin, end, after in edits(source)]


def test_each_kind_of_place_is_changed_and_nothing_else() -> None:
    lines = SOURCE.splitlines()
    changed = [
        [(old, new) for old, new in zip(lines, one.splitlines(), strict=True) if old != new] for one in mutants(SOURCE)
    ]
    assert all(len(one) == 1 for one in changed)
    assert {new.strip() for ((_, new),) in changed} == {
        'def work(n: int = 4, é: str = "ü") -> None:',
        "if (n is not None and n <= 2):",
        "if not (n is None and n <= 2):",
        "if not (n is not None and n < 2):",
        "if not (n is not None and n <= 3):",
        "pass",
        "self.n += False",
    }


@pytest.mark.parametrize("room", ROOMS)
def test_every_mutant_of_a_room_is_another_program(room: str) -> None:
    files = sorted(ROOT.glob(room))
    assert files
    for file in files[:4]:
        source = file.read_text("utf-8")
        for one in mutants(source)[::7]:
            ast.parse(one)
            assert one != source
