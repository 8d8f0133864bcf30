"""Stores: where hooks, the effect ledger, suspensions and jobs keep their records. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.providers.blobs import Blobs as Blobs
    from callgate.providers.blobs import FolderBlobs as FolderBlobs
    from callgate.providers.stores.address import store_at as store_at
    from callgate.providers.stores.base import AuditRow as AuditRow
    from callgate.providers.stores.base import Limit as Limit
    from callgate.providers.stores.base import QuotaStore as QuotaStore
    from callgate.providers.stores.base import Store as Store
    from callgate.providers.stores.base import StoreFigures as StoreFigures
    from callgate.providers.stores.base import Taken as Taken
    from callgate.providers.stores.base import Transaction as Transaction
    from callgate.providers.stores.effects import EffectRecord as EffectRecord
    from callgate.providers.stores.effects import EffectState as EffectState
    from callgate.providers.stores.effects import EffectStore as EffectStore
    from callgate.providers.stores.jobs import JobState as JobState
    from callgate.providers.stores.jobs import JobStore as JobStore
    from callgate.providers.stores.memory.store import MemoryStore as MemoryStore
    from callgate.providers.stores.redis.store import RedisStore as RedisStore
    from callgate.providers.stores.sql.store import SqlStore as SqlStore
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "AuditRow": "callgate.providers.stores.base",
            "Blobs": "callgate.providers.blobs",
            "EffectRecord": "callgate.providers.stores.effects",
            "EffectState": "callgate.providers.stores.effects",
            "EffectStore": "callgate.providers.stores.effects",
            "FolderBlobs": "callgate.providers.blobs",
            "JobState": "callgate.providers.stores.jobs",
            "JobStore": "callgate.providers.stores.jobs",
            "Limit": "callgate.providers.stores.base",
            "MemoryStore": "callgate.providers.stores.memory.store",
            "QuotaStore": "callgate.providers.stores.base",
            "RedisStore": "callgate.providers.stores.redis.store",
            "SqlStore": "callgate.providers.stores.sql.store",
            "Store": "callgate.providers.stores.base",
            "StoreFigures": "callgate.providers.stores.base",
            "Taken": "callgate.providers.stores.base",
            "Transaction": "callgate.providers.stores.base",
            "store_at": "callgate.providers.stores.address",
        },
    )
