"""The base of the SQL parts that can be written within a transaction."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from callgate.errors import StoreError
from callgate.providers.stores.signed_rows import RowSigner
from callgate.providers.stores.sql.database.connections import sql_errors
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.rows import Row

if TYPE_CHECKING:
    from sqlalchemy import TextClause


OURS = "version = :version AND namespace = :namespace"
"""The condition of the rows that a part reads and changes; ``SqlPart`` gives the values."""

_LISTS = ("owners", "states", "ids", "queues", "hashes", "tags")


R = TypeVar("R")
P = TypeVar("P", bound="SqlPart")
DAMAGED = "a row has a value that Callgate does not write there; restore the row, or delete it"


def as_blob(found: object) -> bytes:
    """Return the bytes of a column. SQLite stores any type, and ``bytes`` of a number would be as many zeros.

    Raises:
        TypeError: the value is not binary.
    """
    if not isinstance(found, bytes | memoryview):
        raise TypeError(type(found).__name__)
    return bytes(found)


def parsed_column(found: Any) -> Any:
    """Return the value of a column of JSON.

    Raises:
        StoreError: it is not JSON.
    """
    try:
        return json.loads(found)
    except (TypeError, ValueError, RecursionError):
        raise StoreError(DAMAGED) from None


class Columns(Generic[R]):
    """The columns of a record class: its fields, of which *renamed* have another name in the table.

    *read* maps fields to the conversion of a value that is not NULL.
    """

    def __init__(
        self, record: Callable[..., R], renamed: Mapping[str, str], read: Mapping[str, Callable[[Any], object]]
    ) -> None:
        self._record, self._read = record, read
        self._fields = tuple(field.name for field in fields(record))  # type: ignore[arg-type]
        self._values = attrgetter(*self._fields)
        self.names = tuple(renamed.get(name, name) for name in self._fields)
        self.listed = ", ".join(self.names)
        self.marks = ", ".join(f":{name}" for name in self.names)

    def values(self, record: R) -> dict[str, object]:
        """Return the values of a record by column."""
        return dict(zip(self.names, self._values(record), strict=True))

    def record(self, row: Row) -> R:
        """Return the record of a row.

        Raises:
            StoreError: a value cannot be converted: the row was changed by hand.
        """
        found: dict[str, object] = dict(zip(self._fields, row, strict=True))
        try:
            for name, read in self._read.items():
                if found[name] is not None:
                    found[name] = read(found[name])
        except (TypeError, ValueError, OverflowError):
            raise StoreError(DAMAGED) from None
        return self._record(**found)


class SqlPart:
    """Statements on a database; *within* is the connection of a transaction, or None.

    Without a transaction each statement is committed by itself, and is on the disk when it returns. Each statement gets
    the values ``:version`` and ``:namespace``. With *signer* the rows are signed, and checked when they are read.
    """

    version = 1
    """The version of the rows of this kind. A row is read if it has this version or the one before, and changed if it has
    this one."""

    def __init__(
        self, database: Database, within: Any = None, namespace: str = "", signer: RowSigner | None = None
    ) -> None:
        self._database = database
        self._within = within
        self.namespace = namespace
        self.signer = signer
        self._ours = {"version": self.version, "namespace": namespace}

    @property
    def is_lite(self) -> bool:
        """True on SQLite."""
        return bool(self._database.lite)

    def beside(self, kind: type[P]) -> P:
        """Return the part of another kind of rows: of the same namespace, in the same transaction, with the same keys."""
        return kind(self._database, self._within, self.namespace, self.signer)

    async def fetch(self, sql: str, values: Mapping[str, object]) -> list[Row]:
        """Run a reading statement. Return its rows."""
        return await self._rows(sql, values)

    async def change(self, sql: str, values: Mapping[str, object]) -> None:
        """Run a writing statement."""
        await self._write(sql, values)

    async def transact(self, work: Callable[[Self], Awaitable[R]]) -> R:
        """Return the result of *work* on this part, whose statements are one transaction."""
        if self._within is not None:
            return await work(self)
        part = type(self)
        return await self._database.transact(
            lambda connection: work(part(self._database, connection, self.namespace, self.signer))
        )

    async def _write(self, sql: str, values: Mapping[str, object], *, upkeep: bool = False) -> Any:
        """Run a writing statement. Return its first row, or the number of changed rows.

        With *upkeep* it does not wait for the connections of calls.
        """
        if self._within is None:
            return await self._database.write(statement(sql), {**values, **self._ours}, upkeep=upkeep)
        with sql_errors(self._database.url.get_backend_name()):
            done = await self._within.execute(statement(sql), {**values, **self._ours})
        return done.first() if done.returns_rows else done.rowcount

    async def _write_rows(self, sql: str, values: Mapping[str, object], *, upkeep: bool = False) -> list[Row]:
        """Run a writing statement. Return all its rows; see ``_write``."""
        if self._within is None:
            return await self._database.write_rows(statement(sql), {**values, **self._ours}, upkeep=upkeep)
        return await self._inside(sql, values)

    async def _rows(self, sql: str, values: Mapping[str, object]) -> list[Row]:
        """Run a reading statement. Return its rows."""
        if self._within is None:
            return await self._database.rows(statement(sql), {**values, **self._ours})
        return await self._inside(sql, values)

    async def _one(self, sql: str, values: Mapping[str, object], columns: Columns[R]) -> R | None:
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

    async def _inside(self, sql: str, values: Mapping[str, object]) -> list[Row]:
        with sql_errors(self._database.url.get_backend_name()):
            return list((await self._within.execute(statement(sql), {**values, **self._ours})).all())


@cache
def statement(sql: str) -> TextClause:
    """Return the SQLAlchemy statement of a text. A parameter named in ``_LISTS`` takes a list of values."""
    from sqlalchemy import Text, bindparam, text

    many = [bindparam(name, expanding=True, type_=Text) for name in _LISTS if f":{name}" in sql]
    return text(sql).bindparams(*many)


def check_row_version(found: object, version: int) -> None:
    """Check that code of *version* can read a row of version *found*: the same one, or the one before.

    Raises:
        StoreError: another version of Callgate wrote the row, so its meaning is not known.
    """
    if found not in (version, version - 1):
        raise StoreError(
            f"another version of Callgate wrote this row (version {found}, expected {version}); use that version to read it"
        )
