"""The statements of the job queue in SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from callgate.providers.stores.jobs import (
    BODY,
    DEADLINE,
    FINAL_STATES,
    HEAD_BYTES,
    KEY,
    TIME_BYTES,
    Fitting,
    Job,
    JobState,
)
from callgate.providers.stores.sql.database.part import OURS, Columns, as_blob
from callgate.providers.stores.sql.job_batches import of_many, on_rows

COLUMNS = Columns(
    Job,
    {"user": "person"},  # `user` is a keyword of SQL
    {
        **dict.fromkeys(("made_at", "run_at", "lease_until", "sent_at", "ended_at"), float),  # SQLite may return an int
        **dict.fromkeys(("body", "progress", "result"), as_blob),
        "state": JobState,
        "stop": bool,
    },
)
LISTED = COLUMNS.listed

# S608: built from constants. ``free_at`` is the time from which a job may be taken, NULL when it has ended.
# IS TRUE hides a condition from the planner: while the table is small, PostgreSQL would choose another index for it
# than that of the ids, and keep that plan long after the table has grown.
ADD = f"""
INSERT INTO callgate_jobs (tenant, version, namespace, {LISTED})
VALUES (:tenant, :version, :namespace, {COLUMNS.marks})
ON CONFLICT DO NOTHING
"""  # noqa: S608
ADD_MANY = of_many(
    on_rows(
        f"""
INSERT INTO callgate_jobs (tenant, version, namespace, {LISTED})
SELECT tenant, version, namespace, {LISTED} FROM {{given}} ORDER BY id
ON CONFLICT DO NOTHING RETURNING id
""",  # noqa: S608
        ("tenant", "version", "namespace", *COLUMNS.names),
    )
)
GET = f"SELECT version, {LISTED} FROM callgate_jobs WHERE id = :id AND (tenant = :tenant AND namespace = :namespace) IS TRUE"  # noqa: S608

# The next job is found by a loose index scan: each queue, each priority in it, the first job of each. The rows between
# are not read, so the cost does not grow with the number of waiting jobs.
WAITING = "FROM callgate_jobs AS j WHERE j.namespace = :namespace AND j.version = :version AND j.free_at IS NOT NULL"
EVERY_QUEUE = f"""
    SELECT min(j.queue) {WAITING}
    UNION ALL SELECT (SELECT min(j.queue) {WAITING} AND j.queue > q.queue) FROM queues AS q WHERE q.queue IS NOT NULL
"""  # noqa: S608
NAMED_QUEUES = {
    "sqlite": "SELECT value FROM json_each(:named)",
    "postgresql": 'SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:named AS json)) AS value',
}
QUEUES = f"""
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
FIRST = f"""
    SELECT j.id {WAITING} AND j.queue = f.queue AND j.priority = f.priority AND j.free_at <= :now{{fitting}}
    ORDER BY j.free_at, j.made_at, j.id LIMIT 1
"""
NEXT = {
    "sqlite": f"{QUEUES} SELECT ({FIRST}) {BEST} LIMIT 1",
    # SKIP LOCKED skips the jobs that other workers are taking, in this queue and in the following ones.
    "postgresql": f"""{QUEUES} SELECT mine.id FROM (SELECT f.queue, f.priority {BEST}) AS f
        CROSS JOIN LATERAL ({FIRST} FOR UPDATE SKIP LOCKED) AS mine LIMIT 1""",  # noqa: S608
}
# A worker that some jobs do not fit reads the first jobs of a queue past them, and may find none in the best queue. The
# time of that job decides between queues: by the time of its first job, a queue with an old job that does not fit would
# go before all others.
NEXT_FITTING = {
    "sqlite": f"""{QUEUES} SELECT f.id FROM (SELECT f.priority, f.queue, ({FIRST}) AS id {BEST}) AS f
        JOIN callgate_jobs AS one ON one.id = f.id ORDER BY f.priority DESC, one.free_at, f.queue LIMIT 1""",  # noqa: S608
    "postgresql": f"""{QUEUES} SELECT mine.id FROM (
            SELECT f.queue, f.priority FROM firsts AS f
            CROSS JOIN LATERAL ({FIRST.replace("j.id", "j.free_at", 1)}) AS one
            WHERE f.free_at <= :now ORDER BY f.priority DESC, one.free_at, f.queue
        ) AS f CROSS JOIN LATERAL ({FIRST} FOR UPDATE SKIP LOCKED) AS mine LIMIT 1""",  # noqa: S608
}
TAKE_JOB = f"""
UPDATE callgate_jobs
SET state = 'running', owner = :owner, lease_until = :until, attempts = attempts + 1, token = token + 1
WHERE id = {{id}} AND ({OURS} AND free_at <= :now) IS TRUE
RETURNING tenant, {LISTED}
"""  # noqa: S608
TAKE_ID = TAKE_JOB.format(id=":id")


