"""What waits in the tables of Procrastinate: a row for each job that is to be delivered, which holds its id and no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from callgate.errors import RegistrationError, StoreError
from callgate.providers.stores.base import Transaction

TASK = "callgate.run_invocation"

MAKING, KEEPING = 0x63616C6C656E6731, 0x63616C6C656E6732
"""Advisory locks of PostgreSQL: under one the tables are made, under the other one process at a time looks after them."""

WAITING_FOR_IT = 10.0
"""Seconds that a connection is waited for, and tried for, before there is an error, and all begins anew."""

SLACK = 0.1
"""Seconds that a delayed job is delivered late, so that by the clock of no worker it is early."""

ALIVE = 0.5
"""Seconds for which a connection that was seen to live is not looked at again: a look is a round trip."""

# Not by to_regclass: a name that was not found before is not looked for again within the transaction.
TABLES = """
SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'procrastinate_jobs' AND pg_table_is_visible(oid)) AS found,
    (SELECT count(DISTINCT proname) FROM pg_proc WHERE pg_function_is_visible(oid)
        AND proname IN ('procrastinate_fetch_job_v2', 'procrastinate_retry_job_v2')) = 2 AS fit
"""
KEEPS = "SELECT pg_try_advisory_xact_lock(%(lock)s) AS mine"
OTHERS = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE task_name <> %(task)s) AS found"
WAITING = "SELECT queueing_lock AS id FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%(ids)s)"
CANCEL = "DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = %(id)s RETURNING id"


class Rows:
    """The engine. *connected* tells how the store is connected; *deliver* is what a worker does with an id.

    Of all the rows of a job one at most waits (``queueing_lock``). What is done within a transaction of the store is done
    on its connection, the rest on connections of its own, which workers ``open``.
    """

    def __init__(self, connected: Any, deliver: Callable[[Any, str], Coroutine[Any, Any, None]]) -> None:
        from procrastinate import App, PsycopgConnector

        async def configure(connection: Any) -> None:
            """Each statement stands alone; what a crash of the server forgets is delivered again, and found done."""
            await connection.set_autocommit(True)
            await connection.execute("SET synchronous_commit = off")

        settings = {**connected.get_parameters(), "password": connected.password}
        self._connector = PsycopgConnector(
            kwargs=settings,
            min_size=1,
            max_size=4,
            timeout=WAITING_FOR_IT,
            reconnect_timeout=WAITING_FOR_IT,  # the pauses between attempts grow: a long outage is not to make them long
            configure=configure,
            name="callgate jobs",
            pool_factory=_pool,
        )
        self.app = App(connector=self._connector)
        self.app.task(name=TASK, pass_context=True)(deliver)

    # ------------------------------------------------------------------ within a transaction of the store

    async def make_tables(self, within: Transaction) -> None:
        """Make the tables where there are none; several processes may do that at once.

        Raises:
            RegistrationError: they are of another version of Procrastinate.
        """
        driver = driver_of(within)
        (tables,) = await self._rows(within, TABLES)
        if not tables["found"]:
            await driver.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING,))
            (tables,) = await self._rows(within, TABLES)
        if not tables["found"]:
            await driver.execute(self.app.schema_manager.get_schema())
        elif not tables["fit"]:
            raise RegistrationError(
                "the tables of Procrastinate are of another version: bring them up to date with its migrations"
            )

    async def add(self, within: Transaction, id: str, queue: str, priority: int, run_at: float | None) -> None:
        """Have a job delivered then, or as soon as may be.

        Raises:
            AlreadyEnqueued: it waits already; nothing of the transaction can be kept.
        """
        task = self.app.configure_task(
            TASK,
            queue=queue,
            priority=priority,
            queueing_lock=id,
            schedule_at=None if run_at is None else datetime.fromtimestamp(run_at + SLACK, UTC),
            connection=driver_of(within),
        )
        await task.defer_async(id=id)

    async def cancel(self, within: Transaction, id: str) -> None:
        """Have it not delivered, unless it is just being."""
        await self._rows(within, CANCEL, id=id)

    async def waiting(self, within: Transaction, ids: Collection[str]) -> set[str]:
        """Which of these wait."""
        return {row["id"] for row in await self._rows(within, WAITING, ids=list(ids))}

    async def is_keeper(self, within: Transaction) -> bool:
        """Whether this process is the one that looks after things, to the end of the transaction."""
        (row,) = await self._rows(within, KEEPS, lock=KEEPING)
        return bool(row["mine"])

    # ------------------------------------------------------------------ in a worker

    async def open(self) -> None:
        """Connect."""
        await self._connector.open_async()

    async def close(self) -> None:
        """Disconnect."""
        await self._connector.close_async()

    async def has_others(self) -> bool:
        """Whether there are jobs of another application."""
        (row,) = await self._connector.execute_query_all_async(OTHERS, task=TASK)
        return bool(row["found"])

    async def free_stalled(self, silent: float) -> None:
        """What was under way in workers that gave no sign of life for so many seconds waits again."""
        from procrastinate.exceptions import UniqueViolation
        from procrastinate.jobs import Status

        manager = self.app.job_manager
        for row in await manager.get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=silent):
            try:
                await manager.retry_job(row)
            except UniqueViolation:  # another row of it waits
                await manager.finish_job(row, Status.FAILED, delete_job=True)

    async def _rows(self, within: Transaction, sql: Any, **values: Any) -> Sequence[Any]:
        rows: Sequence[Any]
        rows = await self._connector.execute_query_all_async_with_connection(driver_of(within), sql, **values)
        return rows


def _pool(*, check: Callable[[Any], Coroutine[Any, Any, None]], **settings: Any) -> Any:
    """The engine's connections. It would look at one each time that it takes it: as often as it has something to say."""
    from psycopg_pool import AsyncConnectionPool

    seen: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    async def check_at_times(connection: Any) -> None:
        now = time.monotonic()
        if now - seen.get(connection, -ALIVE) >= ALIVE:
            await check(connection)
            seen[connection] = now

    return AsyncConnectionPool(check=check_at_times, **settings)


def driver_of(within: Any) -> Any:
    """psycopg's connection of a transaction of the store."""
    return within.driver()


@contextmanager
def failing() -> Generator[None, None, None]:
    """Errors of the engine and its driver become the store's; their text, which may quote values, stays in the cause."""
    from procrastinate.exceptions import ProcrastinateException
    from procrastinate.sync_psycopg_connector import wrap_exceptions

    try:
        with wrap_exceptions():
            yield
    except ProcrastinateException as error:
        raise StoreError(f"procrastinate: {type(error.__cause__ or error).__name__}") from error
