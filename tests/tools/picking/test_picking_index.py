"""``ToolIndex``: kept in step, independent of what is not asked, unmoved by odd input."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import DefinitionError, UnknownTool, pick_tools
from callgate.picking import ToolIndex
from callgate.tools.picking.stemming import stem
from callgate.tools.picking.text import MAX_TEXT, as_text, plain_words, terms

WORDS = "weather city mail send file read book flight hotel price stock chart map route song the get 7".split()
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
catalogs = st.lists(st.tuples(texts, texts), min_size=1, max_size=8)


def entries(rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"name": f"t{number}_{name}", "description": text} for number, (name, text) in enumerate(rows)]


def answers(index: ToolIndex, query: str) -> list[tuple[str, str]]:
    return [(index.entry(slot).name, score.hex()) for slot, score in index.search(query, limit=50)]


@settings(max_examples=60, deadline=None)
@given(rows=catalogs, query=texts, data=st.data())
def test_added_to_and_removed_from_it_answers_to_the_bit_like_one_built_anew(
    rows: list[tuple[str, str]], query: str, data: st.DataObject
) -> None:
    """Issue 6: ``ToolIndex`` is incremental."""
    tools = entries(rows)
    index = ToolIndex([*tools, {"name": "extra", "description": query}])
    gone = data.draw(st.sets(st.sampled_from([one["name"] for one in tools])))
    for name in sorted(gone):
        index.remove(name)
    index.remove("extra")
    changed = [one | {"description": one["description"] + " song"} for one in tools if one["name"] not in gone]
    for one in changed:
        index.add(one, replace=True)
    assert answers(index, query) == answers(ToolIndex(changed), query)


@settings(max_examples=60, deadline=None)
@given(rows=catalogs, query=texts, data=st.data())
def test_tools_that_are_not_asked_about_have_no_part_in_the_answer(
    rows: list[tuple[str, str]], query: str, data: st.DataObject
) -> None:
    """Issue 6, C29: a hidden tool changes no score, not even by how rare it makes a word."""
    tools = entries(rows)
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(tools))), min_size=1)))
    index = ToolIndex(tools)
    some = [(index.entry(slot).name, score.hex()) for slot, score in index.search(query, limit=50, slots=kept)]
    assert some == answers(ToolIndex([tools[slot] for slot in kept]), query)


@settings(max_examples=80, deadline=None)
@given(rows=catalogs, query=texts)
def test_scores_are_from_0_to_1_and_an_irrelevant_tool_never_passes_a_right_one(
    rows: list[tuple[str, str]], query: str
) -> None:
    """Issue 6: property."""
    tools = entries(rows)
    before = ToolIndex(tools).search(query, limit=50)
    after = ToolIndex([{"name": "zzz", "description": "qqq xxx"}, *tools]).search(query, limit=50)
    assert all(0.0 < score < 1.0 for _, score in before)
    assert {slot - 1 for slot, _ in after} == {slot for slot, _ in before}


@settings(max_examples=60, deadline=None)
@given(rows=catalogs, query=texts, data=st.data())
def test_what_is_explained_adds_up_to_the_weight_and_knows_of_no_other_tools(
    rows: list[tuple[str, str]], query: str, data: st.DataObject
) -> None:
    """Contract 69, C29: terms, groups of words and words side by side, to four places each."""
    tools = entries(rows)
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(tools))), min_size=1)))
    index, alone = ToolIndex(tools), ToolIndex([tools[slot] for slot in kept])
    weights = index.weigh(query, kept)
    for place, slot in enumerate(kept):
        parts = index.explain(query, slot, kept)
        assert parts == alone.explain(query, place)
        assert sum(parts.values()) == pytest.approx(weights.get(slot, 0.0), abs=1e-3)


def test_the_order_of_keys_has_no_part_in_it() -> None:
    """Issue 6: property."""
    one = {"name": "a", "description": "x", "parameters": {"properties": {"city": {}, "mail": {"description": "to"}}}}
    other = {"parameters": {"properties": {"mail": {"description": "to"}, "city": {}}}, "description": "x", "name": "a"}
    assert answers(ToolIndex([one]), "city mail") == answers(ToolIndex([other]), "city mail")
    assert as_text({"b": 1, "a": [2]}) == as_text({"a": [2], "b": 1})


def test_a_search_gives_the_best_in_order_however_many_there_are() -> None:
    """Contract 67: blocks and cuts are only how it is found; ties by registration order (C32)."""
    index = ToolIndex([{"name": f"n{number}", "description": "mail " * (number % 7)} for number in range(300)])
    every = index.search("mail", limit=300)
    assert every == sorted(every, key=lambda pair: (-pair[1], pair[0]))
    assert [index.search("mail", limit=k) for k in (1, 5, 70)] == [every[:1], every[:5], every[:70]]


def test_names_are_unique_and_the_version_tells_of_every_change() -> None:
    """Contract 30, C6."""
    index = ToolIndex([{"name": "a"}])
    with pytest.raises(DefinitionError, match="Duplicate"):
        index.add({"name": "a"})
    with pytest.raises(DefinitionError, match="name"):
        index.add({"description": "nameless"})
    with pytest.raises(UnknownTool):
        index.remove("b")
    seen = [index.version]
    index.add({"name": "b"})
    seen.append(index.version)
    index.remove("b")
    seen.append(index.version)
    assert seen == sorted(set(seen))
    assert (len(index), "a" in index, "b" in index) == (1, True, False)


def test_an_index_that_tools_come_and_go_in_does_not_grow() -> None:
    """Issue 6: kept across calls."""
    index = ToolIndex([{"name": "stays", "description": "mail"}])
    for number in range(500):
        index.add({"name": f"n{number}", "description": "mail song"})
        index.remove(f"n{number}")
    assert len(index.entries) < 100
    assert [name for name, _ in answers(index, "mail")] == ["stays"]


class Loop:
    def __init__(self) -> None:
        self.me = self


cycle: list[Any] = []
cycle.append(cycle)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        " \n",
        "🙂🙂",
        "x" * 1000000,
        "weather " * 125000,
        None,
        7,
        10**5000,
        b"\xff",
        cycle,
        Loop(),
        object(),
        len,
        {"a": {1, "b", (2,)}},
        [dt.date(2026, 1, 1)],
        {frozenset(): float("nan")},
        "�",
        "ا" * 50,
    ],
    ids=[
        "empty",
        "blank",
        "emoji",
        "a long word",
        "a megabyte",
        "none",
        "number",
        "huge number",
        "bytes",
        "cycle",
        "object cycle",
        "object",
        "function",
        "set",
        "date",
        "odd key",
        "surrogate",
        "arabic",
    ],
)
async def test_odd_input_neither_fails_nor_takes_for_ever(odd: Any) -> None:
    """Issue 6, contract 65."""
    assert isinstance(await pick_tools(odd, [{"name": "get_weather", "description": "Weather."}]), list)
    assert len(as_text(odd)) >= 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("getUserInfo", ["get", "user", "info"]),
        ("get_user-info", ["get", "user", "info"]),
        ("HTTPServer2Go", ["http", "server", "2", "go"]),
        ("Straße CAFÉ", ["strasse", "cafe"]),
        ("天气预报", ["天气", "气预", "预报"]),
        ("iPhone手机", ["i", "phone", "手机"]),
        ("погода Киев", ["погода", "киев"]),
        ("हिन्दी", ["हिन्दी"]),
    ],
    ids=["camel", "snake and kebab", "digits", "accents", "han", "mixed scripts", "cyrillic", "devanagari"],
)
def test_identifiers_and_scripts_are_split_sensibly(text: str, words: list[str]) -> None:
    """Contract C32, issue 6."""
    assert plain_words(text) == words


async def test_a_query_in_chinese_finds_a_tool_described_in_chinese() -> None:
    """Issue 6: other scripts."""
    tools = [{"name": "a", "description": "使用必应搜索"}, {"name": "b", "description": "天气预报"}]
    assert [one.tool["name"] for one in await pick_tools("今天天气怎么样", tools)] == ["b"]


@pytest.mark.parametrize(
    ("words", "one"),
    [
        ("forecast forecasts forecasting forecasted", "forecast"),
        ("translate translates translating translation translator", "translat"),
        ("city cities", "citi"),
        ("news", "news"),
        ("running runs", "run"),
    ],
    ids=["forecast", "translate", "city", "news", "run"],
)
def test_forms_of_a_word_have_one_stem(words: str, one: str) -> None:
    """Issue 6: light stemming."""
    assert {stem(word) for word in words.split()} == {one}


def test_of_a_long_text_both_ends_are_read() -> None:
    """Issue 6: bounded time; what is asked often stands at the end."""
    assert {"weather", "flight"} <= set(terms("weather " + "x " * MAX_TEXT + " flight"))
