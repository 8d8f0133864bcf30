"""The mask that keeps the arguments of a call out of texts, such as the message of an exception."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from callgate.providers.detectors import MASK
from callgate.providers.scrubbing import spellings

MAX_CHARACTERS = 8_192
"""Characters of the arguments that are searched for. With longer arguments the whole text is masked."""
MAX_VALUES = 1_000
MAX_BITS = 4_096
"""Bits of an integer that is searched for."""
MAX_TEXT = 4_096
PART = 6
"""Characters of an argument that are recognized: a text may quote a long argument in part."""
SHORTEST = 4
"""Shorter arguments are masked as whole words only."""


class ArgumentMask:
    """Masks the values of *arguments* in a text, which it cuts at ``MAX_TEXT`` characters.

    Values are found in plain form, without regard to case, in part, and as encoded in URLs, base64 and JSON. Keys are
    values as well, apart from the *declared* ones. Too many arguments to search for leave ``***`` alone.
    """

    def __init__(self, arguments: Iterable[Any], declared: Collection[str] = ()) -> None:
        values = _bounded(arguments, declared)
        self._whole = values is None
        self._parts: set[str] = set()
        self._short: set[str] = set()
        for value in values or ():
            for spelled in (value,) if len(value) < SHORTEST else spellings(value):
                searched = _folded(spelled)
                if len(searched) < PART:
                    self._short.add(searched)
                self._parts.update(searched[at : at + PART] for at in range(len(searched) - PART + 1))

    def __call__(self, text: str) -> str:
        """Return the masked text."""
        text = text[:MAX_TEXT]
        if self._whole:
            return MASK if text else text
        folded, hidden = _folded(text), bytearray(len(text))
        for value in self._short:
            _hide_each(value, folded, hidden)
        for at in range(len(text) - PART + 1) if self._parts else ():
            if folded[at : at + PART] in self._parts:
                hidden[at : at + PART] = b"\1" * PART
        return "".join(_visible(text, hidden))


def _folded(text: str) -> str:
    lower = text.lower()
    return lower if len(lower) == len(text) else text  # positions must stay the same


def _hide_each(value: str, text: str, hidden: bytearray) -> None:
    pattern = re.escape(value)
    if len(value) < SHORTEST:
        pattern = rf"(?<!\w){pattern}(?!\w)"
    for found in re.finditer(pattern, text):
        hidden[found.start() : found.end()] = b"\1" * (found.end() - found.start())


def _visible(text: str, hidden: bytearray) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = hidden.find(1 - hidden[at], at)
        end = len(text) if end < 0 else end
        yield MASK if hidden[at] else text[at:end]
        at = end


def _bounded(arguments: Iterable[Any], declared: Collection[str]) -> set[str] | None:
    """Return the texts of all values; None when there are too many."""
    found: set[str] = set()
    waiting, characters, seen = list(arguments), 0, 0
    while waiting:
        value = waiting.pop()
        seen += 1
        texts: list[str] = []
        if isinstance(value, str):
            texts = [value]
        elif isinstance(value, bytes | bytearray):
            texts = [bytes(value[: MAX_CHARACTERS + 1]).decode("utf-8", "replace")]
        elif isinstance(value, Mapping):
            texts = [key for key in value if isinstance(key, str) and key not in declared]
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, int | float):
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                return None
            texts = [] if isinstance(value, bool) else [repr(value)]
        elif value is not None:
            return None
        characters += sum(map(len, texts))
        found.update(text for text in texts if text)
        if characters > MAX_CHARACTERS or seen + len(waiting) > MAX_VALUES:
            return None
    return found
