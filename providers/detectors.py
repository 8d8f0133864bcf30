"""Detectors of secrets in a text, one for each kind; the logs and the hooks that mask values share them.

Every detector runs in linear time: it never reads a run of characters a second time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

MASK = "***"

Detector: TypeAlias = Callable[[str, str], str]
"""Takes a text and the mask; returns the text with the found secrets masked."""

PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {
    "private_key": (re.compile(r"-----BEGIN [^-]{0,40}KEY-----.*?(?:-----END [^-]{0,40}KEY-----|$)", re.DOTALL), "{}"),
    "bearer": (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 {}"),
    "jwt": (re.compile(r"(?<![\w-])((?:(?!eyJ)[\w-])*+)eyJ[\w-]{4,}\.[\w-]{4,}(?:\.[\w-]*)*"), r"\1{}"),
    "api_key": (
        re.compile(
            r"\b(?:[sprw]k[-_]|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|hf_|npm_)[\w-]{8,}"
        ),
        "{}",
    ),
    "email": (re.compile(r"(?<![\w.+%'-])[\w.+%'-]+@[\w-]+(?:\.[\w-]+)+"), "{}"),
}
"""Kinds that a pattern can detect, with their replacements; ``{}`` stands for the mask."""

MARKERS = {"private_key": ("-----BEGIN ",), "jwt": ("eyJ",), "api_key": ("_", "-", "AKIA", "ASIA", "AIza", "ya29.")}
"""By kind, texts of which a finding has one: to look for these costs a tenth of the pattern."""

_DIGITS = re.compile(r"\d(?:[ -]?\d){12,}")
_GROUP = re.compile(r"\d+")
_CARD_DIGITS = range(13, 20)


def _by_pattern(pattern: re.Pattern[str], template: str) -> Detector:
    def detect(text: str, mask: str) -> str:
        return pattern.sub(template.format(mask.replace("\\", r"\\")), text)

    return detect


def mask_cards(text: str, mask: str) -> str:
    """Mask card numbers: 13 to 19 digits, grouped or not, with a valid check digit (Luhn)."""
    return _DIGITS.sub(lambda found: _without_cards(found[0], mask), text)


def _without_cards(run: str, mask: str) -> str:
    groups = [(found.start(), found.end()) for found in _GROUP.finditer(run)]
    masked, written, first = "", 0, 0
    while first < len(groups):
        last = _card_from(run, groups, first)
        if last is None:
            first += 1
            continue
        masked += run[written : groups[first][0]] + mask
        written, first = groups[last][1], last + 1
    return masked + run[written:]


def _card_from(run: str, groups: list[tuple[int, int]], first: int) -> int | None:
    """Return the index of the last group of the longest card number that begins with group *first*, or None."""
    digits, found = "", None
    for index in range(first, len(groups)):
        begin, end = groups[index]
        if len(digits) + end - begin > _CARD_DIGITS[-1]:
            break
        digits += run[begin:end]
        if len(digits) in _CARD_DIGITS and digits[0] in "23456" and _luhn(digits):
            found = index
    return found


def _luhn(digits: str) -> bool:
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if position % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


DETECTORS: dict[str, Detector] = {
    "card": mask_cards,
    **{name: _by_pattern(*found) for name, found in PATTERNS.items()},
}
"""All detectors, by the name that hooks accept."""


def detect(text: str, detectors: Iterable[Detector], mask: str) -> str:
    """Return *text* with the findings of the detectors masked."""
    for one in detectors:
        text = one(text, mask)
    return text