def _fits(on: str) -> str:
    """Return the condition of a job ``j`` that ``Fitting.has``, whose values are those of ``fitting_values``.

    The lists are subqueries under OR, which both databases read once into a hash table; a list of parameters would be
    compared item by item for each row.
    """
    lite = on == "sqlite"
    blob, larger = ("BLOB", "max") if lite else ("bytea", "greatest")

    def bytes_of(text: bytes) -> str:
        return f"CAST('{text.decode()}' AS {blob})"

    def position(text: bytes) -> str:
        first = f"substr(j.body, 1, {HEAD_BYTES})"
        # SQLite finds NULL in an empty value.
        return f"COALESCE(instr({first}, {bytes_of(text)}), 0)" if lite else f"position({bytes_of(text)} IN {first})"

    def as_text(start: str, length: str) -> str:
        some = f"substr(j.body, {start}, {length})"
        return f"CAST({some} AS TEXT)" if lite else f"encode({some}, 'escape')"

    def among(text: str, values: str) -> str:
        items = f"value FROM json_each(:{values})" if lite else f"json_array_elements_text(CAST(:{values} AS json))"
        return f"{text} IN (SELECT {items})"

    key, end = position(KEY), position(DEADLINE)
    at = f"{end} + {len(DEADLINE)}"
    time = as_text(at, f"{TIME_BYTES}")
    late = (
        f"CAST({time} AS REAL) BETWEEN 1 AND :now"
        if lite
        else f"CASE WHEN substr(j.body, {at}, 4) = {bytes_of(b'null')} THEN FALSE"  # far cheaper than the next
        f" WHEN {time} ~ '^[0-9]+[.]?[0-9]*,' THEN CAST(split_part({time}, ',', 1) AS double precision) <= :now END"
    )
    version, of_key = as_text("1", f"{larger}({key} - 1, 0)"), as_text(key, f"{larger}({end} - {key}, 0)")
    return (
        f"(j.stop OR {end} = 0 OR substr(j.body, 1, {len(BODY)}) <> {bytes_of(BODY)}"
        f" OR ({among(version, 'versions')} AND {among(of_key, 'keys')}) OR COALESCE({late}, FALSE))"
    )


FITS = {on: _fits(on) for on in NEXT}


@lru_cache(maxsize=16)
def fitting_values(fitting: Fitting) -> dict[str, str]:
    """Return the values of the condition of what fits a worker."""
    return {
        "versions": json.dumps(sorted(one.decode() for one in fitting.versions)),
        "keys": json.dumps(sorted(one.decode() for one in fitting.keys)),
    }


def take_next(on: str, *, named: bool = False, fitting: bool = False) -> str:
    """Return the statement that takes the next job: of the queues ``:named``, and of those that fit the worker."""
    fits = f" AND {FITS[on]}" if fitting else ""
    next = (NEXT_FITTING if fitting else NEXT)[on].format(
        queues=NAMED_QUEUES[on] if named else EVERY_QUEUE, fitting=fits
    )
    return TAKE_JOB.format(id=f"({next})")


