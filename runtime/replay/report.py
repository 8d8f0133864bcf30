"""The report of a replay: recorded and replayed verdicts."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from callgate.providers.stores.base import AuditRow

RowSource: TypeAlias = "Iterable[AuditRow] | AsyncIterable[AuditRow] | tuple[object, object]"
"""Audit rows, or ``(since, until)`` in seconds since the epoch or as aware datetimes, None for open ends."""


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """The verdict of the hooks on a call: ``allowed``, ``answered`` (by a hook), ``denied``, ``retry_later`` and so on.

    For a refusal, ``code``, ``stage`` and ``hook`` identify the hook that refused.
    """

    what: str
    code: str | None = None
    stage: str | None = None
    hook: str | None = None

    def __str__(self) -> str:
        if self.stage is None:
            return self.what
        return f"{self.what} ({self.code}) by {self.hook} at {self.stage}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One recorded call with old and new verdict. ``now`` is None if it is undecidable; ``why`` gives the reason."""

    row: AuditRow
    was: ReplayVerdict
    now: ReplayVerdict | None
    why: str | None = None

    @property
    def flips(self) -> bool:
        """True if the new verdict, or the code of the refusal, differs from the recorded one."""
        return self.now is not None and (self.was.what, self.was.code) != (self.now.what, self.now.code)

    def __str__(self) -> str:
        body = self.row.body
        verdict = f"undecidable, {self.why}" if self.now is None else str(self.now)
        return f"{body['request_id']}: {body['tool']} for {body['user']}: {self.was} -> {verdict}"


@dataclass
class ReplayReport:
    """The result of a replay. ``rows`` counts recorded calls; calls in neither list keep their verdict."""

    rows: int = 0
    flips: list[Replayed] = field(default_factory=list)
    undecidable: list[Replayed] = field(default_factory=list)

    @property
    def same(self) -> int:
        """The number of verdicts that stay."""
        return self.rows - len(self.flips) - len(self.undecidable)

    @property
    def title(self) -> str:
        """The summary line."""
        return (
            f"replayed {self.rows} calls: {len(self.flips)} verdicts flip, {self.same} stay, "
            f"{len(self.undecidable)} undecidable"
        )

    def __str__(self) -> str:
        return "\n".join((self.title, *(f"  {one}" for one in (*self.flips, *self.undecidable))))

    def __rich__(self) -> object:
        """Return the report as a table for ``rich``."""
        from rich.table import Table
        from rich.text import Text  # recorded text must not act as markup

        table = Table("request", "tool", "user", "was", "would be", title=Text(self.title))
        for one in (*self.flips, *self.undecidable):
            now = (
                Text(f"undecidable, {one.why}", style="yellow") if one.now is None else Text(str(one.now), style="bold")
            )
            body = one.row.body
            table.add_row(Text(body["request_id"]), Text(body["tool"]), Text(body["user"]), Text(str(one.was)), now)
        return table
