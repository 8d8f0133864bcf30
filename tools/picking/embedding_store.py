"""``StoredEmbeddings``: a cache of tool vectors in a store, shared by processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import cast

from callgate.errors import RegistrationError
from callgate.providers.stores.base import CacheEntry, CacheStore, Store

_AT_ONCE = 32
_PREFIX = "embedding:"


class StoredEmbeddings:
    """An ``EmbeddingCache`` in a store's cache.

    Args:
        store: a store, or the cache of one; it must stay open while this is used.
        tenant: the owner of the entries. Tools are usually the same for all tenants: then leave it.
        keep: seconds after which a vector is made again, used or not; by default 90 days.

    Raises:
        RegistrationError: *keep* is not above 0.
    """

    def __init__(self, store: Store | CacheStore, *, tenant: str = "", keep: float = 90 * 86_400.0) -> None:
        if not keep > 0:
            raise RegistrationError("StoredEmbeddings: keep is in seconds and must be above 0")
        # getattr: isinstance would read the other parts of the store, too, and a backend need not have them
        self._store = cast("CacheStore", getattr(store, "cache", store))
        self._tenant, self._keep = tenant, keep

    async def get(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See ``EmbeddingCache``."""
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            # asyncio: a failed read ends the look-up; reads that still run change nothing
            entries = await asyncio.gather(*(self._store.get(self._tenant, _PREFIX + key) for key in some))
            found |= {key: entry.value for key, entry in zip(some, entries, strict=True) if entry is not None}
        return found

    async def put(self, items: Mapping[str, bytes]) -> None:
        """See ``EmbeddingCache``."""
        now = time.time()
        for key, value in items.items():
            entry = CacheEntry(value, now, now + self._keep, now + self._keep)
            await self._store.put(self._tenant, _PREFIX + key, entry)
