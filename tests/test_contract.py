"""Every item of the contract that is in scope has a test that names it, and the page that shows this is fresh."""

from __future__ import annotations

import pytest

from scripts.contract_map import PAGE, find_tests, holes, named_in, read_items, render, unknown

ITEMS = read_items()
TESTS = find_tests()


def test_every_item_in_scope_has_a_test_that_names_it() -> None:
    missing = [f"{item.id}: {item.line}" for item in holes(ITEMS, TESTS)]
    assert not missing, "name them in the docstrings of their tests, as `Contract 91, C23.`:\n" + "\n".join(missing)


def test_every_id_that_a_test_names_is_an_item() -> None:
    assert unknown(ITEMS, TESTS) == {}


def test_the_page_of_the_contract_is_fresh() -> None:
    fresh = PAGE.read_text("utf-8") == render(ITEMS, TESTS)
    assert fresh, "run: make pages"  # the texts are too long to be of use in a report


def test_every_item_is_there_and_says_what_it_is() -> None:
    numbered = {str(number) for number in range(1, 105)} | {f"C{number}" for number in range(1, 36)}
    assert numbered - ITEMS.keys() == set()
    assert [item.id for item in ITEMS.values() if not item.line.endswith(".")] == []
    assert len({item.line for item in ITEMS.values()}) == len(ITEMS)


@pytest.mark.parametrize(
    ("docstring", "ids"),
    [
        ("Contract 91, C23.", ["91", "C23"]),
        ("Contract 44-47.", ["44", "45", "46", "47"]),
        ("contract 45, C10d, I2: what was done is named.", ["45", "C10d", "I2"]),
        ("Said first. Contract C3-C5, 60; design 4.", ["C3", "C4", "C5", "60"]),
        ("Contract 13,\n    14.", ["13", "14"]),
        ("Contract 45, invariants B1.", ["45"]),
        ("One contract holds 3 items.", []),
        ("", []),
    ],
)
def test_a_docstring_names_items_in_a_list_with_ranges(docstring: str, ids: list[str]) -> None:
    assert named_in(docstring) == ids
