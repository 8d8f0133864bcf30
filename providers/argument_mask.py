"""The mask that keeps the arguments of a call out of texts, such as the message of an exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from callgate.providers.detectors import MASK
from callgate.providers.spellings import escaped_spellings, plain_spellings

MAX_CHARACTERS = 8_192
"""Characters of the arguments that are searched for. With longer arguments the whole text is masked."""
MAX_VALUES = 1_000
MAX_BITS = 4_096
"""Bits of an integer that is searched for."""
MAX_TEXT = 4_096
PART = 6
"""Characters of an argument that are recognized: a text may quote a long argument in part."""
FEW = 128
"""Characters of a text that is compared with the joined spellings; for a longer one their parts are a set."""
SHORTEST = 4
"""Shorter arguments are left alone: a message without each ``1`` and each ``id`` cannot be read."""


class ArgumentMask:
    """Masks the values of *arguments* in a text, which it cuts at ``MAX_TEXT`` characters.

    Values of at least four characters are found in plain form, without regard to case, in part, and as encoded in URLs,
    base64 and JSON. Keys are values as well, apart from the *declared* ones. Too many arguments to search for leave
    ``***`` alone.
    """

    __slots__ = ("_arguments", "_ascii", "_declared", "_escaped", "_plain", "_values")

    def __init__(self, arguments: Iterable[object], declared: Collection[str] = ()) -> None:
        self._arguments, self._declared = arguments, declared
        self._values: list[str] | None = None
        self._plain: str | None = None
        self._escaped: str | None = None

    def __call__(self, text: str) -> str:
        """Return the masked text."""
        text = text[:MAX_TEXT]
        if not text:
            return text
        if self._plain is None:  # the first text makes the spellings; most calls have none
            values = _bounded(self._arguments, self._declared)
            self._values = None if values is None else [value for value in values if len(value) >= SHORTEST]
            self._ascii = all(map(str.isascii, self._values or ()))
            self._plain = _joined(self._values or (), plain_spellings)
        if self._values is None:
            return MASK
        folded, spelled = _folded(text), self._plain
        # A text shows an ASCII value otherwise than in plain form only if it has an escape or hexadecimal.
        if not self._ascii or "%" in text or "+" in text or "\\" in text or _HEX.search(folded):
            if self._escaped is None:
                self._escaped = _joined(self._values, escaped_spellings)
            spelled = f"{spelled}\0{self._escaped}"
        return _masked(text, folded, spelled) if len(text) > FEW or _may_show(folded, spelled) else text


def _joined(values: Iterable[str], spell: Callable[[str], Iterable[str]]) -> str:
    """Return the spellings of some values, joined by NUL."""
    joined = "\0".join([one for value in values for one in spell(value)])
    return joined.lower() if joined.isascii() else "\0".join(map(_folded, joined.split("\0")))


_HEX = re.compile(r"[0-9a-f][0-9a-f]{5}")  # so written, it is searched for twice as fast


def _may_show(text: str, spelled: str) -> bool:
    """Return False if a text shows nothing of *spelled*; each part to hide, even one of four characters, has one of these."""
    for at in range(0, len(text) - 2, 2):  # noqa: SIM110  (a generator costs more than all the searches)
        if text[at : at + 3] in spelled:
            return True
    return False


def _masked(text: str, folded: str, spelled: str) -> str:
    hidden = bytearray(len(text))
    for value in spelled.split("\0"):
        if SHORTEST <= len(value) < PART:
            _hide_each(value, folded, hidden)
    parts = _parts(spelled, len(text))
    for at in range(len(text) - PART + 1):
        if folded[at : at + PART] in parts:
            hidden[at : at + PART] = b"\1" * PART
    return "".join(_visible(text, hidden))


def _parts(spelled: str, length: int) -> str | set[str]:
    """Return what holds each part of the spellings. For a text of few characters, a set costs more to make than it saves."""
    if length <= FEW:
        return spelled
    return {spelled[at : at + PART] for at in range(len(spelled) - PART + 1)}


def _folded(text: str) -> str:
    lower = text.lower()
    return lower if len(lower) == len(text) else text  # positions must stay the same


def _hide_each(value: str, text: str, hidden: bytearray) -> None:
    for found in re.finditer(re.escape(value), text):
        hidden[found.start() : found.end()] = b"\1" * (found.end() - found.start())


def _visible(text: str, hidden: bytearray) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = hidden.find(1 - hidden[at], at)
        end = len(text) if end < 0 else end
        yield MASK if hidden[at] else text[at:end]
        at = end


def _bounded(arguments: Iterable[object], declared: Collection[str]) -> set[str] | None:
    """Return the texts of all values; None when there are too many, or one cannot be searched for."""
    found: set[str] = set()
    waiting, characters, seen = list(arguments), 0, 0
    while waiting:
        value = waiting.pop()
        seen += 1
        texts: Iterable[str] = ()
        if isinstance(value, str):
            texts = (value,)
        elif value is None or isinstance(value, int | float | bytes | bytearray):
            if (text := _text_of(value)) is None:
                return None
            texts = (text,)
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, Mapping):  # behind the others: to ask an abstract class costs more than all of them
            waiting.extend(value.values())
            texts = [key for key in value if isinstance(key, str) and key not in declared]
        else:
            return None
        for text in texts:
            characters += len(text)
            found.add(text)
        if characters > MAX_CHARACTERS or seen + len(waiting) > MAX_VALUES:
            return None
    return found


def _text_of(value: float | bytes | bytearray | None) -> str | None:
    """Return the text of a value; None for a number with too many digits to write them."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, bytes | bytearray):
        return bytes(value[: MAX_CHARACTERS + 1]).decode("utf-8", "replace")
    return None if isinstance(value, int) and value.bit_length() > MAX_BITS else repr(value)


def names_of_properties(schema: object) -> set[str]:
    """Return the names of the properties that a schema declares."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            properties = part.get("properties")
            found.update(properties if isinstance(properties, Mapping) else ())
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
    return found
