"""Invocations for workers in SQL: one row for each, changed by one statement at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from callgate.errors import StoreConflict
from callgate.providers.stores.jobs import Job, JobState
from callgate.providers.stores.sql_part import VERSION, SqlPart, same_version

FIELDS = tuple(field.name for field in fields(Job))
COLUMNS = tuple("person" if name == "user" else name for name in FIELDS)  # user is a word of SQL
LISTED = ", ".join(COLUMNS)

# S608: put together of constants. ``free_at`` is when a job may be taken, NULL when it is over (see ``v0003_jobs``).
# IS TRUE keeps other indices out: while the table is small one of them looks as good as that of the ids to PostgreSQL,
# which then goes by it for long after the table has grown.
ADD = f"""
INSERT INTO callgate_jobs (tenant, version, {LISTED})
VALUES (:tenant, :version, {", ".join(f":{column}" for column in COLUMNS)})
ON CONFLICT DO NOTHING
"""  # noqa: S608
GET = f"SELECT version, tenant, {LISTED} FROM callgate_jobs WHERE id = :id AND (tenant = :tenant) IS TRUE"  # noqa: S608

# The next job is found by leaps along an index: to each queue, there to each priority, there to the first in line. What
# lies between is not read, so that the cost is the same however many wait, for later or in other queues.
WAITING = "FROM callgate_jobs AS j WHERE j.version = :version AND j.free_at IS NOT NULL"
EVERY_QUEUE = f"""
    SELECT min(j.queue) {WAITING}
    UNION ALL SELECT (SELECT min(j.queue) {WAITING} AND j.queue > q.queue) FROM queues AS q WHERE q.queue IS NOT NULL
"""  # noqa: S608
NAMED_QUEUES = {
    "sqlite": "SELECT value FROM json_each(:named)",
    "postgresql": 'SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:named AS json)) AS value',
}
LINES = f"""
WITH RECURSIVE queues(queue) AS ({{queues}}),
lines(queue, priority) AS (
    SELECT q.queue, (SELECT max(j.priority) {WAITING} AND j.queue = q.queue) FROM queues AS q WHERE q.queue IS NOT NULL
    UNION ALL
    SELECT l.queue, (SELECT max(j.priority) {WAITING} AND j.queue = l.queue AND j.priority < l.priority)
    FROM lines AS l WHERE l.priority IS NOT NULL
),
firsts(queue, priority, free_at) AS (
    SELECT l.queue, l.priority, (SELECT min(j.free_at) {WAITING} AND j.queue = l.queue AND j.priority = l.priority)
    FROM lines AS l WHERE l.priority IS NOT NULL
)
"""  # noqa: S608
BEST = "FROM firsts AS f WHERE f.free_at <= :now ORDER BY f.priority DESC, f.free_at, f.queue"
IN_LINE = f"""
    SELECT j.id {WAITING} AND j.queue = f.queue AND j.priority = f.priority AND j.free_at <= :now
    ORDER BY j.free_at, j.made_at, j.id LIMIT 1
"""
NEXT = {
    "sqlite": f"{LINES} SELECT ({IN_LINE}) {BEST} LIMIT 1",
    # What others are just taking is passed over, to the end of the line and in the lines after it.
    "postgresql": f"""{LINES} SELECT mine.id FROM (SELECT f.queue, f.priority {BEST}) AS f
        CROSS JOIN LATERAL ({IN_LINE} FOR UPDATE SKIP LOCKED) AS mine LIMIT 1""",  # noqa: S608
}
TAKE = f"""
UPDATE callgate_jobs
SET state = 'running', owner = :owner, lease_until = :until, attempts = attempts + 1, token = token + 1
WHERE id = {{id}} AND (version = :version AND free_at <= :now) IS TRUE
RETURNING tenant, {LISTED}
"""  # noqa: S608
TAKE_THAT = TAKE.format(id=":id")
TAKE_NEXT = {on: TAKE.format(id=f"({sql.format(queues=EVERY_QUEUE)})") for on, sql in NEXT.items()}
TAKE_NAMED = {on: TAKE.format(id=f"({sql.format(queues=NAMED_QUEUES[on])})") for on, sql in NEXT.items()}

MINE = "id = :id AND (tenant = :tenant AND version = :version) IS TRUE"
HELD = f"{MINE} AND (state = 'running' AND token = :token) IS TRUE"
END = f"""
UPDATE callgate_jobs SET state = :state, lease_until = NULL, ended_at = :at, result = :result, reason = :reason
WHERE {HELD}
"""  # noqa: S608
PUT_BACK = f"""
UPDATE callgate_jobs SET state = 'queued', lease_until = NULL, run_at = :run_at, reason = COALESCE(:reason, reason),
    attempts = attempts - :uncounted