TAKE_NEXT = {
    (on, named, fitting): take_next(on, named=named, fitting=fitting)
    for on in NEXT
    for named in (False, True)
    for fitting in (False, True)
}
UNFIT = {
    on: f"""
SELECT j.id, j.tool, substr(j.body, 1, {HEAD_BYTES}) {WAITING} AND j.free_at <= :now AND j.state = 'queued'
    AND COALESCE(substr(j.reason, 1, :length), '') <> :explained AND NOT {fits}
LIMIT :limit
"""
    for on, fits in FITS.items()
}
EXPLAIN = "UPDATE callgate_jobs SET reason = :reason WHERE state = 'queued' AND "

OF_TENANT = f"id = :id AND (tenant = :tenant AND {OURS}) IS TRUE"
REPLACE = f"""
UPDATE callgate_jobs SET {", ".join(f"{name} = :{name}" for name in COLUMNS.names if name != "id")}
WHERE {OF_TENANT} AND (state IN ({", ".join(f"'{state}'" for state in FINAL_STATES)}) AND token + 1 = :token) IS TRUE
"""  # noqa: S608
HELD = f"{OF_TENANT} AND (state = 'running' AND token = :token) IS TRUE"
FINISH = f"""
UPDATE callgate_jobs SET state = :state, lease_until = NULL, ended_at = :at, result = :result, reason = :reason,
    result_mac = :result_mac
WHERE {HELD}
"""  # noqa: S608
# The rows are locked in the order of their ids, as every statement on many jobs does that waits for locks.
LOCKED = "JOIN {{given}} USING (id) WHERE ({condition}) IS TRUE ORDER BY id FOR UPDATE OF k"
TAKE_MANY = on_rows(
    f"""
UPDATE callgate_jobs AS j
SET state = 'running', owner = mine.owner, lease_until = mine.until, attempts = j.attempts + 1, token = j.token + 1
FROM (
    SELECT k.id, given.owner, given.until FROM callgate_jobs AS k
    {LOCKED.format(condition="k.version = given.version AND k.namespace = given.namespace AND k.free_at <= given.now")}
) AS mine
WHERE j.id = mine.id
RETURNING j.id, j.tenant, {", ".join(f"j.{name}" for name in COLUMNS.names)}
""",  # noqa: S608
    ("id", "owner", "now", "until", "version", "namespace"),
)
HELD_BY_GIVEN = """
k.tenant = given.tenant AND k.version = given.version AND k.namespace = given.namespace AND k.state = 'running' AND k.token = given.token
"""
END_MANY = on_rows(
    f"""
UPDATE callgate_jobs AS j
SET state = mine.state, lease_until = NULL, ended_at = mine.at, result = mine.result, reason = mine.reason,
    result_mac = mine.result_mac
FROM (
    SELECT k.id, given.state, given.at, given.result, given.reason, given.result_mac FROM callgate_jobs AS k
    {LOCKED.format(condition=HELD_BY_GIVEN)}
) AS mine
WHERE j.id = mine.id RETURNING j.id
""",  # noqa: S608
    ("id", "tenant", "version", "namespace", "token", "state", "at", "result", "reason", "result_mac"),
)
PUT_BACK = f"""
UPDATE callgate_jobs SET state = 'queued', lease_until = NULL, run_at = :run_at, reason = COALESCE(:reason, reason),
    attempts = attempts - :uncounted
WHERE {HELD}
"""  # noqa: S608
WAITS = "state IN ('queued', 'input_required')"
CANCEL = f"""
UPDATE callgate_jobs SET ended_at = CASE WHEN {WAITS} THEN :at ELSE ended_at END,
    stop = stop OR state = 'running', state = CASE WHEN {WAITS} THEN 'cancelled' ELSE state END
WHERE {OF_TENANT} RETURNING state
"""  # noqa: S608
TO_CANCEL = f"SELECT version, {LISTED} FROM callgate_jobs WHERE {OF_TENANT}"  # noqa: S608
CANCEL_SIGNED = f"""
UPDATE callgate_jobs SET state = 'cancelled', ended_at = :at, result = :result, reason = :reason, result_mac = :result_mac
WHERE {OF_TENANT} AND {WAITS}
"""  # noqa: S608
# The row of a running job is written, too: PostgreSQL then checks the condition again after its worker has committed.
WAKE = f"""
UPDATE callgate_jobs SET run_at = CASE state WHEN 'running' THEN run_at ELSE :at END,
    sent_at = CASE state WHEN 'running' THEN sent_at ELSE :at END,
    attempts = CASE state WHEN 'running' THEN attempts ELSE 0 END,
    state = CASE state WHEN 'running' THEN state ELSE 'queued' END
WHERE {OF_TENANT} AND state IN ('input_required', 'running') RETURNING state
"""  # noqa: S608
STOPPED = f"SELECT owner FROM callgate_jobs WHERE owner IN :owners AND state = 'running' AND stop AND ({OURS}) IS TRUE"  # noqa: S608
TELL = f"UPDATE callgate_jobs SET progress = :progress WHERE {HELD}"  # noqa: S608
REVIVE = f"""
UPDATE callgate_jobs SET state = 'queued', run_at = :run_at, attempts = 0, ended_at = NULL, sent_at = NULL, result = NULL,
    stop = FALSE, reason = NULL
WHERE {OF_TENANT} AND state = 'dead'
"""  # noqa: S608
RENEW = f"""
UPDATE callgate_jobs SET lease_until = :until WHERE owner IN :owners AND state = 'running' AND ({OURS}) IS TRUE
RETURNING id
"""  # noqa: S608

