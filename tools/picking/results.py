"""What a pick gives: tools with a score and a reason, and what was left out, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Excluded", "PickResult", "Picks", "Provenance", "Score"]

FALLBACK = "fallback:registration-order"
"""The scorer that is named where scoring took too long (contract C32)."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a scorer says of one tool (contract 64): 0 to 1, and why."""

    score: float
    reason: str | None = None
    details: Any = None


def fell_back(score: Score) -> bool:
    """Whether its details say that another scorer had to decide; they are then shown without being asked for."""
    return isinstance(score.details, Mapping) and "fallback" in score.details


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a score comes from, for audit (contract 64, 69)."""

    scorer: str | None = None
    details: Any = None


@dataclass(frozen=True, slots=True)
class PickResult:
    """One tool that was picked (contract 64).

    ``tool`` is what was given: the class, function, record, definition or mapping; never an instance.
    ``score`` is 0 to 1; ``provenance`` is there with ``debug=True``, and whenever scoring fell back.
    """

    tool: Any
    score: float
    reason: str | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Excluded:
    """A tool that was not scored, and why. For logs and audit: to a model, a hidden tool does not exist."""

    name: str
    reason: str


class Picks(list[PickResult]):
    """The results, best first: a list, with what an audit asks for beside it (contract 69).

    ``considered`` is how many tools were scored, ``excluded`` which were not and why, ``scorer`` who scored.
    """

    def __init__(
        self,
        results: Iterable[PickResult] = (),
        *,
        considered: int = 0,
        excluded: tuple[Excluded, ...] = (),
        scorer: str = "",
    ) -> None:
        super().__init__(results)
        self.considered = considered
        self.excluded = excluded
        self.scorer = scorer
