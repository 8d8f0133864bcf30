"""The links between the segments of an audit log: they show that a whole segment was removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from callgate.providers.stores.base import AuditRow, AuditSegment, AuditSnapshot

Found: TypeAlias = Callable[[str, str, int | None, str], None]
"""Reports a problem: kind, segment, number, text."""

MAX_PENDING = 500
"""Links whose hashes are looked up in one query."""


class Links:
    """The links of the first rows of segments: the row that a segment continues, and the last rows of others."""

    def __init__(self, snapshot: AuditSnapshot, found: Found) -> None:
        self._snapshot, self._found = snapshot, found
        self._continued: list[tuple[str, str]] = []  # segment and hash
        self._followed: dict[tuple[str, int, str], str] = {}  # the row, and a segment with a link to it
        self._begins: dict[str, int] = {}  # by segment: rows up to this number were removed by its store
        self._bounded = False

    def add_segment(self, segment: AuditSegment, removed: int) -> None:
        """Note a segment, and the number of its last row that its store has removed."""
        self._begins[segment.name] = removed
        self._bounded = self._bounded or segment.dropped is not None

    async def add(self, row: AuditRow) -> None:
        """Note the links of the first row of a segment."""
        if row.previous:
            self._continued.append((row.segment, row.previous))
        links = row.body.get("links") if isinstance(row.body, Mapping) else None
        for link in links if isinstance(links, list | tuple) else ():
            match link:
                case [str(segment), int(number), str(hash)]:
                    self._followed[segment, number, hash] = row.segment
                case _:
                    self._found("altered", row.segment, 1, "one of its links is not a segment, a number and a hash")
        if len(self._followed) + len(self._continued) >= MAX_PENDING:
            await self._look_up()

    async def verify(self) -> None:
        """Report the links to rows that are missing. All segments have been added."""
        await self._look_up()
        if self._bounded:  # a row in the middle of what was dropped has no known hash
            self._continued.clear()
        continued = {hash for _, hash in self._continued}
        for (segment, number, hash), by in self._followed.items():
            if segment not in self._begins:
                continued.discard(hash)  # one problem for one row
                text = f"the whole segment is missing; segment {by} links to its row {number}"
                self._found("missing", segment, None, text)
            elif number > self._begins[segment] and hash not in continued:
                self._found("cut", segment, number, f"segment {by} links to this row, and the row is missing")
        for segment, hash in self._continued:
            if hash in continued:
                self._found("cut", segment, 1, "it continues a row of another segment, and that row is missing")

    async def _look_up(self) -> None:
        """Keep the links to unknown rows. Their segments may come later."""
        hashes = {hash for _, hash in self._continued} | {hash for _, _, hash in self._followed}
        known = await self._snapshot.known_hashes(hashes) if hashes else set()
        self._continued = [link for link in self._continued if link[1] not in known]
        self._followed = {row: by for row, by in self._followed.items() if row[2] not in known}
