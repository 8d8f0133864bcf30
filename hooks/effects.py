"""Protocols between hooks and the effect ledger: rows written with it, and reconciliation of unknown effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import EffectRecord
from callgate.providers.stores.ledger_writes import RowChain

C_contra = TypeVar("C_contra", contravariant=True)
"""The context of hooks: see ``hooks/facts.py``."""


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


class EffectRecorder(Protocol[C_contra]):
    """A hook that writes its rows about an effect in the transactions of the ledger."""

    def joins_ledger(self, store: Store) -> bool:
        """Return True if the hook writes to the same store."""
        ...

    def intent_row(self, ctx: C_contra) -> tuple[RowChain, Mapping[str, Any]]:
        """Return the row that announces a tool run, and its chain."""
        ...

    def row(self, host: Any, body: dict[str, Any]) -> tuple[RowChain, Mapping[str, Any]]:
        """Return a row that the hook has put into ``ctx.run.claim.records``, and its chain."""
        ...
