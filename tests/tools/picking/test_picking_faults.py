"""Scorers that fail, hang, swallow or fake their cancellation; tools that come, go and change while scorers wait."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from callgate import pick_tools
from callgate.picking import (
    Cascade,
    CascadeStage,
    LLMScorer,
    Mixture,
    PickResult,
    SemanticScorer,
    ToolIndex,
    keyword_overlap,
)
from callgate.testing import run_virtual
from callgate.tools.picking.index import Snapshot
from callgate.tools.picking.results import FALLBACK, Picks, Score
from callgate.tools.picking.scorers import AT_ONCE
from tests.tools.picking.embedders import CATALOGUE, Broken, Concepts

NAMES = [f"tool_{number}" for number in range(8)]
TOOLS = [{"name": name, "description": "mail"} for name in NAMES]


def names(picks: list[PickResult]) -> list[str]:
    return [one.tool["name"] for one in picks]


# ---------------------------------------------------------------------- cancellation


async def cancels_itself(_input: Any, tool: Any) -> float:
    if tool["name"] == "tool_3":
        raise asyncio.CancelledError
    return 1.0


def cancels_at_once(_input: Any, _tool: Any) -> float:
    raise asyncio.CancelledError


class Whole:
    """A scorer of many that fails with a cancellation which nobody asked for, as of a shared task that was cancelled."""

    name = "whole"

    async def score_slots(self, query: Any, index: ToolIndex, slots: Any) -> dict[int, Score]:
        other = asyncio.ensure_future(asyncio.sleep(3600))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other
        return {}


async def test_a_cancellation_that_nobody_asked_for_is_the_failure_of_one_tool() -> None:
    """Contract C32, I13."""
    picks = await pick_tools("x", TOOLS, scorer=cancels_itself, max_candidates=8)
    assert names(picks) == [name for name in NAMES if name != "tool_3"]


@pytest.mark.parametrize(
    "scorer",
    [
        cancels_at_once,
        Whole(),
        Cascade(CascadeStage(Whole())),
        Mixture((Whole(), 1.0)),
        LLMScorer(lambda _: cancels_at_once(None, None)),  # type: ignore[arg-type, return-value]
    ],
    ids=["of one", "of many", "in a cascade", "in a mixture", "a model"],
)
async def test_a_scorer_that_cancels_itself_on_all_raises_an_error_and_cancels_nobody(scorer: Any) -> None:
    """Contract C32, I13: whoever asked would take himself for cancelled."""
    with pytest.raises(RuntimeError, match="cancelled"):
        await pick_tools("mail", TOOLS, scorer=scorer)


async def test_an_embedder_that_cancels_itself_leaves_words_to_decide() -> None:
    """Contract 69, I13."""
    picks = await pick_tools("weather", CATALOGUE, scorer=SemanticScorer(Broken(asyncio.CancelledError())))
    assert [one.tool.name for one in picks] == ["get_weather"]
    assert picks[0].provenance is not None
    assert picks[0].provenance.details["because"] == "the embedder failed: RuntimeError"


async def forever(*_: Any) -> Any:
    await asyncio.Event().wait()


class Hanging(Concepts):
    async def embed(self, texts: Sequence[str]) -> Any:
        await forever()


@pytest.mark.parametrize("limit", [None, 1e9], ids=["no limit", "a limit"])
@pytest.mark.parametrize(
    "scorer",
    [
        forever,
        LLMScorer(forever),
        SemanticScorer(Hanging(), timeout=None),
        Cascade(CascadeStage(forever)),
        Mixture((forever, 1.0)),
    ],
    ids=["of one", "a model", "meaning", "in a cascade", "in a mixture"],
)
async def test_a_pick_that_is_cancelled_ends_as_cancelled_and_holds_nothing(scorer: Any, limit: float | None) -> None:
    """C1d: never swallowed, and the index may close its gaps again."""
    index = ToolIndex(TOOLS)
    picking = asyncio.create_task(pick_tools("mail", index, scorer=scorer, timeout_ms=limit))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (picking.done(), index._holds) == (False, 1)
    picking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await picking
    assert index._holds == 0
    assert len(asyncio.all_tasks()) == 1, "nothing goes on in the background"


async def swallows(_input: Any, _tool: Any) -> float:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        pass
    return 1.0


async def turns_it_into_an_error(_input: Any, _tool: Any) -> float:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise OSError("closed") from None
    return 1.0


class Late:
    """Swallows its cancellation, and answers all the same."""

    name = "late"

    def __init__(self, scorer: Callable[[Any, Any], Awaitable[float]]) -> None:
        self.scorer = scorer

    async def score_slots(self, query: Any, index: ToolIndex, slots: Any) -> dict[int, Score]:
        return {0: Score(await self.scorer(None, None))}


@pytest.mark.parametrize("scorer", [swallows, turns_it_into_an_error], ids=["swallowed", "an error instead"])
@pytest.mark.parametrize("many", [False, True], ids=["of one", "of many"])
def test_what_comes_after_the_time_is_up_does_not_count(scorer: Any, many: bool) -> None:
    """Contract 68, I12: the first tools are taken, and no further tool is asked about."""
    tools = [{"name": f"t{number}"} for number in range(100)]
    asked = 0

    async def counting(input: Any, tool: Any) -> float:
        nonlocal asked
        asked += 1
        return float(await scorer(input, tool))

    found = run_virtual(pick_tools("x", tools, scorer=Late(counting) if many else counting, timeout_ms=50))
    assert isinstance(found, Picks)
    assert (names(found), found.scorer) == (["t0", "t1", "t2"], FALLBACK)
    assert asked <= AT_ONCE


def test_the_time_limit_reaches_a_function_that_never_waits() -> None:
    """Contract 68: between two turns of the loop it is asked about 16 tools at most, however many there are."""
    turns, asked = 0, list[int]()

    def busy(_input: Any, _tool: Any) -> float:
        asked.append(turns)
        return 1.0

    async def watched() -> None:
        nonlocal turns
        picking = asyncio.ensure_future(pick_tools("x", [{"name": f"t{n}"} for n in range(200)], scorer=busy))
        while not picking.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(watched())
    assert len(asked) == 200
    assert max(asked.count(turn) for turn in set(asked)) <= AT_ONCE


async def test_notes_do_not_pile_up_on_an_error_that_is_raised_again_and_again() -> None:
    """Contract C32: some clients keep one error object for ever."""
    error = OSError("down")

    def down(*_: Any) -> float:
        raise error

    for _ in range(3):
        with pytest.raises(OSError, match="down"):
            await pick_tools("x", TOOLS, scorer=down)
    assert len(error.__notes__) == 1


# ---------------------------------------------------------------------- tools that come and go

HIDDEN = {"name": "tool_1", "description": "mail, in secret"}


class Changing:
    """While it is waited for, one tool is removed and another replaced by one that must not be shown."""

    name = "changing"

    def __init__(self) -> None:
        self.index: ToolIndex | None = None

    async def score_slots(self, query: Any, index: ToolIndex, slots: Any) -> dict[int, Score]:
        await asyncio.sleep(0)
        if "tool_0" in index:
            index.remove("tool_0")
            index.add(HIDDEN, replace=True)
            index.add({"name": "late", "description": "mail, in secret"})
        return {slot: Score(0.9) for slot in (index.slots() if slots is None else slots)}


def seen_by(prompts: list[str]) -> set[str]:
    return {
        json.loads(line.split(". ", 1)[1])[0]
        for prompt in prompts
        for line in prompt.splitlines()
        if line[:1].isdigit()
    }


def rater(prompts: list[str]) -> LLMScorer:
    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return json.dumps({str(number): 0.5 for number in range(1, 21)})

    return LLMScorer(ask)


COMBINED: dict[str, Callable[[Any], Any]] = {
    "cascade": lambda later: Cascade(CascadeStage(later, keep=8), first=Changing()),
    "mixture": lambda later: Mixture((Changing(), 1.0), (later, 1.0)),
}


@pytest.mark.parametrize("visible", [None, lambda _tool: True], ids=["all", "asked"])
@pytest.mark.parametrize("how", COMBINED)
async def test_no_later_scorer_is_shown_a_tool_that_changed_while_an_earlier_one_was_waited_for(
    how: str, visible: Any
) -> None:
    """Contract 66, C29: who may see which tool was settled before; and none of it is an error."""
    prompts: list[str] = []
    index = ToolIndex([*TOOLS, {"name": "wipe", "description": "mail", "safe": False}])
    picks = await pick_tools("mail", index, scorer=COMBINED[how](rater(prompts)), max_candidates=20, visible=visible)
    assert names(picks) == NAMES[2:]
    assert seen_by(prompts) == set(NAMES[2:])
    assert "secret" not in "".join(prompts)


@pytest.mark.parametrize("how", COMBINED)
async def test_without_that_care_a_later_scorer_would_be_shown_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(Snapshot, "still", lambda _before, slots: slots)
    prompts: list[str] = []
    index = ToolIndex([*TOOLS, {"name": "wipe", "description": "mail", "safe": False}])
    index.remove("tool_7")
    with pytest.raises((LookupError, AssertionError)):
        await pick_tools("mail", index, scorer=COMBINED[how](rater(prompts)), max_candidates=20)


async def test_a_tool_that_is_replaced_while_others_are_scored_is_not_asked_about() -> None:
    """Contract 66, C29: in its place there may be one that is hidden."""
    index = ToolIndex([{"name": f"t{number}"} for number in range(2 * AT_ONCE)])
    asked: list[Any] = []

    async def scorer(_input: Any, tool: Any) -> float:
        asked.append(tool)
        if len(asked) == AT_ONCE:
            index.add({"name": f"t{AT_ONCE}", "description": "secret"}, replace=True)
            index.remove(f"t{AT_ONCE + 1}")
        await asyncio.sleep(0)
        return 1.0

    picks = await pick_tools("x", index, scorer=scorer, max_candidates=100)
    left = [f"t{number}" for number in range(2 * AT_ONCE) if number not in (AT_ONCE, AT_ONCE + 1)]
    assert names(picks) == left
    assert sorted(tool["name"] for tool in asked) == sorted(left)


def rain(number: int) -> dict[str, Any]:
    return {"name": f"tool_{number}", "description": ("rain", "money", "holiday")[number % 3]}


async def test_vectors_follow_an_index_that_closed_its_gaps() -> None:
    """Contract 69, issue 6: made while a pick held the gaps open, they were kept by slots that are others' now."""
    index, scorer = ToolIndex(map(rain, range(200))), SemanticScorer(Concepts())
    with index.held():
        for number in range(150):
            index.remove(f"tool_{number}")
        during = await pick_tools("umbrella", index, scorer=scorer, max_candidates=100)
        assert len(index.entries) == 200
    assert len(index.entries) == 50
    after = await pick_tools("umbrella", index, scorer=scorer, max_candidates=100)
    assert names(during) == names(after) == [f"tool_{number}" for number in range(150, 200) if number % 3 == 0]


