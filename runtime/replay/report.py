"""What a replay found: verdicts then and now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from callgate.providers.stores.base import AuditRow


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hooks made of a call: ``allowed``, ``answered`` (by a hook), ``denied``, ``retry_later``, ``invalid`` and so on.

    ``code``, ``stage`` and ``hook`` say who refused it, for a refusal.
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
    """One recorded call: its verdict then and now. ``now`` is None where ``why`` says that it cannot be told."""

    row: AuditRow
    was: Verdict
    now: Verdict | None
    why: str | None = None

    @property
    def flips(self) -> bool:
        """Whether the call would have ended otherwise: another verdict, or a refusal with another code."""
        return self.now is not None and (self.was.what, self.was.code) != (self.now.what, self.now.code)

    def __str__(self) -> str:
        body = self.row.body
        told = f"undecidable, {self.why}" if self.now is None else str(self.now)
        return f"{body['request_id']}: {body['tool']} for {body['user']}: {self.was} -> {told}"


@dataclass
class ReplayReport:
    """What a replay found. ``rows`` counts recorded calls; those that are neither listed ended as they did."""

    rows: int = 0
    flips: list[Replayed] = field(default_factory=list)
    undecidable: list[Replayed] = field(default_factory=list)

    @property
    def same(self) -> int:
        """How many verdicts stay."""
        return self.rows - len(self.flips) - len(self.undecidable)

    @property
    def title(self) -> str:
        """The figures."""
        return (
            f"replayed {self.rows} calls: {len(self.flips)} verdicts flip, {self.same} stay, "
            f"{len(self.undecidable)} undecidable"
        )

    def __str__(self) -> str:
        return "\n".join((self.title, *(f"  {one}" for one in (*self.flips, *self.undecidable))))

    def __rich__(self) -> Any:
        """A table for rich."""
        from rich.table import Table
        from rich.text import Text  # what stands in a record is no markup

        table = Table("request", "tool", "user", "was", "would be", title=Text(self.title))
        for one in (*self.flips, *self.undecidable):
            now = (
                Text(f"undecidable, {one.why}", style="yellow") if one.now is None else Text(str(one.now), style="bold")
            )
            body = one.row.body
            table.add_row(Text(body["request_id"]), Text(body["tool"]), Text(body["user"]), Text(str(one.was)), now)
        return table
