"""The base of the SQL parts that can be written within a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Generic, TypeVar

from callgate.errors import StoreError
from callgate.providers.stores.sql_connections import sql_errors
from callgate.providers.stores.sql_database import Database

OURS = "version = :version AND namespace = :namespace"
"""The condition of the rows that a part reads and changes; ``SqlPart`` gives the values."""

_LISTS = ("owners", "states", "ids", "queues", "hashes")


R = TypeVar("R")


class Columns(Generic[R]):
    """The columns of a record class: its fields, of which *renamed* have another name in the table.

    *read* maps fields to the conversion of a value that is not NULL.
    """

    def __init__(
        self, record: Callable[..., R], renamed: Mapping[str, str], read: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        self._record, self._read = record, read
        self._fields = tuple(field.name for field in fields(record))  # type: ignore[arg-type]
        self.names = tuple(renamed.get(name, name) for name in self._fields)
        self.listed = ", ".join(self.names)
        self.marks = ", ".join(f":{name}" for name in self.names)

    def values(self, record: R) -> dict[str, Any]:
        """Return the values of a record by column."""
        return {column: getattr(record, name) for column, name in zip(self.names, self._fields, strict=True)}

    def record(self, row: Sequence[Any]) -> R:
        """Return the record of a row."""
        found: dict[str, Any] = dict(zip(self._fields, row, strict=True))
        for name, read in self._read.items():
            if found[name] is not None:
                found[name] = read(found[name])
        return self._record(**found)


class SqlPart:
    """Statements on a database; *within* is the connection of a transaction, or None.

    Without a transaction each statement is committed by itself, and is on the disk when it returns. Each statement gets
    the values ``:version`` and ``:namespace``.
    """

    version = 1
    """The version of the rows of this kind. A row is read if it has this version or the one before, and changed if it has
    this one."""

    def __init__(self, database: Database, within: Any = None, namespace: str = "") -> None:
        self._database = database
        self._within = within
        self.namespace = namespace
        self._ours = {"version": self.version, "namespace": namespace}

    async def _write(self, sql: str, values: dict[str, Any], *, upkeep: bool = False) -> Any:
        """Run a writing statement. Return its first row, or the number of changed rows.

        With *upkeep* it does not wait for the connections of calls.
        """
        if self._within is None:
            return await self._database.write(statement(sql), values | self._ours, upkeep=upkeep)
        with sql_errors(self._database.url.get_backend_name()):
            done = await self._within.execute(statement(sql), values | self._ours)
        return done.first() if done.returns_rows else done.rowcount

    async def _write_rows(self, sql: str, values: dict[str, Any], *, upkeep: bool = False) -> list[Any]:
        """Run a writing statement. Return all its rows; see ``_write``."""
        if self._within is None:
            return await self._database.write_rows(statement(sql), values | self._ours, upkeep=upkeep)
        return await self._inside(sql, values)

    async def _rows(self, sql: str, values: dict[str, Any]) -> list[Any]:
        """Run a reading statement. Return its rows."""
        if self._within is None:
            return await self._database.rows(statement(sql), values | self._ours)
        return await self._inside(sql, values)

    async def _one(self, sql: str, values: dict[str, Any], columns: Columns[R]) -> R | None:
        """Read one row, whose first column is its version. Return its record, or None.

        Raises:
            StoreError: another version of Callgate wrote the row.
        """
        rows = await self._rows(sql, values)
        if not rows:
            return None
        version, *row = rows[0]
        check_row_version(version, self.version)
        return columns.record(row)

    def _unlocked(self, table: str, key: str, condition: str) -> str:
        """Return *condition* for a statement on many rows that skips locked rows, which prevents deadlocks.

        SQLite has one writer at a time and needs no change.
        """
        if self._database.lite:
            return condition
        return f"({key}) IN (SELECT {key} FROM {table} WHERE {condition} FOR UPDATE SKIP LOCKED) AND {condition}"  # noqa: S608

    async def _prune(self, table: str, key: str, condition: str, before: float, limit: int) -> int:
        """Delete at most *limit* rows, and none that is locked. Return the number."""
        lock = "" if self._database.lite else " FOR UPDATE SKIP LOCKED"  # with it PostgreSQL runs the query once
        sql = f"""
DELETE FROM {table} WHERE ({key}) IN (
    WITH old AS (SELECT {key} FROM {table} WHERE {condition} LIMIT :limit{lock}) SELECT {key} FROM old
)
"""  # noqa: S608  (built from constants)
        return int(await self._write(sql, {"before": float(before), "limit": limit}, upkeep=True))

    async def _inside(self, sql: str, values: dict[str, Any]) -> list[Any]:
        with sql_errors(self._database.url.get_backend_name()):
            return list((await self._within.execute(statement(sql), values | self._ours)).all())


@cache
def statement(sql: str) -> Any:
    """Return the SQLAlchemy statement of a text. A parameter named in ``_LISTS`` takes a list of values."""
    from sqlalchemy import Text, bindparam, text

    many = [bindparam(name, expanding=True, type_=Text) for name in _LISTS if f":{name}" in sql]
    return text(sql).bindparams(*many)


def check_row_version(found: int, version: int) -> None:
    """Check that code of *version* can read a row of version *found*: the same one, or the one before.

    Raises:
        StoreError: another version of Callgate wrote the row, so its meaning is not known.
    """
    if not version - 1 <= found <= version:
        raise StoreError(
            f"another version of Callgate wrote this row (version {found}, expected {version}); use that version to read it"
        )
