"""From an address to a store."""

from __future__ import annotations

from collections.abc import Callable

from callgate.errors import StoreError
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory import MemoryStore


def store_at(address: Store | str | None, now: Callable[[], float]) -> Store:
    """The store at an address: ``memory://``; a store itself is taken as it is, None means memory.

    Raises:
        StoreError: no store has such an address.
    """
    if address is None:
        return MemoryStore(now)
    if not isinstance(address, str):
        return address
    scheme = address.partition("://")[0]
    if scheme == "memory":
        return MemoryStore(now)
    raise StoreError(f"no store has addresses that begin with {scheme}://; there is memory://")
