"""The numbers of the default scorer, all of them; the same for every catalogue (how they were found: benchmarks/selection.py)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIELDS", "Field"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of BM25F: what a word in it weighs, how far length counts against it (b), and its usual length in words.

    The usual length is fixed, not the catalogue's mean: a tool's weights then depend on that tool alone, so that adding
    or removing another one changes none of them, and a score means the same in any catalogue.
    """

    name: str
    weight: float
    b: float
    usual: float


FIELDS = (
    Field("name", 2.0, 0.6, 4.0),
    Field("title", 1.5, 0.6, 4.0),
    Field("description", 1.0, 0.7, 10.0),
    Field("tags", 0.5, 0.3, 1.5),
    Field("parameter_names", 0.5, 0.5, 6.0),
    Field("parameter_descriptions", 0.3, 0.5, 50.0),
    Field("examples", 0.3, 0.5, 20.0),
)
K1 = 1.5
"""Saturation: the second mention of a word adds less than the first."""

WEAK_WORD = 0.5
"""What a word of ``words.WEAK`` counts, beside its rarity."""
FAINT_WORD = 0.2
"""What a word of ``words.FAINT`` counts."""
NUMBER = 0.3
"""What a number counts: most are values for a parameter and tell nothing about the tool."""
GROUP = 0.45
"""What a word of the same line of ``words.GROUPS`` counts, beside the word itself."""
PAIR = 0.6
"""What two words count that stand side by side in the query and in the tool."""

LEAST_FACTOR = 0.06
"""Worth times rarity below which a word is passed over; words of nearly every tool of a large catalogue lie there."""

IDF_PRIOR = 500
"""Tools that every catalogue is taken to have beside its own, so that rarity means something where there are three."""

SCORE_HALF = 5.5
"""Matched words, weighed, at which the score is one half."""
SCORE_STEEPNESS = 1.5
