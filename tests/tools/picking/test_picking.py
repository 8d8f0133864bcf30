"""``pick_tools``: the documents' promises, one by one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from callgate import Gate, ToolDefinition, pick_tools, tool
from callgate.picking import Discovery, PickResult, SemanticScorer, ToolIndex, keyword_overlap
from callgate.tools.picking.filters import PickContext
from callgate.tools.picking.llm import Cascade, CascadeStage, LLMScorer, Mixture
from callgate.tools.picking.results import FALLBACK, Picks, Score

ANY = {"type": "object", "properties": {}}


def made(name: str, description: str = "A tool.", **more: Any) -> ToolDefinition:
    return ToolDefinition(name, description, ANY, **more)


WEATHER = made("get_weather", "Current weather of a city.", tags={"climate"})
MAIL = made("sendEmail", "Send an email to somebody.")
DROP = made("drop_database", "Delete a whole database.", safe=False)
TOOLS = [WEATHER, MAIL, DROP]


def names(picks: list[PickResult]) -> list[str]:
    return [one.tool.name for one in picks]


async def test_the_best_tool_comes_first_with_the_documents_reason() -> None:
    """Contract 62, 64, 65."""
    picks = await pick_tools("what is the weather in Oslo?", TOOLS)
    assert names(picks) == ["get_weather"]
    assert picks[0].tool is WEATHER
    assert 0.05 <= picks[0].score <= 1
    assert picks[0].reason == "matched keywords in get_weather"
    assert picks[0].provenance is None


async def test_nothing_is_run_and_what_is_given_comes_back() -> None:
    """Contract 62, 64: the class or function, never an instance."""

    @tool(effect="read")
    async def find_flights(city: str) -> str:
        """Find flights to a city."""
        raise AssertionError("run")

    (picked,) = await pick_tools("flights", [find_flights])
    assert picked.tool is find_flights


async def test_debug_adds_provenance() -> None:
    """Contract 69."""
    (picked,) = await pick_tools("weather", TOOLS, debug=True)
    assert picked.provenance is not None
    assert picked.provenance.scorer == "bm25f"
    assert "weather" in picked.provenance.details


async def test_unsafe_tools_are_skipped_before_scoring_unless_allowed() -> None:
    """Contract 66; an undeclared ``safe`` is safe."""
    asked: list[str] = []

    def scorer(input: Any, item: Any) -> float:
        asked.append(item.name)
        return 1.0

    picks = await pick_tools("delete the database", TOOLS, scorer=scorer)
    assert "drop_database" not in asked
    assert isinstance(picks, Picks)
    assert [(one.name, one.reason) for one in picks.excluded] == [("drop_database", "unsafe")]
    assert names(await pick_tools("delete the database", TOOLS, allow_unsafe=True)) == ["drop_database"]


async def test_min_score_is_inclusive_and_max_candidates_cuts_after_sorting() -> None:
    """Contract 63, 67; ties by registration order (C32)."""
    table = {"a": 0.3, "b": 0.9, "c": 0.3, "d": 0.29, "e": 0.3}
    tools = [made(name) for name in table]
    picks = await pick_tools("x", tools, scorer=lambda _, one: table[one.name], min_score=0.3, max_candidates=3)
    assert names(picks) == ["b", "a", "c"]
    assert await pick_tools("x", tools, scorer=lambda *_: 0.1, min_score=0.3) == []


@pytest.mark.parametrize("limit", [0, -1], ids=["zero", "negative"])
async def test_asking_for_no_tools_is_a_mistake(limit: int) -> None:
    """Contract C32."""
    with pytest.raises(ValueError, match="max_candidates"):
        await pick_tools("x", TOOLS, max_candidates=limit)


async def test_when_time_runs_out_the_first_tools_are_given_and_partial_scores_dropped() -> None:
    """Contract 68, C32: the unsafe filter still applies, min_score does not."""

    async def slow(input: Any, item: Any) -> float:
        await asyncio.sleep(0 if item is WEATHER else 3600)
        return 1.0

    picks = await pick_tools("x", [DROP, MAIL, WEATHER], scorer=slow, timeout_ms=5, min_score=0.9, max_candidates=2)
    assert names(picks) == ["sendEmail", "get_weather"]
    assert [one.score for one in picks] == [0.0, 0.0]
    assert all(one.provenance is not None and one.provenance.scorer == FALLBACK for one in picks)
    assert all(one.reason for one in picks)


@pytest.mark.parametrize(
    ("answer", "score"),
    [(2, 1.0), (-1, 0.0), (float("nan"), 0.0), ({"score": 0.5, "reason": "so"}, 0.5)],
    ids=["above", "below", "nan", "mapping"],
)
async def test_scores_are_clamped_and_nan_is_nothing(answer: Any, score: float) -> None:
    """Contract 64, C32."""
    (picked,) = await pick_tools("x", [MAIL], scorer=lambda *_: answer, min_score=0)
    assert picked.score == score


async def test_one_failure_excludes_one_tool_and_failing_on_all_raises() -> None:
    """Contract C32."""

    async def some(input: Any, item: Any) -> float:
        if item is MAIL:
            raise KeyError("mail")
        return 0.5

    def none(input: Any, item: Any) -> float:
        raise KeyError(item.name)

    assert names(await pick_tools("x", [MAIL, WEATHER], scorer=some, min_score=0)) == ["get_weather"]
    with pytest.raises(KeyError, match="sendEmail"):
        await pick_tools("x", [MAIL, WEATHER], scorer=none)


def test_keyword_overlap_is_the_documents_plain_one() -> None:
    """Contract 65, C32: identifiers split, case folded, name and description and tags."""
    assert keyword_overlap("Weather CLIMATE", WEATHER).score == 1.0
    assert keyword_overlap("send mail", MAIL).score == 0.5
    assert keyword_overlap("send mail", MAIL).reason == "matched keywords in sendEmail"
    assert (keyword_overlap("nothing here", MAIL).score, keyword_overlap("", MAIL).reason) == (0.0, None)


@pytest.mark.parametrize(
    ("context", "left"),
    [
        (PickContext(), ["a", "b"]),
        (PickContext(enabled={"b"}), ["b"]),
        (PickContext(enabled=()), []),
        (PickContext(capabilities={"streaming": True}), ["a"]),
        (PickContext(mode="read-only"), ["a"]),
        (PickContext(mode="batch"), ["b"]),
        (PickContext(budget=1), ["b"]),
        (PickContext(quota_left={"a": 0, "b": None}), ["b"]),
    ],
    ids=["nothing", "enabled", "none enabled", "streaming", "read-only", "mode", "budget", "quota"],
)
async def test_the_context_filters_before_scoring(context: PickContext, left: list[str]) -> None:
    """Contract 66, 70."""
    a = made("a", capabilities={"streaming": True, "modes": ["live", "read-only"]}, effect="read", metadata={"cost": 2})
    b = made("b", capabilities={"modes": ["batch"]}, metadata={"cost": 1})
    picks = await pick_tools("x", [a, b], scorer=lambda *_: 1.0, context=context)
    assert names(picks) == left


FOREIGN: dict[str, tuple[dict[str, Any], PickContext, bool]] = {
    "a mode that is part of another's name": ({"capabilities": {"modes": "batch"}}, PickContext(mode="bat"), False),
    "one mode by itself": ({"capabilities": {"modes": "batch"}}, PickContext(mode="batch"), True),
    "modes that are no names": ({"capabilities": {"modes": 5}}, PickContext(mode="batch"), False),
    "modes that cannot be compared": ({"capabilities": {"modes": [[], {}]}}, PickContext(mode="batch"), False),
    "capabilities that are none": ({"capabilities": "streaming"}, PickContext(capabilities={"streaming": True}), False),
    "a cost beyond all numbers": ({"metadata": {"cost": 10**400}}, PickContext(budget=1e300), False),
    "a cost that is no number": ({"metadata": {"cost": "1"}}, PickContext(budget=5), False),
    "a cost that is not-a-number": ({"metadata": {"cost": float("nan")}}, PickContext(budget=5), False),
    "a cost beside other metadata": ({"metadata": {"owner": "x"}, "cost": 9}, PickContext(budget=5), False),
    "a budget that is not-a-number": ({}, PickContext(budget=float("nan")), False),
    "a quota that is not-a-number": ({}, PickContext(quota_left={"t": float("nan")}), False),
    "a name that is nobody's": ({"name": None}, PickContext(enabled={"t"}), False),
    "unsafe beside what is wrapped": ({"function": {"name": "t"}, "safe": False}, PickContext(), False),
    "cost beside what is wrapped": ({"function": {"name": "t"}, "cost": 9}, PickContext(budget=5), False),
    "unsafe in other words": ({"safe": "false"}, PickContext(), False),
    "unsafe as a number": ({"safe": 0}, PickContext(), False),
    "safety undefined": ({"safe": None}, PickContext(), True),
}


@pytest.mark.parametrize("case", FOREIGN)
async def test_what_a_foreign_catalogue_says_oddly_is_left_out_and_breaks_nothing(case: str) -> None:
    """Contract 66, 70: fail closed."""
    said, context, stays = FOREIGN[case]
    picks = await pick_tools("x", [{"name": "t"} | said], scorer=lambda *_: 1.0, context=context)
    assert bool(picks) is stays


def test_the_names_of_enabled_tools_are_no_text() -> None:
    """C28: "get_weather_admin" has "get_weather" in it."""
    with pytest.raises(TypeError, match="collection of names"):
        PickContext(enabled="get_weather_admin")


async def test_a_predicate_that_is_not_plainly_true_or_false_is_refused() -> None:
    """A coroutine would count as true; hidden tools would be shown."""

    async def visible(definition: Any) -> bool:
        return False

    with pytest.raises(TypeError, match="visible is async; give a plain function"):
        await pick_tools("weather", TOOLS, visible=visible)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="True or False"):
        await pick_tools("weather", TOOLS, visible=lambda definition: visible(definition))  # type: ignore[arg-type,return-value]  # noqa: PLW0108  (not async)


async def test_an_llm_rates_in_batches_and_is_not_asked_twice() -> None:
    """Contract 69, 70."""
    prompts: list[str] = []

    async def ask(prompt: str) -> str:
        prompts.append(prompt)
        return 'Sure: {"1": 0.2, "2": 0.9}'

    scorer = LLMScorer(ask, batch=2)
    tools = ToolIndex([made(name) for name in "abcd"])
    first = await pick_tools("x", tools, scorer=scorer)
    assert names(first) == ["b", "d", "a"]
    assert len(prompts) == 2
    assert await pick_tools("x", tools, scorer=scorer) == first
    assert len(prompts) == 2


async def test_an_unreadable_rating_leaves_its_tools_out() -> None:
    """Contract C32."""
    answers = iter(["no idea", '{"1": 1}'])
    scorer = LLMScorer(lambda _: next(answers), batch=1, at_once=1)
    assert names(await pick_tools("x", [MAIL, WEATHER], scorer=scorer)) == ["get_weather"]
    with pytest.raises(ValueError, match="no ratings"):
        await pick_tools("x", [MAIL], scorer=LLMScorer(lambda _: "no"))


async def test_ratings_that_count_from_0_are_unreadable() -> None:
    """Each would be that of the tool before it, and a wrong tool would be picked first."""
    with pytest.raises(ValueError, match="no ratings"):
        await pick_tools("x", [MAIL, WEATHER], scorer=LLMScorer(lambda _: '{"0": 0.1, "1": 0.9}'))


@pytest.mark.parametrize("value", [float("nan"), -0.5])
def test_a_number_that_would_switch_a_scorer_off_is_refused(value: float) -> None:
    """A later stage never ran, the meaning never counted, and the search of a model always failed."""
    with pytest.raises(ValueError, match="ties"):
        CascadeStage(keyword_overlap, ties=value)
    with pytest.raises(ValueError, match="timeout"):
        SemanticScorer(object(), timeout=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_score"):
        Discovery(Gate(), min_score=value)


async def test_a_cascade_asks_the_dear_scorer_about_the_best_only() -> None:
    """Contract 70."""
    asked: list[str] = []

    def dear(input: Any, item: Any) -> float:
        asked.append(item.name)
        return 0.7 if item is MAIL else 0.6

    both = [made("weather_map", "Weather on a map."), *TOOLS]
    assert names(await pick_tools("weather", both, scorer=Cascade(CascadeStage(dear, keep=1)))) == [asked[0]]
    assert len(asked) == 1
    tie = Cascade(CascadeStage(dear, ties=0.01), first=lambda _, one: 0.9 if one is MAIL else 0.1)
    assert names(await pick_tools("x", TOOLS, scorer=tie, max_candidates=1)) == ["sendEmail"]
    assert len(asked) == 1, "no tie, no question"


async def test_a_mixture_is_the_weighted_mean() -> None:
    """Contract 70, the documents' hybrid."""
    mixture = Mixture((lambda *_: 1.0, 0.4), (keyword_overlap, 0.6))
    (picked,) = await pick_tools("send", [MAIL], scorer=mixture, debug=True)
    assert picked.score == pytest.approx(1.0)
    with pytest.raises(ValueError, match="positive"):
        Mixture((keyword_overlap, 0))


