"""Group commit of rate limits, concurrency limits and the cache in SQL.

The requests of many calls share one transaction. It locks and reads their rows, computes the results in order of arrival,
and writes what has changed. Rows are locked in one order, so that processes never wait for each other in a circle: first
quotas, then permits, then cached values, each sorted by key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from callgate.providers.stores.group_commit import GroupCommit
from callgate.providers.stores.sql.batches import Exchange, PostgresBatches, Step
from callgate.providers.stores.sql.batches_lite import Batches, LiteBatches
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.rows import Row

MAX_REQUESTS = 128
"""The maximum number of requests in one transaction."""


class SharedRequests(Protocol):
    """Requests of one kind in one transaction."""

    def reads(self) -> Sequence[Step]:
        """Return the steps that lock and read the rows."""
        ...

    def compute(self, rows: Sequence[list[Row]]) -> Sequence[Step]:
        """Set the results from the rows of ``reads``. Return the steps that write the changes."""
        ...


class SharedRequest:
    """One request of a call; the transaction sets ``result``. Subclasses have the arguments.

    ``place`` orders the kinds, and *of* makes the ``SharedRequests`` of those of one kind and of the time.
    """

    __slots__ = ("result",)
    place = 0
    of: Callable[[Sequence[Any], float], SharedRequests]

    def __init__(self) -> None:
        self.result: Any = None

    @property
    def row(self) -> Hashable:
        """The row that the request locks."""
        return self

    @property
    def writes(self) -> bool:
        """True if the request locks or changes a row."""
        return True

    @property
    def size(self) -> int:
        """About how many bytes the request takes in a statement."""
        return 0


class SharedWriter:
    """The requests of a store and process; see the module."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batches: Batches = LiteBatches(database, durable=False) if database.lite else PostgresBatches(database)
        self._group: GroupCommit[SharedRequest] = GroupCommit(
            self._serve, limit=MAX_REQUESTS, size=attrgetter("size"), admit=database.admission
        )

    async def ask(self, request: SharedRequest, *, withdraw: bool = False) -> Any:
        """Serve a request and return its result. With *withdraw*, a cancelled caller takes it back if it has not begun.

        Raises:
            StoreError: the request was not served, or that is unknown.
        """
        async with self._database.answered():
            return await self._group.put(request, request, row=request.row, withdraw=withdraw)

    async def close(self) -> None:
        """Serve what is left, and disconnect."""
        await self._group.close()
        await self._batches.close()

    async def _serve(self, requests: Sequence[SharedRequest], wait: int) -> list[Row]:
        kinds: dict[type[SharedRequest], list[SharedRequest]] = {}
        for request in requests:
            kinds.setdefault(type(request), []).append(request)
        writes = any(request.writes for request in requests)

        def begin() -> Exchange:
            now = float(self._database.now())  # here, after the wait for the transaction
            parts = [kind.of(kinds[kind], now) for kind in sorted(kinds, key=lambda kind: kind.place)]
            asked = [part.reads() for part in parts]

            def compute(rows: list[list[Row]]) -> list[Step]:
                left = iter(rows)
                return [
                    step
                    for part, reads in zip(parts, asked, strict=True)
                    for step in part.compute([next(left) for _ in reads])
                ]

            return [step for reads in asked for step in reads], compute

        await self._batches.exchange(begin, wait, writes=writes)
        for _ in requests:
            await self._database.wrote()
        return [request.result for request in requests]
