"""``pick_tools``: ranks tools by their relevance to an input. It runs no tool."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from types import FunctionType
from typing import Any, Never

from callgate.providers.guesses import accepted
from callgate.providers.kinds import annotations_of, fault_of_kind
from callgate.tools.declaring.declare import FunctionTool
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.entry import Entry, definition_of
from callgate.tools.picking.filters import PickContext, Visible, allowed_slots
from callgate.tools.picking.index import Snapshot, ToolIndex
from callgate.tools.picking.results import FALLBACK, PickResult, Picks, Provenance, Score, fell_back
from callgate.tools.picking.scorers import Lexical, Query, Scorer, ScorerFn, as_scorer, clamped, matched, run_scorer
from callgate.tools.picking.text import as_text
from callgate.tools.record import ToolRecord

_DEFAULT = Lexical()
_KEPT = 4
"""Cached indexes of tool lists; a list of the same objects is not read again."""
_FROZEN: tuple[type, ...] = (ToolDefinition, ToolRecord, FunctionTool, FunctionType, type)
"""Types with a constant definition; other tools are read each time."""
_indexes: OrderedDict[tuple[int, ...], tuple[Sequence[object], ToolIndex]] = OrderedDict()
_lock = Lock()


async def pick_tools(
    input: object,
    tools: Iterable[object] | ToolIndex,
    options: Mapping[str, object] | None = None,
    *,
    max_candidates: int = 3,
    min_score: float = 0.05,
    allow_unsafe: bool = False,
    scorer: Scorer | ScorerFn | None = None,
    timeout_ms: float | None = None,
    debug: bool = False,
    visible: Visible | None = None,
    context: PickContext | None = None,
    **camel_case: Never,
) -> list[PickResult]:
    """Pick the most relevant tools, best first; ties in the given order. The list is empty if no tool matches.

    Args:
        input: the query: text, or any object, which counts by its keys and values.
        tools: tools, definitions or catalogue entries, or a ``ToolIndex`` of them, which is faster when it is kept.
        options: the options below as one mapping; its names may be in camel case, as ``maxCandidates``.
        max_candidates: the maximum number of results.
        min_score: the minimum score, 0 to 1.
        allow_unsafe: include tools with ``safe=False``.
        scorer: ``(input, tool)`` to a score, plain or async, or a ``Scorer``; default: BM25F over all texts of the tools.
        timeout_ms: for all scoring together, in milliseconds. After it, the first permitted tools are returned
            in order, with score 0 and ``provenance.scorer == "fallback:registration-order"``. A plain scorer then runs
            in a thread, which ends with the tool that it is scoring. An async scorer that blocks is left after the tool
            that it is scoring.
        debug: add ``provenance`` to each result.
        visible: a function of a definition that returns True where the caller may know of the tool; ``gate.pick``
            passes the gate's own rule.
        context: further facts that exclude tools; see ``PickContext``.
        **camel_case: the same options in camel case.

    The result is a ``Picks``: a list with the number of considered tools, and the excluded ones with reasons.

    Raises:
        ValueError: ``max_candidates`` is below 1, ``min_score`` is not a number from 0 to 1, or ``timeout_ms`` is negative.
        TypeError: an option is unknown, where the message names the nearest, or of another type.
        Exception: the scorer's exception, where it failed on every tool.
    """
    if options is not None or camel_case:
        given: dict[str, Any] = {
            "max_candidates": max_candidates, "min_score": min_score, "allow_unsafe": allow_unsafe, "scorer": scorer,
            "timeout_ms": timeout_ms, "debug": debug, "visible": visible, "context": context,
        }  # fmt: skip
        return await pick_tools(input, tools, **given | accepted(pick_tools, _spelled(options, camel_case)))
    flags = {"allow_unsafe": allow_unsafe, "debug": debug, "visible": visible, "context": context}
    _check(max_candidates, min_score, timeout_ms, flags)
    index = tools if isinstance(tools, ToolIndex) else index_of(tools)
    slots, excluded = allowed_slots(index, allow_unsafe=allow_unsafe, visible=visible, context=context)
    query = Query(input, as_text(input))
    chosen = (
        _DEFAULT if scorer is None else as_scorer(scorer, seconds=None if timeout_ms is None else timeout_ms / 1000)
    )
    picks = Picks(considered=len(index) if slots is None else len(slots), excluded=excluded, scorer=chosen.name)
    bounds = max_candidates, min_score, timeout_ms
    return await _picked(chosen, query, index, slots, picks, *bounds, debug=debug)


def _spelled(options: Mapping[str, object] | None, camel_case: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(options, Mapping | None):
        raise TypeError(
            f"the options of pick_tools are a mapping, not {type(options).__name__}; write max_candidates=3"
        )
    return {**(options or {}), **camel_case}


async def _picked(
    chosen: Scorer,
    query: Query,
    index: ToolIndex,
    slots: Sequence[int] | None,
    picks: Picks,
    max_candidates: int,
    min_score: float,
    timeout_ms: float | None,
    *,
    debug: bool,
) -> Picks:
    entries: Sequence[Entry | None] = index.entries
    if timeout_ms == 0:
        return _fallback(entries, index.slots() if slots is None else slots, picks, max_candidates, timeout_ms)
    if chosen is _DEFAULT:  # one step of limited length without an await
        found = _by_words(query, index, slots, max_candidates, min_score)
    else:
        entries, scores, chosen_slots = await _scored(chosen, query, index, slots, timeout_ms)
        if scores is None:
            return _fallback(entries, chosen_slots, picks, max_candidates, timeout_ms)
        found = {slot: scores[slot] for slot in chosen_slots if slot in scores}
    ranked = sorted((-clamped(one.score), slot) for slot, one in found.items() if clamped(one.score) >= min_score)
    for value, slot in ranked[:max_candidates]:
        one = found[slot]
        origin = _provenance(chosen, query, index, slot, slots, one) if debug or fell_back(one) else None
        picks.append(PickResult(_tool(entries, slot), -value + 0.0, one.reason, origin))
    return picks


async def _scored(
    scorer: Scorer, query: Query, index: ToolIndex, slots: Sequence[int] | None, timeout_ms: float | None
) -> tuple[Sequence[Entry | None], Mapping[int, Score] | None, Sequence[int]]:
    """Score the tools: contents of the slots, scores (None after a timeout), and the slots that may still be picked.

    Tools may change while a scorer waits: no slot comes to mean another tool.
    """
    before = Snapshot(index)
    scores: Mapping[int, Score] | None = None
    limit = asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)
    with index.held():
        try:
            async with limit:
                scores = await run_scorer(scorer, query, index, slots, bounded=timeout_ms is not None)
        except Exception:
            if not limit.expired():
                raise
        late = limit.when() is not None and asyncio.get_running_loop().time() >= (limit.when() or 0.0)
        if late or limit.expired():  # also where it blocked, or swallowed its cancellation: its result is too late
            scores = None
        still = before.still(slots)
        return before.entries, scores, index.slots() if still is None else still


def _check(max_candidates: int, min_score: float, timeout_ms: float | None, others: Mapping[str, object]) -> None:
    """Check the options that differ from their defaults.

    Raises:
        TypeError: an option is of another type.
        ValueError: a number is out of its bounds.
    """
    given = {"max_candidates": max_candidates, "min_score": min_score, "timeout_ms": timeout_ms, **others}
    for name, value in given.items():
        if (
            value is not _DEFAULTS[name]
            and (fault := fault_of_kind(value, annotations_of(pick_tools)[name])) is not None
        ):
            raise TypeError(f"pick_tools: {name} {fault}")
    if max_candidates < 1:
        raise ValueError("max_candidates must be at least 1")
    if not 0 <= min_score <= 1:
        raise ValueError("min_score must be a number from 0 to 1")
    if timeout_ms is not None and not timeout_ms >= 0:
        raise ValueError("timeout_ms must not be negative")


_DEFAULTS: dict[str, object] = pick_tools.__kwdefaults__ or {}


def index_of(tools: Iterable[object]) -> ToolIndex:
    """Return the index of a list of tools; tools of one name are kept apart. Cached for the same objects.

    Raises:
        TypeError: *tools* is no list, or one of them is no tool.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise TypeError(f"tools is of type {type(tools).__name__}; give a list of tools or definitions, or a ToolIndex")
    given = list(tools)
    key = tuple(map(id, given))
    known = _indexes.get(key)
    if known is None:
        index = ToolIndex()
        for number, tool in enumerate(given):
            index.put(str(number), tool, definition_of(tool))
        known = given, index  # the objects are held, so that their ids are not reused
    if all(isinstance(tool, _FROZEN) for tool in given):
        with _lock:
            _indexes[key] = known
            _indexes.move_to_end(key)
            while len(_indexes) > _KEPT:
                _indexes.popitem(last=False)
    return known[1]


