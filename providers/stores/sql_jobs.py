"""The job queue in SQL: one row for each job; each change is one statement."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from callgate.errors import StoreConflict
from callgate.providers.stores.effects import PRUNE_BATCH
from callgate.providers.stores.jobs import EXPLAIN_BATCH, FINAL_STATES, Group, Job, JobState
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_job_batches import SqlJobBatches, of_many, on_rows
from callgate.providers.stores.sql_part import OURS, Columns, SqlPart
from callgate.providers.stores.sql_statements import Statement, sql_float

_COLUMNS = Columns(
    Job,
    {"user": "person", "max_attempts": "most"},  # `user` is a keyword of SQL
    {
        **dict.fromkeys(("made_at", "run_at", "lease_until", "sent_at", "ended_at"), float),  # SQLite may return an int
        **dict.fromkeys(("body", "progress", "result"), bytes),
        "state": JobState,
        "stop": bool,
    },
)
_LISTED = _COLUMNS.listed

# S608: built from constants. ``free_at`` is the time from which a job may be taken, NULL when it has ended.
# IS TRUE hides a condition from the planner: while the table is small, PostgreSQL would choose another index for it
# than that of the ids, and keep that plan long after the table has grown.
_ADD = f"""
INSERT INTO callgate_jobs (tenant, version, namespace, {_LISTED})
VALUES (:tenant, :version, :namespace, {_COLUMNS.marks})
ON CONFLICT DO NOTHING
"""  # noqa: S608
_ADD_MANY = of_many(
    on_rows(
        f"""
INSERT INTO callgate_jobs (tenant, version, namespace, {_LISTED})
SELECT tenant, version, namespace, {_LISTED} FROM {{given}} ORDER BY id
ON CONFLICT DO NOTHING RETURNING id
""",  # noqa: S608
        ("tenant", "version", "namespace", *_COLUMNS.names),
    )
)
_GET = f"SELECT version, {_LISTED} FROM callgate_jobs WHERE id = :id AND (tenant = :tenant AND namespace = :namespace) IS TRUE"  # noqa: S608

# The next job is found by a loose index scan: each queue, each priority in it, the first job of each. The rows between
# are not read, so the cost does not grow with the number of waiting jobs.
_WAITING = "FROM callgate_jobs AS j WHERE j.namespace = :namespace AND j.version = :version AND j.free_at IS NOT NULL"
EVERY_QUEUE = f"""
    SELECT min(j.queue) {_WAITING}
    UNION ALL SELECT (SELECT min(j.queue) {_WAITING} AND j.queue > q.queue) FROM queues AS q WHERE q.queue IS NOT NULL
"""  # noqa: S608
_NAMED_QUEUES = {
    "sqlite": "SELECT value FROM json_each(:named)",
    "postgresql": 'SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:named AS json)) AS value',
}
QUEUES = f"""
WITH RECURSIVE queues(queue) AS ({{queues}}),
lines(queue, priority) AS (
    SELECT q.queue, (SELECT max(j.priority) {_WAITING} AND j.queue = q.queue) FROM queues AS q WHERE q.queue IS NOT NULL
    UNION ALL
    SELECT l.queue, (SELECT max(j.priority) {_WAITING} AND j.queue = l.queue AND j.priority < l.priority)
    FROM lines AS l WHERE l.priority IS NOT NULL
),
firsts(queue, priority, free_at) AS (
    SELECT l.queue, l.priority, (SELECT min(j.free_at) {_WAITING} AND j.queue = l.queue AND j.priority = l.priority)
    FROM lines AS l WHERE l.priority IS NOT NULL
)
"""  # noqa: S608
_BEST = "FROM firsts AS f WHERE f.free_at <= :now ORDER BY f.priority DESC, f.free_at, f.queue"
_FIRST = f"""
    SELECT j.id {_WAITING} AND j.queue = f.queue AND j.priority = f.priority AND j.free_at <= :now{{without}}
    ORDER BY j.free_at, j.made_at, j.id LIMIT 1
