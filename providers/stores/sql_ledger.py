"""Group commit of the effect ledger in SQL: the statements of a batch, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import orjson

from callgate.errors import StoreError
from callgate.providers.stores.effects import Alias, EffectRecord
from callgate.providers.stores.group_commit import GroupCommit
from callgate.providers.stores.ledger_writes import ChainRows, Settlement, row_tenant
from callgate.providers.stores.sql_batches import (
    Batch,
    Batches,
    PostgresBatches,
    SealedBody,
    Step,
    run_batch,
)
from callgate.providers.stores.sql_batches_lite import LiteBatches
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_effects import (
    CLAIM_ATTEMPTS,
    CLAIMS,
    DROP,
    FIND,
    SETTLE,
    SETTLE_ALIASES,
    SqlEffects,
    claim_values,
    settle_values,
)

_Place: TypeAlias = tuple[str, str]
"""The tenant and the key of an effect."""


_SHORT_WAIT = 0.05
"""Seconds that a claim may wait without a new lease: a copy of each record would cost more than so little is worth."""


@dataclass(slots=True, eq=False)
class Change:
    """One atomic change: a claim, an outcome, or neither; with the audit rows about it.

    ``asked_at`` is the time at which a claim was asked for.
    """

    namespace: str
    tenant: str
    rows: ChainRows
    claim: EffectRecord | None = None
    retry: bool = False
    outcome: Settlement | None = None
    alias: Alias | None = None
    asked_at: float = 0.0

    @property
    def is_one_row(self) -> bool:
        """True if one statement writes the change."""
        return not self.rows and self.alias is None and (self.outcome is None or not self.outcome.aliases)

    def begin_lease(self, now: float) -> None:
        """Move the lease of a claim by the time that the change has waited: it begins when it is written."""
        if self.claim is not None and now > self.asked_at + _SHORT_WAIT:
            self.claim = replace(self.claim, lease_until=self.claim.lease_until + now - self.asked_at)
            self.asked_at = now


class SqlLedgerWriter:
    """See ``LedgerWriter``. Concurrent changes are committed together."""

    def __init__(self, database: Database, effects: SqlEffects) -> None:
        self._database, self._effects, self._namespace = database, effects, effects.namespace
        self._batches: Batches = LiteBatches(database) if database.lite else PostgresBatches(database)
        self.group: GroupCommit[Change] = GroupCommit(
            self._write, partial(self._write, aside=True), retry=partial(self._write, retry=True), size=_size
        )

    def bound(self, effects: SqlEffects) -> SqlLedgerWriter:
        """Return a writer for the namespace of *effects*, with the same connection and transactions."""
        made = copy(self)
        made._effects, made._namespace = effects, effects.namespace
        return made

    async def claim(
        self, tenant: str, effect: EffectRecord, rows: ChainRows, *, retry: bool, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        """See ``LedgerWriter``."""
        change = Change(self._namespace, tenant, rows, effect, retry, alias=alias, asked_at=self._database.now())
        also = None if alias is None else (tenant, alias.key)
        for _ in range(CLAIM_ATTEMPTS):
            token: int | None = await self._put(change, (tenant, effect.key), withdraw=True, also=also)
            if token is not None:
                assert change.claim is not None
                return True, change.claim if token == effect.token else replace(change.claim, token=token)
            if (found := await self._effects.refused(tenant, effect, retry=retry, alias=alias)) is not None:
                return False, found
        raise StoreError(
            f"other processes changed the effect {CLAIM_ATTEMPTS} times while it was claimed; try again later"
        )

    async def settle(self, tenant: str, outcome: Settlement, rows: ChainRows) -> bool:
        """See ``LedgerWriter``."""
        done: bool = await self._put(
            Change(self._namespace, tenant, rows, outcome=outcome), (tenant, outcome.key), withdraw=False
        )
        return done

    async def append(self, tenant: str, rows: ChainRows) -> None:
        """Write audit rows alone."""
        change = Change(self._namespace, tenant, rows)
        await self._put(change, change, withdraw=False)

    async def close(self) -> None:
        """Write what is left, and disconnect."""
        await self.group.close()
        await self._batches.close()

    async def _put(self, change: Change, key: object, *, withdraw: bool, also: _Place | None = None) -> Any:
        if self._database.lite:
            self._database.refuse_nesting()
        async with self._database.answered():
            return await self.group.put(change, key, withdraw=withdraw, also=also)

    async def _write(self, changes: Sequence[Change], *, aside: bool = False, retry: bool = False) -> Sequence[Any]:
        async def work(batch: Batch) -> Sequence[Any]:
            now = self._database.now()  # here, after the wait for the transaction
            for one in changes:
                one.begin_lease(now)
            return await _write(batch, changes)

        return await run_batch(self._batches, work, aside=aside, retry=retry)


def _size(one: Change) -> int:
    """Return about how many bytes a change takes in a statement. A receipt is written in hexadecimal digits."""
    size = 0 if one.outcome is None or one.outcome.receipt is None else 2 * len(one.outcome.receipt)
    return size + sum(_text_size(body) for _, body in one.rows)


def _text_size(body: Mapping[str, Any]) -> int:
    """Return about how many bytes the body of an audit row takes."""
    try:
        return len(orjson.dumps(body, default=dict))  # a walk in Python took a tenth of the time of a call
    except TypeError:  # such as an integer beyond 64 bits
        return len(str(body))


async def _write(batch: Batch, changes: Sequence[Change]) -> list[Any]:
    """Write the changes and commit. Return for each its token, or None; whether its outcome is recorded; or True."""
    if len(changes) == 1 and changes[0].is_one_row:
        return [await _write_alone(batch, changes[0])]
    tokens, done, recorded = await _change(batch, changes)
    results, rows = list[Any](), list[SealedBody]()
    for one in changes:
        result: Any = True
        writes = True
        if one.claim is not None:
            result = tokens.get((one.tenant, one.claim.key))
            writes = result is not None
        elif one.outcome is not None:
            place = (one.tenant, one.outcome.key)
            result, writes = place in done or place in recorded, place not in recorded
        results.append(result)
        if writes:
            rows += [(row_tenant(body, one.tenant), chain, body, one.namespace) for chain, body in one.rows]
    await batch.seal_and_commit(rows)
    return results


async def _write_alone(batch: Batch, one: Change) -> object:
    """Write a change without audit rows in one statement. Return its token, or None; or whether its outcome is recorded."""
    if one.claim is not None:
        rows = await batch.run_alone(
            CLAIMS[one.retry], [claim_values(one.tenant, one.claim, one.namespace, retry=one.retry)]
        )
        return rows[0][0] if rows else None
    assert one.outcome is not None  # a change without rows has one of them
    values = settle_values(one.tenant, one.outcome, one.namespace)
    if await batch.run_alone(SETTLE, [values]):
        return True
    return any(_is_recorded(one.outcome, row) for row in await batch.run_alone(FIND, [values]))


async def _change(batch: Batch, changes: Sequence[Change]) -> tuple[dict[_Place, int], set[_Place], set[_Place]]:
    """Claim the keys and record the outcomes, in one round trip without aliases.

    Return the tokens of the claims that succeeded, the outcomes that are recorded now, and those that were before.

    Aliases are claimed first. An effect whose alias was refused is not claimed, and an alias goes with its effect.
    """
    taken: dict[_Place, int] = {}
    if aliased := [one for one in changes if one.claim is not None and one.alias is not None]:
        rows = [replace(one, claim=one.alias.row(one.claim)) for one in aliased if one.claim and one.alias]
        taken = _tokens(await batch.run_all(_claims(rows)))
    left = [one for one in changes if one.alias is None or (one.tenant, one.alias.key) in taken]
    ending = [(one, one.outcome) for one in changes if one.outcome is not None]
    values = [settle_values(one.tenant, outcome, one.namespace) for one, outcome in ending]
    both = [row for row, (_, outcome) in zip(values, ending, strict=True) if outcome.aliases]
    *claimed, _, settled = await batch.run_all([*_claims(left), (SETTLE_ALIASES, both), (SETTLE, values)])
    tokens, done = _tokens(claimed), {(tenant, key) for tenant, key in settled}
    refused = [one for one in left if one.alias and one.claim and (one.tenant, one.claim.key) not in tokens]
    keys = [_place_values(one, one.alias.key) for one in refused if one.alias is not None]
    missing = [row for row in values if (row["tenant"], row["key"]) not in done]
    _, found = await batch.run_all([(DROP, keys), (FIND, missing)])
    outcomes = {(one.tenant, outcome.key): outcome for one, outcome in ending}
    return tokens, done, {(row[0], row[1]) for row in found if _is_recorded(outcomes[row[0], row[1]], row)}


def _place_values(one: Change, key: str) -> dict[str, Any]:
    return {"tenant": one.tenant, "key": key, "version": SqlEffects.version, "namespace": one.namespace}


def _claims(changes: Sequence[Change]) -> list[Step]:
    """Return the steps that claim the keys."""
    return [
        (
            CLAIMS[retry],
            [
                claim_values(one.tenant, one.claim, one.namespace, retry=retry)
                for one in changes
                if one.claim is not None and one.retry is retry
            ],
        )
        for retry in (False, True)
    ]


def _tokens(claimed: Sequence[list[Any]]) -> dict[_Place, int]:
    return {(tenant, key): token for rows in claimed for token, tenant, key in rows}


def _is_recorded(outcome: Settlement, row: Any) -> bool:
    _, _, token, state = row
    return token == outcome.token and state in outcome.recorded
