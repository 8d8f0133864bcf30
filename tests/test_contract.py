"""The page of the contract is fresh, every item keeps the contract's sentence, and each is proved or openly unmet."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from scripts import contract_map
from scripts.contract_map import PAGE, Proof, demands_in, differences, holes, named_in, read_items, render, unknown

ITEMS = read_items()
SENTENCES = {item.id: item.demand for item in ITEMS.values()}


@cache
def proofs() -> dict[str, list[Proof]]:
    """Read once, and only where a test needs it: every process collects this module."""
    return contract_map.find_tests()


@pytest.fixture(scope="session")
def demands(shared_data: Path) -> dict[str, str]:
    """The sentences of the contract and of the invariants, which lie beside the sample data."""
    texts = [shared_data.parent / name for name in ("contract.md", "invariants.md")]
    if missing := [str(text) for text in texts if not text.is_file()]:
        pytest.skip(f"NO CONTRACT at {' and '.join(missing)}: the sentences of docs/contract.toml are not compared")
    return demands_in(*(text.read_text("utf-8") for text in texts))


def test_every_item_has_a_test_that_names_it_or_says_what_is_open() -> None:
    missing = [f"{item.id}: {item.demand}" for item in holes(ITEMS, proofs())]
    assert not missing, "name them in the docstrings of their tests, as `Contract 91, C23.`:\n" + "\n".join(missing)


def in_the_soak_alone(path: str) -> set[str]:
    """The test functions of a file that no short run has."""
    body = ast.parse((contract_map.ROOT / path).read_text("utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name for node in functions if "pytest.mark.soak" in map(ast.unparse, node.decorator_list)}


def test_every_item_that_a_test_names_is_proved_in_the_short_run_too() -> None:
    soak = {path: in_the_soak_alone(path) for path in {proof.path for found in proofs().values() for proof in found}}
    assert [
        item_id for item_id, found in proofs().items() if all(proof.name in soak[proof.path] for proof in found)
    ] == []


@pytest.mark.parametrize("field", ["open", "instead"])
def test_what_is_open_or_different_is_said_in_sentences(field: str) -> None:
    reasons = {item.id: getattr(item, field) for item in ITEMS.values() if getattr(item, field) is not None}
    assert {item_id for item_id, reason in reasons.items() if not reason.endswith(".") or len(reason) < 20} == set()


def test_every_id_that_a_test_names_is_an_item() -> None:
    assert unknown(ITEMS, proofs()) == {}


def test_the_page_of_the_contract_is_fresh() -> None:
    fresh = PAGE.read_text("utf-8") == render(ITEMS, proofs())
    assert fresh, "run: make pages"  # the texts are too long to be of use in a report


def test_every_item_is_there_once() -> None:
    numbered = {str(number) for number in range(1, 105)} | {f"C{number}" for number in range(1, 36)}
    assert numbered - ITEMS.keys() == set()
    assert len(set(SENTENCES.values())) == len(ITEMS)


# The sentences are the contract's


def test_every_sentence_is_the_contracts_word_by_word(demands: dict[str, str]) -> None:
    assert differences(SENTENCES, demands) == {}


def test_the_comparison_finds_a_change_of_any_single_sentence(demands: dict[str, str]) -> None:
    """A control: one word is dropped from each sentence in turn."""
    for item_id, sentence in SENTENCES.items():
        first, _, rest = sentence.partition(" ")
        assert differences(SENTENCES | {item_id: rest}, demands) == {item_id: f"says '', the contract {first!r}"}


def test_the_comparison_finds_an_item_that_is_missing_on_either_side(demands: dict[str, str]) -> None:
    """A control: one item is taken out."""
    fewer = {item_id: sentence for item_id, sentence in SENTENCES.items() if item_id != "C10c"}
    assert differences(fewer, demands) == {"C10c": "is missing"}
    assert differences(SENTENCES, {k: v for k, v in demands.items() if k != "42"}) == {"42": "is not in the contract"}


@pytest.mark.parametrize(
    ("weaker", "found"),
    [
        ("Any run flagged and carries the mode in audit logs.", "says 'logs.', the contract 'logs and traces.'"),
        ("Any run is flagged and carries the mode in audit logs and traces.", "says 'is', the contract ''"),
        ("Some run flagged and carries the mode in audit logs and traces.", "says 'Some', the contract 'Any'"),
        ("Any  run flagged and\ncarries the mode in audit logs and traces.", None),
    ],
)
def test_the_comparison_names_the_words_that_differ_and_ignores_line_breaks(weaker: str, found: str | None) -> None:
    text = "Part A\n16. Any run flagged **and** carries the mode\tin audit logs and traces.\n\n# Part B\n1. No item.\n"
    assert differences({"16": weaker}, demands_in(text)) == ({} if found is None else {"16": found})


def test_items_of_each_kind_are_read_from_their_pages() -> None:
    contract = "1. One.\n2. Two | three.\n\n# Part B\n**C1. Title.** Text\n→ settled.\n**C1a. More** here.\n\n# Part C\n1. Not an item.\n"
    invariants = "| # | Invariant | Test |\n|---|---|---|\n| I1 | Each lease. | sweep |\n1. Not an item.\n"
    assert demands_in(contract, invariants) == {
        "1": "One.",
        "2": "Two | three.",
        "C1": "Title. Text → settled.",
        "C1a": "More here.",
        "I1": "Each lease.",
    }


# Which items a test names


@pytest.mark.parametrize(
    ("docstring", "ids"),
    [
        ("Contract 91, C23.", ["91", "C23"]),
        ("Contract 44-47.", ["44", "45", "46", "47"]),
        ("contract 45, C10d, I2: what was done is named.", ["45", "C10d", "I2"]),
        ("Said first. Contract C3-C5, 60; design 4.", ["C3", "C4", "C5", "60"]),
        ("Contract 13,\n    14.", ["13", "14"]),
        ("Contract 45, invariants B1.", ["45"]),
        ("Contract 45, invariants B2, I14, I2: at once.", ["45", "I14", "I2"]),
        ("I5, I6.", ["I5", "I6"]),
        ("One contract holds 3 items.", []),
        ("", []),
    ],
)
def test_a_docstring_names_items_in_a_list_with_ranges(docstring: str, ids: list[str]) -> None:
    assert named_in(docstring) == ids
