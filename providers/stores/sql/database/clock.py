"""The clocks of the stores: that of a PostgreSQL server, which all processes read, and that of a SQLite file."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from callgate.errors import StoreError
from callgate.providers.stores.sql.database.connections import Connected
from callgate.providers.stores.sql.database.rows import Row

if TYPE_CHECKING:
    from sqlalchemy import TextClause


MOST_AHEAD = 86_400.0
"""Seconds that the file may be ahead of the machine's clock. A row beyond it has a wrong time, and not the clock."""


class ServerClock:
    """Seconds since the epoch by the server. Until the first ``set`` it is the clock of this process.

    Between two readings of the server the monotonic clock of the process counts, so a step of the machine's own clock
    changes nothing.
    """

    def __init__(self) -> None:
        self._offset: float | None = None

    def __call__(self) -> float:
        """Return the time."""
        return time.time() if self._offset is None else time.perf_counter() + self._offset

    def set(self, server: float, asked: float, answered: float) -> None:
        """Set the clock: the server read *server* at some time between two readings of ``time.perf_counter``."""
        self._offset = server - (asked + answered) / 2


NEWEST = """
SELECT max(
    coalesce((SELECT at FROM callgate_audit ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT made_at FROM callgate_jobs ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT made_at FROM callgate_waits WHERE kind <> 'link' ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT began_at FROM callgate_effects ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT max(ended_at) FROM callgate_effects WHERE state = 'committed'), 0)
)
"""
"""The newest time in a SQLite file, from its last rows: none of these reads grows with the tables.

The time of a link to a suspension, which is void, is the end of the wait.
"""


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_elapsed: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""Returns a monotonic time that counts while the machine sleeps, too, where the system has one."""


def _boot() -> str | None:
    """Return what names this boot of the machine, whose processes read one monotonic clock; None if it has no name."""
    try:
        # Containers of one machine share its boot and its clock, unless they have a namespace of time.
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return None


_CLOCK = "kind = 'clock' AND tenant = :boot"
_STALE = (
    "DELETE FROM callgate_versions WHERE kind = 'clock' AND NOT (tenant = :boot AND number BETWEEN :alive AND :now)"
)
_SHARED = f"SELECT latest FROM callgate_versions WHERE {_CLOCK} ORDER BY number DESC LIMIT 1"  # noqa: S608
_ENTER = """
INSERT INTO callgate_versions (tenant, kind, key, number, latest, mac) VALUES (:boot, 'clock', :key, :now, :offset, '')
ON CONFLICT (tenant, kind, key) DO UPDATE SET number = excluded.number, latest = excluded.latest
"""
_LEAVE = f"DELETE FROM callgate_versions WHERE {_CLOCK} AND key = :key"  # noqa: S608
_LEAVE_LIMIT = 1.0
"""Seconds that a closing store waits for the file to remove its entry."""
ALIVE = 120.0
"""Seconds for which an entry counts; a gate renews it twice a minute. The leases of a process that ended without
removing its entry end in that time, too."""


class ClockedDatabase(Protocol):
    """The database whose file has the clock."""

    @property
    def in_memory(self) -> bool: ...

    async def rows(self, statement: TextClause, values: Mapping[str, object]) -> list[Row]: ...

    async def write(self, statement: TextClause, values: Mapping[str, object]) -> object: ...

    async def transact(self, work: Callable[[Connected], Awaitable[None]]) -> None: ...


class FileClock:
    """Seconds since the epoch for a SQLite file. Until ``begin`` it is the clock of this process.

    A step of the machine's clock changes nothing in an open process, nor in those that open the file beside it: each
    keeps an entry in the file with the difference between its time and the monotonic clock, and a new one takes that of
    another. Otherwise it would judge the leases of the others by another time, and take over what they are doing. A
    process that is alone with the file reads the machine's clock, and goes on at the newest time in the file if that is
    later, so no time is written twice and no lease is longer than it should be.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = _elapsed,
        boot: Callable[[], str | None] = _boot,
    ) -> None:
        self._wall, self._elapsed, self._boot = wall, elapsed, boot
        self._offset: float | None = None
        self._key = secrets.token_hex(8)

    def __call__(self) -> float:
        """Return the time."""
        return self._wall() if self._offset is None else self._elapsed() + self._offset

    def begin(self, newest: float | None, shared: float | None = None) -> float:
        """Set the clock once, and return the difference to the monotonic clock; later calls change nothing.

        *newest* is the newest time in the file; *shared* is the difference of another process that has the file open.
        """
        if self._offset is None:
            now, elapsed = self._wall(), self._elapsed()
            if shared is not None and abs(now - (elapsed + shared)) <= MOST_AHEAD:
                now = elapsed + shared
            elif newest is not None and now < newest <= now + MOST_AHEAD:
                now = newest
            self._offset = now - elapsed
        return self._offset

    async def keep(self, database: ClockedDatabase) -> None:
        """Begin with the file of *database*, or renew the entry of this process in it.

        Raises:
            StoreError: the database failed.
        """
        from sqlalchemy import text

        boot, now = self._boot(), int(self._elapsed())
        if boot is None or database.in_memory:
            if self._offset is None:
                self.begin((await database.rows(text(NEWEST), {}))[0][0])
            return

        async def enter(connection: Connected) -> None:
            shared: float | None = None
            if self._offset is None:
                await connection.execute(text(_STALE), {"boot": boot, "now": now, "alive": now - int(ALIVE)})
                known: str | None = (await connection.execute(text(_SHARED), {"boot": boot})).scalar()
                with suppress(ValueError, TypeError):  # SQLite stores any type
                    shared = float(known)  # type: ignore[arg-type]
            newest = (await connection.execute(text(NEWEST))).scalar()
            offset = repr(self.begin(newest, shared))
            entry = {"boot": boot, "key": self._key, "now": now, "offset": offset}
            await connection.execute(text(_ENTER), entry)

        await database.transact(enter)

    async def leave(self, database: ClockedDatabase) -> None:
        """Remove the entry of this process before it disconnects. If that fails, the entry counts no more after a while."""
        from sqlalchemy import text

        begun, self._offset = self._offset is not None, None
        if begun and not database.in_memory and (boot := self._boot()) is not None:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LEAVE_LIMIT):
                    await database.write(text(_LEAVE), {"boot": boot, "key": self._key})
