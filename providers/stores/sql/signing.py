"""Signs the rows that were written before a store had signing keys, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from callgate.errors import StoreError
from callgate.providers.stores.base import Grant
from callgate.providers.stores.jobs import FINAL_STATES, NO_KEY, JobState
from callgate.providers.stores.namespaces import condition_of, from_table
from callgate.providers.stores.signed_rows import (
    CONSENT,
    PIN,
    PROGRESS_MARK,
    REASON_MARK,
    RowSigner,
    grant_facts,
    pin_facts,
    sealed_progress,
    sealed_reason,
    signed_result,
)
from callgate.providers.stores.sql.database.part import OURS, SqlPart
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.effect_statements import COLUMNS as EFFECTS
from callgate.providers.stores.sql.job_statements import COLUMNS as JOBS
from callgate.providers.stores.sql.store import SqlStore
from callgate.providers.stores.sql.suspensions import PIN_COLUMNS

_BATCH = 500
_UNSEALED = f"""
SELECT tenant, {JOBS.listed} FROM callgate_jobs WHERE {OURS} AND (
    reason <> :bare AND state NOT IN ('done', 'dead', 'cancelled') AND reason NOT LIKE :reason
    OR progress IS NOT NULL AND substr(progress, 1, :length) <> :mark
) LIMIT :limit
"""  # noqa: S608


async def sign_rows(store: SqlStore) -> dict[str, int]:
    """Sign the rows of a namespace that have no signature. Return their numbers by kind.

    A row that has one stays as it is, valid or not. Cached values are not signed: they are computed again.

    Raises:
        StoreError: *store* has no keys, or the database failed. The rows of finished batches stay signed.
    """
    signer = store.effects.signer
    if signer is None:
        raise StoreError("sign_rows needs a store with keys: store.signed(keys)")
    return {kind: await _sign_all(store.effects, signer, work) for kind, work in _KINDS.items()}


async def _sign_all(part: SqlPart, signer: RowSigner, work: Callable[[_Signing], Awaitable[int]]) -> int:
    number = 0
    while done := await part.transact(lambda within: work(_Signing(within, signer))):
        number += done
    return number


class _Signing:
    """The next unsigned rows of one kind, in a transaction."""

    def __init__(self, part: SqlPart, signer: RowSigner) -> None:
        self._part, self._signer = part, signer

    async def effects(self) -> int:
        """Sign effects."""
        rows = await self._unsigned("callgate_effects", "mac", EFFECTS.listed, OURS)
        for tenant, *row in rows:
            effect = EFFECTS.record(row)
            key = {"tenant": tenant, "key": effect.key}
            await self._write("callgate_effects", "mac", self._signer.sign_effect(tenant, effect), key)
        return len(rows)

    async def jobs(self) -> int:
        """Sign the ends and suspensions of jobs."""
        under_way = "state IN ('queued', 'running') AND result IS NULL"
        rows = await self._unsigned("callgate_jobs", "result_mac", JOBS.listed, f"{OURS} AND NOT ({under_way})")
        for tenant, *row in rows:
            job = JOBS.record(row)
            ended = job.state in FINAL_STATES
            state, at, reason = (
                (job.state, job.ended_at, job.reason) if ended else (JobState.INPUT_REQUIRED, None, None)
            )
            mac = signed_result(self._signer, tenant, job.id, job.token, state, at, job.result, reason)
            await self._write("callgate_jobs", "result_mac", mac, {"id": job.id})
        return len(rows)

    async def job_texts(self) -> int:
        """Sign the reasons of jobs that have not ended, and the progress of jobs."""
        values = {"mark": PROGRESS_MARK, "length": len(PROGRESS_MARK), "reason": f"%{REASON_MARK}%", "limit": _BATCH}
        values["bare"] = NO_KEY
        rows = await self._part.fetch(_UNSEALED, values)
        for tenant, *row in rows:
            job = JOBS.record(row)
            reason, progress = job.reason, job.progress
            if reason is not None and job.state not in FINAL_STATES and REASON_MARK not in reason:
                reason = sealed_reason(self._signer, reason)
            if progress is not None and not progress.startswith(PROGRESS_MARK):
                progress = sealed_progress(self._signer, tenant, job.id, progress)
            values = {"id": job.id, "reason": reason, "progress": progress}
            await self._part.change(
                "UPDATE callgate_jobs SET reason = :reason, progress = :progress WHERE id = :id", values
            )
        return len(rows)

    async def consents(self) -> int:
        """Sign consents."""
        ours, values = condition_of(self._part.namespace)
        columns = "person, tool, scope, granted_at, expires_at"
        rows = await self._unsigned("callgate_consents", "mac", columns, ours, values)
        for at, *row in rows:
            grant = Grant(*row)
            mac = self._signer.sign(CONSENT, from_table(self._part.namespace, at), grant_facts(grant))
            key = {"tenant": at, "person": grant.user, "tool": grant.tool, "scope": grant.scope}
            await self._write("callgate_consents", "mac", mac, key)
        return len(rows)

    async def pins(self) -> int:
        """Sign pins."""
        ours, values = condition_of(self._part.namespace)
        rows = await self._unsigned("callgate_pins", "mac", PIN_COLUMNS.listed, ours, values)
        for at, *row in rows:
            pin = PIN_COLUMNS.record(row)
            mac = self._signer.sign(PIN, from_table(self._part.namespace, at), pin_facts(pin))
            await self._write("callgate_pins", "mac", mac, {"tenant": at, "provider": pin.provider, "tool": pin.tool})
        return len(rows)

    async def _unsigned(
        self, table: str, mac: str, columns: str, condition: str, values: Mapping[str, object] | None = None
    ) -> Sequence[Row]:
        query = f"SELECT tenant, {columns} FROM {table} WHERE {mac} IS NULL AND {condition} LIMIT {_BATCH}"  # noqa: S608
        return await self._part.fetch(query, values or {})

    async def _write(self, table: str, column: str, mac: str, key: Mapping[str, object]) -> None:
        where = " AND ".join(f"{name} = :{name}" for name in key)
        await self._part.change(f"UPDATE {table} SET {column} = :mac WHERE {where}", {**key, "mac": mac})  # noqa: S608


_KINDS: dict[str, Callable[[_Signing], Awaitable[int]]] = {
    "effects": _Signing.effects,
    "results of jobs": _Signing.jobs,
    "texts of jobs": _Signing.job_texts,
    "consents": _Signing.consents,
    "pins": _Signing.pins,
}
