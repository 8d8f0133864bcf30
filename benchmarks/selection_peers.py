"""Who ranks tools: Callgate's default scorer, and the libraries that users would take instead.

The peers get the same fields as one text, identifiers split and words stemmed as Callgate does: what differs is the ranking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from callgate.tools.picking.document import texts_of
from callgate.tools.picking.index import ToolIndex
from callgate.tools.picking.stemming import stem

Rank = Callable[[str, int], Sequence[int]]
"""A query and how many; gives places in the catalogue, best first."""

_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


def one_text(tool: dict[str, Any]) -> str:
    """All fields of a tool, identifiers split: what a user would feed to a library."""
    return _BREAK.sub(" ", "\n".join(texts_of(tool).values()))


def make_index(catalog: Sequence[dict[str, Any]]) -> ToolIndex:
    """An index by place: some real catalogues have a name twice."""
    index = ToolIndex()
    for number, tool in enumerate(catalog):
        index.put(str(number), tool, tool)
    return index


def callgate(catalog: Sequence[dict[str, Any]]) -> Rank:
    index = make_index(catalog)
    return lambda query, k: [slot for slot, _ in index.search(query, limit=k)]


def bm25s(catalog: Sequence[dict[str, Any]]) -> Rank:
    import bm25s as library

    def read(texts: list[str]) -> Any:
        return library.tokenize(
            texts, stopwords="en", stemmer=lambda words: [stem(w) for w in words], show_progress=False
        )

    made = library.BM25()
    made.index(read([one_text(tool) for tool in catalog]), show_progress=False)

    def rank(query: str, k: int) -> list[int]:
        places, scores = made.retrieve(read([query]), k=min(k, len(catalog)), show_progress=False)
        return [int(place) for place, score in zip(places[0], scores[0], strict=True) if score > 0]

    return rank


def rank_bm25(catalog: Sequence[dict[str, Any]]) -> Rank:
    import numpy as np
    from bm25s.stopwords import STOPWORDS_EN  # the same list for both
    from rank_bm25 import BM25Okapi

    word = re.compile(r"(?u)\b\w\w+\b")
    stop = frozenset(STOPWORDS_EN)

    def read(text: str) -> list[str]:
        return [stem(one) for one in word.findall(text.lower()) if one not in stop]

    made = BM25Okapi([read(one_text(tool)) for tool in catalog])

    def rank(query: str, k: int) -> list[int]:
        scores = made.get_scores(read(query))
        return [int(place) for place in np.argsort(-scores, kind="stable")[:k] if scores[place] > 0]

    return rank
