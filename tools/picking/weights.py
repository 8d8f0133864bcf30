"""Parameters of the default scorer, the same for every catalogue; see benchmarks/selection.py for their choice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """One field of BM25F: the weight of a word, the influence of length (b), and the usual length in words.

    The usual length is fixed, not the mean of the catalogue. So the weights of a tool depend on that tool alone, other
    tools do not change them, and a score means the same in any catalogue.
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
"""Saturation: the second occurrence of a word adds less than the first."""

WEAK_WORD = 0.5
"""The factor of a word of ``words.WEAK``, beside its rarity."""
FAINT_WORD = 0.2
"""The factor of a word of ``words.FAINT``."""
NUMBER = 0.3
"""The factor of a number: most are values for a parameter and say nothing about the tool."""
GROUP = 0.45
"""The factor of a word of the same line of ``words.GROUPS``, beside the word itself."""
PAIR = 0.6
"""The factor of two words that are neighbours in the query and in the tool."""

LEAST_FACTOR = 0.06
"""The minimum of factor times rarity; words of nearly every tool of a large catalogue are below it."""

IDF_PRIOR = 500
"""Tools that are added to the count of every catalogue, so that rarity is meaningful for three tools."""

SCORE_HALF = 5.5
"""The sum of word weights with a score of one half."""
SCORE_STEEPNESS = 1.5
