"""The migrations of the SQL schema."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.errors import StoreError
from callgate.providers.stores.server_answers import is_locked

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


SERVES = "0007"
"""The oldest revision whose code can use the tables of today. Older tables are migrated on request only: processes that
use them would fail."""
LOCK_WAIT_MS = 150
"""Milliseconds that a migration waits for a lock. All statements of the service on that table wait behind it."""
_PAUSES = (0.1, 0.2, 0.4, 0.8, *[1.5] * 40)
"""Seconds between two attempts, in which the service goes on: about a minute in all."""


async def without_waiting(upgrade: Callable[[int], Awaitable[None]]) -> None:
    """Run *upgrade* with a short wait for locks, and again while other transactions hold locks on the tables.

    Raises:
        StoreError: the locks were held for a minute, or the migration failed.
    """
    for pause in _PAUSES:
        try:
            await upgrade(LOCK_WAIT_MS)
        except StoreError as error:
            if not is_locked(error):
                raise
            await asyncio.sleep(pause)
        else:
            return
    raise StoreError(
        "postgresql: the tables could not be migrated, because a transaction has kept them locked for a minute; end it "
        "(see pg_stat_activity for the oldest xact_start), and open the store again"
    )


_ONE_AT_A_TIME = threading.Lock()


@asynccontextmanager
async def alone() -> AsyncGenerator[None]:
    """Wait until no other store of this process migrates: alembic keeps the running migration in its module."""
    while not _ONE_AT_A_TIME.acquire(blocking=False):  # noqa: ASYNC110  (the other store may be in another event loop)
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def upgrade_schema(connection: object) -> None:
    """Migrate the schema to ``HEAD`` within the open transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"the schema cannot be migrated: {error}; a newer Callgate may have written it, so upgrade Callgate"
        ) from None


async def to_wal(engine: AsyncEngine) -> None:
    """Set the journal mode of a SQLite file. Retries, since SQLite does not wait for other processes that set it."""
    from sqlalchemy.exc import OperationalError

    for pause in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, None):
        try:
            async with engine.connect() as connection:
                mode = (await connection.exec_driver_sql("PRAGMA journal_mode=WAL")).scalar()
            if mode == "wal" or pause is None:
                return
        except OperationalError:
            if pause is None:
                raise
        await asyncio.sleep(pause)


_SWEPT = {
    "callgate_cache": "stale_until < :before",
    "callgate_quotas": "ends < :before",
    "callgate_permits": "ends < :before",
    "callgate_consents": "expires_at < :before",
    "callgate_versions": "ends < :before",
}
"""The condition of expired rows by table."""
_SWEEP = "DELETE FROM {table} WHERE {condition}"
# Rows that another transaction has locked are left to the next sweep, so that sweeps never wait, nor cause deadlocks.
_SWEEP_POSTGRES = (
    "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE {condition} FOR UPDATE SKIP LOCKED)"
)


def sweeps(*, lite: bool) -> Iterator[str]:
    """Yield the statements that delete the expired rows of all tenants."""
    sweep = _SWEEP if lite else _SWEEP_POSTGRES
    for table, condition in _SWEPT.items():
        yield sweep.format(table=table, condition=condition)
