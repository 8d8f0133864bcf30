"""Verification of an audit log: finds altered, missing, duplicate, moved and truncated rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from callgate.errors import HookError
from callgate.hooks.stock.records.audit_chain import micros, row_hash
from callgate.hooks.stock.records.audit_checkpoints import is_signed, signed_checkpoint
from callgate.hooks.stock.records.audit_links import Links
from callgate.hooks.stock.records.audit_signatures import RowSignatures, keys_of, namespace_of, plain_hash
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import (
    AuditCheckpoint,
    AuditRow,
    AuditSegment,
    AuditSnapshot,
    AuditStore,
    CheckpointKind,
)
from callgate.providers.stores.memory.audit import MemoryAuditSnapshot

Head: TypeAlias = tuple[str, int, str, float]
"""An anchor: segment, number, hash, seconds since the epoch."""
Progress: TypeAlias = Callable[["AuditReport"], None]
"""Called from time to time with the report of the rows so far."""

_SLICE = 200
"""Rows after which other tasks of the event loop have a turn: hashing these takes about 10 ms."""
_PROGRESS = 10_000
"""Rows between two calls of ``Progress``."""


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """One problem in an audit log. ``number`` is the row in its segment; None for a problem of the whole log.

    ``kind``: ``altered`` (the hash does not match), ``missing`` (rows or a whole segment), ``twice`` (a duplicate number),
    ``order`` (the row does not follow the one before), ``cut`` (rows covered by an anchor are missing), ``moved`` (the
    row is stored under another tenant), ``checkpoint`` (a checkpoint has no valid signature, or removed rows are stored),
    ``signature`` (the signature of the row is missing or not valid), ``unread`` (the log cannot be read).
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
    """The result of a verification. ``unanchored`` counts rows after the last anchor; their loss cannot be detected.

    ``rows`` counts the rows that were read. ``skipped`` counts the segments that began at a checkpoint of verified rows,
    ``pruned`` the segments that began at a pruning checkpoint. ``dropped`` counts the rows that a store of limited size
    has dropped. ``unsigned`` counts rows without a signature, if there are keys; ``unchecked`` counts signed rows, if not.
    """

    rows: int = 0
    segments: int = 0
    anchors: int = 0
    unanchored: int = 0
    skipped: int = 0
    pruned: int = 0
    dropped: int = 0
    unsigned: int = 0
    unchecked: int = 0
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
        limits = (
            (
                self.unanchored,
                "rows come after the last anchor of their segment: a truncation there cannot be detected",
            ),
            (self.skipped, "segments were verified from a signed checkpoint on: earlier rows were not read again"),
            (self.pruned, "segments begin after rows that were removed under a signed checkpoint"),
            (self.dropped, "rows were dropped by a store of limited size: what is left was verified"),
            (self.unsigned, "rows are not signed: a writer of the database could have computed them anew"),
            (self.unchecked, "rows are signed: give the signing keys to check their signatures"),
        )
        return tuple(f"{count} {text}" for count, text in limits if count)

    def __rich__(self) -> object:
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


class _Mark(NamedTuple):
    """The known hash of a row: from an anchor, or from a checkpoint of verified rows."""

    number: int
    hash: str
    what: str


