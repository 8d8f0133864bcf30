"""Changes of many jobs in one statement of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.providers.stores.group_commit import GroupCommit
from callgate.providers.stores.sql.batches import PostgresBatches
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.statements import Statement, leased

_NUMBERS = dict.fromkeys(("made_at", "run_at", "lease_until", "sent_at", "ended_at", "now", "until", "at"), "float8")
_TYPES = {
    **_NUMBERS,
    **dict.fromkeys(("body", "progress", "result"), "bytea"),
    **dict.fromkeys(("priority", "max_attempts", "attempts"), "integer"),
    "version": "smallint",
    "token": "bigint",
    "stop": "boolean",
}


def on_rows(sql: str, names: Sequence[str]) -> Statement:
    """Return a statement on the rows ``{given}`` with these columns."""
    return Statement("", sql, **{name: _TYPES.get(name, "text") for name in names})


def of_many(statement: Statement) -> str:
    """Return the text of a statement on rows for SQLAlchemy; their values are the parameter ``given``."""
    return statement.postgres.replace("%s", "CAST(:given AS json)")


ASKED = "asked_at"
"""Key in a change: the time at which it was asked for. No statement reads it."""


class SqlJobBatches:
    """Group commit of the jobs that concurrent workers take by id, and of those that they end.

    Takes and ends have a connection each, which opens with the first of them.

    Args:
        database: a PostgreSQL.
        take: the statement that takes jobs; it returns their ids first.
        end: the statement that ends jobs; it returns their ids.
    """

    def __init__(self, database: Database, take: Statement, end: Statement) -> None:
        self._takes, self._ends = _Changes(database, take), _Changes(database, end)

    async def take(self, values: Mapping[str, object]) -> Any:
        """Take a job by its id. Return its row, or None."""
        return await self._takes.put(values)

    async def end(self, values: Mapping[str, object]) -> bool:
        """End a job. Return False if the worker does not have it any more."""
        return bool(await self._ends.put(values))

    async def close(self) -> None:
        """Write what is left, and disconnect."""
        await self._takes.close()
        await self._ends.close()


class _Changes:
    """Changes of jobs by one statement. A job whose row is locked waits apart from the others.

    A worker gives up after the time of a lease. A connection that does not answer is then closed: the next worker would
    wait on it as long, and the job would run out of attempts.
    """

    def __init__(self, database: Database, statement: Statement) -> None:
        self._database, self._statement, self._batches = database, statement, PostgresBatches(database)
        self._group: GroupCommit[Mapping[str, Any]] = GroupCommit(self._write, abandon=True, size=_size)

    async def put(self, values: Mapping[str, object]) -> Any:
        async with self._database.answered():
            return await self._group.put({**values, ASKED: self._database.now()}, values["id"], withdraw=True)

    async def close(self) -> None:
        await self._group.close()
        await self._batches.close()

    async def _write(self, changes: Sequence[Mapping[str, Any]], wait: int) -> Sequence[object]:
        def given() -> list[Mapping[str, object]]:
            now = self._database.now()
            return [leased(change, now - change[ASKED]) for change in changes]

        rows = await self._batches.run_alone(self._statement, given, wait)
        found = {id: row or True for id, *row in rows}
        return [found.get(change["id"]) for change in changes]


def _size(change: Mapping[str, Any]) -> int:
    """Return about how many bytes a change takes in a statement. A result is written in hexadecimal digits."""
    return 2 * len(change.get("result") or b"") + len(change.get("reason") or "")
