"""``SemanticScorer``: scores by words and meaning together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from callgate.providers.logs import LogEvent, emit
from callgate.tools.limits import fault_of_seconds
from callgate.tools.picking.embedding import Embedder, EmbeddingCache, Embeddings
from callgate.tools.picking.index import Snapshot, ToolIndex
from callgate.tools.picking.meaning import Meanings
from callgate.tools.picking.results import Score
from callgate.tools.picking.scorers import Lexical, Query, cancelling, failure_of, matched

# One rule for every catalogue and model; benchmarks/semantic.py --tune finds the numbers.
MEANING = 4.0
"""The weight of a cosine of 1 in the unit of BM25F, about that of three rare words.

Recall is the same from 4 to 7. The lowest value gives words the greatest weight, which is safer where the model knows
little of the subject.
"""
UNRELATED = 0.1
"""The cosine up to which texts are unrelated."""
HALF = 3.6
"""The sum with a score of one half: about one in two of the best tools with that sum was right."""
STEEPNESS = 3.0
_LEAST = 0.001
_FAINT = 0.35

_WORDS = Lexical()


class SemanticScorer:
    """A ``Scorer`` that adds word weights (BM25F) and similarity of meaning (cosine), calibrated to 0..1.

    Either can find a tool: this is more than a re-ranking of word matches. Tool vectors are made at first use and kept
    beside the index and in *cache*. They follow the changes of the index; ``prepare`` makes them before the first pick.
    When the embedder fails, returns invalid vectors, or exceeds *timeout*, the pick uses the default scorer. Then each
    score's ``details["fallback"]`` and the log give the reason.

    Args:
        embedder: makes the vectors.
        cache: keeps the vectors of tools across restarts and processes; queries are never stored there.
        timeout: seconds for the vectors of one pick, including missing ones of tools; finished vectors are kept. None
            for no limit.

    Raises:
        ValueError: *timeout* is no time above 0.
    """

    def __init__(self, embedder: Embedder, *, cache: EmbeddingCache | None = None, timeout: float | None = 2.0) -> None:
        if (fault := fault_of_seconds(timeout)) is not None:
            raise ValueError(f"SemanticScorer: timeout {fault}")
        self.name = f"{_WORDS.name}+{embedder.name}"
        self._meanings = Meanings(Embeddings(embedder, cache))
        self._timeout = timeout

    async def prepare(self, index: ToolIndex) -> None:
        """Make the missing vectors of an index's tools, without a timeout.

        Raises:
            EmbeddingsUnfit: the embedder returned vectors that cannot be compared.
            Exception: any exception of the embedder.
        """
        await self._meanings.update(index)

    async def score_slots(self, query: Query, index: ToolIndex, slots: Sequence[int] | None) -> Mapping[int, Score]:
        """See ``Scorer``."""
        if not query.text.strip():
            return {}
        before = Snapshot(index)
        limit = asyncio.timeout(self._timeout)
        near: list[float] = []
        failure: Exception | None = None
        cancelled = cancelling()
        try:
            async with limit:
                near = await self._meanings.near(index, query.text, slots)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (any failure falls back to words)
            failure = failure_of(error, cancelled)
        slots = before.still(slots)
        if failure is not None:
            late = f"no vectors within {self._timeout} s" if limit.expired() else None
            return self._by_words(
                query, index, slots, late or f"the embedder failed: {type(failure).__name__}", failure
            )
        return _mixture(index, slots, index.weigh(query.text, slots), near)

    def _by_words(
        self, query: Query, index: ToolIndex, slots: Sequence[int] | None, why: str, error: Exception
    ) -> dict[int, Score]:
        """Score by the default scorer, with the reason of the fallback."""
        emit(LogEvent.PICK_FELL_BACK, scorer=self.name, error=error)
        details = {"fallback": _WORDS.name, "because": why}
        found = _WORDS.score_slots(query, index, slots)
        return {slot: Score(one.score, one.reason, details) for slot, one in found.items()}

    def __repr__(self) -> str:
        return f"SemanticScorer({self._meanings.embeddings.embedder!r})"


def _mixture(
    index: ToolIndex, slots: Sequence[int] | None, weights: Mapping[int, float], near: Sequence[float]
) -> dict[int, Score]:
    close = {slot for slot, cosine in enumerate(near) if cosine > UNRELATED}
    if slots is not None:
        close.intersection_update(slots)
    found: dict[int, Score] = {}
    for slot in sorted(weights.keys() | close):
        words, cosine = weights.get(slot, 0.0), near[slot] if slot < len(near) else 0.0
        if words + MEANING * (cosine - UNRELATED) < _FAINT and words < _FAINT:  # most tools: their score is negligible
            continue
        score = mixed(words, cosine)
        if score >= _LEAST:
            entry = index.entry(slot)
            reason = matched(entry) if words else f"near in meaning to {entry.name}"
            found[slot] = Score(score, reason, {"words": words, "cosine": cosine})
    return found


def mixed(words: float, cosine: float) -> float:
    """Combine both into one score from 0 to 1, which grows with either."""
    weight: float = words + MEANING * max(0.0, cosine - UNRELATED)
    # Each step rounds in one direction only, so that a greater weight never gets a lower score.
    return 1.0 - 1.0 / (1.0 + math.pow(weight / HALF, STEEPNESS))