"""
_NEXT = {
    "sqlite": f"{QUEUES} SELECT ({_FIRST}) {_BEST} LIMIT 1",
    # SKIP LOCKED skips the jobs that other workers are taking, in this queue and in the following ones.
    "postgresql": f"""{QUEUES} SELECT mine.id FROM (SELECT f.queue, f.priority {_BEST}) AS f
        CROSS JOIN LATERAL ({_FIRST} FOR UPDATE SKIP LOCKED) AS mine LIMIT 1""",  # noqa: S608
}
# A worker with groups to leave out reads the first jobs of a queue past them, and may find none in the best queue.
_NEXT_WITHOUT = {
    **_NEXT,
    "sqlite": f"""{QUEUES} SELECT f.id FROM (SELECT f.priority, f.free_at, f.queue, ({_FIRST}) AS id {_BEST}) AS f
        WHERE f.id IS NOT NULL ORDER BY f.priority DESC, f.free_at, f.queue LIMIT 1""",  # noqa: S608
}
TAKE_JOB = f"""
UPDATE callgate_jobs
SET state = 'running', owner = :owner, lease_until = :until, attempts = attempts + 1, token = token + 1
WHERE id = {{id}} AND ({OURS} AND free_at <= :now) IS TRUE
RETURNING tenant, {_LISTED}
"""  # noqa: S608
_TAKE_ID = TAKE_JOB.format(id=":id")


def take_next(on: str, *, named: bool = False, without: Sequence[Group] = ()) -> str:
    """Return the statement that takes the next job: of the queues ``:named``, and in none of the groups ``:t0 :h0``, ..."""
    left = "".join(f" AND NOT ({_of_group('j.', group, number)})" for number, group in enumerate(without))
    sql = (_NEXT_WITHOUT if without else _NEXT)[on]
    return TAKE_JOB.format(id=f"({sql.format(queues=_NAMED_QUEUES[on] if named else EVERY_QUEUE, without=left)})")


def _of_group(row: str, group: Group, number: int = 0) -> str:
    """Return the condition of the jobs of a group, whose values are the parameters ``:t0`` and ``:h0`` for number 0."""
    return f"{row}tool = :t{number} AND substr({row}body, 1, {len(group.head)}) = :h{number}"


TAKE_NEXT = {on: take_next(on) for on in _NEXT}
_TAKE_NAMED = {on: take_next(on, named=True) for on in _NEXT}
_EXPLAIN = f"""
UPDATE callgate_jobs SET reason = :reason WHERE id IN (
    SELECT id FROM callgate_jobs
    WHERE {OURS} AND free_at <= :now AND state = 'queued' AND COALESCE(reason, '') <> :reason AND {{group}}
    LIMIT :limit{{lock}}
)
"""  # noqa: S608

_OF_TENANT = f"id = :id AND (tenant = :tenant AND {OURS}) IS TRUE"
_REPLACE = f"""
UPDATE callgate_jobs SET {", ".join(f"{name} = :{name}" for name in _COLUMNS.names if name != "id")}
WHERE {_OF_TENANT} AND (state IN ({", ".join(f"'{state}'" for state in FINAL_STATES)}) AND token + 1 = :token) IS TRUE
"""  # noqa: S608
_HELD = f"{_OF_TENANT} AND (state = 'running' AND token = :token) IS TRUE"
_FINISH = f"""
UPDATE callgate_jobs SET state = :state, lease_until = NULL, ended_at = :at, result = :result, reason = :reason
WHERE {_HELD}
"""  # noqa: S608
# The rows are locked in the order of their ids, as every statement on many jobs does that waits for locks.
_LOCKED = "JOIN {{given}} USING (id) WHERE ({condition}) IS TRUE ORDER BY id FOR UPDATE OF k"
_TAKE_MANY = on_rows(
    f"""
UPDATE callgate_jobs AS j
SET state = 'running', owner = mine.owner, lease_until = mine.until, attempts = j.attempts + 1, token = j.token + 1
FROM (
    SELECT k.id, given.owner, given.until FROM callgate_jobs AS k
    {_LOCKED.format(condition="k.version = given.version AND k.namespace = given.namespace AND k.free_at <= given.now")}
) AS mine
WHERE j.id = mine.id
RETURNING j.id, j.tenant, {", ".join(f"j.{name}" for name in _COLUMNS.names)}
""",  # noqa: S608
    ("id", "owner", "now", "until", "version", "namespace"),
)
_HELD_BY_GIVEN = """
k.tenant = given.tenant AND k.version = given.version AND k.namespace = given.namespace AND k.state = 'running' AND k.token = given.token
"""
_END_MANY = on_rows(
    f"""
UPDATE callgate_jobs AS j
SET state = mine.state, lease_until = NULL, ended_at = mine.at, result = mine.result, reason = mine.reason
FROM (
    SELECT k.id, given.state, given.at, given.result, given.reason FROM callgate_jobs AS k
    {_LOCKED.format(condition=_HELD_BY_GIVEN)}
) AS mine
WHERE j.id = mine.id RETURNING j.id
""",  # noqa: S608
    ("id", "tenant", "version", "namespace", "token", "state", "at", "result", "reason"),
)
_PUT_BACK = f"""
UPDATE callgate_jobs SET state = 'queued', lease_until = NULL, run_at = :run_at, reason = COALESCE(:reason, reason),
    attempts = attempts - :uncounted
WHERE {_HELD}
"""  # noqa: S608
_WAITS = "state IN ('queued', 'input_required')"
_CANCEL = f"""
UPDATE callgate_jobs SET ended_at = CASE WHEN {_WAITS} THEN :at ELSE ended_at END,
    stop = stop OR state = 'running', state = CASE WHEN {_WAITS} THEN 'cancelled' ELSE state END
