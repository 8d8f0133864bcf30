"""The tables of Procrastinate: one row for each job to deliver, which holds only its id."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from callgate.errors import RegistrationError, StoreError
from callgate.providers.stores.base import Transaction

TASK = "callgate.run_invocation"

CREATE_LOCK, KEEPER_LOCK = 0x63616C6C656E6731, 0x63616C6C656E6732
"""Advisory locks of PostgreSQL: one for creating the tables, one for the process that does maintenance."""

CONNECT_TIMEOUT = 10.0
"""Timeout for a connection, in seconds, retries included."""

SLACK = 0.1
"""Extra delay of a delayed job, in seconds, so that it is not early by the clock of any worker."""

CHECK_INTERVAL = 0.5
"""Minimum interval of checking a connection, in seconds: a check costs a round trip."""

# Not by to_regclass: it caches a missing name for the whole transaction.
TABLES = """
SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'procrastinate_jobs' AND pg_table_is_visible(oid)) AS found,
    (SELECT count(DISTINCT proname) FROM pg_proc WHERE pg_function_is_visible(oid)
        AND proname IN ('procrastinate_fetch_job_v2', 'procrastinate_retry_job_v2')) = 2 AS fit
"""
TRY_LOCK = "SELECT pg_try_advisory_xact_lock(%(lock)s) AS mine"
FIND_OTHERS = """
SELECT DISTINCT queue_name AS name FROM procrastinate_jobs
WHERE status = 'todo' AND queue_name = ANY(%(names)s) AND task_name <> %(task)s
"""
FIND_WAITING = """
SELECT queueing_lock AS id FROM procrastinate_jobs
WHERE status = 'todo' AND queueing_lock = ANY(%(ids)s) AND task_name = %(task)s
"""
CANCEL = "DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%(ids)s) RETURNING id"


class Delivery(NamedTuple):
    """A job to deliver at ``run_at``, in seconds since the epoch; None means now."""

    id: str
    queue: str
    priority: int
    run_at: float | None


class Rows:
    """The queue of the engine. *connected* has the store's connection settings; *deliver* runs a job by its id.

    The jobs of a namespace have a task of their own: no other service retries them, nor counts them as its own.

    At most one row of a job waits (``queueing_lock``). Work within a transaction of the store uses its connection; a
    worker uses connections of its own, see ``open``.
    """

    def __init__(
        self, connected: Any, deliver: Callable[[object, object], Coroutine[object, None, None]], namespace: str
    ) -> None:
        from procrastinate import App, PsycopgConnector

        async def configure(connection: Any) -> None:
            """Use autocommit without synchronous commit: after a crash of the server, a job is redelivered and found done."""
            await connection.set_autocommit(True)
            await connection.execute("SET synchronous_commit = off")

        settings = {**connected.get_parameters(), "password": connected.password}
        self._connector = PsycopgConnector(
            kwargs=settings,
            min_size=1,
            max_size=4,
            timeout=CONNECT_TIMEOUT,
            reconnect_timeout=CONNECT_TIMEOUT,  # bounds the growing pauses between attempts
            configure=configure,
            name="callgate jobs",
            pool_factory=_pool,
        )
        self.app = App(connector=self._connector)
        self._task = f"callgate.{namespace}.run_invocation" if namespace else TASK
        self._keeper_lock = int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest(), signed=True)
        if not namespace:
            self._keeper_lock = KEEPER_LOCK
        self.app.task(name=self._task, pass_context=True)(deliver)

    # ------------------------------------------------------------------ within a transaction of the store

    async def create_tables(self, within: Transaction) -> None:
        """Create the tables if they are missing; several processes may do so at once.

        Raises:
            RegistrationError: the tables belong to another version of Procrastinate.
        """
        driver = driver_of(within)
        (tables,) = await self._rows(within, TABLES)
        if not tables["found"]:
            await driver.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
            (tables,) = await self._rows(within, TABLES)
        if not tables["found"]:
            await driver.execute(self.app.schema_manager.get_schema())
        elif not tables["fit"]:
            raise RegistrationError("the tables belong to another version of Procrastinate: apply its migrations")

    async def add(self, within: Transaction, *deliveries: Delivery) -> None:
        """Enqueue jobs in one statement.

        Raises:
            AlreadyEnqueued: a job waits already; the transaction has to be rolled back.
        """
        jobs = [
            self.app.configure_task(
                self._task,
                queue=one.queue,
                priority=one.priority,
                queueing_lock=one.id,
                task_kwargs={"id": one.id},
                schedule_at=None if one.run_at is None else datetime.fromtimestamp(one.run_at + SLACK, UTC),
            ).job
            for one in deliveries
        ]
        await self.app.job_manager.batch_defer_jobs_async(jobs, connection=driver_of(within))

    async def cancel(self, within: Transaction, *ids: str) -> None:
        """Delete the waiting rows of jobs."""
        await self._rows(within, CANCEL, ids=list(ids))

    async def waiting(self, within: Transaction, ids: Collection[str]) -> set[str]:
        """Return those of *ids* that wait."""
        return {row["id"] for row in await self._rows(within, FIND_WAITING, ids=list(ids), task=self._task)}

    async def try_keeper_lock(self, within: Transaction) -> bool:
        """Take the maintenance lock until the end of the transaction; False if another process has it."""
        (row,) = await self._rows(within, TRY_LOCK, lock=self._keeper_lock)
        return bool(row["mine"])

    # ------------------------------------------------------------------ in a worker

    async def open(self) -> None:
        """Connect."""
        await self._connector.open_async()

    async def close(self) -> None:
        """Disconnect."""
        await self._connector.close_async()

    async def queues_with_foreign_jobs(self, names: list[str]) -> list[str]:
        """Return those of the queues in which jobs of another application wait."""
        rows = await self._connector.execute_query_all_async(FIND_OTHERS, names=names, task=self._task)
        return sorted(row["name"] for row in rows)

    async def retry_stalled(self, silent: float) -> None:
        """Retry the jobs of workers that sent no heartbeat for *silent* seconds."""
        from procrastinate.exceptions import UniqueViolation
        from procrastinate.jobs import Status

        manager = self.app.job_manager
        for row in await manager.get_stalled_jobs(task_name=self._task, seconds_since_heartbeat=silent):
            try:
                await manager.retry_job(row)
            except UniqueViolation:  # another row of the job waits
                await manager.finish_job(row, Status.FAILED, delete_job=True)

    async def _rows(self, within: Transaction, sql: object, **values: object) -> Sequence[Any]:
        rows: Sequence[object]
        rows = await self._connector.execute_query_all_async_with_connection(driver_of(within), sql, **values)
        return rows


def _pool(*, check: Callable[[Any], Coroutine[object, None, None]], **settings: Any) -> Any:
    """Make the engine's connection pool, which checks a connection at intervals instead of at each use."""
    from psycopg_pool import AsyncConnectionPool

    seen: WeakKeyDictionary[object, float] = WeakKeyDictionary()

    async def check_at_intervals(connection: object) -> None:
        now = time.monotonic()
        if now - seen.get(connection, -CHECK_INTERVAL) >= CHECK_INTERVAL:
            await check(connection)
            seen[connection] = now

    return AsyncConnectionPool(check=check_at_intervals, **settings)


def driver_of(within: Any) -> Any:
    """Return psycopg's connection of a transaction of the store."""
    return within.driver()


@contextmanager
def store_errors() -> Generator[None, None, None]:
    """Convert errors of the engine and its driver to ``StoreError``; their text may quote values and stays in the cause."""
    from procrastinate.exceptions import ProcrastinateException
    from procrastinate.sync_psycopg_connector import wrap_exceptions

    try:
        with wrap_exceptions():
            yield
    except ProcrastinateException as error:
        raise StoreError(f"procrastinate: {type(error.__cause__ or error).__name__}") from error
