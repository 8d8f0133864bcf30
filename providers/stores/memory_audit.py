"""The audit log in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from callgate.errors import StoreConflict
from callgate.providers.stores.base import AuditRow


class MemoryAudit:
    """The audit log as a list of rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, AuditRow]] = []  # with their tenants
        self.heads: list[tuple[str, int, str, float]] = []
        self._claimed: set[tuple[str, int]] = set()
        self.before_reading: list[Callable[[], None]] = []  # hooks add rows that they have buffered

    def _flush(self) -> None:
        for flush in self.before_reading:
            flush()

    def claim(self, rows: Sequence[AuditRow]) -> None:
        """Reserve the numbers of rows, all or none.

        Raises:
            StoreConflict: a row has that segment and number already.
        """
        numbers = {(row.segment, row.number) for row in rows}
        if len(numbers) < len(rows) or not self._claimed.isdisjoint(numbers):
            raise StoreConflict(
                "an audit row of that segment and number exists already; append the row with the next number"
            )
        self._claimed |= numbers

    def release(self, rows: Sequence[AuditRow]) -> None:
        """Free the numbers of rows that were claimed and not added."""
        self._claimed -= {(row.segment, row.number) for row in rows}

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        self.claim(rows)
        self.rows += [(tenant, row) for row in rows]

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        self._flush()
        chosen = [row for owner, row in self.rows if tenant is None or owner == tenant]
        for row in sorted(chosen, key=lambda row: (row.at, row.segment, row.number)):
            if row.at >= since and (until is None or row.at < until):
                yield row

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        self.heads.append((segment, number, hash, at))

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        self._flush()
        return list(self.heads)


class HeldAudit(MemoryAudit):
    """The audit log within a transaction: its rows have their numbers, and other readers see them after ``commit``."""

    def __init__(self, outer: MemoryAudit) -> None:
        super().__init__()
        self._outer = outer

    def claim(self, rows: Sequence[AuditRow]) -> None:
        """Reserve the numbers of rows in the whole log."""
        self._outer.claim(rows)

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        """Read the committed rows and those of this transaction."""
        both = MemoryAudit()
        both.rows = self._outer.rows + self.rows
        async for row in both.read(tenant, since=since, until=until):
            yield row

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """Return the committed anchors and those of this transaction."""
        return self._outer.heads + self.heads

    def commit(self) -> None:
        """Add the rows and anchors to the log."""
        self._outer.rows += self.rows
        self._outer.heads += self.heads

    def roll_back(self) -> None:
        """Add nothing, and free the numbers of the rows."""
        self._outer.release([row for _, row in self.rows])
