"""A claim whose outcome a transaction of the application carries, with the rows that are the effect."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from callgate.errors import ProviderError, StoreConflict
from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import AWAITED, Claim, EffectRecorder
from callgate.hooks.state.host import Host
from callgate.providers.exits import PlainThreads
from callgate.providers.stores.effects import EffectRecord, EffectState, EffectStore


class Connection(Protocol):
    """A connection or a session of SQLAlchemy, whose transaction carries the outcome."""

    def rollback(self) -> Awaitable[None] | None:
        """Roll its transaction back."""
        ...


class SharedStore(Protocol):
    """A store whose ledger can be written in a transaction of the application."""

    @property
    def effects(self) -> EffectStore:
        """The ledger, in transactions of its own."""
        ...

    def effects_in(self, connection: object, threads: PlainThreads | None = None) -> EffectStore:
        """Return the ledger in the transaction of *connection*."""
        ...


class TransactionClaim(Claim):
    """A claim whose outcome a transaction of the application carries.

    Until that transaction commits, the row of the claim is ``claimed``: a process that dies leaves no effect. The outcome
    is written under the claim's token, so a transaction that ends after its lease was lost cannot commit. ``joined`` is
    the ledger in the transaction of this attempt.
    """

    is_joinable = True

    def __init__(
        self,
        host: Host[InvokeContext],
        tenant: str,
        effect: EffectRecord,
        together: Sequence[EffectRecorder[InvokeContext]],
        started: bool,
        store: SharedStore,
        now: Callable[[], float],
    ) -> None:
        super().__init__(host, tenant, effect, together, started)
        self._providers, self._store, self._now = host.registry, store, now
        self._threads: PlainThreads | None = None
        self._connection: Connection | None = None
        self.joined: EffectStore | None = None

    def in_transaction(self, connection: Any, threads: PlainThreads | None) -> None:
        """Let the transaction of *connection* carry the outcome. Raises ``StoreError`` for another kind of object."""
        self.joined = self._store.effects_in(connection, threads)
        self._connection, self._threads = connection, threads

    def begin(self) -> None:
        """Record that a body starts.

        Raises:
            ProviderError: no transaction carries the outcome.
        """
        if self.joined is None and self._providers.world.overrides:  # a test puts another session in its place
            self.is_joinable = False
        elif self.joined is None:
            raise ProviderError(
                "a provider takes EffectClaim and let no transaction carry the outcome; before its `yield` it calls "
                "in_transaction(connection)"
            )
        super().begin()

    async def write_outcome(self) -> None:
        """Write the outcome in the transaction, as its last statement; the receipt follows after the commit.

        Raises:
            StoreConflict: the lease of the claim was lost; the transaction must roll back.
            StoreError: the statement failed.
        """
        assert self.joined is not None  # see ``begin``
        if not await self._settle(self.joined, EffectState.COMMITTED, AWAITED):
            raise StoreConflict("the claim was lost: its lease was over, or the connection is of another database")

    async def undo(self) -> None:
        """Roll the transaction back, so that a provider that hides the error of the attempt cannot commit its rows."""
        assert self._connection is not None  # it has joined
        roll_back = self._connection.rollback
        rolling = roll_back() if self._threads is None else await self._threads.run(roll_back)
        if inspect.isawaitable(rolling):
            await rolling

    async def find_outcome(self) -> EffectState:
        """Return the outcome after a commit that failed without saying whether it took place.

        Raises:
            StoreError: the store did not respond.
        """
        effect, ledger = self.effect, self._store.effects
        if await self._settle(ledger, EffectState.NO_EFFECT):
            return EffectState.NO_EFFECT
        found = await ledger.get(self.tenant, effect.key)
        mine = found is not None and found.token == effect.token and found.state is EffectState.COMMITTED
        return EffectState.COMMITTED if mine else EffectState.NO_EFFECT

    async def _settle(self, ledger: EffectStore, state: EffectState, receipt: bytes | None = None) -> bool:
        effect, aliased = self.effect, self.alias is not None or bool(self.more)
        return await ledger.settle(
            self.tenant, effect.key, effect.token, state, at=self._now(), receipt=receipt, aliases=aliased
        )
