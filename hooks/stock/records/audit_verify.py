"""Verification of an audit log: finds altered, missing, duplicate, moved and truncated rows."""

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
    """One problem in an audit log. ``number`` is the row in its segment; None for a problem of the whole log.

    ``kind``: ``altered`` (the hash does not match), ``missing`` (rows are missing), ``twice`` (a duplicate number),
    ``order`` (the row does not follow the one before), ``cut`` (rows covered by an anchor are missing), ``moved`` (the
    row is stored under another tenant), ``unread`` (the log cannot be read).
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
    """The result of a verification. ``unanchored`` counts rows after the last anchor; their loss cannot be detected."""

    rows: int = 0
    segments: int = 0
    anchors: int = 0
    unanchored: int = 0
    problems: list[AuditProblem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when there are no problems."""
        return not self.problems

    def __str__(self) -> str:
        verdict = "no problems" if self.ok else f"{len(self.problems)} problems"
        return "\n".join((f"{self.title}: {verdict}", *map(str, self.problems), *self.notes))

    @property
    def title(self) -> str:
        """A summary of what was verified."""
        return f"audit log of {self.rows} rows in {self.segments} segments with {self.anchors} anchors"

    @property
    def notes(self) -> tuple[str, ...]:
        """The limits of this verification."""
        if not self.unanchored:
            return ()
        return (
            f"{self.unanchored} rows come after the last anchor of their segment: a truncation there cannot be detected",
        )

    def __rich__(self) -> Any:
        """A table for rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text  # Text: a log may contain markup

        if self.ok:
            return Group(Text(f"{self.title}: no problems", style="green"), *map(Text, self.notes))
        table = Table("problem", "segment", "row", "description", title=Text(self.title))
        for one in self.problems:
            place = "" if one.number is None else str(one.number)
            table.add_row(Text(one.kind, style="red"), Text(one.segment), place, Text(one.text))
        return Group(table, *map(Text, self.notes))


class _Segment:
    """The hashes of a segment's rows: number → previous hash, hash."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, str]] = {}
        self.anchored = 0


class Verifier:
    """Takes rows in any order, then anchors, and reports the problems."""

    def __init__(self) -> None:
        self.report = AuditReport()
        self._segments: dict[str, _Segment] = {}
        self._hashes: set[str] = set()

    def row(self, row: AuditRow) -> None:
        """Check the hash, the time and the number of one row."""
        self.report.rows += 1
        segment = self._segments.setdefault(row.segment, _Segment())
        if row.number in segment.rows:
            self._found("twice", row.segment, row.number, "another row has this number")
            return
        segment.rows[row.number] = (row.previous, row.hash)
        self._hashes.add(row.hash)
        if not _hash_matches(row):
            self._found("altered", row.segment, row.number, "the row does not match its hash")
        elif row.number < 1:
            self._found("order", row.segment, row.number, "row numbers begin at 1")

    def end(self, anchors: Iterable[Head]) -> AuditReport:
        """Check the chains and the anchors, and return the report."""
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
                    self._found("cut", name, 1, "it continues a row of another segment, and that row is missing")
            elif previous != head:
                self._found("order", name, number, "its previous hash is not the hash of the row before it")
            before, head = number, hash

    def _anchor(self, name: str, number: int, hash: str) -> None:
        segment = self._segments.get(name)
        known = None if segment is None else segment.rows.get(number)
        if segment is None or known is None:
            last = max(segment.rows, default=0) if segment is not None else 0
            self._found("cut", name, number, f"an anchor covers {number} rows; the last row is {last}")
            return
        if known[1] != hash:
            self._found("altered", name, number, "the hash of the row differs from its anchor")
        segment.anchored = max(segment.anchored, number)

    def _found(self, kind: str, segment: str, number: int | None, text: str) -> None:
        self.report.problems.append(AuditProblem(kind, segment, number, text))


def _hash_matches(row: AuditRow) -> bool:
    try:
        return (
            row_hash(row.body, row.segment, row.number, row.previous) == row.hash
            and micros(row.at) == row.body["at_us"]
        )
    except (
        TypeError,
        ValueError,
        KeyError,
        RecursionError,
    ):  # a body that cannot be hashed was never written by Callgate
        return False


async def verify_audit(audit: AuditStore, anchors: Iterable[Head] = ()) -> AuditReport:
    """Verify the audit log of a store against its own anchors and the given ones.

    It finds every altered, missing, duplicate or reordered row, and missing rows that an anchor covers. It cannot find a
    truncation after the last anchor, or a log rewritten together with its anchors. Against a rewrite, give anchors that
    are kept where the writer of the log has no access. Memory: two hashes per row.

    Args:
        audit: the audit part of a store: ``store.audit``.
        anchors: further anchors.
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
                verifier._found("moved", segment, number, "the row is not stored under the tenant that it names")
        heads = [*await audit.anchors(), *anchors]
    except Exception as error:  # noqa: BLE001  (a log that cannot be read completely is a problem)
        verifier._found("unread", "?", None, f"reading the log failed: {type(error).__name__}")
        return verifier.end(anchors)
    return verifier.end(heads)


async def verify_rows(rows: Iterable[AuditRow] | AsyncIterable[AuditRow], anchors: Iterable[Head] = ()) -> AuditReport:
    """Verify rows from any source, such as your own sink."""
    verifier = Verifier()
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            verifier.row(row)
    else:
        for row in rows:
            verifier.row(row)
    return verifier.end(anchors)
