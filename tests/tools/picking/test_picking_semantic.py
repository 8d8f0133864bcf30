"""``SemanticScorer``: what words miss, meaning finds; and where meaning fails, words still answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import Gate, ToolDefinition, User, tool
from callgate.testing import run_virtual
from callgate.tools.picking import meaning, pick
from callgate.tools.picking.index import Snapshot, ToolIndex
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.results import Score
from callgate.tools.picking.scorers import Lexical, Query
from callgate.tools.picking.semantic import SemanticScorer, mixed
from tests.runtime.pipeline.listening import handled
from tests.tools.picking.embedders import CATALOGUE, FLIGHT, REFUND, WEATHER, Broken, Concepts, Slow

UMBRELLA = "do I need an umbrella"
MANY = tuple(ToolDefinition(f"tool_{number}", f"Trip {number}.", {"type": "object"}) for number in range(200))


async def scores(scorer: SemanticScorer, query: str, index: ToolIndex) -> Mapping[int, Score]:
    return await scorer.score_slots(Query(query, query), index, None)


def names(results: Any) -> list[str]:
    return [result.tool.name for result in results]


async def test_a_tool_is_found_by_its_meaning_alone() -> None:
    """Contract 70. The default scorer finds nothing: no word of the query is in any tool."""
    assert await pick_tools(UMBRELLA, CATALOGUE) == []
    found = await pick_tools(UMBRELLA, CATALOGUE, scorer=SemanticScorer(Concepts()), debug=True)
    assert names(found) == ["get_weather"]
    assert found[0].reason == "near in meaning to get_weather"
    assert found[0].provenance is not None
    assert found[0].provenance.scorer == "bm25f+concepts"
    assert found[0].provenance.details == {"words": 0.0, "cosine": 1.0}


async def test_a_tool_is_found_by_its_words_alone() -> None:
    """Contract 70: a mixture, no re-ranking in either direction."""
    found = await pick_tools("book a seat", CATALOGUE, scorer=SemanticScorer(Concepts()))
    assert names(found) == ["book_flight"]
    assert found[0].reason == "matched keywords in book_flight"


async def test_words_and_meaning_together_count_more_than_either() -> None:
    """Contract 64, 70."""
    index = ToolIndex(CATALOGUE)
    scorer = SemanticScorer(Concepts())
    by_meaning = (await scores(scorer, UMBRELLA, index))[0].score
    by_both = (await scores(scorer, "weather: do I need an umbrella", index))[0].score
    assert 0.0 < by_meaning < by_both < 1.0


@given(words=st.floats(0, 1e6), more=st.floats(0, 1e3), cosine=st.floats(-1, 1), nearer=st.floats(0, 1))
def test_a_score_is_from_0_to_1_and_never_falls_with_more_words_or_a_nearer_meaning(
    words: float, more: float, cosine: float, nearer: float
) -> None:
    """Contract 64."""
    score = mixed(words, cosine)
    assert 0.0 <= score <= 1.0
    assert mixed(words + more, cosine) >= score
    assert mixed(words, min(1.0, cosine + nearer)) >= score


FAULTS = {
    "it raises": (Broken(RuntimeError("secret detail")), "the embedder failed: RuntimeError"),
    "it says that it took too long": (Broken(TimeoutError()), "the embedder failed: TimeoutError"),
    "it gives too few": (Broken(lambda number: [[1.0, 0.0, 0.0]] * (number - 1)), "EmbeddingsUnfit"),
    "it gives none": (Broken(lambda _: None), "the embedder failed: TypeError"),
    "it gives one that is no number": (Broken(lambda number: [[1.0, float("nan"), 0.0]] * number), "EmbeddingsUnfit"),
    "it gives infinity": (Broken(lambda number: [[1.0, float("inf"), 0.0]] * number), "EmbeddingsUnfit"),
    "it gives text": (Broken(lambda number: [["1", "2", "3"]] * number), "EmbeddingsUnfit"),
    "it gives too short ones": (Broken(lambda number: [[1.0]] * number), "EmbeddingsUnfit"),
    "it is slow": (Slow(60.0), "no vectors within 2.0 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_embedder_fails_words_decide_and_provenance_and_the_log_say_why(fault: str) -> None:
    """Contract 64, 69, C32: provenance is there without being asked for."""
    embedder, why = FAULTS[fault]
    query, events = "the weather", list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = events.append  # type: ignore[assignment, method-assign]
    with handled(handler):
        found = run_virtual(pick_tools(query, CATALOGUE, scorer=SemanticScorer(embedder)))
    plain = run_virtual(pick_tools(query, CATALOGUE))
    assert [(one.tool, one.score, one.reason) for one in found] == [(one.tool, one.score, one.reason) for one in plain]
    details = found[0].provenance.details if found[0].provenance else {}
    assert details["fallback"] == Lexical.name
    assert why in details["because"]
    assert "secret detail" not in str(details)
    assert "pick.fell_back" in str([event.getMessage() for event in events])


def test_the_time_limit_of_the_pick_goes_before_that_of_the_embedder() -> None:
    """Contract 68: then the first tools are taken, in the order of registration."""

    async def go() -> Any:
        return await pick_tools("weather", CATALOGUE, scorer=SemanticScorer(Slow(60.0)), timeout_ms=100)

    found = run_virtual(go())
    assert [(one.tool, one.score) for one in found] == [(WEATHER, 0.0), (REFUND, 0.0), (FLIGHT, 0.0)]


def test_what_was_made_before_the_time_was_up_is_there_the_next_time() -> None:
    """Contract 69: 200 tools at 1.5 s for a batch of 64 are ready at the fifth pick, and each is embedded once."""
    embedder = Slow(1.5)

    async def go() -> list[bool]:
        index, scorer = ToolIndex(MANY), SemanticScorer(embedder)
        found = [await scores(scorer, "a trip", index) for _ in range(6)]
        return ["fallback" in next(iter(one.values())).details for one in found]

    fell_back = run_virtual(go())
    assert fell_back[0] is True
    assert fell_back[-1] is False
    assert len([text for text in embedder.asked if text != "a trip"]) == len(MANY)


async def test_many_first_picks_at_once_embed_the_tools_once() -> None:
    """Contract 69."""
    embedder, index = Concepts(), ToolIndex(MANY)
    scorer = SemanticScorer(embedder)
    await asyncio.gather(*(scores(scorer, f"trip {number}", index) for number in range(8)))
    assert len([text for text in embedder.asked if text.startswith("tool")]) == len(MANY)


async def test_a_query_that_says_nothing_asks_no_embedder() -> None:
    """Contract 65."""
    embedder = Concepts()
    assert await pick_tools("  \n", CATALOGUE, scorer=SemanticScorer(embedder)) == []
    assert embedder.asked == []


async def test_of_a_long_query_only_the_beginning_is_embedded() -> None:
    """Contract 65."""
    embedder = Concepts()
    await pick_tools("rain " * 200_000, CATALOGUE, scorer=SemanticScorer(embedder))
    assert max(map(len, embedder.asked)) <= 4_000


async def test_tools_that_may_not_be_picked_have_no_part_in_it() -> None:
    """Contract 66, C29: nearest in meaning, and not offered."""
    hidden = ToolDefinition("rain_radar", "Rain, weather, umbrella.", {"type": "object"}, safe=False)
    found = await pick_tools(UMBRELLA, [hidden, *CATALOGUE], scorer=SemanticScorer(Concepts()))
    assert names(found) == ["get_weather"]
    allowed = await pick_tools(UMBRELLA, [hidden, *CATALOGUE], scorer=SemanticScorer(Concepts()), allow_unsafe=True)
    assert names(allowed) == ["rain_radar", "get_weather"]


async def test_a_gate_picks_by_meaning_and_its_own_rule() -> None:
    """Contract 62, C29."""

    @tool(effect="read", allowed_roles={"ops"})
    def radar() -> str:
        """Rain and weather."""
        return ""

    @tool(effect="read")
    def forecast() -> str:
        """The weather."""
        return ""

    scorer = SemanticScorer(Concepts())
    async with Gate(tools=[radar, forecast]) as gate:
        assert [one.tool.id for one in await gate.pick(UMBRELLA, scorer=scorer)] == ["forecast"]
        seen = await gate.pick(UMBRELLA, user=User("ann", roles=("ops",)), scorer=scorer)
        assert sorted(one.tool.id for one in seen) == ["forecast", "radar"]


RAIN = [ToolDefinition(f"rain_{n}", "Weather.", {"type": "object"}, safe=n % 3 == 0) for n in range(130)]


class Meanwhile(Concepts):
    """While it works, tools are removed."""

    def __init__(self, index: ToolIndex, removed: int, *, fails: bool) -> None:
        super().__init__()
        self.index, self.removed, self.fails = index, removed, fails

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        for definition in RAIN[: self.removed]:
            if definition.name in self.index:
                self.index.remove(definition.name)
        if self.fails:
            raise ConnectionError
        return await super().embed(texts)


@pytest.mark.parametrize("fails", [False, True], ids=["vectors", "words"])
@pytest.mark.parametrize("removed", [1, 60, 120], ids=["one", "some", "so many that the index closes up"])
async def test_tools_that_go_while_the_embedder_works_let_no_hidden_tool_in(removed: int, fails: bool) -> None:
    """Contract 66, C29: a slot may then hold another tool than the one that was allowed."""
    index = ToolIndex(RAIN)
    scorer = SemanticScorer(Meanwhile(index, removed, fails=fails))
    found = await pick_tools("weather: rain", index, scorer=scorer, max_candidates=200)
    assert all(result.tool.safe for result in found)
    assert not {result.tool.name for result in found} & {definition.name for definition in RAIN[:removed]}
    again = await pick_tools("weather: rain", index, scorer=SemanticScorer(Concepts()), max_candidates=200)
    assert len(again) == len([definition for definition in RAIN[removed:] if definition.safe])


async def test_without_that_care_a_hidden_tool_would_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""

    index = ToolIndex(RAIN)

    def careless(before: Snapshot, slots: Any) -> list[int]:
        return [slot for slot in slots if slot < len(index.entries) and index.entries[slot] is not None]

    monkeypatch.setattr(Snapshot, "still", careless)
    monkeypatch.setattr(ToolIndex, "held", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(pick, "_tool", lambda _entries, slot: index.entry(slot).tool)
    found = await pick_tools(
        "weather: rain", index, scorer=SemanticScorer(Meanwhile(index, 98, fails=False)), max_candidates=200
    )
    assert not all(result.tool.safe for result in found)


CHANGES = st.lists(st.tuples(st.sampled_from(["add", "remove", "replace"]), st.integers(0, 11)), max_size=40)
TEXTS = ("Rain.", "Money.", "A flight.", "Rain on a trip.", "Pay for a holiday.", "Nothing of the sort.")


@given(CHANGES)
def test_an_index_that_tools_came_to_and_went_from_answers_like_a_new_one(changes: list[tuple[str, int]]) -> None:
    """Contract 69, C32: to the bit; and no text is embedded twice while it is in use."""

    async def go() -> None:
        embedder, index, held = Concepts(), ToolIndex(), dict[str, ToolDefinition]()
        scorer = SemanticScorer(embedder)
        for number, (change, place) in enumerate(changes):
            name = f"t{place}"
            if change == "remove":
                if held.pop(name, None):
                    index.remove(name)
                continue
            if change == "add" and name in held:
                continue
            text = TEXTS[number % len(TEXTS)]
            held[name] = ToolDefinition(name, text, {"type": "object"})
            index.add(held[name], replace=True)
            before = len(embedder.asked)
            got = await scores(scorer, "rain", index)
            assert len(embedder.asked) - before <= 2
            new = ToolIndex(entry.tool for entry in index)
            fresh = await scores(SemanticScorer(Concepts()), "rain", new)
            assert [index.entry(slot).name for slot in sorted(got)] == [new.entry(slot).name for slot in sorted(fresh)]
            assert [got[slot] for slot in sorted(got)] == [fresh[slot] for slot in sorted(fresh)]

    asyncio.run(go())


async def test_with_and_without_numpy_the_scores_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract C32."""
    pytest.importorskip("numpy", reason="numpy is not installed: nothing to compare with")
    index = ToolIndex(CATALOGUE)
    found = await scores(SemanticScorer(Concepts()), "umbrella for the holiday", index)
    monkeypatch.setattr(meaning, "_numpy", lambda: None)
    assert await scores(SemanticScorer(Concepts()), "umbrella for the holiday", index) == found
    assert len(found) == 2
