"""Scorers, which turn a query and tools into scores. The default is the index, ``keyword_overlap`` the simple one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol, runtime_checkable

from callgate.providers.kinds import fault_of_call
from callgate.providers.logs import LogEvent, emit
from callgate.tools.picking.entry import Entry, entry_of
from callgate.tools.picking.index import ToolIndex, calibrated
from callgate.tools.picking.results import Score
from callgate.tools.picking.text import as_text, plain_words

ScorerFn = Callable[[Any, Any], object]
"""A function of ``(input, tool)`` to a number, a ``Score`` or ``{"score", "reason", "details"}``; plain or async."""

AT_ONCE = 16
"""Maximum of simultaneous calls of an async ``ScorerFn``."""


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a scorer: the given input, and its text."""

    input: object
    text: str


@runtime_checkable
class Scorer(Protocol):
    """A scorer of many tools at once; implement it where a function of one tool is not enough.

    ``slots`` are positions in ``index.entries``; None means all. Tools that are absent from the result are not picked.
    Callers clamp scores to 0..1; an exception ends the pick.
    """

    name: str

    def score_slots(
        self, query: Query, index: ToolIndex, slots: Sequence[int] | None
    ) -> Mapping[int, Score] | Awaitable[Mapping[int, Score]]:
        """Return the scores by slot."""
        ...


class Lexical:
    """The default scorer: BM25F over every field of the tools, calibrated to 0..1."""

    name = "bm25f"

    def score_slots(self, query: Query, index: ToolIndex, slots: Sequence[int] | None) -> dict[int, Score]:
        """See ``Scorer``."""
        found = index.weigh(query.text, slots)
        return {slot: Score(calibrated(weight), matched(index.entry(slot))) for slot, weight in found.items()}


class PerTool:
    """A scorer that calls a function for each tool."""

    def __init__(self, function: ScorerFn, *, seconds: float | None = None) -> None:
        self.function = function
        self.seconds = float("inf") if seconds is None else seconds
        self.threaded = seconds is not None and not _is_async(function)
        self.name = getattr(function, "__name__", type(function).__name__)

    async def score_slots(self, query: Query, index: ToolIndex, slots: Sequence[int] | None) -> dict[int, Score]:
        """See ``Scorer``. A tool on which the function fails is left out and logged; if it fails on all, it raises."""
        chosen = index.slots() if slots is None else slots
        entries = [(slot, index.entry(slot)) for slot in chosen]
        rest = iter(entries)
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        found: dict[int, Score] = {}
        failed: dict[int, Exception] = {}
        begun: dict[int, object] = {}  # what a plain function returned to be awaited
        if self.threaded:
            await self._in_thread(query, entries, found, failed, begun)
            entries = [one for one in entries if one[0] in begun]
            rest = iter(entries)

        async def work() -> None:
            for slot, entry in rest:
                # Removed or replaced meanwhile; or too late: a function that blocks lets no timeout fire.
                if index.entries[slot] is not entry or loop.time() >= until:
                    continue
                try:
                    answer = begun.pop(slot, None) or self.function(query.input, entry.tool)
                    if inspect.isawaitable(answer):
                        answer = await answer
                    await asyncio.sleep(0)  # lets the timeout reach a function that blocks or never waits
                    found[slot] = score_from(answer)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (one failure excludes one tool)
                    failed[slot] = failure_of(error)
                if cancelling():  # the function swallowed it, but its time is over
                    return

        try:
            # asyncio: as structured as anyio, and a scorer's own cancellation can be told from one of the caller
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(entries))):
                    group.create_task(work())
        finally:
            for left in begun.values():
                getattr(left, "close", int)()
        tell_failures(self.name, index, failed, all_failed=not found)
        return found

    async def _in_thread(
        self,
        query: Query,
        entries: Sequence[tuple[int, Entry]],
        found: dict[int, Score],
        failed: dict[int, Exception],
        begun: dict[int, object],
    ) -> None:
        """Call a plain function on the tools, one after the other, and keep the awaitables that it returned as *begun*."""
        over = Event()

        def score_all() -> None:
            for slot, entry in entries:
                if over.is_set():
                    return
                try:
                    answer = self.function(query.input, entry.tool)
                    if inspect.isawaitable(answer):
                        begun[slot] = answer
                    else:
                        found[slot] = score_from(answer)
                except Exception as error:  # noqa: BLE001  (one failure excludes one tool)
                    failed[slot] = error

        try:
            await asyncio.to_thread(score_all)  # asyncio: anyio's threads cannot be left while they run
        finally:
            over.set()  # after the timeout the thread ends with its current tool


