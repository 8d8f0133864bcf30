"""From an address to a store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from callgate.errors import StoreError
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory import MemoryStore
from callgate.providers.stores.redis import RedisStore
from callgate.providers.stores.sql import SqlStore

KNOWN = "memory://, sqlite:///file.db, sqlite:// (in memory), postgresql://, redis:// and rediss://"


def store_at(address: Store | str | None, now: Callable[[], float] = time.time) -> Store:
    """The store at an address; a store itself is taken as it is, None means memory.

    Addresses are ``memory://``, ``sqlite:///file.db``, ``sqlite://`` (in memory), ``postgresql://user:password@host/db``,
    ``redis://host:6379/0`` and ``rediss://``. Nothing is opened yet. *now* is a clock in seconds since the epoch.

    Raises:
        StoreError: no store has such an address, or its extra is not installed; what the address holds besides its
            scheme is never shown.
    """
    if address is None:
        return MemoryStore(now)
    if not isinstance(address, str):
        return address
    scheme, found, _ = address.partition("://")
    if not found or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,40}", scheme):
        raise StoreError(f"the address of a store begins with a scheme; there are {KNOWN}")
    match scheme.lower().partition("+")[0]:
        case "memory":
            return MemoryStore(now)
        case "sqlite" | "postgresql":
            return SqlStore(address, now)
        case "redis" | "rediss":
            return RedisStore(address, now)
        case _:
            raise StoreError(f"no store has addresses that begin with {scheme}://; there are {KNOWN}")