def _by_words(
    query: Query, index: ToolIndex, slots: Sequence[int] | None, limit: int, min_score: float
) -> dict[int, Score]:
    """The best by words; tools without a match score 0 and appear where ``min_score`` allows it."""
    hits = index.search(query.text, limit=limit, min_score=min_score, slots=slots)
    found = {slot: Score(score, matched(index.entry(slot))) for slot, score in hits}
    if min_score <= 0.0 and len(found) < limit:
        rest = index.slots() if slots is None else slots
        found |= {slot: Score(0.0) for slot in rest if slot not in found}
    return found


def _fallback(
    entries: Sequence[Entry | None], slots: Sequence[int], picks: Picks, limit: int, timeout_ms: float | None
) -> Picks:
    """The first tools in the order of registration; partial scores are dropped, because they depend on chance."""
    reason = f"scoring took longer than {timeout_ms:g} ms: taken in the order of registration"
    origin = Provenance(FALLBACK)
    picks.scorer = FALLBACK
    picks += [PickResult(_tool(entries, slot), 0.0, reason, origin) for slot in slots[:limit]]
    return picks


def _tool(entries: Sequence[Entry | None], slot: int) -> object:
    entry = entries[slot]
    assert entry is not None
    return entry.tool


def _provenance(
    scorer: Scorer, query: Query, index: ToolIndex, slot: int, slots: Sequence[int] | None, score: Score
) -> Provenance:
    details = index.explain(query.text, slot, slots) if scorer is _DEFAULT else score.details
    return Provenance(scorer.name, details)