SENT = "UPDATE callgate_jobs SET sent_at = :at WHERE "
THESE = f"id IN :ids AND {OURS}"
FREE = f"SELECT * FROM callgate_jobs WHERE {OURS} AND free_at <= :now"  # noqa: S608
BY_INDEX = "ORDER BY sent_at, free_at, id LIMIT :limit"
UNSENT = f"""
SELECT tenant, {LISTED} FROM (
    SELECT * FROM ({FREE} AND sent_at IS NULL {BY_INDEX}) AS never
    UNION ALL SELECT * FROM ({FREE} AND sent_at < :before {BY_INDEX}) AS long_ago
) AS found ORDER BY sent_at NULLS FIRST, free_at, id LIMIT :limit
"""  # noqa: S608

OVER = f"{OURS} AND free_at IS NULL AND ended_at < :before"
OPEN = f"SELECT EXISTS (SELECT 1 FROM callgate_jobs WHERE {OURS} AND free_at IS NOT NULL"  # noqa: S608
COUNT = f"SELECT state, count(*) FROM callgate_jobs WHERE {OURS}"  # noqa: S608
COUNT_QUEUED = f"""SELECT count(*) FROM (SELECT 1 AS one FROM callgate_jobs WHERE tenant = :tenant AND {OURS}
AND state = 'queued' AND person = :person LIMIT :limit) AS found"""  # noqa: S608


def _list_query(states: Iterable[str], condition: str) -> str:
    """Return the query for the newest jobs of some states; it reads each state along an index."""
    newest = "ORDER BY made_at DESC, id DESC LIMIT :limit"
    each = (
        f"SELECT * FROM (SELECT tenant, {LISTED} FROM callgate_jobs "  # noqa: S608
        f"WHERE {condition} state = '{state}' AND {OURS} {newest}) AS {state}"
        for state in states
    )
    return f"SELECT * FROM ({' UNION ALL '.join(each)}) AS found {newest}"  # noqa: S608


STATES: dict[JobState | None, Iterable[str]] = {None: [*JobState], **{state: [state] for state in JobState}}
LIST_ALL = {state: _list_query(states, "") for state, states in STATES.items()}
LIST_OF_TENANT = {state: _list_query(states, "tenant = :tenant AND") for state, states in STATES.items()}
