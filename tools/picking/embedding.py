"""Embeddings: protocols of an embedder and its cache, and checks of vectors. No library is loaded here."""

from __future__ import annotations

import math
import sys
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol, TypeAlias

import orjson

from callgate.providers.logs import LogEvent, emit_fault

Vector: TypeAlias = Sequence[float]
"""The embedding of a text; texts of similar meaning have similar directions."""

MAX_CHARACTERS = 4_000
"""Characters of a text that are embedded, from its start: more than usual models read."""
BATCH = 64
"""Texts in one call of an embedder; finished batches are kept when a later one fails or is cancelled."""
_QUERIES = 1024
_NOTHING = 1e-30


class EmbeddingsUnfit(ValueError):
    """An embedder returned too few vectors, vectors of different lengths, or values that are not finite numbers."""


class Embedder(Protocol):
    """A model that makes vectors of texts.

    ``name`` and ``version`` identify the model, down to its weights: cached vectors are used again under the same ones
    only. ``dimension`` is the length of a vector; None until it is known.
    """

    @property
    def name(self) -> str:
        """The model in one short word or address; it is shown in provenance, so it must not be secret."""
        ...

    @property
    def version(self) -> str:
        """The version; it changes whenever a text would get another vector."""
        ...

    @property
    def dimension(self) -> int | None:
        """The length of a vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """Embed each text, in order. The vectors need not have unit length. Any exception counts as a failure."""
        ...


class EmbeddingCache(Protocol):
    """A cache of vectors under keys, as JSON bytes; it may drop any of them at any time."""

    async def get(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the cached values of *keys*."""
        ...

    async def put(self, items: Mapping[str, bytes]) -> None:
        """Store values."""
        ...


class Embeddings:
    """The vectors of one embedder, at unit length, with a cache.

    Only texts of tools go to the cache. Queries are private: the last 1,024 of them stay in memory.
    A failure of the cache, or a value of another form, counts as a miss.
    """

    def __init__(self, embedder: Embedder, cache: EmbeddingCache | None = None, *, batch: int = BATCH) -> None:
        self.embedder, self.cache, self.batch = embedder, cache, max(1, batch)
        self._queries: OrderedDict[str, array[float]] = OrderedDict()

    def key(self, text: str) -> str:
        """The cache key of a text's vector: from the embedder's name and version, and the text."""
        identity = orjson.dumps([self.embedder.name, self.embedder.version])
        return sha256(identity + b"\n" + text.encode("utf-8", "surrogatepass")).hexdigest()

    async def of_tools(self, texts: Mapping[str, str], known: dict[str, array[float]]) -> None:
        """Add the missing vectors of *texts* to *known*, both by key: from the cache, or made now in batches.

        Raises:
            EmbeddingsUnfit: the embedder returned vectors that cannot be compared.
            Exception: any exception of the embedder.
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
        """Embed a query. Raises like ``of_tools``."""
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
        except Exception as error:  # noqa: BLE001  (a failure of the cache is a miss)
            emit_fault(LogEvent.PROVIDER_FAILED, error, provider="embedding cache", phase="get")
            return {}

    async def _keep(self, items: Mapping[str, bytes]) -> None:
        if self.cache is None:
            return
        try:
            await self.cache.put(items)
        except Exception as error:  # noqa: BLE001  (the next call makes them again)
            emit_fault(LogEvent.PROVIDER_FAILED, error, provider="embedding cache", phase="put")


def unit(vector: Vector, dimension: int | None = None) -> array[float]:
    """Scale a vector to length 1, in single precision; a vector of length 0 becomes zeros.

    Raises:
        EmbeddingsUnfit: it has another dimension, or a value that is not a finite number.
    """
    if len(vector) != (dimension or len(vector)) or not len(vector):
        raise EmbeddingsUnfit(f"a vector of {len(vector)} numbers; {dimension or 'some'} were expected")
    try:
        length = math.hypot(*vector)
    except (TypeError, ValueError, OverflowError):
        length = math.nan
    if not math.isfinite(length):
        raise EmbeddingsUnfit("a vector holds a value that is not a finite number")
    return array("f", [number / length for number in vector] if length > _NOTHING else [0.0] * len(vector))


def packed(vector: array[float]) -> bytes:
    """Encode a vector as a JSON string: hexadecimal, little-endian single precision."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b'"' + vector.tobytes().hex().encode() + b'"'


def unpacked(kept: bytes, dimension: int | None = None) -> array[float] | None:
    """Decode the output of ``packed``; None for anything else."""
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
