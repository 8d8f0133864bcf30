"""``Meanings``: the similarity of each tool of an index to a query; follows changes of the index."""

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

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./:]+")
_DIGITS = 6


def text_of(entry: Entry) -> str:
    """The embedded text of a tool: its name as words, its title and its description.

    Parameters are left out: they did not improve results on the sample sets, and made two in three texts much longer.
    """
    texts = texts_of(entry.definition)
    name = _WORD_ENDS.sub(" ", texts["name"]).strip()
    rest = " ".join(filter(None, [texts["title"], texts["description"]]))
    return f"{name}: {rest}"[:MAX_CHARACTERS]


class _Rows:
    """The vectors of one index by slot, at one version of it."""

    __slots__ = ("_lock", "_loop", "entries", "keys", "lengths", "matrix", "vectors", "version")

    def __init__(self) -> None:
        self.version = -1
        self.entries: list[Entry | None] = []
        self.keys: list[str] = []  # empty for a slot without a tool
        self.vectors: dict[str, array[float]] = {}
        self.lengths: set[int] = set()
        self.matrix: Any = None
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def alone(self) -> asyncio.Lock:
        """A lock for updates, so that simultaneous first picks make the vectors once. It belongs to one event loop."""
        loop = asyncio.get_running_loop()
        if self._lock is None or self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        return self._lock


class Meanings:
    """The vectors of the tools of indexes, kept as long as each index."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings
        self._rows: WeakKeyDictionary[ToolIndex, _Rows] = WeakKeyDictionary()

    async def update(self, index: ToolIndex) -> None:
        """Make the missing vectors of an index, and drop those of removed tools. Raises like ``Embeddings``.

        After a cancellation the finished vectors stay, and the next update continues.
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
        """Compute the cosine of a query and each tool, -1 to 1, by slot; 0 for empty slots and those not in *slots*.

        Raises like ``Embeddings``.
        """
        await self.update(index)
        query_vector = await self.embeddings.of_query(query)
        rows = self._rows[index]
        if rows.lengths - {len(query_vector)}:
            raise EmbeddingsUnfit(
                f"vectors of tools have {sorted(rows.lengths)} numbers, that of the query {len(query_vector)}"
            )
        wanted = range(len(rows.keys)) if slots is None else slots
        numpy = _numpy()
        if numpy is None:
            found = [0.0] * len(rows.keys)
            for slot in wanted:
                if slot < len(found) and rows.keys[slot]:  # a tool that was added since is found by its words alone
                    found[slot] = round(sum(map(mul, rows.vectors[rows.keys[slot]], query_vector)), _DIGITS)
            return found
        if rows.matrix is None:
            rows.matrix = _matrix(numpy, rows, len(query_vector))
        # A product by BLAS would make the last bits of a row depend on the number of rows.
        every = numpy.einsum("ij,j->i", rows.matrix, numpy.asarray(query_vector, dtype=numpy.float32)).astype(
            numpy.float64
        )
        if slots is not None:
            left_out = numpy.ones(len(every), dtype=bool)
            left_out[[slot for slot in slots if slot < len(every)]] = False
            every[left_out] = 0.0
        cosines: list[float] = every.round(_DIGITS).tolist()
        return cosines

    def _keyed(self, rows: _Rows, entries: Sequence[Entry | None]) -> tuple[list[str], dict[str, str]]:
        """The keys by slot, and the texts by key of new tools."""
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


def _matrix(numpy: Any, rows: _Rows, dimension: int) -> object:
    matrix = numpy.zeros((len(rows.keys), dimension), dtype=numpy.float32)
    for slot, key in enumerate(rows.keys):
        if key:
            matrix[slot] = rows.vectors[key]
    return matrix


@cache
def _numpy() -> Any:
    """numpy, or None where it is missing; the computation in Python is about 100 times slower."""
    try:
        import numpy  # noqa: ICN001  # pyright: ignore[reportMissingImports]  (it may be missing)
    except ImportError:
        return None
    return numpy
