"""``Meanings``: how near each tool of an index is to a query in meaning; follows the index as tools come and go."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Sequence
from functools import cache
from operator import mul
from typing import Any
from weakref import WeakKeyDictionary

from callgate.tools.picking.document import texts_of
from callgate.tools.picking.embedding import MAX_CHARACTERS, Embeddings, EmbeddingsUnfit
from callgate.tools.picking.entry import Entry
from callgate.tools.picking.index import ToolIndex

__all__ = ["Meanings", "text_of"]

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./:]+")
_DIGITS = 6


def text_of(entry: Entry) -> str:
    """The text of a tool that is embedded: its name as words, its title and its description.

    Not its parameters: they made nothing better on the sample sets, and two in three texts much longer.
    """
    texts = texts_of(entry.definition)
    name = _WORD_ENDS.sub(" ", texts["name"]).strip()
    rest = " ".join(filter(None, [texts["title"], texts["description"]]))
    return f"{name}: {rest}"[:MAX_CHARACTERS]


class _Rows:
    """The vectors of one index, by slot, as they were at one version of it."""

    __slots__ = ("_lock", "_loop", "entries", "keys", "lengths", "matrix", "vectors", "version")

    def __init__(self) -> None:
        self.version = -1
        self.entries: list[Entry | None] = []
        self.keys: list[str] = []  # "" where there is no tool
        self.vectors: dict[str, array[float]] = {}
        self.lengths: set[int] = set()
        self.matrix: Any = None
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def alone(self) -> asyncio.Lock:
        """One update at a time, so that many first picks make the vectors once. A lock belongs to one event loop."""
        loop = asyncio.get_running_loop()
        if self._lock is None or self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        return self._lock


class Meanings:
    """The vectors of the tools of indexes, kept beside each index for as long as it lives."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings
        self._rows: WeakKeyDictionary[ToolIndex, _Rows] = WeakKeyDictionary()

    async def update(self, index: ToolIndex) -> None:
        """Make the vectors that an index lacks, and forget those of tools that are gone. Raises like ``Embeddings``.

        Where it is cut short, what was made so far stays, and the next update goes on from there.
        """
        rows = self._rows.setdefault(index, _Rows())
        if rows.version == index.version:
            return
        async with rows.alone():
            version, entries = index.version, list(index.entries)
            if rows.version == version:
                return
            keys, texts = self._keyed(rows, entries)
            await self.embeddings.of_tools(texts, rows.vectors)
            used = set(keys)
            rows.vectors = {key: vector for key, vector in rows.vectors.items() if key in used}
            rows.lengths = set(map(len, rows.vectors.values()))
            rows.version, rows.entries, rows.keys, rows.matrix = version, entries, keys, None

    async def near(self, index: ToolIndex, query: str, slots: Sequence[int] | None) -> list[float]:
        """The cosine of a query and each tool, -1 to 1, by slot; 0 where there is none or *slots* leaves it out.

        Raises like ``Embeddings``.
        """
        await self.update(index)
        asked = await self.embeddings.of_query(query)
        rows = self._rows[index]
        if rows.lengths - {len(asked)}:
            raise EmbeddingsUnfit(
                f"vectors of tools have {sorted(rows.lengths)} numbers, that of the query {len(asked)}"
            )
        wanted = range(len(rows.keys)) if slots is None else slots
        numpy = _numpy()
        if numpy is None:
            found = [0.0] * len(rows.keys)
            for slot in wanted:
                if slot < len(found) and rows.keys[slot]:  # a tool that came since is found by its words alone
                    found[slot] = round(sum(map(mul, rows.vectors[rows.keys[slot]], asked)), _DIGITS)
            return found
        if rows.matrix is None:
            rows.matrix = _matrix(numpy, rows, len(asked))
        # Not a product by BLAS: there, the last bits of a row depend on how many rows there are.
        every = numpy.einsum("ij,j->i", rows.matrix, numpy.asarray(asked, dtype=numpy.float32)).astype(numpy.float64)
        if slots is not None:
            left_out = numpy.ones(len(every), dtype=bool)
            left_out[[slot for slot in slots if slot < len(every)]] = False
            every[left_out] = 0.0
        cosines: list[float] = every.round(_DIGITS).tolist()
        return cosines

    def _keyed(self, rows: _Rows, entries: Sequence[Entry | None]) -> tuple[list[str], dict[str, str]]:
        """The keys by slot, and the texts by key of tools that were not there before."""
        keys: list[str] = []
        texts: dict[str, str] = {}
        for slot, entry in enumerate(entries):
            if entry is None:
                keys.append("")
            elif slot < len(rows.entries) and rows.entries[slot] is entry:
                keys.append(rows.keys[slot])
            else:
                text = text_of(entry)
                keys.append(self.embeddings.key(text))
                texts[keys[-1]] = text
        return keys, texts


def _matrix(numpy: Any, rows: _Rows, dimension: int) -> Any:
    matrix = numpy.zeros((len(rows.keys), dimension), dtype=numpy.float32)
    for slot, key in enumerate(rows.keys):
        if key:
            matrix[slot] = rows.vectors[key]
    return matrix


@cache
def _numpy() -> Any:
    """numpy where it is installed; without it the same is done in Python, some 100 times slower."""
    try:
        import numpy  # noqa: ICN001  # pyright: ignore[reportMissingImports]  (it may be missing)
    except ImportError:
        return None
    return numpy
