"""Stores by address."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias, cast

from callgate.errors import StoreError, StoreUnsupported
from callgate.providers.installed import Unusable, load_installed
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory.store import MemoryStore

GROUP = "callgate.stores"
Factory: TypeAlias = Callable[[str, Callable[[], float]], Store]
_SCHEMES = ("memory://", "sqlite://", "postgresql://", "redis://", "rediss://")


def store_at(address: Store | str | None, now: Callable[[], float] = time.time, *, migrate: bool = True) -> Store:
    """Return the store at an address, without opening it. A store is returned unchanged; None means memory.

    Addresses are ``memory://``, ``sqlite:///file.db``, ``sqlite://`` (in memory), ``postgresql://user:password@host/db``,
    ``redis://host:6379/0`` and ``rediss://``. ``postgres://``, ``valkey://`` and upper case are understood. *now* is a clock in seconds since the epoch. With
    ``migrate=False`` a SQL store at an address refuses tables of an older version in place of migrating them.

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
    if isinstance(address, type):
        raise StoreError(
            f"a store is an object, and {address.__name__} is a class; write store={address.__name__}(...)"
        )
    if not isinstance(address, str):
        return address
    from callgate.providers.stores.urls import split_address

    scheme, rest = split_address(address)
    match scheme.partition("+")[0]:
        case "memory":
            if rest:
                raise StoreError("memory: a store in memory has no place; write memory://, or give another scheme")
            return MemoryStore(now)
        case "sqlite" | "postgresql":
            from callgate.providers.stores.sql.store import SqlStore

            return SqlStore(address, now, migrate=migrate)
        case "redis" | "rediss":
            from callgate.providers.stores.redis.store import RedisStore

            return RedisStore(address, now)
        case name:
            return _of_package(name)(address.strip(), now)


def in_namespace(store: Store, namespace: str) -> Store:
    """Return *store* for one application: nothing that it keeps for the others is in it.

    Raises:
        StoreUnsupported: the store has no method ``in_namespace``.
    """
    if not namespace:
        return store
    bind: Callable[[str], Store] | None = getattr(store, "in_namespace", None)
    if bind is None:
        raise StoreUnsupported(
            f"the store {store.name!r} has no namespaces: leave Options(namespace=...) out, and give each application a "
            "database of its own"
        )
    return bind(namespace)


def _of_package(scheme: str) -> Factory:
    """Load the store factory that another package declares for a scheme."""
    return load_installed(GROUP, scheme, "store", StoreError, _factory, dict.fromkeys(_SCHEMES, ""))


def _factory(loaded: object) -> Factory:
    if not callable(loaded):
        raise Unusable("it is not a function (address, now) -> Store")
    return cast("Factory", loaded)


def signed_by(store: Store, keys: SigningKeys | None) -> Store:
    """Return *store* with signatures of its rows; *store* itself without keys, or where it has none, as in memory."""
    bind = None if keys is None else getattr(store, "signed", None)
    return store if bind is None else cast(Callable[[SigningKeys | None], Store], bind)(keys)
