"""Texts as vectors: what makes them, what keeps them, and what is checked before they count. Pure; no library is loaded."""

from __future__ import annotations

import math
import sys
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol, TypeAlias

import orjson

__all__ = ["BATCH", "MAX_CHARACTERS", "Embedder", "EmbeddingCache", "Embeddings", "EmbeddingsUnfit", "Vector"]

Vector: TypeAlias = Sequence[float]
"""One text's meaning; texts that mean much the same point much the same way."""

MAX_CHARACTERS = 4_000
"""Characters of a text that are embedded, from its beginning: more than any usual model reads of it."""
BATCH = 64
"""Texts that an embedder is given at once; what it has done is kept even if the next batch fails or is cut short."""
_QUERIES = 1024
_NOTHING = 1e-30


class EmbeddingsUnfit(ValueError):
    """An embedder gave what cannot be compared: too few vectors, of unlike length, or numbers that are none."""


class Embedder(Protocol):
    """Makes vectors of texts.

    ``name`` and ``version`` say which model it is, down to its weights: vectors that were kept are only used again under
    the same ones. ``dimension`` is how many numbers a vector has; None until that is known.
    """

    @property
    def name(self) -> str:
        """Which model, in one short word or address; shown in provenance, so no secret."""
        ...

    @property
    def version(self) -> str:
        """Changes whenever the same text would get another vector."""
        ...

    @property
    def dimension(self) -> int | None:
        """Numbers in a vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """One vector for each text, in order. The vectors need not have unit length. Whatever it raises is a failure."""
        ...


class EmbeddingCache(Protocol):
    """Keeps vectors under keys, as JSON bytes; it may forget any of them at any time."""

    async def get(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Those that are there."""
        ...

    async def put(self, items: Mapping[str, bytes]) -> None:
        """Keep these."""
        ...


class Embeddings:
    """The vectors of one embedder, of unit length; made once and then taken from *cache*.

    Only texts of tools go to the cache: what people ask is private and stays in memory, the last 1,024 of it.
    A cache that fails, or holds something else, is a cache without the value.
    """

    def __init__(self, embedder: Embedder, cache: EmbeddingCache | None = None, *, batch: int = BATCH) -> None:
        self.embedder, self.cache, self.batch = embedder, cache, max(1, batch)
        self._queries: OrderedDict[str, array[float]] = OrderedDict()

    def key(self, text: str) -> str:
        """Under which a text's vector is kept: from the embedder's name and version, and the text."""
        told = orjson.dumps([self.embedder.name, self.embedder.version])
        return sha256(told + b"\n" + text.encode("utf-8", "surrogatepass")).hexdigest()

    async def of_tools(self, texts: Mapping[str, str], known: dict[str, array[float]]) -> None:
        """Put into *known* what it lacks of *texts*, both by key: from the cache, or made now, batch by batch.

        Raises:
            EmbeddingsUnfit: the embedder gave no vectors that can be compared.
            Exception: what the embedder raised.
        """
        missing = [key for key in texts if key not in known]
        for key, kept in (await self._cached(missing)).items():
            vector = unpacked(kept, self.embedder.dimension)
            if vector is not None and key in texts:
                known[key] = vector
        missing = [key for key in missing if key not in known]
        for start in range(0, len(missing), self.batch):
            keys = missing[start : start + self.batch]
            made = dict(zip(keys, await self._made([texts[key] for key in keys]), strict=True))
            known.update(made)
            await self._keep({key: packed(vector) for key, vector in made.items()})

    async def of_query(self, text: str) -> array[float]:
        """The vector of what is asked; raises like ``of_tools``."""
        text = text[:MAX_CHARACTERS]
        key = self.key(text)
        vector = self._queries.get(key)
        if vector is None:
            vector = (await self._made([text]))[0]
            self._queries[key] = vector
            if len(self._queries) > _QUERIES:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(key)
        return vector

    async def _made(self, texts: Sequence[str]) -> list[array[float]]:
        vectors = await self.embedder.embed(texts)
        if len(vectors) != len(texts):
            raise EmbeddingsUnfit(f"{len(vectors)} vectors for {len(texts)} texts")
        return [unit(vector, self.embedder.dimension) for vector in vectors]

    async def _cached(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        if self.cache is None or not keys:
            return {}
        try:
            return await self.cache.get(keys)
        except Exception:  # noqa: BLE001  (a cache that is down is a cache without the value)
            return {}

    async def _keep(self, items: Mapping[str, bytes]) -> None:
        if self.cache is None:
            return
        try:
            await self.cache.put(items)
        except Exception:  # noqa: BLE001, S110  (they are made anew next time)
            pass


def unit(vector: Vector, dimension: int | None = None) -> array[float]:
    """A vector of length 1 in the same direction, in single precision; one without a length becomes zeros.

    Raises:
        EmbeddingsUnfit: it has another dimension, or something in it that is no finite number.
    """
    if len(vector) != (dimension or len(vector)) or not len(vector):
        raise EmbeddingsUnfit(f"a vector of {len(vector)} numbers; {dimension or 'some'} were expected")
    try:
        length = math.hypot(*vector)
    except (TypeError, ValueError, OverflowError):
        length = math.nan
    if not math.isfinite(length):
        raise EmbeddingsUnfit("a vector has something in it that is no finite number")
    return array("f", [number / length for number in vector] if length > _NOTHING else [0.0] * len(vector))


def packed(vector: array[float]) -> bytes:
    """A vector as JSON: one string, the numbers in hexadecimal, little-endian single precision."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b'"' + vector.tobytes().hex().encode() + b'"'


def unpacked(kept: bytes, dimension: int | None = None) -> array[float] | None:
    """What ``packed`` wrote; None where it is anything else."""
    vector = array("f")
    try:
        vector.frombytes(bytes.fromhex(orjson.loads(kept)))
    except (ValueError, TypeError):
        return None
    if sys.byteorder == "big":
        vector.byteswap()
    length = math.hypot(*vector)
    fits = len(vector) == (dimension or len(vector)) and (abs(length - 1.0) < 1e-3 or length == 0.0)
    return vector if len(vector) and fits else None
