"""The effect ledger in SQL: one row for each key; each change is one statement.

An effect with an alias has a second row, which is claimed before it and settled before it, in the same transaction. The
order of the two prevents deadlocks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.effects import (
    ENDED_STATES,
    OPEN_STATES,
    PRUNE_BATCH,
    ROW_REFUSED,
    Alias,
    EffectPosition,
    EffectRecord,
    EffectState,
    binds,
    claimable,
    overdue,
    same_claim,
)
from callgate.providers.stores.ledger_writes import Settlement
from callgate.providers.stores.namespaces import condition_of, in_table
from callgate.providers.stores.signed_rows import EFFECT, RowSigner, SignedOutcome, claim_of
from callgate.providers.stores.sql.database.part import SqlPart
from callgate.providers.stores.sql.effect_statements import (
    ALIASES,
    BIND,
    CLAIM_NEW,
    CLAIM_ONE,
    CLAIM_SEEN,
    COLUMNS,
    COPY,
    DROP,
    EXPIRE,
    GET,
    LIST,
    LOSE,
    OVER,
    OVERDUE,
    OWN,
    PRUNE_VERSIONS,
    RENEW,
    SETTLE_ALIAS_ROWS,
    SETTLE_ONE,
    SETTLE_SEEN,
)
from callgate.providers.stores.sql.versions import SqlVersions

CLAIM_ATTEMPTS = 20
"""The number of attempts of one claim when other processes change the effect between its statements."""


class SqlEffects(SqlPart):
    """See ``EffectStore``. With signatures a row is changed only by a process that has checked it, or made it."""

    async def claim(
        self, tenant: str, effect: EffectRecord, *, retry: bool = False, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        if (alias is not None or self.signer is not None) and self._within is None:
            return await self.transact(lambda part: part.claim(tenant, effect, retry=retry, alias=alias))
        seen: dict[str, str] = {}
        for _ in range(CLAIM_ATTEMPTS):
            taken = await self._take(tenant, effect, alias, seen, retry=retry)
            if taken is not None:
                return True, effect if taken[0] == effect.token else replace(effect, token=taken[0])
            if (found := await self.refused(tenant, effect, retry=retry, alias=alias, seen=seen)) is not None:
                return False, found
        raise StoreError(
            f"other processes changed the effect {CLAIM_ATTEMPTS} times while it was claimed; try again later"
        )

    async def _take(
        self, tenant: str, effect: EffectRecord, alias: Alias | None, seen: dict[str, str], *, retry: bool
    ) -> Any:
        """Claim both rows or none. Return the token of the effect in a row; None if it was refused."""
        if alias is not None and await self._take_row(tenant, alias.row(effect), seen, retry=retry) is None:
            return None
        taken = await self._take_row(tenant, effect, seen, retry=retry)
        if taken is None and alias is not None:
            await self._write(DROP.lite, {"tenant": tenant, "key": alias.key})
        return taken

    async def _take_row(self, tenant: str, row: EffectRecord, seen: dict[str, str], *, retry: bool) -> object:
        """Claim a row. With signatures it is a new row, or the row that was *seen*, which is never valid again."""
        values = claim_values(tenant, row, self.namespace, retry=retry)
        if self.signer is None:
            return await self._write(CLAIM_ONE, values)
        values["mac"] = self.signer.sign_effect(tenant, row)
        known = seen.get(row.key)
        if known is None:
            return await self._write(CLAIM_NEW.lite, values)
        taken = await self._write(CLAIM_SEEN, {**values, "seen": known})
        if taken is not None:
            versions = self.beside(SqlVersions)
            await versions.set(tenant, EFFECT, row.key, claim_of(row))
        return taken

    async def refused(
        self,
        tenant: str,
        effect: EffectRecord,
        *,
        retry: bool,
        alias: Alias | None = None,
        seen: dict[str, str] | None = None,
    ) -> EffectRecord | None:
        """Return the effect for which a claim was refused.

        None means that another process has changed it since, and that it may be free now. *seen* then gets the signatures
        of free rows.

        Raises:
            StoreError: a row does not verify, or another version of Callgate wrote it.
        """
        seen = {} if seen is None else seen
        if alias is not None:
            found = await self._row(tenant, alias.key)
            if found is not None and not claimable(found, effect, retry=retry):
                return await self._held(tenant, found, effect.began_at)
            if found is not None and found.mac is not None:
                seen[found.key] = found.mac
        found = await self._row(tenant, effect.key)
        if found is None:
            return None
        if claimable(found, effect, retry=retry):
            if found.mac is not None:
                seen[found.key] = found.mac
            return None
        found = await self._held(tenant, found, effect.began_at)
        if alias is not None and found is not None and binds(found, effect):
            await self.bind(tenant, found.key, alias)
        return found

    async def _held(self, tenant: str, found: EffectRecord, now: float) -> EffectRecord | None:
        """Return the effect that holds a row, after its lease has ended if that is over. None: look again."""
        effect = await self._aliased(tenant, found)
        if effect is not None and overdue(effect, now):
            effect = await self._lose(tenant, effect.key, now)
            if effect is None:
                return None
        if effect is None:
            return await self._lose(tenant, found.key, now) if overdue(found, now) else found
        if effect.state is found.state:
            return effect
        # One of the two rows was locked when leases ended, or the version before settled one of them.
        names = ("state", "lease_until", "ended_at", "receipt", "expires_at", "note")
        copied = {name: getattr(effect, name) for name in names}
        mac = None if self.signer is None else self.signer.sign_effect(tenant, replace(found, **copied))
        await self._write(COPY, copied | {"tenant": tenant, "key": found.key, "token": found.token, "mac": mac})
        return None

    async def _aliased(self, tenant: str, row: EffectRecord) -> EffectRecord | None:
        """Return the effect that a row is an alias of; None if the row is an effect itself."""
        effect = None if row.alias_of is None else await self._row(tenant, row.alias_of)
        return effect if effect is not None and same_claim(effect, row) else None

    async def bind(self, tenant: str, key: str, alias: Alias) -> None:
        if self.signer is None:
            await self._write(BIND, {"tenant": tenant, "key": key, "alias": alias.key, "given": alias.given})
        else:
            await self.transact(lambda part: part._bind_signed(tenant, key, alias))

    async def _bind_signed(self, tenant: str, key: str, alias: Alias) -> None:
        known, found = await self._row(tenant, alias.key), await self._row(tenant, key)
        if found is None or found.state not in {EffectState.COMMITTED, *OPEN_STATES}:
            return
        if known is None or known.state is EffectState.NO_EFFECT:
            seen = {} if known is None or known.mac is None else {known.key: known.mac}
            await self._take_row(tenant, alias.row(found), seen, retry=False)

    async def _lose(self, tenant: str, key: str, now: float) -> EffectRecord | None:
        """End an effect whose lease has ended. Return it, or None when another process has changed it."""
        values = {"tenant": tenant, "key": key, "now": float(now)}
        row = await self._write(LOSE, values)
        return None if row is None else await self._checked(tenant, COLUMNS.record(row))

    async def settle(
        self,
        tenant: str,
        key: str,
        token: int,
        state: EffectState,
        *,
        at: float,
        receipt: bytes | None = None,
        expires_at: float | None = None,
        note: str | None = None,
        of: Collection[EffectState] = OPEN_STATES,
        aliases: bool = False,
    ) -> bool:
        outcome = Settlement(key, token, state, at, receipt, expires_at, of)
        values = settle_values(tenant, outcome, self.namespace) | {"note": note}
        values |= {"states": [each.value for each in of]}
        if self.signer is not None:
            return await self.transact(lambda part: part._settle_signed(tenant, values, outcome, aliases=aliases))
        if aliases:
            return await self.transact(lambda part: part._settle_both(values))
        return bool(await self._write(SETTLE_ONE, values))

    async def _settle_both(self, values: dict[str, object]) -> bool:
        await self._write(SETTLE_ALIAS_ROWS, values)
        return bool(await self._write(SETTLE_ONE, values))

    async def _settle_signed(self, tenant: str, values: dict[str, Any], outcome: Settlement, *, aliases: bool) -> bool:
        """Sign the outcome of the row that was read and checked.

        Raises:
            StoreError: the row does not verify.
        """
        found = await self._row(tenant, outcome.key)
        if found is None or found.token != outcome.token or found.state not in outcome.of:
            return False
        rows = await self._rows(ALIASES, {"tenant": tenant, "key": found.key}) if aliases else []
        for alias in map(COLUMNS.record, rows):
            if same_claim(alias, found) and (alias.state in outcome.of or alias.state not in ENDED_STATES):
                mac = signed_outcome(self.signer, tenant, await self._checked(tenant, alias), outcome, values["note"])
                await self._write(SETTLE_ALIAS_ROWS, {**values, "alias": alias.key, "alias_mac": mac})
        values["mac"] = signed_outcome(self.signer, tenant, found, outcome, values["note"])
        return bool(await self._write(SETTLE_SEEN, {**values, "seen": found.mac}))

    async def get(self, tenant: str, key: str) -> EffectRecord | None:
        found = await self._row(tenant, key)
        return found if found is None or found.alias_of is None else await self._aliased(tenant, found) or found

    async def _row(self, tenant: str, key: str) -> EffectRecord | None:
        found = await self._one(GET, {"tenant": tenant, "key": key}, COLUMNS)
        return None if found is None else await self._checked(tenant, found)

    async def _checked(self, tenant: str, found: EffectRecord) -> EffectRecord:
        """Return the row if it verifies, and is of the latest claim of its key; or the row of a claim made meanwhile.

        Raises:
            StoreError: it does not verify, or is of an earlier claim.
        """
        if self.signer is None:
            return found
        versions = self.beside(SqlVersions)
        for _ in range(CLAIM_ATTEMPTS):
            self.signer.refuse_changed(tenant, found)
            known = await versions.find(tenant, EFFECT, found.key)
            if known is None or known.latest == claim_of(found):
                return found
            # The two reads are no snapshot: another process may have claimed the key between them.
            newer = await self._one(GET, {"tenant": tenant, "key": found.key}, COLUMNS)
            if newer is None or same_claim(newer, found):
                break
            found = newer
        text = "the row of an effect is of an earlier claim, and was put back; restore the latest one"
        raise StoreError(text, code=ROW_REFUSED)

    async def list(
        self,
        tenant: str | None,
        *,
        states: Collection[EffectState] = (),
        tool: str | None = None,
        after: EffectPosition | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[str, EffectRecord]]:
        query, order = LIST, "DESC" if after is None else "ASC"
        values: dict[str, object] = {"limit": limit}
        for name, given in (("tenant", tenant), ("tool", tool)):
            if given is not None:
                query += f" AND {name} = :{name}"
                values[name] = given
        if states:
            query += " AND state IN :states"
            values["states"] = [state.value for state in states]
        if after is not None:
            query += " AND (began_at, tenant, key) > (:after_time, :after_tenant, :after_key)"
            values |= dict(zip(("after_time", "after_tenant", "after_key"), after, strict=True))
        rows = await self._rows(f"{query} ORDER BY began_at {order}, tenant, key LIMIT :limit", values)
        return [(owner, COLUMNS.record(row)) for owner, *row in rows]

    async def renew(self, owner: str, until: float) -> int:
        values = {"owner": owner, "until": until}
        return int(await self._write(RENEW + self._chosen(OWN), values, upkeep=True))

    async def expire(self, now: float) -> int:
        lost = f"{EXPIRE}{self._chosen(OVERDUE)} RETURNING alias_of"
        return sum(alias_of is None for (alias_of,) in await self._write_rows(lost, {"now": now}, upkeep=True))

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        number = await self._prune("callgate_effects", "tenant, key", OVER, before, limit)
        if self.signer is not None and number < limit:
            ours, values = condition_of(self.namespace)
            values |= {"before": in_table(self.namespace, "")}
            until = int(min(before, 1e12) * 1e6)
            await self._write(PRUNE_VERSIONS.format(ours=ours), {**values, "number": until}, upkeep=True)
        return number

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_effects", "tenant, key", condition)


def claim_values(tenant: str, effect: EffectRecord, namespace: str, *, retry: bool) -> dict[str, object]:
    """Return the values of ``CLAIMS`` for an effect."""
    return {
        **COLUMNS.values(effect),
        "tenant": tenant,
        "version": SqlEffects.version,
        "namespace": namespace,
        "retry": retry,
    }


def signed_outcome(
    signer: RowSigner | None, tenant: str, effect: EffectRecord, outcome: Settlement, note: str | None = None
) -> str | None:
    """Return the MAC of the row of an effect with that outcome; None without keys."""
    if signer is None:
        return None
    at = None if outcome.state in OPEN_STATES else float(outcome.at)
    expires_at = None if outcome.expires_at is None else float(outcome.expires_at)
    return signer.sign_outcome(tenant, effect, SignedOutcome(outcome.state, at, expires_at, outcome.receipt, note))


def settle_values(tenant: str, outcome: Settlement, namespace: str) -> dict[str, object]:
    """Return the values of ``SETTLE`` for an outcome."""
    state = outcome.state
    return {
        "tenant": tenant,
        "key": outcome.key,
        "version": SqlEffects.version,
        "namespace": namespace,
        "token": outcome.token,
        "state": state.value,
        "ended_at": None if state in OPEN_STATES else outcome.at,
        "receipt": outcome.receipt,
        "expires_at": outcome.expires_at,
        "note": None,
        "mac": None,
        "alias": None,
        "alias_mac": None,
        "states": _states(tuple(outcome.of)),
    }


@cache
def _states(states: tuple[EffectState, ...]) -> str:
    return json.dumps(states)
