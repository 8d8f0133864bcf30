"""Group commit of the effect ledger in SQL: the statements of a batch, and their order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Required, TypeAlias, TypedDict, Unpack

from callgate.errors import StoreError
from callgate.providers.stores.effects import OPEN_STATES, Alias, EffectRecord, same_claim
from callgate.providers.stores.group_commit import GroupCommit, Late
from callgate.providers.stores.ledger_writes import (
    ChainRows,
    RowChain,
    Settlement,
    TransactionWriter,
    row_json,
    row_tenant,
)
from callgate.providers.stores.server_answers import has_limit, time_left
from callgate.providers.stores.signed_rows import RowSigner
from callgate.providers.stores.sql.batches import (
    PostgresBatches,
    Script,
    SealedBody,
    Step,
    Values,
)
from callgate.providers.stores.sql.batches_lite import Batches, LiteBatches
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.states import CommitLost
from callgate.providers.stores.sql.effect_statements import CLAIM_NEW, CLAIMS, DROP, FIND, SETTLE, SETTLE_ALIASES
from callgate.providers.stores.sql.effects import (
    CLAIM_ATTEMPTS,
    SqlEffects,
    claim_values,
    settle_values,
    signed_outcome,
)

_Place: TypeAlias = tuple[str, str]
"""The tenant and the key of an effect."""
_Changed: TypeAlias = tuple[dict[_Place, int], set[_Place], set[_Place]]

_SHORT_WAIT = 0.05
"""Seconds that a claim may wait without a new lease: a copy of each record would cost more than so little is worth."""


_RECONNECT = 5.0
"""Seconds in which a batch whose COMMIT was lost is written again. A server that crashed needs some to start."""
_LOST = "the connection was lost in the COMMIT: it is unknown whether the audit rows are written"
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5
"""Seconds between two attempts."""


@dataclass(slots=True, eq=False)
class Change:
    """One atomic change: a claim, an outcome, or neither; with the audit rows about it.

    ``asked_at`` is the time at which a claim was asked for. ``doubtful``: it is unknown whether it is written already.
    """

    namespace: str
    tenant: str
    rows: ChainRows
    claim: EffectRecord | None = None
    retry: bool = False
    outcome: Settlement | None = None
    alias: Alias | None = None
    signer: RowSigner | None = None
    asked_at: float = 0.0
    doubtful: bool = False

    @property
    def is_one_row(self) -> bool:
        """True if one statement writes the change, which has no audit rows."""
        return self.alias is None and (self.outcome is None or not self.outcome.aliases)

    @property
    def is_lost(self) -> bool:
        """True if nothing would show that audit rows alone are written already."""
        return self.doubtful and self.claim is None and self.outcome is None

    def begin_lease(self, now: float) -> None:
        """Move the lease of a claim by the time that the change has waited: it begins when it is written."""
        if self.claim is not None and now > self.asked_at + _SHORT_WAIT:  # no signature has the lease
            self.claim = replace(self.claim, lease_until=self.claim.lease_until + now - self.asked_at)
            self.asked_at = now


class _How(TypedDict, total=False):
    """Arguments of ``GroupCommit.put``."""

    withdraw: Required[bool]
    also: _Place | None
    late: Late[Change] | None


def _tell_late(change: Change, done: asyncio.Future[bool]) -> None:
    if change.outcome is not None and change.outcome.late is not None:
        change.outcome.late(change.tenant, change.outcome, done)


class SqlLedgerWriter:
    """See ``LedgerWriter``. Concurrent changes are committed together."""

    def __init__(self, database: Database, effects: SqlEffects) -> None:
        self._database, self._effects, self._namespace = database, effects, effects.namespace
        self._transactions: TransactionWriter | None = None
        self._batches: Batches = LiteBatches(database) if database.lite else PostgresBatches(database)
        write = self._transact if database.lite else self._write
        self.group: GroupCommit[Change] = GroupCommit(write, size=_size, admit=database.admission)
        self._put = self.group.put if database.lite else self._put_answered

    def bound(self, effects: SqlEffects, transactions: TransactionWriter) -> SqlLedgerWriter:
        """Return a writer for the namespace and the keys of *effects*, with the same connection and group commit.

        *transactions* writes the few changes that need a transaction of their own.
        """
        made = copy(self)
        made._effects, made._namespace, made._transactions = effects, effects.namespace, transactions
        return made

    async def claim(
        self, tenant: str, effect: EffectRecord, rows: ChainRows, *, retry: bool, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        """See ``LedgerWriter``."""
        signer = self._effects.signer
        change = Change(self._namespace, tenant, rows, effect, retry, None, alias, signer, self._database.now())
        also = None if alias is None else (tenant, alias.key)
        for _ in range(CLAIM_ATTEMPTS):
            token: int | None
            if self._database.lite and has_limit():  # the thread of SQLite waits for the lock of the file
                token = await self._put_in_time(change, (tenant, effect.key), withdraw=True, also=also)
            else:
                token = await self._put(change, (tenant, effect.key), withdraw=True, also=also)
            if token is not None:
                assert change.claim is not None
                return True, change.claim if token == effect.token else replace(change.claim, token=token)
            if (found := await self._effects.refused(tenant, effect, retry=retry, alias=alias)) is not None:
                return change.doubtful and found.state in OPEN_STATES and same_claim(found, effect), found
            if signer is not None and self._transactions is not None:  # the found row is checked and replaced together
                return await self._transactions.claim(tenant, effect, rows, retry=retry, alias=alias)
        raise StoreError(
            f"other processes changed the effect {CLAIM_ATTEMPTS} times while it was claimed; try again later"
        )

    async def settle(self, tenant: str, outcome: Settlement, rows: ChainRows) -> bool:
        """See ``LedgerWriter``."""
        signer = self._effects.signer
        if signer is not None and outcome.aliases and outcome.alias is None and self._transactions is not None:
            return await self._transactions.settle(tenant, outcome, rows)  # it reads and signs each alias
        if signer is not None and outcome.effect is None:
            outcome = replace(outcome, effect=await self._effects.get(tenant, outcome.key))
        change = Change(self._namespace, tenant, rows, outcome=outcome, signer=signer)
        done: bool = await self._put(change, (tenant, outcome.key), withdraw=False, late=_tell_late)
        return done

    async def append(self, tenant: str, rows: ChainRows, late: Late[Change] | None = None) -> None:
        """Write audit rows alone. *late* gets the future of rows that are written after their caller was cancelled."""
        change = Change(self._namespace, tenant, rows)
        result = await self._put(change, change, withdraw=False, late=late)
        if isinstance(result, StoreError):
            raise result

    async def close(self) -> None:
        """Write what is left, and disconnect."""
        await self.group.close()
        await self._batches.close()

    async def _put_in_time(self, change: Change, key: object, **how: Unpack[_How]) -> Any:
        try:
            async with asyncio.timeout(time_left(math.inf)):
                return await self.group.put(change, key, **how)
        except TimeoutError:
            raise StoreError("sqlite: another process had the lock of the file until the deadline") from None

    async def _put_answered(self, change: Change, key: object, **how: Unpack[_How]) -> Any:
        async with self._database.answered():
            return await self.group.put(change, key, **how)

    async def _write(self, changes: Sequence[Change], wait: int) -> Sequence[object]:
        """Write a batch; see ``_transact``. After a lost COMMIT write it again, until the server is there.

        A change that is written already does nothing then: its claim is found, or its outcome. While the transaction of the
        first attempt has not ended, its locks let the second one wait. Audit rows alone are not written again: their
        result is an error, which is also what a caller of ``late`` gets.
        """
        pause, until = _FIRST_PAUSE, 0.0
        while True:
            again = [one for one in changes if not one.is_lost]
            try:
                results = await self._transact(again, wait) if again else ()
            except StoreError as error:
                now = asyncio.get_running_loop().time()
                if isinstance(error, CommitLost) and not until:
                    until = now + _RECONNECT
                    for one in changes:
                        one.doubtful = True
                elif now >= until:
                    raise
            else:
                if len(again) == len(changes):
                    return results
                written = iter(results)
                return [StoreError(_LOST) if one.is_lost else next(written) for one in changes]
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _transact(self, changes: Sequence[Change], wait: int) -> Awaitable[Sequence[object]]:
        """Write changes and commit. Return for each its token, or None; whether its outcome is recorded; or True."""
        if len(changes) == 1 and not changes[0].rows and changes[0].is_one_row:
            return self._write_alone(changes[0], wait)
        chains = set[RowChain]()
        for one in changes:
            for chain, _ in one.rows:
                chains.add(chain)
        return self._batches.write(partial(_written, changes, self._database.now), chains, wait)

    async def _write_alone(self, one: Change, wait: int) -> Sequence[object]:
        """Write a change without audit rows in one statement."""

        def values() -> list[Values]:
            one.begin_lease(self._database.now())
            return [_claim_values(one) if one.outcome is None else _settle_values(one, one.outcome)]

        run = partial(self._batches.run_alone, values=values, wait=wait)
        if one.outcome is None:  # a change without rows is a claim or an outcome
            rows = await run(CLAIMS[one.retry] if one.signer is None else CLAIM_NEW)
            return [rows[0][0] if rows else None]
        if await run(SETTLE):
            return [True]
        return [any(_is_recorded(one.outcome, row) for row in await run(FIND))]


def _size(one: Change) -> int:
    """Return about how many bytes a change takes in a statement. A receipt is written in hexadecimal digits."""
    size = 0 if one.outcome is None or one.outcome.receipt is None else 2 * len(one.outcome.receipt)
    for _, body in one.rows:
        data = row_json(body)  # a walk in Python took a tenth of the time of a call
        size += len(str(body) if data is None else data)
    return size


def _written(changes: Sequence[Change], clock: Callable[[], float]) -> Script:
    """Write the changes. Return their results (see ``_transact``), and the audit rows of those that were written."""
    now = clock()  # here, after the wait for the transaction
    for one in changes:
        one.begin_lease(now)
    tokens, done, recorded = yield from _change(changes)
    results, rows = list[object](), list[SealedBody]()
    for one in changes:
        result: object = True
        writes = True
        if one.claim is not None:
            result = tokens.get((one.tenant, one.claim.key))
            writes = result is not None
        elif one.outcome is not None:
            place = (one.tenant, one.outcome.key)
            result, writes = place in done or place in recorded, place not in recorded
        results.append(result)
        if writes:
            for chain, body in one.rows:
                rows.append((row_tenant(body, one.tenant), chain, body, one.namespace))
    return results, rows


def _change(changes: Sequence[Change]) -> Generator[Sequence[Step], list[list[Row]], _Changed]:
    """Claim the keys and record the outcomes, in one round trip without aliases.

    Return the tokens of the claims that succeeded, the outcomes that are recorded now, and those that were before.

    Aliases are claimed first. An effect whose alias was refused is not claimed, and an alias goes with its effect.
    """
    taken: dict[_Place, int] = {}
    if aliased := [one for one in changes if one.claim is not None and one.alias is not None]:
        rows = [replace(one, claim=one.alias.row(one.claim)) for one in aliased if one.claim and one.alias]
        taken = _tokens((yield _claims(rows)))
    left = [one for one in changes if one.alias is None or (one.tenant, one.alias.key) in taken]
    values, both, outcomes = list[Values](), list[Values](), dict[_Place, Settlement]()
    for one in changes:
        if (outcome := one.outcome) is not None:
            outcomes[one.tenant, outcome.key] = outcome
            values.append(_settle_values(one, outcome))
            if outcome.aliases:
                both.append(values[-1])
    *claimed, _, settled = yield [*_claims(left), (SETTLE_ALIASES, both), (SETTLE, values)]
    tokens, done = _tokens(claimed), {(tenant, key) for tenant, key in settled}
    keys = list[Values]()
    for one in aliased:
        if (
            one.alias
            and one.claim
            and (one.tenant, one.alias.key) in taken
            and (one.tenant, one.claim.key) not in tokens
        ):
            keys.append(_place_values(one, one.alias.key))
    missing = [row for row in values if (row["tenant"], row["key"]) not in done] if len(done) < len(values) else []
    if not keys and not missing:
        return tokens, done, set()
    _, found = yield [(DROP, keys), (FIND, missing)]
    return tokens, done, {(row[0], row[1]) for row in found if _is_recorded(outcomes[row[0], row[1]], row)}


def _place_values(one: Change, key: str) -> dict[str, object]:
    return {"tenant": one.tenant, "key": key, "version": SqlEffects.version, "namespace": one.namespace}


def _claims(changes: Sequence[Change]) -> list[Step]:
    """Return the steps that claim the keys. Signed claims take new keys only: the database checks no signature."""
    plain: dict[bool, list[Values]] = {False: [], True: []}
    signed = list[Values]()
    for one in changes:
        if one.claim is not None:
            (plain[one.retry] if one.signer is None else signed).append(_claim_values(one))
    return [(CLAIMS[False], plain[False]), (CLAIMS[True], plain[True]), (CLAIM_NEW, signed)]


def _claim_values(one: Change) -> dict[str, object]:
    assert one.claim is not None
    values = claim_values(one.tenant, one.claim, one.namespace, retry=one.retry)
    if one.signer is not None:
        values["mac"] = one.signer.sign_effect(one.tenant, one.claim)
    return values


def _settle_values(one: Change, outcome: Settlement) -> dict[str, object]:
    values, effect, alias = settle_values(one.tenant, outcome, one.namespace), outcome.effect, outcome.alias
    if one.signer is not None and effect is not None:
        values["mac"] = signed_outcome(one.signer, one.tenant, effect, outcome)
        if alias is not None:
            values["alias"] = alias.key
            values["alias_mac"] = signed_outcome(one.signer, one.tenant, alias.row(effect), outcome)
    return values


def _tokens(claimed: Sequence[list[Row]]) -> dict[_Place, int]:
    return {(tenant, key): token for rows in claimed for token, tenant, key in rows}


def _is_recorded(outcome: Settlement, row: Row) -> bool:
    _, _, token, state = row
    return token == outcome.token and state in outcome.recorded
