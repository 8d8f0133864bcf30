"""Scorers: what turns a query and tools into scores. The default is the index itself, ``keyword_overlap`` the plain one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from callgate.providers.logs import Event, emit
from callgate.tools.picking.entry import Entry, entry_of
from callgate.tools.picking.index import ToolIndex, calibrated
from callgate.tools.picking.results import Score
from callgate.tools.picking.text import as_text, plain_words

__all__ = ["Lexical", "Scorer", "ScorerFn", "as_scorer", "keyword_overlap"]

ScorerFn = Callable[[Any, Any], Any]
"""``(input, tool)`` to a number, a ``Score`` or ``{"score", "reason", "details"}``; plain or async (contract 64, C32)."""

AT_ONCE = 16
"""How many tools an async ``ScorerFn`` is asked about at the same time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a scorer is asked: the input as it was given, and its text."""

    input: Any
    text: str


@runtime_checkable
class Scorer(Protocol):
    """Scores many tools at once; what is more than a function of one tool implements this.

    ``slots`` are places in ``index.entries``; None means all. Tools left out of the answer are not picked. Scores are
    clamped to 0..1 by whoever asks; an error ends the pick.
    """

    name: str

    def score_slots(
        self, asked: Asked, index: ToolIndex, slots: Sequence[int] | None
    ) -> Mapping[int, Score] | Awaitable[Mapping[int, Score]]:
        """The scores by slot."""
        ...


class Lexical:
    """The default: BM25F over every field of the tools, calibrated to 0..1."""

    name = "bm25f"

    def score_slots(self, asked: Asked, index: ToolIndex, slots: Sequence[int] | None) -> dict[int, Score]:
        """See ``Scorer``."""
        found = index.weigh(asked.text, slots)
        return {slot: Score(calibrated(weight), matched(index.entry(slot))) for slot, weight in found.items()}


class PerTool:
    """A function of one tool, asked for each (contract 64, C32)."""

    def __init__(self, function: ScorerFn) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    async def score_slots(self, asked: Asked, index: ToolIndex, slots: Sequence[int] | None) -> dict[int, Score]:
        """See ``Scorer``. A tool that the function fails on is left out, and logged; if it fails on all, it raises."""
        chosen = index.slots() if slots is None else slots
        entries = [(slot, index.entry(slot)) for slot in chosen]
        rest = iter(entries)
        found: dict[int, Score] = {}
        failed: dict[int, Exception] = {}

        async def work() -> None:
            for slot, entry in rest:
                if index.entries[slot] is not entry:  # removed or replaced meanwhile
                    continue
                try:
                    answer = self.function(asked.input, entry.tool)
                    if inspect.isawaitable(answer):
                        answer = await answer
                    else:
                        await asyncio.sleep(0)  # so that the time limit also reaches a function that never waits
                    found[slot] = score_from(answer)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (one failure excludes one tool, C32)
                    failed[slot] = failure_of(error)
                if cancelling():  # which the function swallowed: its time is over all the same
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(entries))):
                group.create_task(work())
        tell_failures(self.name, index, failed, all_failed=not found)
        return found


def keyword_overlap(input: Any, tool: Any) -> Score:
    """The documents' default scorer (contract 65): the share of the input's words that the tool's text has.

    The tool's text is name, description and tags; identifiers are split and case is folded, nothing else. Give it as
    ``scorer=keyword_overlap``, or call it: it needs no index.
    """
    entry = entry_of(tool)
    asked = frozenset(plain_words(as_text(input)))
    has = frozenset(plain_words(as_text([entry.name, entry.get("description"), entry.get("tags")])))
    score = len(asked & has) / len(asked) if asked else 0.0
    return Score(score, matched(entry) if score else None)


def matched(entry: Entry) -> str:
    """The reason that the documents give (contract 65)."""
    return f"matched keywords in {entry.name}"


def as_scorer(scorer: Scorer | ScorerFn) -> Scorer:
    """A scorer of many tools, made of a function of one where it is that.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(scorer, Scorer):
        return scorer
    if not callable(scorer):
        raise TypeError(f"a scorer is a function of input and tool, or has score_slots; not {type(scorer).__name__}")
    return PerTool(scorer)


async def ask(scorer: Scorer, asked: Asked, index: ToolIndex, slots: Sequence[int] | None) -> Mapping[int, Score]:
    """The answer of a scorer, plain or async; raises what it raised, see ``failure_of``."""
    before = cancelling()
    try:
        answer = scorer.score_slots(asked, index, slots)
        return await answer if inspect.isawaitable(answer) else answer
    except asyncio.CancelledError as error:
        raise failure_of(error, before) from error


def failure_of(error: BaseException, before: int = 0) -> Exception:
    """What a scorer raised, as a failure. A cancellation that nobody asked for is one, too: not the pick was cancelled.

    *before* is how many cancellations of this task were asked for when the scorer began.

    Raises:
        BaseException: this task is being cancelled.
    """
    if isinstance(error, Exception):
        return error
    if cancelling() > before:
        raise error
    return RuntimeError("the scorer was cancelled, and not by whoever asked it")


def cancelling() -> int:
    """How many cancellations of this task are asked for."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def score_from(answer: Any) -> Score:
    """What a scorer answered, as a ``Score`` from 0 to 1; not-a-number is 0 (contract C32).

    Raises:
        TypeError: it is neither a number, a ``Score`` nor a mapping with a ``score``.
    """
    if isinstance(answer, Mapping):
        answer = Score(answer["score"], answer.get("reason"), answer.get("details"))
    elif not isinstance(answer, Score):
        answer = Score(answer)
    value = answer.score
    if not hasattr(value, "__float__"):
        raise TypeError(f"a score is a number from 0 to 1, not {type(value).__name__}")
    return Score(clamped(value), answer.reason, answer.details)


def clamped(value: float) -> float:
    """Into 0..1; not-a-number is 0 (contract C32)."""
    return float(min(1.0, value)) if value > 0.0 else 0.0


def tell_failures(scorer: str, index: ToolIndex, failed: Mapping[int, Exception], *, all_failed: bool) -> None:
    """Log which tools could not be scored (contract C32).

    Raises:
        Exception: none could be: the first failure.
    """
    for slot, error in sorted(failed.items()):
        entry = index.entries[slot]  # None: removed meanwhile
        emit(Event.PICK_FAILED, tool="" if entry is None else entry.name, scorer=scorer, error=error)
    if failed and all_failed:
        first = failed[min(failed)]
        note = f"the scorer {scorer} failed on all of {len(failed)} tools"
        if note not in getattr(first, "__notes__", ()):  # a scorer may raise the same object again and again
            first.add_note(note)
        raise first
