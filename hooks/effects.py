"""What hooks have to do with the effect ledger: rows that are written with it, and what became of an unknown effect."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from callgate.providers.stores.base import AuditStore, Store
from callgate.providers.stores.effects import Effect


@dataclass(frozen=True, slots=True)
class Committed:
    """The effect took place; *output* is what a repeat of the call is answered with."""

    output: Any = None


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The effect did not take place, and will not: the call may be made again."""


Finding: TypeAlias = Committed | NoEffect | None
"""What a ``reconcile`` hook has found out; None: it is still unknown."""


class Reconciler(Protocol):
    """A hook that can find out what became of an effect whose process ended before it said (invariant I4).

    It asks the service that the tool has used, by ``effect.idempotency_key`` or what the key was made of. It is asked
    when somebody repeats the call, and in the gate's upkeep; what it raises leaves the effect unknown.
    """

    async def reconcile(self, tenant: str, effect: Effect) -> Finding:
        """What became of it."""
        ...


class Rows(Protocol):
    """Rows that have their places in a record and are written within a transaction."""

    async def put(self, audit: AuditStore, tenant: str) -> None:
        """Write them."""
        ...


class EffectRecorder(Protocol):
    """A hook whose rows about an effect are written in the very transactions of the ledger (design 10.3)."""

    def joins_ledger(self, store: Store) -> bool:
        """Whether it writes to the same store."""
        ...

    def sealing_intent(self, ctx: Any) -> AbstractAsyncContextManager[Rows]:
        """The row that says that a tool will run, while nobody else adds one."""
        ...

    def sealing(self, host: Any, body: dict[str, Any]) -> AbstractAsyncContextManager[Rows]:
        """A row that the hook has put into ``ctx.claim.records``."""
        ...
