"""What the parts in SQL share that may be written within a transaction."""

from __future__ import annotations

from functools import cache
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.sql_connections import failing
from callgate.providers.stores.sql_database import Database

VERSION = 1
"""Of the rows: one that another version wrote is neither read nor changed."""

MANY = ("owners", "states", "ids", "queues")


class SqlPart:
    """Statements on a database; *within* is the connection of a transaction, None outside of one.

    Outside, each statement is a transaction of its own, which is on the disk when it returns.
    """

    def __init__(self, database: Database, within: Any = None) -> None:
        self._database = database
        self._within = within

    async def _write(self, sql: str, values: dict[str, Any]) -> Any:
        """The first row that a statement returns, or how many rows it changed."""
        if self._within is None:
            return await self._database.write(statement(sql), values, durable=True)
        with failing(self._database.url.get_backend_name()):
            done = await self._within.execute(statement(sql), values)
        return done.first() if done.returns_rows else done.rowcount

    async def _write_rows(self, sql: str, values: dict[str, Any]) -> list[Any]:
        """All rows that a statement returns which writes."""
        if self._within is None:
            return await self._database.write_rows(statement(sql), values, durable=True)
        return await self._inside(sql, values)

    async def _rows(self, sql: str, values: dict[str, Any]) -> list[Any]:
        """What a statement gives that only reads."""
        if self._within is None:
            return await self._database.rows(statement(sql), values)
        return await self._inside(sql, values)

    def _unlocked(self, table: str, key: str, condition: str) -> str:
        """*condition*, for a statement on many rows that passes over those that somebody else has locked.

        So two of them never wait for each other in a ring. SQLite has one writer at a time.
        """
        if self._database.lite:
            return condition
        return f"({key}) IN (SELECT {key} FROM {table} WHERE {condition} FOR UPDATE SKIP LOCKED) AND {condition}"  # noqa: S608

    async def _inside(self, sql: str, values: dict[str, Any]) -> list[Any]:
        with failing(self._database.url.get_backend_name()):
            return list((await self._within.execute(statement(sql), values)).all())


@cache
def statement(sql: str) -> Any:
    """What SQLAlchemy runs; each of ``MANY`` stands for any number of values."""
    from sqlalchemy import Text, bindparam, text

    many = [bindparam(name, expanding=True, type_=Text) for name in MANY if f":{name}" in sql]
    return text(sql).bindparams(*many)


def same_version(found: int) -> None:
    """A row is of this version.

    Raises:
        StoreError: it is not: what it says is not known, so that nothing may go on.
    """
    if found != VERSION:
        raise StoreError(f"a row of version {found} was written by another version of Callgate")
