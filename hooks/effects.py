"""Protocols between hooks and the effect ledger: rows written with it, and reconciliation of unknown effects."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from callgate.providers.stores.base import AuditStore, Store
from callgate.providers.stores.effects import EffectRecord


@dataclass(frozen=True, slots=True)
class Committed:
    """The effect took place; a repeated call gets *output* as its answer."""

    output: Any = None


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The effect did not take place and will not; the caller may retry the call."""


Finding: TypeAlias = Committed | NoEffect | None
"""The finding of a ``reconcile`` hook; None if the effect is still unknown."""


class Reconciler(Protocol):
    """A hook that can find the outcome of an effect whose process ended before it recorded one.

    It queries the service that the tool used, by ``effect.idempotency_key`` or by the input of that key. The runtime
    calls it when a caller repeats the call, and in the gate's maintenance. If it raises, the effect stays unknown.
    """

    async def reconcile(self, tenant: str, effect: EffectRecord) -> Finding:
        """Return the outcome of the effect."""
        ...


class Rows(Protocol):
    """Audit rows with assigned positions that are written within a transaction."""

    async def put(self, audit: AuditStore, tenant: str) -> None:
        """Write the rows."""
        ...


class EffectRecorder(Protocol):
    """A hook that writes its rows about an effect in the transactions of the ledger."""

    def joins_ledger(self, store: Store) -> bool:
        """Return True if the hook writes to the same store."""
        ...

    def sealing_intent(self, ctx: Any) -> AbstractAsyncContextManager[Rows]:
        """Return the row that announces a tool run; no other writer adds a row meanwhile."""
        ...

    def sealing(self, host: Any, body: dict[str, Any]) -> AbstractAsyncContextManager[Rows]:
        """Return a row that the hook has put into ``ctx.run.claim.records``."""
        ...