async def test_without_a_new_version_they_would_be_those_of_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    closing = ToolIndex._compact

    def silently(index: ToolIndex) -> None:
        version = index.version
        closing(index)
        index.version = version

    monkeypatch.setattr(ToolIndex, "_compact", silently)
    with pytest.raises((AssertionError, LookupError)):
        await test_vectors_follow_an_index_that_closed_its_gaps()


# ---------------------------------------------------------------------- other users


async def test_no_rating_comes_from_a_question_with_tools_that_the_one_who_asks_may_not_see() -> None:
    """Contract 69, C29, I8: one scorer for all users; an answer is used again for the very same question alone."""
    prompts: list[str] = []
    scorer, index = rater(prompts), ToolIndex([*TOOLS, HIDDEN | {"name": "secret"}])

    async def as_one_who(may: bool) -> list[str]:
        before = len(prompts)
        await pick_tools("mail", index, scorer=scorer, visible=lambda tool: may or tool["name"] != "secret")
        return prompts[before:]

    assert "secret" in "".join(await as_one_who(True))
    others = await as_one_who(False)
    assert len(others) == 1, "not answered from what the other was told"
    assert "secret" not in others[0]
    assert await as_one_who(True) == await as_one_who(False) == [], "each has an answer now"


class Growing(Concepts):
    """A server that has another model now, under the same name: its vectors have one number more."""

    def __init__(self) -> None:
        super().__init__()
        self.dimension: Any = None
        self.more: Iterator[int] = iter((3, 4))

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        length = next(self.more)
        return [[*vector, 1.0][:length] for vector in await super().embed(texts)]