SEEDED = """
import asyncio
from callgate import pick_tools
words = "weather city mail send file read book flight hotel price stock chart map route song".split()
tools = [{"name": f"{a}_{b}", "description": f"{b} of the {a}", "tags": [a, b],
          "parameters": {"properties": {w: {"description": a} for w in (a, b)}}} for a in words for b in words]
asked = {"what": {"flight", "hotel", "city"}, "where": ["price of a stock chart", {"b": 1, "a": "weather"}]}
picks = asyncio.run(pick_tools(asked, tools, max_candidates=50, debug=True))
print([(one.tool["name"], one.score.hex(), one.provenance.details) for one in picks])
"""


def test_the_same_to_the_bit_whatever_the_hash_seed() -> None:
    """Issue 6: deterministic across runs and hash seeds."""
    said = {
        subprocess.run(
            [sys.executable, "-c", SEEDED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(said) == 1
    assert len(said.pop()) > 1000


def _catalogue(count: int) -> list[dict[str, Any]]:
    return [{"name": f"tool_{number}", "description": f"thing number {number}"} for number in range(count)]


async def _pick_while_tools_go(seen: list[str]) -> tuple[ToolIndex, set[str]]:
    index = ToolIndex(_catalogue(200))
    index.add({"name": "hidden", "description": "not for everybody"})

    async def scorer(_input: Any, tool: Any) -> float:
        seen.append(tool["name"])
        if len(seen) == 1:
            for number in range(1, 190):
                index.remove(f"tool_{number}")
        await asyncio.sleep(0)
        return 1.0

    picked = await pick_tools(
        "anything", index, scorer=scorer, max_candidates=300, visible=lambda tool: tool["name"] != "hidden"
    )
    return index, {one.tool["name"] for one in picked}


async def test_tools_that_go_while_a_scorer_waits_let_no_hidden_tool_in() -> None:
    """C29, C32: no slot comes to mean another tool, for the scorer or in the answer."""
    seen: list[str] = []
    index, names = await _pick_while_tools_go(seen)
    assert "hidden" not in seen
    assert names == {"tool_0", *(f"tool_{number}" for number in range(190, 200))}
    assert len(index.entries) == 12, "the gaps are closed when nobody looks any more"


async def test_control_without_holding_the_index_slots_move_under_a_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(ToolIndex, "_compact_if_due", ToolIndex._compact)
    with pytest.raises(ExceptionGroup):
        await _pick_while_tools_go([])


async def test_a_scorer_cannot_bring_in_what_may_not_be_picked() -> None:
    """C29: slots that were not asked for are dropped."""
    index = ToolIndex(_catalogue(3))

    class Bold:
        name = "bold"

        def score_slots(self, query: Any, index: ToolIndex, slots: Any) -> dict[int, Score]:
            return dict.fromkeys(range(3), Score(1.0))

    picked = await pick_tools("x", index, scorer=Bold(), visible=lambda tool: tool["name"] != "tool_1")
    assert [one.tool["name"] for one in picked] == ["tool_0", "tool_2"]
