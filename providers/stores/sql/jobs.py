"""The job queue in SQL: one row for each job; each change is one statement."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.effects import PRUNE_BATCH
from callgate.providers.stores.jobs import EXPLAIN_BATCH, Fitting, Job, JobState
from callgate.providers.stores.signed_rows import (
    JOB,
    UNREADABLE,
    RowSigner,
    is_recorded,
    job_is_whole,
    refusal,
    sealed_progress,
    sealed_reason,
    signed_result,
    unsealed,
)
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.part import DAMAGED, SqlPart
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.statements import Statement, sql_float
from callgate.providers.stores.sql.job_batches import SqlJobBatches
from callgate.providers.stores.sql.job_statements import (
    ADD,
    ADD_MANY,
    CANCEL,
    CANCEL_SIGNED,
    COLUMNS,
    COUNT,
    COUNT_QUEUED,
    END_MANY,
    EXPLAIN,
    FINISH,
    GET,
    LIST_ALL,
    LIST_OF_TENANT,
    OPEN,
    OVER,
    PUT_BACK,
    RENEW,
    REPLACE,
    REVIVE,
    SENT,
    STOPPED,
    TAKE_ID,
    TAKE_MANY,
    TAKE_NEXT,
    TELL,
    THESE,
    TO_CANCEL,
    UNFIT,
    UNSENT,
    WAKE,
    fitting_values,
)
from callgate.providers.stores.sql.versions import SqlVersions


class SqlJobs(SqlPart):
    """See ``JobStore``."""

    def __init__(
        self, database: Database, within: object = None, namespace: str = "", signer: RowSigner | None = None
    ) -> None:
        super().__init__(database, within, namespace, signer)
        self._dialect = "sqlite" if database.lite else "postgresql"
        self._batches: SqlJobBatches | None = None
        if within is None and not database.lite:
            self._batches = SqlJobBatches(database, TAKE_MANY, END_MANY)

    async def close(self) -> None:
        """Write what is left."""
        if self._batches is not None:
            await self._batches.close()

    async def add(self, tenant: str, job: Job) -> Job:
        if await self._write(ADD, {**COLUMNS.values(job), "tenant": tenant}):
            return job
        return await self._known(tenant, job)

    async def _known(self, tenant: str, job: Job) -> Job:
        """Return the job that has the id.

        Raises:
            StoreConflict: it is of another tenant.
        """
        found = await self.get(tenant, job.id)
        if found is None:
            raise StoreConflict("another tenant's job has that id, or had it a moment ago; use another id")
        return found

    async def add_many(self, jobs: Sequence[tuple[str, Job]]) -> Sequence[Job]:
        if self._within is None:
            return await self.transact(lambda part: part.add_many(jobs))
        if self._database.lite or len(jobs) == 1:  # a statement on SQLite is no round trip
            return [await self.add(tenant, job) for tenant, job in jobs]
        values = [{**COLUMNS.values(job), "tenant": tenant, **self._ours} for tenant, job in jobs]
        (given,) = Statement.parameters(values)
        added = {id for (id,) in await self._inside(ADD_MANY, {"given": given})}
        return [job if job.id in added else await self._known(tenant, job) for tenant, job in jobs]

    async def replace(self, tenant: str, job: Job) -> bool:
        if self.signer is None:
            return bool(await self._write(REPLACE, {**COLUMNS.values(job), "tenant": tenant}))
        return await self.transact(lambda part: part._replace_signed(tenant, job))

    async def _replace_signed(self, tenant: str, job: Job) -> bool:
        """Replace a job; no row with an earlier token is valid then."""
        assert self.signer is not None
        done = bool(await self._write(REPLACE, {**COLUMNS.values(job), "tenant": tenant}))
        if done:
            versions = self.beside(SqlVersions)
            await versions.set(tenant, JOB, job.id, str(job.token))
        return done

    async def get(self, tenant: str, id: str) -> Job | None:
        found = await self._one(GET, {"tenant": tenant, "id": id}, COLUMNS)
        if found is None:
            return None
        job, is_whole = await self._checked(tenant, found)
        if not is_whole:
            raise refusal(JOB, job.result_mac)
        return job

    async def _checked(self, tenant: str, job: Job) -> tuple[Job, bool]:
        """Return a job as its writers gave it, and whether what they recorded of its run is signed."""
        job, is_whole = unsealed(self.signer, tenant, job)
        if self.signer is None or not is_recorded(job):
            return job, is_whole
        known = await self.beside(SqlVersions).find(tenant, JOB, job.id)
        is_latest = known is None or job.token >= int(known.latest)
        return job, is_whole and is_latest and job_is_whole(self.signer, tenant, job)

    async def take(
        self,
        owner: str,
        now: float,
        until: float,
        *,
        id: str | None = None,
        queues: Collection[str] = (),
        fitting: Fitting | None = None,
    ) -> tuple[str, Job] | None:
        values: dict[str, object] = {"owner": owner, "now": sql_float(now), "until": sql_float(until)}
        if id is not None:
            sql, values["id"] = TAKE_ID, id
            if self._batches is not None:
                row = await self._batches.take(values | self._ours)
                return None if row is None else await self._taken(row)
        else:
            sql = TAKE_NEXT[self._dialect, bool(queues), fitting is not None]
            if queues:
                values["named"] = json.dumps(sorted(set(queues)))
            if fitting is not None:
                values |= fitting_values(fitting)
        row = await self._write(sql, values)
        return None if row is None else await self._taken(row)

    async def _taken(self, row: Row) -> tuple[str, Job]:
        tenant, job = _job(row)
        job, is_whole = await self._checked(tenant, job)
        return tenant, job if is_whole else _without_texts(job)

    async def end(
        self,
        tenant: str,
        id: str,
        token: int,
        state: JobState,
        *,
        at: float | None,
        result: bytes | None,
        reason: str | None,
    ) -> bool:
        values = {**_held(tenant, id, token), "state": state.value, "result": result, "reason": reason}
        values["at"] = None if at is None else sql_float(at)
        values["result_mac"] = (
            None if self.signer is None else signed_result(self.signer, tenant, id, token, state, at, result, reason)
        )
        if self._batches is not None:
            return await self._batches.end(values | self._ours)
        return bool(await self._write(FINISH, values))

    async def put_back(
        self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None, counts: bool = True
    ) -> bool:
        values = {
            **_held(tenant, id, token),
            "run_at": float(run_at),
            "reason": self._sealed(reason),
            "uncounted": int(reason is None or not counts),
        }
        return bool(await self._write(PUT_BACK, values))

    async def unfit(
        self, fitting: Fitting, now: float, explained: str, limit: int = EXPLAIN_BATCH
    ) -> Sequence[tuple[str, str, bytes]]:
        values = {"now": float(now), "explained": explained, "length": len(explained), "limit": limit}
        rows = await self._rows(UNFIT[self._dialect], values | fitting_values(fitting))
        return [(id, tool, bytes(first)) for id, tool, first in rows]

    async def explain(self, ids: Collection[str], reason: str) -> None:
        await self._write(EXPLAIN + self._chosen(THESE), {"ids": list(ids), "reason": self._sealed(reason)})

    def _sealed(self, reason: str | None) -> str | None:
        return reason if self.signer is None or reason is None else sealed_reason(self.signer, reason)

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        if self.signer is not None:
            return await self.transact(lambda part: part._cancel_signed(tenant, id, at))
        row = await self._write(CANCEL, {"tenant": tenant, "id": id, "at": float(at)})
        return None if row is None else JobState(row[0])

    async def _cancel_signed(self, tenant: str, id: str, at: float) -> JobState | None:
        """Cancel a job, and sign this end with what was signed before. The transaction has its row."""
        assert self.signer is not None
        at = float(at)
        values: dict[str, object] = {"tenant": tenant, "id": id, "at": at}
        found = await self._one(TO_CANCEL if self._database.lite else f"{TO_CANCEL} FOR UPDATE", values, COLUMNS)
        if found is None:
            return None
        if found.state not in {JobState.QUEUED, JobState.INPUT_REQUIRED}:
            await self._write(CANCEL, values)
            return found.state
        job, is_whole = await self._checked(tenant, found)
        job = job if is_whole else _without_texts(job)
        result, reason = values["result"], values["reason"] = job.result, job.reason
        state = JobState.CANCELLED
        mac = signed_result(self.signer, tenant, id, job.token, state, at, result, reason)
        await self._write(CANCEL_SIGNED, values | {"result_mac": mac})
        return state

    async def wake(self, tenant: str, id: str, at: float) -> JobState | None:
        row = await self._write(WAKE, {"tenant": tenant, "id": id, "at": float(at)})
        return None if row is None else JobState(row[0])

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        return [owner for (owner,) in await self._rows(STOPPED, {"owners": list(owners)})]

    async def record_progress(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        if self.signer is not None:
            progress = sealed_progress(self.signer, tenant, id, progress)
        return bool(await self._write(TELL, {**_held(tenant, id, token), "progress": progress}))

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        return bool(await self._write(REVIVE, {"tenant": tenant, "id": id, "run_at": float(run_at)}))

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        values = {"owners": list(owners), "until": float(until)}
        return [id for (id,) in await self._write_rows(RENEW, values, upkeep=True)]

    async def mark_sent(self, ids: Collection[str], at: float) -> None:
        await self._write(SENT + self._chosen(THESE), {"ids": list(ids), "at": float(at)})

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[tuple[str, Job]]:
        values = {"now": float(now), "before": float(before), "limit": limit}
        return [_job(row) for row in await self._rows(UNSENT, values)]

    async def has_open(self, queues: Collection[str] = ()) -> bool:
        some, values = _in_queues(queues)
        return bool((await self._rows(f"{OPEN}{some})", values))[0][0])

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        some, values = _in_queues(queues)
        rows = await self._rows(f"{COUNT}{some} GROUP BY state", values)
        try:
            return dict.fromkeys(JobState, 0) | {JobState(state): number for state, number in rows}
        except ValueError:
            raise StoreError(DAMAGED) from None

    async def count_queued(self, tenant: str, user: str, limit: int) -> int:
        return int((await self._rows(COUNT_QUEUED, {"tenant": tenant, "person": user, "limit": limit}))[0][0])

    async def list(
        self, tenant: str | None, *, state: JobState | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Job]]:
        query, of = (LIST_ALL, {}) if tenant is None else (LIST_OF_TENANT, {"tenant": tenant})
        rows = [_job(row) for row in await self._rows(query[state], {"limit": limit, **of})]
        return [(of_tenant, self._listed(of_tenant, job)) for of_tenant, job in rows]

    def _listed(self, tenant: str, found: Job) -> Job:
        """Return a job for a list: a changed row must not hide the others, and shows none of its texts."""
        job, is_whole = unsealed(self.signer, tenant, found)
        if self.signer is None or (is_whole and (not is_recorded(job) or job_is_whole(self.signer, tenant, job))):
            return job
        return _without_texts(job)

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        return await self._prune("callgate_jobs", "id", OVER, before, limit)

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_jobs", "id", condition)


def _in_queues(queues: Collection[str]) -> tuple[str, dict[str, object]]:
    return (" AND queue IN :queues", {"queues": list(queues)}) if queues else ("", {})


def _without_texts(job: Job) -> Job:
    """Return a job whose row was changed without a signing key, without what its attempts have recorded."""
    return replace(job, result=None, progress=None, reason=UNREADABLE)


def _held(tenant: str, id: str, token: int) -> dict[str, object]:
    return {"tenant": tenant, "id": id, "token": token}


def _job(row: Row) -> tuple[str, Job]:
    tenant, *values = row
    return tenant, COLUMNS.record(values)
