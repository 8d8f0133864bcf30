"""Where a process may be killed that calls tools: at points that have names, in bodies and about the writes of its store."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from callgate.providers.signing import SigningKeys
from callgate.providers.stores.effects import Alias, EffectRecord, EffectState, SuspensionRecord
from callgate.providers.stores.sql.effects import SqlEffects
from callgate.providers.stores.sql.store import SqlStore, SqlTransaction
from callgate.providers.stores.sql.suspensions import SqlSuspensions

POINTS = (
    "before a claim",
    "before the commit of a claim",
    "after the commit of a claim",
    "in a body before its effect",
    "in a body after its effect",
    "before an end",
    "before the commit of an end",
    "after the commit of an end",
    "before a wait is kept",
    "after a wait is kept",
)


class Fate:
    """Kills the process at the point that was named."""

    def __init__(self, point: tuple[str, int] | None) -> None:
        self.name, self.left = point or ("", 0)

    def passes(self, name: str) -> None:
        """It has come there."""
        if name == self.name:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


class FatalStore(SqlStore):
    """A SQL store in which the process may die at named points."""

    def __init__(self, address: str, fate: Fate) -> None:
        self._fate = fate
        super().__init__(address)

    def _bind(self, namespace: str, keys: SigningKeys | None) -> None:
        """See ``SqlStore``; a gate with keys works with a store that is bound anew."""
        super()._bind(namespace, keys)
        self.suspensions = FatalWaits(self._database, None, namespace, self._signer)
        self.suspensions.fate = self._fate

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[SqlTransaction, None]:
        """See ``SqlStore``."""
        async with super().transaction() as within:
            effects = FatalEffects(self._database, within.effects._within, self.namespace, self._signer)
            effects.fate = self._fate
            yield replace(within, effects=effects)
            self._fate.passes(f"before the commit of {effects.wrote}")
        self._fate.passes(f"after the commit of {effects.wrote}")


class FatalEffects(SqlEffects):
    """The ledger within a transaction."""

    fate: Fate
    wrote = "nothing"

    async def claim(
        self, tenant: str, effect: EffectRecord, *, retry: bool = False, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        """See ``EffectStore``."""
        self.fate.passes("before a claim")
        mine, found = await super().claim(tenant, effect, retry=retry, alias=alias)
        self.wrote = "a claim" if mine else "nothing"
        return mine, found

    async def settle(self, tenant: str, key: str, token: int, state: EffectState, **facts: Any) -> bool:
        """See ``EffectStore``."""
        self.fate.passes("before an end")
        done = await super().settle(tenant, key, token, state, **facts)
        self.wrote = "an end"
        return done


class FatalWaits(SqlSuspensions):
    """Suspended calls."""

    fate: Fate

    async def put(self, tenant: str, wait: SuspensionRecord) -> None:
        """See ``SuspensionStore``."""
        self.fate.passes("before a wait is kept")
        await super().put(tenant, wait)
        self.fate.passes("after a wait is kept")
