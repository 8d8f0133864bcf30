"""Bounds: whatever is asked, and whatever tools say of themselves, time and memory have an end, and no chance decides."""

from __future__ import annotations

import json
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from callgate import ToolDefinition, pick_tools
from callgate.picking import LLMScorer, ToolIndex
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.picking import pick, text
from callgate.tools.picking.document import texts_of
from callgate.tools.picking.scorers import score_from
from callgate.tools.picking.stemming import stem
from callgate.tools.picking.text import MAX_TEXT, as_text, terms

MEGABYTE = 1_000_000


def doubled(value: Any, wrap: Any) -> Any:
    """A value of 200 parts that shows 2**200 of them: each part holds the one before twice."""
    for _ in range(200):
        value = wrap(value)
    return value


SHARED = {
    "lists": doubled([], lambda one: [one, one]),
    "tuples": doubled((), lambda one: (one, one)),
    "mappings of nothing": doubled({}, lambda one: {"": one, " ": one}),
    "sets": doubled(frozenset(), lambda one: frozenset({one, (one,)})),
    "sets in sets": doubled(frozenset(), lambda one: frozenset({one})),
    "mixed": doubled(None, lambda one: [{"a": one}, (one, one)]),
}


@pytest.mark.parametrize("shape", SHARED)
def test_a_value_that_shows_more_than_it_holds_is_walked_through_in_bounded_time(shape: str) -> None:
    """Issue 6, contract 65: each of these has more ways through it than there are atoms."""
    assert len(as_text(SHARED[shape])) < 10_000


def test_texts_within_a_value_are_cut_to_their_ends() -> None:
    """Issue 6: 2 GB would be one allocation away."""
    long = "a" * MEGABYTE + "end"
    found = as_text([long] * 50)
    assert len(found) <= 50 * (MAX_TEXT + 2)
    assert found.endswith("end")
    assert as_text(long) is long, "a text by itself is cut where it is read"


@pytest.mark.parametrize(
    "size", [10, 3_000], ids=["few: in alphabetical order", "many: nothing, since any part of it would be chance"]
)
def test_no_hash_decides_what_of_a_set_is_read(size: int) -> None:
    """Issue 6, C32: deterministic."""
    words = [f"w{number:04}" for number in range(size)]
    assert as_text(set(words)) == ("\n".join(words) if size == 10 else "")


def test_the_key_of_a_mapping_may_be_anything() -> None:
    """Contract 65."""
    deep: Any = ()
    for _ in range(500):
        deep = (deep,)
    assert as_text({("a", 1): "x", deep: "y", b"z": 1}) == "a 1\nx\ntuple\ny\nz\n1"


@pytest.mark.parametrize(
    "word", ["x" * 5_000, "aB" * 2_500, "天" * 5_000, "é" * 5_000], ids=["plain", "camel", "han", "accents"]
)
def test_long_words_are_not_remembered(word: str) -> None:
    """Issue 6: else each question leaves its 20,000 letters, or as many pairs of them, in the memory of the process."""
    before = text._known_terms.cache_info().currsize, text._known_parts.cache_info().currsize
    assert terms(word)
    assert text.plain_words(word)
    assert (text._known_terms.cache_info().currsize, text._known_parts.cache_info().currsize) == before
    terms("remembered" + "".join(chr(97 + ord(letter) % 26) for letter in word[:8]))
    assert text._known_terms.cache_info().currsize == before[0] + 1, "the control: short ones are"


def test_a_schema_that_shows_more_than_it_holds_is_read_in_bounded_time() -> None:
    """Issue 6: 100**9 ways through 9 objects."""
    schema: dict[str, Any] = {}
    for _ in range(9):
        schema = {"anyOf": [schema] * 100}
    found = texts_of({"name": "a", "parameters": {"properties": {"city": {"description": "where"}}, "oneOf": [schema]}})
    assert (found["parameter_names"], found["parameter_descriptions"]) == ("city", "where")


def test_where_a_schema_is_cut_does_not_depend_on_the_order_of_its_keys() -> None:
    """Issue 6: property."""
    parameters = {f"p{number}": {"description": f"about {number}"} for number in range(400)}
    backwards = dict(reversed(parameters.items()))
    assert texts_of({"name": "a", "parameters": {"properties": parameters}}) == texts_of(
        {"name": "a", "parameters": {"properties": backwards}}
    )


async def test_a_question_to_a_model_is_of_bounded_length() -> None:
    """Contract 69: the two ends of what is asked, and the beginning of what tools say of themselves."""
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return '{"1": 1}'

    tools = [{"name": f"t{number}", "description": "d" * MEGABYTE} for number in range(20)]
    assert await pick_tools("begin " + "x" * MEGABYTE + " \ud800 end", tools, scorer=LLMScorer(ask))
    (prompt,) = prompts
    assert len(prompt) < MAX_TEXT + 20 * 1_100 + 1_000
    assert json.loads(prompt.split("Request: ")[1].split("\n")[0]).endswith(" ? end")
    prompt.encode()