def keyword_overlap(input: object, tool: object) -> Score:
    """A simple scorer: the share of the input's words that the tool's text contains.

    The tool's text is name, description and tags; identifiers are split and case is folded, without stemming. Give it as
    ``scorer=keyword_overlap``, or call it: it needs no index.
    """
    entry = entry_of(tool)
    query = frozenset(plain_words(as_text(input)))
    has = frozenset(plain_words(as_text([entry.name, entry.get("description"), entry.get("tags")])))
    score = len(query & has) / len(query) if query else 0.0
    return Score(score, matched(entry) if score else None)


def _is_async(function: object) -> bool:
    """Return True for a coroutine function, and for an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def matched(entry: Entry) -> str:
    """The reason of a score by ``keyword_overlap``."""
    return f"matched keywords in {entry.name}"


def as_scorer(scorer: Scorer | ScorerFn, *, seconds: float | None = None) -> Scorer:
    """Convert a function of one tool to a scorer of many; scorers pass unchanged.

    With a limit in *seconds*, a plain function runs in a thread, so that a timeout does not wait for it.

    Raises:
        TypeError: the object is neither, or the function takes other parameters.
    """
    if isinstance(scorer, Scorer):
        return scorer
    if not callable(scorer):
        raise TypeError(f"a scorer is a function of input and tool, or has score_slots; not {type(scorer).__name__}")
    if (fault := fault_of_call(scorer, ("input", "tool"))) is not None:
        raise TypeError(f"the scorer takes {fault}, and is called with (input, tool): write `def score(input, tool)`")
    return PerTool(scorer, seconds=seconds)


async def run_scorer(
    scorer: Scorer, query: Query, index: ToolIndex, slots: Sequence[int] | None, *, bounded: bool = False
) -> Mapping[int, Score]:
    """Run a scorer and raise its exceptions, see ``failure_of``. With *bounded*, a plain scorer runs in a thread."""
    before = cancelling()
    try:
        if bounded and not _is_async(scorer.score_slots):
            answer = await asyncio.to_thread(scorer.score_slots, query, index, slots)  # asyncio: see ``_in_thread``
            return await answer if inspect.isawaitable(answer) else answer
        answer = scorer.score_slots(query, index, slots)
        return await answer if inspect.isawaitable(answer) else answer
    except asyncio.CancelledError as error:
        raise failure_of(error, before) from error


def failure_of(error: BaseException, before: int = 0) -> Exception:
    """Return the exception of a scorer as a failure, also a cancellation that the pick did not request.

    *before* is the number of requested cancellations of this task when the scorer began.

    Raises:
        BaseException: this task is being cancelled.
    """
    if isinstance(error, Exception):
        return error
    if cancelling() > before:
        raise error
    return RuntimeError("the scorer was cancelled, but the pick was not")


def cancelling() -> int:
    """The number of requested cancellations of this task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def score_from(answer: Any) -> Score:
    """Convert a scorer's result to a ``Score`` from 0 to 1; NaN is 0.

    Raises:
        TypeError: it is neither a number, a ``Score`` nor a mapping with a ``score``.
    """
    if isinstance(answer, Mapping):
        if "score" not in answer:
            raise TypeError('a mapping that a scorer returns needs the key "score", a number from 0 to 1')
        answer = Score(answer["score"], answer.get("reason"), answer.get("details"))
    elif not isinstance(answer, Score):
        answer = Score(answer)
    value = answer.score
    if not hasattr(value, "__float__"):
        raise TypeError(f"a score is a number from 0 to 1, not {type(value).__name__}")
    return Score(clamped(value), answer.reason, answer.details)


def clamped(value: float) -> float:
    """Clamp to 0..1; NaN is 0."""
    return float(min(1.0, value)) if value > 0.0 else 0.0


def tell_failures(scorer: str, index: ToolIndex, failed: Mapping[int, Exception], *, all_failed: bool) -> None:
    """Log the tools that could not be scored.

    Raises:
        Exception: all failed; this is the first failure.
    """
    for slot, error in sorted(failed.items()):
        entry = index.entries[slot]  # None: removed meanwhile
        emit(LogEvent.PICK_FAILED, tool="" if entry is None else entry.name, scorer=scorer, error=error)
    if failed and all_failed:
        first = failed[min(failed)]
        note = f"the scorer {scorer} failed on all of {len(failed)} tools"
        if note not in getattr(first, "__notes__", ()):  # a scorer may raise the same object repeatedly
            first.add_note(note)
        raise first