class Verifier:
    """Walks the segments of a snapshot by number, and reports the problems. Its memory does not grow with the rows."""

    def __init__(
        self,
        snapshot: AuditSnapshot,
        anchors: Iterable[Head] = (),
        keys: SigningKeys | None = None,
        *,
        incremental: bool = False,
        progress: Progress | None = None,
        signatures: RowSignatures | None = None,
    ) -> None:
        self.report = AuditReport()
        self.signatures = signatures or RowSignatures(keys)
        self.heads: list[tuple[str, int, str]] = []  # the last row of each segment with new rows and no problem
        self._snapshot = snapshot
        self._keys = keys
        self._incremental = incremental
        self._progress = progress
        self._links = Links(snapshot, self._found)
        self._outside: dict[str, list[_Mark]] = {}
        for name, number, hash, _ in sorted(set(anchors)):
            self._outside.setdefault(name, []).append(_Mark(number, hash, "anchor"))

    async def verify(self) -> None:
        """Verify every segment.

        Raises:
            StoreError: the log cannot be read.
        """
        async for segment in self._snapshot.segments():
            before = len(self.report.problems)
            head = await self._verify_segment(segment)
            if head is not None and len(self.report.problems) == before:
                self.heads.append((segment.name, *head))
        self.report.unsigned, self.report.unchecked = self.signatures.unsigned, self.signatures.unchecked
        await self._links.verify()
        for name, marks in self._outside.items():
            for mark in marks:
                self._cut(name, mark, 0)

    async def _verify_segment(self, segment: AuditSegment) -> tuple[int, str] | None:
        """Verify a segment. Return number and hash of its last row, if new rows were read."""
        name = segment.name
        pruned, verified = self._signed(segment)
        outside = self._outside.pop(name, [])
        self.report.segments += bool(segment.hash)
        number, kept_head = (0, "") if pruned is None else (pruned.number, pruned.hash)
        dropped = segment.dropped if segment.dropped is not None and segment.dropped[0] > number else None
        if dropped is not None:
            self.report.dropped += dropped[0] - number
            number, kept_head = dropped
            verified = None if verified is None or verified.number <= number else verified
        head: str | None = kept_head
        self._links.add_segment(segment, number)
        if pruned is not None:
            self.report.pruned += 1
            if segment.hash and segment.first <= pruned.number:
                self._found("checkpoint", name, segment.first, "rows that a pruning checkpoint covers are stored")
        first = min(segment.first - 1, 0) if pruned is None and dropped is None else number
        marks = [*outside] if verified is None else [*outside, _Mark(verified.number, verified.hash, "checkpoint")]
        if verified is not None and self._incremental:
            self.report.skipped += 1
            last = max([segment.anchored, *(mark.number for mark in outside)])
            if (verified.number, verified.hash) == (segment.last, segment.hash) and last <= verified.number:
                return None
            number = first = verified.number - 1
            head = None
        walk = _Walk(self, segment, number, head)
        await self._walk_rows(walk, segment, first, self._marks(segment, first, sorted(marks)))
        self.report.unanchored += walk.unanchored
        if walk.head is None or not segment.hash or walk.number <= (0 if verified is None else verified.number):
            return None
        return walk.number, walk.head

    async def _walk_rows(self, walk: _Walk, segment: AuditSegment, after: int, marks: AsyncIterator[_Mark]) -> None:
        """Read the rows of a segment, and compare them with their known hashes."""
        mark = await anext(marks, None)
        async for owner, row in self._snapshot.rows(segment.name, after):
            while mark is not None and mark.number < row.number:
                self._cut(segment.name, mark, segment.last)
                mark = await anext(marks, None)
            walk.row(owner, row)
            if walk.first is not None:
                await self._links.add(walk.first)
                walk.first = None
            if self.report.rows % _SLICE == 0:
                await asyncio.sleep(0)
            while mark is not None and mark.number == row.number:
                walk.compare(row, mark)
                mark = await anext(marks, None)
        while mark is not None:
            self._cut(segment.name, mark, segment.last)
            mark = await anext(marks, None)

    def _signed(self, segment: AuditSegment) -> tuple[AuditCheckpoint | None, AuditCheckpoint | None]:
        """Return the last checkpoint of removed rows, and the checkpoint of verified rows after it."""
        found: dict[CheckpointKind, AuditCheckpoint] = {}
        for one in segment.checkpoints:
            if self._keys is not None and not is_signed(self._keys, one):
                self._found("checkpoint", one.segment, one.number, "the signature of its checkpoint is not valid")
            elif self._keys is not None or one.kind is CheckpointKind.PRUNED:
                found[one.kind] = one
        pruned, verified = found.get(CheckpointKind.PRUNED), found.get(CheckpointKind.VERIFIED)
        if pruned is not None and self._keys is None:
            text = "rows up to here were removed under a signed checkpoint; give its signing key to verify it"
            self._found("checkpoint", pruned.segment, pruned.number, text)
        return pruned, None if pruned and verified and verified.number <= pruned.number else verified

    async def _marks(self, segment: AuditSegment, after: int, others: list[_Mark]) -> AsyncIterator[_Mark]:
        """Read the anchors of a segment after a number, and give them with *others* in the order of numbers."""
        others = [mark for mark in others if mark.number > after]
        if segment.anchored > after:
            async for number, hash in self._snapshot.anchors(segment.name, after):
                mark = _Mark(number, hash, "anchor")
                while others and others[0] <= mark:
                    if others[0] != mark:
                        yield others[0]
                    del others[0]
                yield mark
        for mark in others:
            yield mark

    def _cut(self, segment: str, mark: _Mark, last: int) -> None:
        self.report.anchors += mark.what == "anchor"
        self._found("cut", segment, mark.number, f"its {mark.what} covers {mark.number} rows; the last row is {last}")

    def _found(self, kind: str, segment: str, number: int | None, text: str) -> None:
        self.report.problems.append(AuditProblem(kind, segment, number, text))