async def test_the_answers_that_are_kept_have_an_end_and_hold_nothing_that_was_asked() -> None:
    """Contract 69."""
    scorer = LLMScorer(lambda _: '{"1": 1}', remember=3)
    for number in range(10):
        await pick_tools(f"secret {number}", [{"name": "a"}], scorer=scorer)
    assert len(scorer._known) == 3
    assert "secret" not in repr(scorer._known)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (10**400, 1.0),
        (-(10**400), 0.0),
        (True, 1.0),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (Decimal("Infinity"), 1.0),
        (float("-inf"), 0.0),
        (-0.0, 0.0),
    ],
    ids=["huge", "minus huge", "bool", "decimal", "fraction", "infinite", "minus infinite", "minus nothing"],
)
def test_any_number_is_a_score(answer: Any, score: float) -> None:
    """Contract 64, C32."""
    found = score_from(answer).score
    assert (type(found), found, str(found)) == (float, score, str(score))


@pytest.mark.parametrize("answer", ["0.5", None, [0.5]], ids=["text", "none", "list"])
def test_what_is_no_number_is_no_score(answer: Any) -> None:
    """Contract 64: the tool is left out, as with any failure."""
    with pytest.raises(TypeError, match="a score is a number"):
        score_from(answer)


@pytest.mark.parametrize(
    "word", ["ing", "ings", "ying", "sses", "ational", "eed", "ated", "yyyy", "aaaa", "ssss", "lli", "ement"]
)
def test_no_word_is_stemmed_away(word: str) -> None:
    """Issue 6: endings by themselves."""
    assert stem(word)
    assert stem("x" + word)


class Executor:
    """A tool in the documents' form whose definition is read anew each time: it may say something else tomorrow."""

    def __init__(self, name: str, description: str) -> None:
        self.schema = ToolSchema(name, description, {"type": "object"})

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    async def execute(self, _input: Any, _ctx: Any) -> Any:
        raise AssertionError("run")


async def test_a_list_of_tools_is_read_again_where_they_may_have_changed() -> None:
    """Issue 6: no stale index. Mappings and executors; what is frozen is read once."""
    changing, mapping = Executor("one", "Weather."), {"name": "two", "description": "Weather."}
    for tool in (changing, mapping):
        assert len(await pick_tools("weather", [tool])) == 1
    changing.schema = ToolSchema("one", "Mail.", {"type": "object"})
    mapping["description"] = "Mail."
    for tool in (changing, mapping):
        assert await pick_tools("weather", [tool]) == []
    frozen = [ToolDefinition("three", "Weather.", {"type": "object"})]
    assert pick.index_of(frozen) is pick.index_of(frozen)


async def test_the_kept_indexes_survive_another_thread_that_drops_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 6: several event loops in one process share them."""

    class Dropping(OrderedDict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return self.pop(key, default)

    monkeypatch.setattr(pick, "_indexes", Dropping())
    tools = [ToolDefinition("a", "Weather.", {"type": "object"})]
    for _ in range(3):
        assert len(await pick_tools("weather", tools)) == 1
    for number in range(10):
        await pick_tools("x", [ToolDefinition(f"t{number}", "Weather.", {"type": "object"})])
    assert len(pick._indexes) == pick._KEPT


class Unreadable(dict[str, Any]):
    """Fails where a tool's examples are asked for."""

    def get(self, key: str, default: Any = None) -> Any:
        if key == "examples":
            raise OSError("no")
        return super().get(key, default)


def test_a_tool_that_cannot_be_read_leaves_the_index_as_it_was() -> None:
    """Issue 6: also where it would have replaced another."""
    index = ToolIndex([{"name": "a", "description": "mail"}])
    before = index.version, index.search("mail")
    for name in ("a", "b"):
        with pytest.raises(OSError, match="no"):
            index.add(Unreadable(name=name, description="mail"), replace=True)
    assert (index.version, index.search("mail"), len(index)) == (*before, 1)
    index.remove("a")
    assert (index._postings, index._pairs) == ({}, {})


def test_a_mapping_that_changed_after_it_was_added_is_forgotten_as_it_was_read() -> None:
    """Issue 6: no stale index, and no tool that says it is unsafe slips through by what it said before."""
    tool: dict[str, Any] = {"name": "a", "description": "mail a letter", "safe": False}
    index = ToolIndex([tool, {"name": "b", "description": "mail"}])
    tool |= {"description": "weather", "safe": True}
    assert index.unsafe == {0}
    index.add(tool, replace=True)
    assert index.unsafe == set()
    assert [index.entry(slot).name for slot, _ in index.search("letter weather")] == ["a"]
    tool["description"] = "stock price"
    index.remove("a")
    assert [index.entry(slot).name for slot, _ in index.search("mail a letter weather stock price")] == ["b"]
    index.remove("b")
    assert (index._postings, index._pairs, len(index)) == ({}, {}, 0)