@pytest.mark.parametrize("with_numpy", [True, False], ids=["numpy", "without"])
async def test_vectors_of_unlike_length_are_never_compared(with_numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 69: words decide, and the provenance says why; not a sum over the shorter of the two."""
    if not with_numpy:
        monkeypatch.setattr("callgate.tools.picking.meaning._numpy", lambda: None)
    (found,) = await pick_tools("weather", CATALOGUE, scorer=SemanticScorer(Growing()))
    assert found.provenance is not None
    assert found.provenance.details == {"fallback": "bm25f", "because": "the embedder failed: EmbeddingsUnfit"}


async def test_that_an_embedder_failed_is_told_through_a_mixture_too() -> None:
    """Contract 64, 69: provenance is there without being asked for."""
    mixture = Mixture((SemanticScorer(Broken(OSError())), 1.0), (keyword_overlap, 1.0))
    (found, *_) = await pick_tools("weather", CATALOGUE, scorer=mixture)
    assert found.provenance is not None
    assert found.provenance.details["fallback"] == "bm25f"


class Plain:
    """A scorer of many tools that is no coroutine function."""

    name = "plain"

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def score_slots(self, query: Any, index: ToolIndex, slots: Any) -> dict[int, Score]:
        return {slot: Score(self.function(None, None)) for slot in index.slots()}


@pytest.mark.parametrize("many", [False, True], ids=["of one", "of many"])
async def test_a_plain_scorer_that_blocks_keeps_neither_the_pick_nor_the_loop(many: bool) -> None:
    """Contract 68: the timeout counts for all scoring together. Nothing sleeps: the scorer blocks until the pick is over."""
    over, asked, ticks = threading.Event(), list[int](), 0

    def blocks(_input: Any, _tool: Any) -> float:
        asked.append(1)
        over.wait(300)
        return 1.0

    async def ticking() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    other = asyncio.create_task(ticking())
    tools = [{"name": f"t{number}"} for number in range(100)]
    try:
        found = await pick_tools("x", tools, scorer=Plain(blocks) if many else blocks, timeout_ms=20)
        assert not over.is_set()
    finally:
        over.set()
        other.cancel()
    assert isinstance(found, Picks)
    assert (names(found), found.scorer) == (["t0", "t1", "t2"], FALLBACK)
    assert ticks, "the event loop went on"
    if not many:
        assert len(asked) == 1, "after the timeout no further tool is scored"


@pytest.mark.parametrize("limit", [None, 60_000.0], ids=["no limit", "a limit"])
@pytest.mark.parametrize("waits", [False, True], ids=["a score", "an awaitable"])
async def test_a_plain_scorer_scores_alike_with_and_without_a_limit(limit: float | None, waits: bool) -> None:
    asked: list[str] = []

    async def later(score: float) -> float:
        return score

    def scorer(_input: Any, tool: Any) -> Any:
        asked.append(tool["name"])
        if tool["name"] == "t1":
            raise OSError("no score")
        score = 0.9 if tool["name"] == "t7" else 0.1
        return later(score) if waits else score

    tools = [{"name": f"t{number}"} for number in range(10)]
    found = await pick_tools("x", tools, scorer=scorer, timeout_ms=limit, max_candidates=1)
    assert names(found) == ["t7"]
    assert sorted(asked) == sorted(one["name"] for one in tools), "each tool is scored once"


@pytest.mark.parametrize("swallows", [False, True], ids=["", "swallows its cancellation"])
@pytest.mark.parametrize("form", ["async", "async that awaits", "async callable", "async of many"])
def test_an_async_scorer_that_blocks_is_left_after_the_tool_that_it_scores(form: str, swallows: bool) -> None:
    """Contract 68. Each tool blocks the loop for 30 ms of its time, without an await that waits."""
    asked: list[str] = []

    def block(tool: Any) -> float:
        asked.append(tool["name"])
        asyncio.get_running_loop().now += 0.03  # type: ignore[attr-defined]
        return 1.0

    async def plain(_input: Any, tool: Any) -> float:
        return block(tool)

    async def awaits(_input: Any, tool: Any) -> float:
        score = block(tool)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not swallows:
                raise
        return score

    class Callable_:  # noqa: N801
        async def __call__(self, _input: Any, tool: Any) -> float:
            return block(tool)

    class Many:
        name = "many"

        async def score_slots(self, query: Any, index: ToolIndex, slots: Any) -> dict[int, Score]:
            return {slot: Score(block(index.entry(slot).tool)) for slot in index.slots()}

    tools = [{"name": f"t{number}"} for number in range(100)]
    scorer: Any = {"async": plain, "async that awaits": awaits, "async callable": Callable_(), "async of many": Many()}[
        form
    ]
    found = run_virtual(pick_tools("x", tools, scorer=scorer, timeout_ms=50))
    assert isinstance(found, Picks)
    assert (names(found), found.scorer) == (["t0", "t1", "t2"], FALLBACK)
    if form != "async of many":  # one call scores them all, and nothing can stop it
        assert len(asked) == 2, f"{len(asked)} tools were scored in 50 ms of 30 ms each"
