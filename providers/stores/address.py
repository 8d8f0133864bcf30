"""Stores by address."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import cast

from callgate.errors import StoreError
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory import MemoryStore

GROUP = "callgate.stores"
_KNOWN = "memory://, sqlite:///file.db, sqlite:// (in memory), postgresql://, redis:// and rediss://"


def store_at(address: Store | str | None, now: Callable[[], float] = time.time) -> Store:
    """Return the store at an address, without opening it. A store is returned unchanged; None means memory.

    Addresses are ``memory://``, ``sqlite:///file.db``, ``sqlite://`` (in memory), ``postgresql://user:password@host/db``,
    ``redis://host:6379/0`` and ``rediss://``. *now* is a clock in seconds since the epoch.

    A store of another package is found by its scheme, in the entry point group ``callgate.stores``. The package declares
    a function ``(address, now) -> Store`` in its ``pyproject.toml``::

        [project.entry-points."callgate.stores"]
        etcd = "acme_etcd:EtcdStore"

    Raises:
        StoreError: no store has such an address, its extra is not installed, or the package that declares the scheme
            cannot be loaded. The message shows only the scheme.
    """
    if address is None:
        return MemoryStore(now)
    if not isinstance(address, str):
        return address
    scheme, found, _ = address.partition("://")
    if not found or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,40}", scheme):
        raise StoreError(f"the address of a store begins with a scheme; use one of {_KNOWN}")
    match scheme.lower().partition("+")[0]:
        case "memory":
            return MemoryStore(now)
        case "sqlite" | "postgresql":
            from callgate.providers.stores.sql import SqlStore

            return SqlStore(address, now)
        case "redis" | "rediss":
            from callgate.providers.stores.redis import RedisStore

            return RedisStore(address, now)
        case name:
            return _of_package(name)(address, now)


def _of_package(scheme: str) -> Callable[[str, Callable[[], float]], Store]:
    """Load the store factory that another package declares for a scheme."""
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=GROUP) if point.name == scheme}
    if not found:
        raise StoreError(
            f"no store has addresses that begin with {scheme}://; use one of {_KNOWN}, or install the package that "
            f"declares {scheme!r} in the entry point group {GROUP!r}"
        )
    owners = ", ".join(
        sorted(f"{point.dist.name if point.dist else 'an unknown package'} ({value})" for value, point in found.items())
    )
    if len(found) > 1:
        raise StoreError(f"several packages declare stores for {scheme}://: {owners}; uninstall all but one of them")
    (point,) = found.values()
    try:
        factory = point.load()
    except Exception as error:
        raise StoreError(
            f"the store for {scheme}:// of {owners} cannot be imported: {type(error).__name__}; reinstall the package, "
            "or the package that it depends on"
        ) from error
    if not callable(factory):
        raise StoreError(
            f"the store for {scheme}:// of {owners} cannot be called; its entry point has to name a function "
            "(address, now) -> Store"
        )
    return cast("Callable[[str, Callable[[], float]], Store]", factory)
