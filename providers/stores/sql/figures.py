"""The figures of a SQL store; see ``StoreFigures``."""

from __future__ import annotations

from callgate.providers.stores.base import StoreFigures
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.part import statement
from callgate.providers.stores.sql.job_statements import EVERY_QUEUE, QUEUES
from callgate.providers.stores.sql.jobs import SqlJobs
from callgate.providers.stores.sql.ledger import SqlLedgerWriter

# Indexes answer all three: the jobs by the first one of each queue and priority, however many wait.
_COUNT = f"""
{QUEUES.format(queues=EVERY_QUEUE)}
SELECT (SELECT count(*) FROM callgate_effects WHERE namespace = :namespace AND state = 'unknown' AND alias_of IS NULL),
    (SELECT count(*) FROM callgate_waits WHERE namespace = :namespace AND state = 'waiting'),
    (SELECT min(f.free_at) FROM firsts AS f WHERE f.free_at <= :now)
"""  # noqa: S608  (built from constants)


async def figures_of(database: Database, ledger: SqlLedgerWriter, namespace: str) -> StoreFigures:
    """Return the figures of a namespace.

    Raises:
        StoreError: the database does not answer.
    """
    now = float(database.now())
    values = {"version": SqlJobs.version, "namespace": namespace, "now": now}
    ((unknown, suspended, oldest),) = await database.rows(statement(_COUNT), values)
    waits = database.engines.waits
    return StoreFigures(
        unknown_effects=unknown,
        suspended_calls=suspended,
        oldest_job=0.0 if oldest is None else now - oldest,
        changes=ledger.group.changes,
        transactions=ledger.group.transactions,
        connection_waits=waits.number,
        connection_wait_time=waits.seconds,
    )