WHERE {HELD}
"""  # noqa: S608
CANCEL = f"""
UPDATE callgate_jobs SET ended_at = CASE state WHEN 'queued' THEN :at ELSE ended_at END,
    stop = stop OR state = 'running', state = CASE state WHEN 'queued' THEN 'cancelled' ELSE state END
WHERE {MINE} RETURNING state
"""  # noqa: S608
STOPPED = "SELECT owner FROM callgate_jobs WHERE owner IN :owners AND state = 'running' AND stop AND version = :version"
TELL = f"UPDATE callgate_jobs SET progress = :progress WHERE {HELD}"  # noqa: S608
REVIVE = f"""
UPDATE callgate_jobs SET state = 'queued', run_at = :run_at, attempts = 0, ended_at = NULL, sent_at = NULL, result = NULL,
    stop = FALSE
WHERE {MINE} AND state = 'dead'
"""  # noqa: S608
RENEW = """
UPDATE callgate_jobs SET lease_until = :until WHERE owner IN :owners AND state = 'running' AND version = :version
RETURNING id
"""

SENT = "UPDATE callgate_jobs SET sent_at = :at WHERE "
THESE = "id IN :ids AND version = :version"
FREE = "SELECT * FROM callgate_jobs WHERE version = :version AND free_at <= :now"
BY_INDEX = "ORDER BY sent_at, free_at, id LIMIT :limit"
UNSENT = f"""
SELECT tenant, {LISTED} FROM (
    SELECT * FROM ({FREE} AND sent_at IS NULL {BY_INDEX}) AS never
    UNION ALL SELECT * FROM ({FREE} AND sent_at < :before {BY_INDEX}) AS long_ago
) AS found ORDER BY sent_at NULLS FIRST, free_at, id LIMIT :limit
"""  # noqa: S608

PRUNE = "DELETE FROM callgate_jobs WHERE "
OVER = "version = :version AND free_at IS NULL AND ended_at < :before"
COUNT = "SELECT state, count(*) FROM callgate_jobs WHERE version = :version"


def _list(states: Iterable[str], of: str) -> str:
    """The newest of each state, along an index, and of these the newest."""
    newest = "ORDER BY made_at DESC, id DESC LIMIT :limit"
    each = (
        f"SELECT * FROM (SELECT tenant, {LISTED} FROM callgate_jobs "  # noqa: S608
        f"WHERE {of} state = '{state}' AND version = :version {newest}) AS {state}"
        for state in states
    )
    return f"SELECT * FROM ({' UNION ALL '.join(each)}) AS found {newest}"  # noqa: S608


STATES: dict[JobState | None, Iterable[str]] = {None: [*JobState], **{state: [state] for state in JobState}}
LIST_ALL = {state: _list(states, "") for state, states in STATES.items()}
LIST_OF_TENANT = {state: _list(states, "tenant = :tenant AND") for state, states in STATES.items()}


class SqlJobs(SqlPart):
    """See ``JobStore``."""

    async def add(self, tenant: str, job: Job) -> Job:
        """See ``JobStore``."""
        values = {column: getattr(job, name) for column, name in zip(COLUMNS, FIELDS, strict=True)}
        if await self._write(ADD, {**values, "tenant": tenant, "version": VERSION}):
            return job
        found = await self.get(tenant, job.id)
        if found is None:
            raise StoreConflict("another's job has that id, or had it until just now")
        return found

    async def get(self, tenant: str, id: str) -> Job | None:
        """See ``JobStore``."""
        rows = await self._rows(GET, {"tenant": tenant, "id": id})
        if not rows:
            return None
        version, *row = rows[0]
        same_version(version)
        return _kept(row)[1]

    async def take(
        self, owner: str, now: float, until: float, *, id: str | None = None, queues: Collection[str] = ()
    ) -> tuple[str, Job] | None:
        """See ``JobStore``."""
        values: dict[str, Any] = {"owner": owner, "now": float(now), "until": float(until), "version": VERSION}
        database = "sqlite" if self._database.lite else "postgresql"
        if id is not None:
            sql, values["id"] = TAKE_THAT, id
        elif queues:
            sql, values["named"] = TAKE_NAMED[database], json.dumps(sorted(set(queues)))
        else:
            sql = TAKE_NEXT[database]
        row = await self._write(sql, values)
        return None if row is None else _kept(row)

    async def end(
        self, tenant: str, id: str, token: int, state: JobState, *, at: float, result: bytes | None, reason: str | None
    ) -> bool:
        """See ``JobStore``."""
        values = {**_held(tenant, id, token), "state": state.value, "at": float(at), "result": result, "reason": reason}
        return bool(await self._write(END, values))

    async def put_back(self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None) -> bool:
        """See ``JobStore``."""
        values = {
            **_held(tenant, id, token),
            "run_at": float(run_at),
            "reason": reason,
            "uncounted": int(reason is None),
        }
        return bool(await self._write(PUT_BACK, values))

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        """See ``JobStore``."""
        row = await self._write(CANCEL, {"tenant": tenant, "id": id, "version": VERSION, "at": float(at)})
        return None if row is None else JobState(row[0])

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        """See ``JobStore``."""
        return [owner for (owner,) in await self._rows(STOPPED, {"owners": list(owners), "version": VERSION})]

    async def tell(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        """See ``JobStore``."""
        return bool(await self._write(TELL, {**_held(tenant, id, token), "progress": progress}))

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        """See ``JobStore``."""
        values = {"tenant": tenant, "id": id, "version": VERSION, "run_at": float(run_at)}
        return bool(await self._write(REVIVE, values))

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        """See ``JobStore``."""
        rows = await self._write_rows(RENEW, {"owners": list(owners), "until": float(until), "version": VERSION})
        return [id for (id,) in rows]

    async def sent(self, ids: Collection[str], at: float) -> None:
        """See ``JobStore``."""
        await self._write(SENT + self._chosen(THESE), {"ids": list(ids), "at": float(at), "version": VERSION})

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[tuple[str, Job]]:
        """See ``JobStore``."""
        values = {"now": float(now), "before": float(before), "limit": limit, "version": VERSION}
        return [_kept(row) for row in await self._rows(UNSENT, values)]

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        """See ``JobStore``."""
        values: dict[str, Any] = {"version": VERSION}
        query = COUNT
        if queues:
            query += " AND queue IN :queues"
            values["queues"] = list(queues)
        rows = await self._rows(f"{query} GROUP BY state", values)
        return dict.fromkeys(JobState, 0) | {JobState(state): number for state, number in rows}

    async def list(
        self, tenant: str | None, *, state: JobState | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Job]]:
        """See ``JobStore``."""
        values = {"version": VERSION, "limit": limit}
        if tenant is None:
            rows = await self._rows(LIST_ALL[state], values)
        else:
            rows = await self._rows(LIST_OF_TENANT[state], {**values, "tenant": tenant})
        return [_kept(row) for row in rows]

    async def prune(self, before: float) -> int:
        """See ``JobStore``."""
        return int(await self._write(PRUNE + self._chosen(OVER), {"before": float(before), "version": VERSION}))

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_jobs", "id", condition)


def _held(tenant: str, id: str, token: int) -> dict[str, Any]:
    return {"tenant": tenant, "id": id, "token": token, "version": VERSION}


def _kept(row: Sequence[Any]) -> tuple[str, Job]:
    tenant, *values = row
    found: dict[str, Any] = dict(zip(FIELDS, values, strict=True))
    for time in ("made_at", "run_at", "lease_until", "sent_at", "ended_at"):
        found[time] = None if found[time] is None else float(found[time])  # SQLite may give whole ones as int
    for data in ("body", "progress", "result"):
        found[data] = None if found[data] is None else bytes(found[data])
    found["state"], found["stop"] = JobState(found["state"]), bool(found["stop"])
    return tenant, Job(**found)
