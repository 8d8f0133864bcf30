"""``SemanticScorer``: words and meaning together (contract 69, 70)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from callgate.providers.logs import Event, emit
from callgate.tools.picking.embedding import Embedder, EmbeddingCache, Embeddings
from callgate.tools.picking.index import Snapshot, ToolIndex
from callgate.tools.picking.meaning import Meanings
from callgate.tools.picking.results import Score
from callgate.tools.picking.scorers import Asked, Lexical, cancelling, failure_of, matched

__all__ = ["SemanticScorer", "mixed"]

# One rule for every catalogue and every model; how the numbers were found: benchmarks/semantic.py --tune.
MEANING = 4.0
"""What a cosine of 1 counts in the unit of BM25F, about as much as three rare words. From 4 to 7 recall is the same; the
least of them leaves the most to words, which is safer where the model knows little of the subject."""
UNRELATED = 0.1
"""The cosine up to which texts have nothing to do with each other."""
HALF = 3.6
"""The sum at which the score is one half: about one in two of the best tools with that sum were right ones."""
STEEPNESS = 3.0
_LEAST = 0.001
_FAINT = 0.35

_WORDS = Lexical()


class SemanticScorer:
    """A ``Scorer`` that adds what words weigh (BM25F) and how near the meanings are (cosine), calibrated to 0..1.

    A tool can be found by either: this is no re-ranking of what words found. The vectors of tools are made when they are
    first needed, kept beside the index and in *cache*, and follow the index as tools come and go; ``prepare`` makes them
    ahead of the first pick. Where the embedder fails, gives what are no vectors, or takes longer than *timeout*, that
    pick is the default scorer's; each score's ``details["fallback"]`` says why, and so does the log.

    Args:
        embedder: makes the vectors.
        cache: keeps the vectors of tools over restarts and for other processes; queries are never put there.
        timeout: seconds for the vectors of one pick, those of tools included that are still missing: what was made of
            them stays. None for no limit.
    """

    def __init__(self, embedder: Embedder, *, cache: EmbeddingCache | None = None, timeout: float | None = 2.0) -> None:
        self.name = f"{_WORDS.name}+{embedder.name}"
        self._meanings = Meanings(Embeddings(embedder, cache))
        self._timeout = timeout

    async def prepare(self, index: ToolIndex) -> None:
        """Make the vectors that the tools of an index lack, in as much time as it takes.

        Raises:
            EmbeddingsUnfit: the embedder gave what cannot be compared.
            Exception: what the embedder raised.
        """
        await self._meanings.update(index)

    async def score_slots(self, asked: Asked, index: ToolIndex, slots: Sequence[int] | None) -> Mapping[int, Score]:
        """See ``Scorer``."""
        if not asked.text.strip():
            return {}
        before = Snapshot(index)
        limit = asyncio.timeout(self._timeout)
        near: list[float] = []
        failure: Exception | None = None
        cancelled = cancelling()
        try:
            async with limit:
                near = await self._meanings.near(index, asked.text, slots)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (it may raise anything; words are an answer)
            failure = failure_of(error, cancelled)
        slots = before.still(slots)
        if failure is not None:
            late = f"no vectors within {self._timeout} s" if limit.expired() else None
            return self._by_words(
                asked, index, slots, late or f"the embedder failed: {type(failure).__name__}", failure
            )
        return _mixture(index, slots, index.weigh(asked.text, slots), near)

    def _by_words(
        self, asked: Asked, index: ToolIndex, slots: Sequence[int] | None, why: str, error: Exception
    ) -> dict[int, Score]:
        """The default scorer's answer, and why it is that."""
        emit(Event.PICK_FELL_BACK, scorer=self.name, error=error)
        details = {"fallback": _WORDS.name, "because": why}
        found = _WORDS.score_slots(asked, index, slots)
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
        if words + MEANING * (cosine - UNRELATED) < _FAINT and words < _FAINT:  # most of them: no need to work it out
            continue
        score = mixed(words, cosine)
        if score >= _LEAST:
            entry = index.entry(slot)
            reason = matched(entry) if words else f"near in meaning to {entry.name}"
            found[slot] = Score(score, reason, {"words": words, "cosine": cosine})
    return found


def mixed(words: float, cosine: float) -> float:
    """Both as one score from 0 to 1, which goes up with either."""
    weight: float = words + MEANING * max(0.0, cosine - UNRELATED)
    # Each step rounds in one direction only, so that a greater weight never gets a lesser score.
    return 1.0 - 1.0 / (1.0 + math.pow(weight / HALF, STEEPNESS))
