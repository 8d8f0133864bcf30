"""The page of the providers' forms shows what is measured (contract 60, 61)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import provider_schemas
from scripts.provider_schemas import FORMS, MEASURED, PAGE, Count, catalogues, counts, kind_of, refreshed
from tests.conftest import DATA


@pytest.mark.needs_data
def test_the_measured_tables_are_fresh() -> None:
    page = PAGE.read_text("utf-8")
    assert refreshed(page) == page, "run: python scripts/provider_schemas.py"
    assert all(f"<!-- measured: {name} -->" in page for name in MEASURED)


@pytest.mark.needs_data
def test_a_stale_table_is_seen() -> None:
    """The control."""
    page = PAGE.read_text("utf-8").replace("1,044 tools", "1,043 tools")
    assert refreshed(page) != page


@pytest.mark.needs_data
@pytest.mark.parametrize("form", list(FORMS))
def test_contract_61_every_tool_is_counted_once(form: str, shared_data: Path) -> None:
    """Contract 61."""
    for count in counts()[form]:
        assert count.tools == count.lossless + count.told + count.reasons.total()
    assert counts()[form][0].tools == len(catalogues(shared_data)) == 1044
    if not FORMS[form].respells:
        assert [count.lossless for count in counts()[form]] == [count.tools for count in counts()[form]]


def test_a_note_is_no_loss_and_a_bound_is() -> None:
    note = {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}
    bound = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}}
    free = {"type": "object", "properties": {"a": {"type": "object"}}}
    count = Count.of(FORMS["openai strict"], {"note": note, "bound": bound, "free": free})
    assert (count.tools, count.lossless, count.told) == (3, 1, 1)
    assert dict(count.reasons) == {"an open object": 1}
    assert dict(count.keywords) == {"default": 1, "minLength": 1}


def test_reasons_are_counted_without_their_places() -> None:
    assert kind_of("the property 'a-b' has a name it does not take at /properties/x") == (
        "the property … has a name it does not take"
    )


def test_the_sample_data_is_looked_for_where_the_other_tests_look() -> None:
    assert provider_schemas.DATA.resolve() == DATA.resolve()
