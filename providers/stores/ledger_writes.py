"""Writes of the effect ledger: a claim or an outcome, together with the audit rows about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import orjson

from callgate.providers.stores.base import AuditRow, AuditStore, AuditTip, Store
from callgate.providers.stores.effects import OPEN_STATES, Alias, EffectRecord, EffectState, EffectStore
from callgate.providers.stores.turns import Entered, Turns

# Those of canonical JSON in ``tools/values.py``, which a store may not import.
_JSON = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class RowBody(dict[str, object]):
    """The body of an audit row, which does not change once it is encoded: for a batch, for its hash and for its column.

    ``doubts`` are its rows, without their bodies, of which it is unknown whether they are written.
    """

    __slots__ = ("doubts", "encoded")
    doubts: Sequence[AuditRow]
    encoded: bytes


def row_json(body: Mapping[str, object]) -> bytes | None:
    """Return a body as JSON with sorted keys; None if the fast encoder cannot. A ``RowBody`` keeps it as ``encoded``."""
    try:
        data = orjson.dumps(body, option=_JSON)
    except TypeError:  # such as an integer beyond 64 bits
        return None
    if isinstance(body, RowBody):
        body.encoded = data
    return data


class RowChain(Protocol):
    """A hash chain of audit rows. Its lock is held from the sealing of rows to the end of their transaction."""

    lock: Turns
    links: Sequence[AuditTip] | None
    """The last rows of other segments, which the first row of this one names; None until the store is asked for them."""

    def seal(self, bodies: Sequence[Mapping[str, object]]) -> list[AuditRow]:
        """Return the next rows of the chain. They enter it with ``written``."""
        ...

    def written(self, rows: Sequence[AuditRow]) -> None:
        """Record that the rows are written."""
        ...

    def doubtful(self, bodies: Sequence[Mapping[str, object]], rows: Sequence[AuditRow]) -> None:
        """Record that it is unknown whether the rows of these bodies are written: their numbers are not used again."""
        ...


@runtime_checkable
class TippedAudit(Protocol):
    """An audit log that knows its newest segments. A store of another package may be without."""

    async def tips(self) -> Sequence[AuditTip]:
        """Return the last row of each of the ``MAX_TIPS`` newest segments."""
        ...


@runtime_checkable
class SearchedAudit(Protocol):
    """An audit log that knows whether it has a row. A store of another package may be without."""

    async def holds(self, tenant: str, row: AuditRow) -> bool:
        """Return True if the log has a row of that segment and number, also if its transaction has not ended yet."""
        ...


ChainRows: TypeAlias = Sequence[tuple[RowChain, Mapping[str, object]]]
"""Bodies of audit rows with their chains, at most one of each chain."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of an effect. ``recorded`` are the states that count as this outcome, if the ledger has one already.

    ``aliases``: the effect was claimed with aliases, which get the outcome, too. ``effect`` and ``alias`` are what the
    process has claimed, without ``alias`` if there are several: a store with signing keys signs them with the outcome.
    ``late`` is called when the caller is cancelled and the store goes on writing, with the tenant, this outcome and the
    future of the result of ``settle``.
    """

    key: str
    token: int
    state: EffectState
    at: float
    receipt: bytes | None = None
    expires_at: float | None = None
    of: Collection[EffectState] = OPEN_STATES
    recorded: Collection[EffectState] = ()
    aliases: bool = False
    effect: EffectRecord | None = None
    alias: Alias | None = None
    late: Callable[[str, Settlement, asyncio.Future[bool]], None] | None = None

    async def write(self, effects: EffectStore, tenant: str) -> bool:
        """Record the outcome. Return False if the claim is not open."""
        return await effects.settle(
            tenant,
            self.key,
            self.token,
            self.state,
            at=self.at,
            receipt=self.receipt,
            expires_at=self.expires_at,
            of=self.of,
            aliases=self.aliases,
        )

    async def is_recorded(self, effects: EffectStore, tenant: str) -> bool:
        """Return True if the ledger has this outcome: a store may report an error after a successful write."""
        found = await effects.get(tenant, self.key)
        return found is not None and found.token == self.token and found.state in self.recorded


class LedgerWriter(Protocol):
    """Writes the effect ledger and its audit rows. Each method is one transaction."""

    async def claim(
        self, tenant: str, effect: EffectRecord, rows: ChainRows, *, retry: bool, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        """Claim a key as ``EffectStore.claim`` does; write the rows if the claim succeeds."""
        ...

    async def settle(self, tenant: str, outcome: Settlement, rows: ChainRows) -> bool:
        """Record an outcome. Return False if the claim was lost.

        The rows are written unless the outcome was recorded before: a lost claim is audited, too.
        """
        ...


class TransactionWriter:
    """Writes in transactions of any store, one for each call."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def claim(
        self, tenant: str, effect: EffectRecord, rows: ChainRows, *, retry: bool, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        """See ``LedgerWriter``."""
        both = {} if alias is None else {"alias": alias}
        if not rows:
            return await self._store.effects.claim(tenant, effect, retry=retry, **both)
        async with AsyncExitStack() as chains, self._store.transaction() as written:
            mine, found = await written.effects.claim(tenant, effect, retry=retry, **both)
            if mine:
                await append(written, tenant, rows, chains)
        return mine, found

    async def settle(self, tenant: str, outcome: Settlement, rows: ChainRows) -> bool:
        """See ``LedgerWriter``."""
        if not rows:
            effects = self._store.effects
            return await outcome.write(effects, tenant) or await outcome.is_recorded(effects, tenant)
        async with AsyncExitStack() as chains, self._store.transaction() as written:
            done = await outcome.write(written.effects, tenant)
            recorded = done or await outcome.is_recorded(written.effects, tenant)
            if done or not recorded:
                await append(written, tenant, rows, chains)
        return recorded


async def append(written: Any, tenant: str, rows: ChainRows, chains: AsyncExitStack) -> None:
    """Write audit rows in a transaction. Their chains stay locked until *chains* is left, after the transaction.

    The chains are locked last. A transaction that holds rows and waits for a chain is then never waited for by the one
    that holds the chain.
    """
    for chain, body in by_chain(rows):
        sealed = await chains.enter_async_context(sealing(chain, [body], written.audit))
        await written.audit.append(row_tenant(body, tenant), sealed)


def row_tenant(body: Mapping[str, object], tenant: str) -> str:
    """Return the tenant that an audit row names: the caller's, also if the effect belongs to all tenants.

    A body that names none has *tenant*, that of the effect.
    """
    return str(body.get("tenant", tenant) or "")


def by_chain(rows: ChainRows) -> ChainRows:
    """Sort rows by their chains: everyone locks chains in one order."""
    return rows if len(rows) == 1 else sorted(rows, key=lambda one: id(one[0]))


def sealing(
    chain: RowChain, bodies: Sequence[Mapping[str, object]], audit: AuditStore | None = None
) -> AbstractAsyncContextManager[list[AuditRow]]:
    """Give the next rows of a chain to the caller, who writes them in this context, under the lock of the chain.

    The first row of a segment links to the last rows of others in *audit*, if that is a store with ``tips``.
    """

    async def seal(stack: AsyncExitStack) -> list[AuditRow]:
        await stack.enter_async_context(chain.lock)
        if chain.links is None and isinstance(audit, TippedAudit):
            chain.links = await audit.tips()
        rows = chain.seal(bodies)

        def end(_: object, error: BaseException | None, __: object) -> None:
            if error is None:
                chain.written(rows)
            else:
                chain.doubtful(bodies, rows)

        stack.push(end)
        return rows

    return Entered(seal)
