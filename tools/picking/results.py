"""Results of a pick: tools with a score and a reason, and exclusions with their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FALLBACK = "fallback:registration-order"
"""The scorer's name in results after a timeout."""


@dataclass(frozen=True, slots=True)
class Score:
    """A scorer's verdict on one tool: a score from 0 to 1, and the reason."""

    score: float
    reason: str | None = None
    details: Any = None


def fell_back(score: Score) -> bool:
    """True when the details name a fallback to another scorer; such details are always shown."""
    return isinstance(score.details, Mapping) and "fallback" in score.details


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a score, for audit."""

    scorer: str | None = None
    details: Any = None


@dataclass(frozen=True, slots=True)
class PickResult:
    """One picked tool.

    ``tool`` is the given object: the class, function, record, definition or mapping; never an instance.
    ``score`` is 0 to 1; ``provenance`` is present with ``debug=True``, and after a fallback.
    """

    tool: Any
    score: float
    reason: str | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Excluded:
    """An excluded tool. For logs and audit only: a model must not learn of a hidden tool."""

    name: str
    reason: str


class Picks(list[PickResult]):
    """The results, best first: a list with additional facts for audit.

    ``considered`` is the number of scored tools, ``excluded`` are the others with reasons, ``scorer`` is the scorer.
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
