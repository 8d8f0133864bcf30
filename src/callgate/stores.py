"""Stores: where hooks, the effect ledger, suspensions and jobs keep their records. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.providers.blobs import Blobs, FolderBlobs
    from callgate.providers.stores.address import store_at
    from callgate.providers.stores.base import AuditRow, Limit, Store, Transaction
    from callgate.providers.stores.effects import EffectRecord, EffectState, EffectStore
    from callgate.providers.stores.jobs import JobState, JobStore
    from callgate.providers.stores.limits_quotas import LimitsQuotas
    from callgate.providers.stores.memory import MemoryStore
    from callgate.providers.stores.redis import RedisStore
    from callgate.providers.stores.sql import SqlStore
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
            "LimitsQuotas": "callgate.providers.stores.limits_quotas",
            "MemoryStore": "callgate.providers.stores.memory",
            "RedisStore": "callgate.providers.stores.redis",
            "SqlStore": "callgate.providers.stores.sql",
            "Store": "callgate.providers.stores.base",
            "Transaction": "callgate.providers.stores.base",
            "store_at": "callgate.providers.stores.address",
        },
    )

__all__ = [
    "AuditRow",
    "Blobs",
    "EffectRecord",
    "EffectState",
    "EffectStore",
    "FolderBlobs",
    "JobState",
    "JobStore",
    "Limit",
    "LimitsQuotas",
    "MemoryStore",
    "RedisStore",
    "SqlStore",
    "Store",
    "Transaction",
    "store_at",
]
