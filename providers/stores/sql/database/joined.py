"""The application's own transaction, in which the store writes a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from callgate.errors import StoreError
from callgate.providers.exits import PlainThreads

if TYPE_CHECKING:
    from sqlalchemy import TextClause


class Joined:
    """Runs statements in a transaction of SQLAlchemy, sync or async, of a session or a connection."""

    def __init__(self, source: Any, threads: PlainThreads | None, *, is_session: bool, is_async: bool) -> None:
        self._source = source
        self._threads = threads
        self._is_session = is_session
        self._is_async = is_async

    async def execute(self, statement: TextClause, values: dict[str, object]) -> Any:
        """Run a statement, and return its result."""
        if not self._is_async:
            return (
                self._execute(statement, values)
                if self._threads is None
                else await self._threads.run(self._execute, statement, values)
            )
        return await (await self.connection()).execute(statement, values)

    async def connection(self) -> Any:
        """Return the ``AsyncConnection``, or None if the transaction is sync."""
        if not self._is_async:
            return None
        return await self._source.connection() if self._is_session else self._source

    def _execute(self, statement: TextClause, values: dict[str, object]) -> Any:
        connection = self._source.connection() if self._is_session else self._source
        return connection.execute(statement, values)


def joined_transaction(source: Any, store: str, threads: PlainThreads | None) -> Joined:
    """Return the transaction of a session or connection of SQLAlchemy; *threads* run the statements of a sync one.

    Raises:
        StoreError: it is of another kind, or its database is not of the kind *store*.
    """
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    is_session, is_async = (
        isinstance(source, Session | AsyncSession),
        isinstance(source, AsyncSession | AsyncConnection),
    )
    if not is_session and not isinstance(source, Connection | AsyncConnection):
        raise StoreError(
            f"in_transaction takes a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, not {type(source).__name__}"
        )
    bind = source.get_bind() if isinstance(source, Session | AsyncSession) else source
    if bind.dialect.name != store:
        raise StoreError(f"the transaction is of {bind.dialect.name}, and the store of the gate of {store}")
    return Joined(source, threads, is_session=is_session, is_async=is_async)
