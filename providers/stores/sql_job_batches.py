"""Changes of many jobs in one statement of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.group_commit import GroupCommit, RolledBack
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_part import statement
from callgate.providers.stores.sql_statements import Statement
from callgate.providers.stores.sql_states import is_session_lost

_NUMBERS = dict.fromkeys(("made_at", "run_at", "lease_until", "sent_at", "ended_at", "now", "until", "at"), "float8")
_TYPES = {
    **_NUMBERS,
    **dict.fromkeys(("body", "progress", "result"), "bytea"),
    **dict.fromkeys(("priority", "most", "attempts"), "integer"),
    "version": "smallint",
    "token": "bigint",
    "stop": "boolean",
}


def of_many(sql: str, names: Sequence[str]) -> str:
    """Return a statement on the rows ``{given}`` with these columns; their values are the parameter ``given``."""
    types = {name: _TYPES.get(name, "text") for name in names}
    return Statement("", sql, **types).postgres.replace("%s", "CAST(:given AS json)")


class SqlJobBatches:
    """Group commit of the jobs that concurrent workers take by id, and of those that they end.

    Args:
        database: a PostgreSQL.
        take: the statements that take one job and many jobs; the latter returns their ids first.
        end: those that end one job and many jobs.
    """

    def __init__(self, database: Database, take: tuple[str, str], end: tuple[str, str]) -> None:
        self._database = database
        takes, ends = partial(self._write, *take), partial(self._write, *end)
        self._takes: GroupCommit[Mapping[str, Any]] = GroupCommit(takes, takes)
        self._ends: GroupCommit[Mapping[str, Any]] = GroupCommit(ends, ends)

    async def take(self, values: Mapping[str, object]) -> Any:
        """Take a job by its id. Return its row, or None."""
        return await self._takes.put(values, values["id"], withdraw=True)

    async def end(self, values: Mapping[str, Any]) -> bool:
        """End a job. Return False if the worker does not have it any more."""
        return bool(await self._ends.put(values, values["id"], withdraw=False))

    async def close(self) -> None:
        """Write what is left."""
        await self._takes.close()
        await self._ends.close()

    async def _write(self, one: str, many: str, changes: Sequence[Mapping[str, object]]) -> Sequence[Any]:
        if len(changes) == 1:
            return [await self._database.write(statement(one), changes[0], durable=True)]
        try:
            (given,) = Statement.parameters(changes)
            rows = await self._database.write_rows(statement(many), {"given": given}, durable=True)
        except (StoreError, TypeError) as error:
            if isinstance(error, StoreError) and (error.sqlstate is None or is_session_lost(error)):
                raise  # each change would meet it, or it is unknown whether the changes are written
            raise RolledBack(error if isinstance(error, StoreError) else StoreError("a text is not Unicode")) from error
        found = {id: row or True for id, *row in rows}
        return [found.get(change["id"]) for change in changes]