WHERE {_OF_TENANT} RETURNING state
"""  # noqa: S608
# The row of a running job is written, too: PostgreSQL then checks the condition again after its worker has committed.
_WAKE = f"""
UPDATE callgate_jobs SET run_at = CASE state WHEN 'running' THEN run_at ELSE :at END,
    sent_at = CASE state WHEN 'running' THEN sent_at ELSE :at END,
    attempts = CASE state WHEN 'running' THEN attempts ELSE 0 END,
    state = CASE state WHEN 'running' THEN state ELSE 'queued' END
WHERE {_OF_TENANT} AND state IN ('input_required', 'running') RETURNING state
"""  # noqa: S608
_STOPPED = f"SELECT owner FROM callgate_jobs WHERE owner IN :owners AND state = 'running' AND stop AND ({OURS}) IS TRUE"  # noqa: S608
_TELL = f"UPDATE callgate_jobs SET progress = :progress WHERE {_HELD}"  # noqa: S608
_REVIVE = f"""
UPDATE callgate_jobs SET state = 'queued', run_at = :run_at, attempts = 0, ended_at = NULL, sent_at = NULL, result = NULL,
    stop = FALSE
WHERE {_OF_TENANT} AND state = 'dead'
"""  # noqa: S608
_RENEW = f"""
UPDATE callgate_jobs SET lease_until = :until WHERE owner IN :owners AND state = 'running' AND ({OURS}) IS TRUE
RETURNING id
"""  # noqa: S608

_SENT = "UPDATE callgate_jobs SET sent_at = :at WHERE "
_THESE = f"id IN :ids AND {OURS}"
_FREE = f"SELECT * FROM callgate_jobs WHERE {OURS} AND free_at <= :now"  # noqa: S608
_BY_INDEX = "ORDER BY sent_at, free_at, id LIMIT :limit"
_UNSENT = f"""
SELECT tenant, {_LISTED} FROM (
    SELECT * FROM ({_FREE} AND sent_at IS NULL {_BY_INDEX}) AS never
    UNION ALL SELECT * FROM ({_FREE} AND sent_at < :before {_BY_INDEX}) AS long_ago
) AS found ORDER BY sent_at NULLS FIRST, free_at, id LIMIT :limit
"""  # noqa: S608

_OVER = f"{OURS} AND free_at IS NULL AND ended_at < :before"
_OPEN = f"SELECT EXISTS (SELECT 1 FROM callgate_jobs WHERE {OURS} AND free_at IS NOT NULL"  # noqa: S608
_COUNT = f"SELECT state, count(*) FROM callgate_jobs WHERE {OURS}"  # noqa: S608


def _list_query(states: Iterable[str], condition: str) -> str:
    """Return the query for the newest jobs of some states; it reads each state along an index."""
    newest = "ORDER BY made_at DESC, id DESC LIMIT :limit"
    each = (
        f"SELECT * FROM (SELECT tenant, {_LISTED} FROM callgate_jobs "  # noqa: S608
        f"WHERE {condition} state = '{state}' AND {OURS} {newest}) AS {state}"
        for state in states
    )
    return f"SELECT * FROM ({' UNION ALL '.join(each)}) AS found {newest}"  # noqa: S608


_STATES: dict[JobState | None, Iterable[str]] = {None: [*JobState], **{state: [state] for state in JobState}}
_LIST_ALL = {state: _list_query(states, "") for state, states in _STATES.items()}
_LIST_OF_TENANT = {state: _list_query(states, "tenant = :tenant AND") for state, states in _STATES.items()}


class SqlJobs(SqlPart):
    """See ``JobStore``."""

    def __init__(self, database: Database, within: object = None, namespace: str = "") -> None:
        super().__init__(database, within, namespace)
        self._batches: SqlJobBatches | None = None
        if within is None and not database.lite:
            self._batches = SqlJobBatches(database, _TAKE_MANY, _END_MANY)

    async def close(self) -> None:
        """Write what is left."""
        if self._batches is not None:
            await self._batches.close()

    async def add(self, tenant: str, job: Job) -> Job:
        if await self._write(_ADD, {**_COLUMNS.values(job), "tenant": tenant}):
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
            return await self._database.transact(
                lambda connection: SqlJobs(self._database, connection, self.namespace).add_many(jobs)
            )
        if self._database.lite or len(jobs) == 1:  # a statement on SQLite is no round trip
            return [await self.add(tenant, job) for tenant, job in jobs]
        values = [{**_COLUMNS.values(job), "tenant": tenant, **self._ours} for tenant, job in jobs]
        (given,) = Statement.parameters(values)
        added = {id for (id,) in await self._inside(_ADD_MANY, {"given": given})}
        return [job if job.id in added else await self._known(tenant, job) for tenant, job in jobs]

    async def replace(self, tenant: str, job: Job) -> bool:
        return bool(await self._write(_REPLACE, {**_COLUMNS.values(job), "tenant": tenant}))

    async def get(self, tenant: str, id: str) -> Job | None:
        return await self._one(_GET, {"tenant": tenant, "id": id}, _COLUMNS)

    async def take(
        self,
        owner: str,
        now: float,
        until: float,
        *,
        id: str | None = None,
        queues: Collection[str] = (),
        without: Collection[Group] = (),
    ) -> tuple[str, Job] | None:
        values: dict[str, Any] = {"owner": owner, "now": sql_float(now), "until": sql_float(until)}
        database = "sqlite" if self._database.lite else "postgresql"
        if id is not None:
            sql, values["id"] = _TAKE_ID, id
            if self._batches is not None:
                row = await self._batches.take(values | self._ours)
                return None if row is None else _job(row)
        else:
            sql = _TAKE_NAMED[database] if queues else TAKE_NEXT[database]
            if queues:
                values["named"] = json.dumps(sorted(set(queues)))
            if without:
                groups = sorted(without)
                sql = take_next(database, named=bool(queues), without=groups)
                for number, group in enumerate(groups):
                    values |= {f"t{number}": group.tool, f"h{number}": group.head}
        row = await self._write(sql, values)
        return None if row is None else _job(row)

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
        if self._batches is not None:
            return await self._batches.end(values | self._ours)
        return bool(await self._write(_FINISH, values))

    async def put_back(
        self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None, counts: bool = True
    ) -> bool:
        values = {
            **_held(tenant, id, token),
            "run_at": float(run_at),
            "reason": reason,
            "uncounted": int(reason is None or not counts),
        }
        return bool(await self._write(_PUT_BACK, values))

    async def explain(self, group: Group, now: float, reason: str, limit: int = EXPLAIN_BATCH) -> int:
        lock = "" if self._database.lite else " FOR UPDATE SKIP LOCKED"
        values = {"t0": group.tool, "h0": group.head, "now": float(now), "reason": reason, "limit": limit}
        return int(await self._write(_EXPLAIN.format(group=_of_group("", group), lock=lock), values))

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        row = await self._write(_CANCEL, {"tenant": tenant, "id": id, "at": float(at)})
        return None if row is None else JobState(row[0])

    async def wake(self, tenant: str, id: str, at: float) -> JobState | None:
        row = await self._write(_WAKE, {"tenant": tenant, "id": id, "at": float(at)})
        return None if row is None else JobState(row[0])

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        return [owner for (owner,) in await self._rows(_STOPPED, {"owners": list(owners)})]

    async def record_progress(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        return bool(await self._write(_TELL, {**_held(tenant, id, token), "progress": progress}))

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        values = {"tenant": tenant, "id": id, "run_at": float(run_at)}
        return bool(await self._write(_REVIVE, values))

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        rows = await self._write_rows(_RENEW, {"owners": list(owners), "until": float(until)}, upkeep=True)
        return [id for (id,) in rows]

    async def mark_sent(self, ids: Collection[str], at: float) -> None:
        await self._write(_SENT + self._chosen(_THESE), {"ids": list(ids), "at": float(at)})

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[tuple[str, Job]]:
        values = {"now": float(now), "before": float(before), "limit": limit}
        return [_job(row) for row in await self._rows(_UNSENT, values)]

    async def has_open(self, queues: Collection[str] = ()) -> bool:
        if not queues:
            return bool((await self._rows(f"{_OPEN})", {}))[0][0])
        return bool((await self._rows(f"{_OPEN} AND queue IN :queues)", {"queues": list(queues)}))[0][0])

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        values: dict[str, Any] = {}
        query = _COUNT
        if queues:
            query += " AND queue IN :queues"
            values["queues"] = list(queues)
        rows = await self._rows(f"{query} GROUP BY state", values)
        return dict.fromkeys(JobState, 0) | {JobState(state): number for state, number in rows}

    async def list(
        self, tenant: str | None, *, state: JobState | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Job]]:
        values: dict[str, Any] = {"limit": limit}
        if tenant is None:
            rows = await self._rows(_LIST_ALL[state], values)
        else:
            rows = await self._rows(_LIST_OF_TENANT[state], {**values, "tenant": tenant})
        return [_job(row) for row in rows]

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        return await self._prune("callgate_jobs", "id", _OVER, before, limit)

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_jobs", "id", condition)


def _held(tenant: str, id: str, token: int) -> dict[str, Any]:
    return {"tenant": tenant, "id": id, "token": token}


def _job(row: Sequence[Any]) -> tuple[str, Job]:
    tenant, *values = row
    return tenant, _COLUMNS.record(values)