class _Walk:
    """The rows of one segment. ``number`` and ``head`` are number and hash of the row before; None: not known."""

    def __init__(self, verifier: Verifier, segment: AuditSegment, number: int, head: str | None) -> None:
        self._verifier = verifier
        self._found = verifier._found
        self._name = segment.name
        self._begin = number
        self.number = number
        self.head = head
        self.unanchored = 0
        self.first: AuditRow | None = None  # the row with number 1, until its links are noted

    def row(self, owner: str, row: AuditRow) -> None:
        """Check the hash, the tenant, the number and the previous hash of one row."""
        report, number = self._verifier.report, row.number
        report.rows += 1
        self.unanchored += 1
        if self._verifier._progress is not None and report.rows % _PROGRESS == 0:
            self._verifier._progress(report)
        if number == self.number > self._begin:
            self._found("twice", self._name, number, "another row has this number")
            return
        if not _hash_matches(row):
            self._found("altered", self._name, number, "the row does not match its hash")
        elif owner != _owner(row):
            self._found("moved", self._name, number, "the row is not stored under the tenant that it names")
        elif (problem := self._verifier.signatures.problem(row)) is not None:
            self._found("signature", self._name, number, problem)
        if number < 1:
            self._found("order", self._name, number, "row numbers begin at 1")
            return
        if number > self.number + 1:
            gone = self.number + 1
            text = f"row {gone} is" if number == gone + 1 else f"rows {gone} to {number - 1} are"
            self._found("missing", self._name, number, f"{text} missing before it")
        elif number == 1 and self.head is not None:
            self.first = row
        elif self.head is not None and not _follows(row, self.head):
            self._found("order", self._name, number, "its previous hash is not the hash of the row before it")
        self.number, self.head = number, row.hash

    def compare(self, row: AuditRow, mark: _Mark) -> None:
        """Compare a row with its anchor or checkpoint."""
        self._verifier.report.anchors += mark.what == "anchor"
        self.unanchored = 0
        if mark.hash != row.hash:
            self._found("altered", self._name, row.number, f"the hash of the row differs from its {mark.what}")


def _follows(row: AuditRow, head: str) -> bool:
    return row.previous == head


def _owner(row: AuditRow) -> str:
    tenant = row.body.get("tenant") if isinstance(row.body, Mapping) else None
    return tenant if isinstance(tenant, str) else ""


def _hash_matches(row: AuditRow) -> bool:
    try:
        return (
            row_hash(row.body, row.segment, row.number, row.previous) == plain_hash(row)
            and micros(row.at) == row.body["at_us"]
        )
    except (
        TypeError,
        ValueError,
        KeyError,
        RecursionError,
    ):  # a body that cannot be hashed was never written by Callgate
        return False


async def verify_audit(
    audit: AuditStore,
    anchors: Iterable[Head] = (),
    *,
    signing_keys: Iterable[str | bytes] = (),
    signed_since: float | None = None,
    incremental: bool = False,
    progress: Progress | None = None,
    now: Callable[[], float] = time.time,
) -> AuditReport:
    """Verify one snapshot of the audit log of a store against its own anchors and the given ones.

    It finds every altered, missing, duplicate or reordered row, and missing rows and segments that
    an anchor or a link covers. It cannot find a truncation after the last of them, or a log rewritten together with its anchors. Against a rewrite, give anchors that
    are kept where the writer of the log has no access. The memory does not grow with the number of rows. Processes may
    write meanwhile.

    Args:
        audit: the audit part of a store: ``store.audit``.
        anchors: further anchors.
        signing_keys: keys of rows and checkpoints, as in ``Gate(signing_keys=)``; needed after rows were removed.
        signed_since: seconds since the epoch; a row from this time on without a signature is a problem.
        incremental: begin each segment at its last checkpoint, and store new signed checkpoints if there is no problem.
            Rows before a checkpoint are not read again, so a later change of them is not found.
        progress: a function of the report, called every 10,000 rows.
        now: a clock in seconds since the epoch.

    Raises:
        HookError: ``incremental`` or ``signed_since`` without signing keys.
    """
    keys = keys_of(signing_keys)
    if incremental and keys is None:
        raise HookError("an incremental verification needs signing_keys: its checkpoints are signed")
    if signed_since is not None and keys is None:
        raise HookError("signed_since needs signing_keys: without a key, no signature can be checked")
    verifier: Verifier | None = None
    try:
        async with audit.snapshot() as snapshot:
            signatures = RowSignatures(keys, namespace_of(audit), signed_since)
            verifier = Verifier(
                snapshot, anchors, keys, incremental=incremental, progress=progress, signatures=signatures
            )
            await verifier.verify()
    except Exception as error:  # noqa: BLE001  (a log that cannot be read completely is a problem)
        report = AuditReport() if verifier is None else verifier.report
        report.problems.append(AuditProblem("unread", "?", None, f"reading the log failed: {type(error).__name__}"))
        return report
    if incremental and keys is not None and verifier.report.ok:
        kind, at = CheckpointKind.VERIFIED, now()
        await audit.checkpoint([signed_checkpoint(keys, kind, *head, at) for head in verifier.heads])
    return verifier.report


async def verify_rows(rows: Iterable[AuditRow] | AsyncIterable[AuditRow], anchors: Iterable[Head] = ()) -> AuditReport:
    """Verify rows from any source, such as your own sink, in any order. All rows are kept in memory."""
    found = [row async for row in rows] if isinstance(rows, AsyncIterable) else list(rows)
    verifier = Verifier(MemoryAuditSnapshot((_owner(row), row) for row in found), anchors)
    await verifier.verify()
    return verifier.report
