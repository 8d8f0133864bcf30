"""Looks through an audit record for what was changed, taken out, moved, or cut off."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from callgate.hooks.stock.records.audit_chain import micros, row_hash
from callgate.providers.stores.base import AuditRow, AuditStore

Head: TypeAlias = tuple[str, int, str, float]
"""An anchor: segment, number, hash, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """One thing that is wrong. ``number`` is the row in its segment, None where it is about the whole of it.

    ``kind``: ``altered`` (its seal does not fit), ``missing`` (rows are gone), ``twice``, ``order`` (it does not follow
    the row before), ``cut`` (rows that an anchor knows are gone), ``moved`` (it stands under another tenant), ``unread``.
    """

    kind: str
    segment: str
    number: int | None
    text: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: segment {self.segment}{'' if self.number is None else f', row {self.number}'}: {self.text}"
        )


@dataclass
class AuditReport:
    """What a verification saw. ``unanchored`` counts rows behind the last anchor of their segment: their loss would not show."""

    rows: int = 0
    segments: int = 0
    anchors: int = 0
    unanchored: int = 0
    problems: list[AuditProblem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        verdict = "nothing is wrong" if self.ok else f"{len(self.problems)} problems"
        return "\n".join((f"{self.title}: {verdict}", *map(str, self.problems), *self.notes))

    @property
    def title(self) -> str:
        """How much was looked at."""
        return f"audit record of {self.rows} rows in {self.segments} segments with {self.anchors} anchors"

    @property
    def notes(self) -> tuple[str, ...]:
        """What this verification cannot tell."""
        if not self.unanchored:
            return ()
        return (
            f"{self.unanchored} rows came after the last anchor of their segment: had more been cut off, nothing would show it",
        )

    def __rich__(self) -> Any:
        """A table for rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text  # what stands in a record is no markup

        if self.ok:
            return Group(Text(f"{self.title}: nothing is wrong", style="green"), *map(Text, self.notes))
        table = Table("problem", "segment", "row", "what is wrong", title=Text(self.title))
        for one in self.problems:
            place = "" if one.number is None else str(one.number)
            table.add_row(Text(one.kind, style="red"), Text(one.segment), place, Text(one.text))
        return Group(table, *map(Text, self.notes))


class _Segment:
    """What is kept of a segment's rows: number → hash before, hash."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, str]] = {}
        self.anchored = 0


class Verifier:
    """Takes rows in any order, then anchors, then says what is wrong."""

    def __init__(self) -> None:
        self.report = AuditReport()
        self._segments: dict[str, _Segment] = {}
        self._hashes: set[str] = set()

    def row(self, row: AuditRow) -> None:
        """One row: its seal, its time, and that it is the only one of its number."""
        self.report.rows += 1
        segment = self._segments.setdefault(row.segment, _Segment())
        if row.number in segment.rows:
            self._found("twice", row.segment, row.number, "there is another row of that number")
            return
        segment.rows[row.number] = (row.previous, row.hash)
        self._hashes.add(row.hash)
        if not _sealed(row):
            self._found("altered", row.segment, row.number, "the row does not fit its hash")
        elif row.number < 1:
            self._found("order", row.segment, row.number, "rows are numbered from 1")

    def end(self, anchors: Iterable[Head]) -> AuditReport:
        """The chains, and the anchors beside them."""
        for name, segment in self._segments.items():
            self._chain(name, segment)
        for name, number, hash, _ in sorted(set(anchors)):
            self.report.anchors += 1
            self._anchor(name, number, hash)
        self.report.segments = len(self._segments)
        self.report.unanchored = sum(number > one.anchored for one in self._segments.values() for number in one.rows)
        return self.report

    def _chain(self, name: str, segment: _Segment) -> None:
        before, head = 0, ""
        for number in sorted(segment.rows):
            previous, hash = segment.rows[number]
            if number > before + 1:
                gone = f"row {before + 1} is" if number == before + 2 else f"rows {before + 1} to {number - 1} are"
                self._found("missing", name, number, f"{gone} missing before it")
            elif number == 1:
                if previous and previous not in self._hashes:
                    self._found("cut", name, 1, "it goes on from a row of another segment, and that row is gone")
            elif previous != head:
                self._found("order", name, number, "it does not follow the row before it")
            before, head = number, hash

    def _anchor(self, name: str, number: int, hash: str) -> None:
        segment = self._segments.get(name)
        known = None if segment is None else segment.rows.get(number)
        if segment is None or known is None:
            last = max(segment.rows, default=0) if segment is not None else 0
            self._found("cut", name, number, f"an anchor knows {number} rows; the last that is there is {last}")
            return
        if known[1] != hash:
            self._found("altered", name, number, "the row has another hash than its anchor")
        segment.anchored = max(segment.anchored, number)

    def _found(self, kind: str, segment: str, number: int | None, text: str) -> None:
        self.report.problems.append(AuditProblem(kind, segment, number, text))


def _sealed(row: AuditRow) -> bool:
    try:
        return (
            row_hash(row.body, row.segment, row.number, row.previous) == row.hash
            and micros(row.at) == row.body["at_us"]
        )
    except (TypeError, ValueError, KeyError, RecursionError):  # a body that no hash can be made of was never sealed
        return False


async def verify_audit(audit: AuditStore, anchors: Iterable[Head] = ()) -> AuditReport:
    """Verify all that a store's audit part holds, against its own anchors and those given (kept elsewhere, one hopes).

    Every alteration, gap, doubled row and broken order is found, and rows that an anchor knows and the record lacks.
    What was cut off behind the last anchor is not, nor a record that was written anew with all its anchors: only an
    anchor out of the writer's reach shows that. Holds two hashes a row in memory.
    """
    verifier = Verifier()
    owners: dict[str, set[tuple[str, int]]] = {}
    try:
        async for row in audit.read(None):
            verifier.row(row)
            owner = row.body.get("tenant")
            owners.setdefault(owner or "", set()).add((row.segment, row.number))
        for tenant, expected in owners.items():
            async for row in audit.read(tenant):
                expected.discard((row.segment, row.number))
            for segment, number in sorted(expected):
                verifier._found("moved", segment, number, "it does not stand under the tenant that it names")
        heads = [*await audit.anchors(), *anchors]
    except Exception as error:  # noqa: BLE001  (a record that cannot be read to its end is wrong, whatever the reason)
        verifier._found("unread", "?", None, f"the record cannot be read on: {type(error).__name__}")
        return verifier.end(anchors)
    return verifier.end(heads)


async def verify_rows(rows: Iterable[AuditRow] | AsyncIterable[AuditRow], anchors: Iterable[Head] = ()) -> AuditReport:
    """The same for rows from anywhere, such as a sink of your own."""
    verifier = Verifier()
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            verifier.row(row)
    else:
        for row in rows:
            verifier.row(row)
    return verifier.end(anchors)


__all__ = ["AuditProblem", "AuditReport", "verify_audit", "verify_rows"]
