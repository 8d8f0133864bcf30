"""Text and words of a query or tool: split identifiers, stems, letter pairs for scripts without spaces.

Results do not depend on the order of a dict, on hash seeds or on the machine. Time is limited by ``MAX_TEXT``.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cache, lru_cache
from pathlib import PurePath
from uuid import UUID

from callgate.tools.picking.stemming import stem
from callgate.tools.picking.words import STOP

MAX_TEXT = 20_000
"""Characters of a text that are read; of a longer text, half of them from the start and half from the end."""

_MAX_VALUES = 2_000
_MAX_DEPTH = 32
_MAX_WORD = 64
_MAX_BITS = 2_000  # Python refuses to format longer integers where a limit is set
_REMEMBERED = 32  # characters of a word whose terms are cached; longer words are rare, and would fill the memory
_WRITTEN = bool | int | float | bytes | bytearray | Decimal | datetime | date | time | UUID | PurePath

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\x00-\x7f]+")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
# Scripts without spaces: Thai, Lao, Myanmar, Khmer, kana, Han; and Hangul, whose words include particles.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_RUNS = re.compile(f"[{_DENSE}]+|[^{_DENSE}]+")
_DENSE_START = re.compile(f"[{_DENSE}]")


def terms(text: str) -> list[str]:
    """Return the words of a text as an index keeps them: in order, with repetitions, without stop words.

    ``getUserInfo``, ``get_user_info`` and ``get-user-info`` give the same words; a name in camel case also gives the
    whole name. Text in Chinese, Japanese, Korean or Thai gives pairs of neighbouring letters.
    """
    found: list[str] = []
    for word in _words(text):
        found += _known_terms(word) if len(word) <= _REMEMBERED else _terms_of(word)
    return found


def plain_words(text: str) -> list[str]:
    """Return the words of a text, with identifiers split and case folded, but without stemming."""
    found: list[str] = []
    for word in _words(text):
        found += _known_parts(word) if len(word) <= _REMEMBERED else _split(word)
    return found


def as_text(value: object) -> str:
    """Convert a value to text for a search; an object gives its keys and values, in the order of its keys.

    Any value is allowed. It is cut at 32 levels, 2,000 values, and cycles. Of a long text in an object, both ends count;
    a plain text is returned unchanged.
    """
    if isinstance(value, str):
        return value
    walk = _Walk()
    walk.take(value, 0)
    return "\n".join(walk.found)


def both_ends(text: str, limit: int = MAX_TEXT) -> str:
    """Shorten a text to about *limit* characters: half from the start and half from the end."""
    return text if len(text) <= limit else f"{text[: limit // 2]} {text[-(limit // 2) :]}"


def _words(text: str) -> list[str]:
    text = both_ends(text)
    if text.isascii():
        return _ASCII_WORD.findall(text)
    return _any_word().findall(unicodedata.normalize("NFKC", text))


@cache
def _any_word() -> re.Pattern[str]:
    """A pattern for letters and digits of any script with their combining marks; compiled at first use."""
    marks = [chr(code) for code in range(0x300, 0x3100) if unicodedata.category(chr(code))[0] == "M"]
    return re.compile(f"(?:[^\\W_]|[{''.join(marks)}])+")


def _terms_of(word: str) -> tuple[str, ...]:
    parts = _split(word)
    if len(parts) > 1 and word.isascii():
        parts = (*parts, word.lower()[:_MAX_WORD])
    kept = (part for part in parts if part not in STOP and (len(part) > 1 or not part.isascii()))
    return tuple(sys.intern(stem(part)) for part in kept)


def _split(word: str) -> tuple[str, ...]:
    if word.isascii():
        return tuple(part.lower()[:_MAX_WORD] for part in _PARTS.findall(word))
    found: list[str] = []
    for run in _RUNS.findall(word):
        if _DENSE_START.match(run):
            found += [run[at : at + 2] for at in range(len(run) - 1)] or [run]
        elif run.isascii():
            found += _split(run)
        else:
            found.append(_folded(run)[:_MAX_WORD])
    return tuple(found)


_known_terms = lru_cache(maxsize=1 << 15)(_terms_of)
_known_parts = lru_cache(maxsize=1 << 13)(_split)


def _folded(word: str) -> str:
    """Fold case and remove accents: "Café" becomes "cafe"; marks of other scripts stay."""
    apart = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(letter for letter in apart if not "\u0300" <= letter <= "\u036f"))


class _Walk:
    """One walk through a value, of limited length despite cycles; ``found`` are its texts."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.left = _MAX_VALUES

    def take(self, value: object, depth: int) -> None:
        if self.left <= 0 or depth > _MAX_DEPTH or value is None:
            return
        self.left -= 1
        if isinstance(value, str):
            self.found.append(both_ends(value))
        elif isinstance(value, _WRITTEN):
            self.found.append(_safe_str(value))
        elif isinstance(value, Mapping):
            self._mapping(value, depth)
        elif isinstance(value, AbstractSet):
            self._set(value, depth)
        elif isinstance(value, list | tuple):
            for item in value[:_MAX_VALUES]:
                self.take(item, depth + 1)
        else:
            self.take(value.value if isinstance(value, Enum) else _state(value), depth + 1)

    def _mapping(self, value: Mapping[object, object], depth: int) -> None:
        for key, item in sorted(((_key(key), item) for key, item in value.items()), key=lambda pair: pair[0]):
            if self.left <= 0:
                return
            self.left -= 1
            self.found.append(key)
            self.take(item, depth + 1)

    def _set(self, value: AbstractSet[object], depth: int) -> None:
        """Add a set in alphabetical order. A set that is too large adds nothing, because its order is arbitrary."""
        kept, texts = self.found, list[str]()
        for item in value:
            if self.left <= 0:
                break
            self.found = []
            self.take(item, depth + 1)
            texts.append("\n".join(self.found))
        self.found = kept
        if self.left > 0:
            kept += sorted(texts)


def _state(value: object) -> dict[str, object] | None:
    """The public attributes of an object; never its ``repr``, which may hold an address."""
    if isinstance(value, type) or callable(value):
        return {"": getattr(value, "__name__", "")}
    if is_dataclass(value):
        return {one.name: getattr(value, one.name, None) for one in fields(value)}
    state = getattr(value, "__dict__", None)
    if not isinstance(state, dict):
        return None
    return {name: item for name, item in state.items() if not name.startswith("_")}


def _safe_str(value: object) -> str:
    """The text of a simple value; else the name of its type."""
    if isinstance(value, bytes | bytearray):
        return bytes(value[:MAX_TEXT]).decode("utf-8", "replace")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return ""
    return both_ends(str(value)) if isinstance(value, str | _WRITTEN) else type(value).__name__


def _key(value: object) -> str:
    """The text of a mapping's key; for a tuple or a member of an ``Enum``, of its contents."""
    if isinstance(value, Enum):
        value = value.value
    return " ".join(map(_safe_str, value[:_MAX_DEPTH])) if isinstance(value, tuple) else _safe_str(value)


def joined(parts: Iterable[str]) -> str:
    """Join texts with separators."""
    return "\n".join(part for part in parts if part)
