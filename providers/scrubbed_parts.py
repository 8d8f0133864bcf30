"""Removal of secrets that a stream carries in pieces: parts are held back while a secret may have begun in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from callgate.providers.detectors import MASK

MOST_HELD = 256
"""Parts that are held back at most; then the beginning of a possible secret is masked."""

_Path: TypeAlias = tuple[str | int, ...]


class PartScrubber:
    """Removes *secrets* from the parts of one output. Texts at the same place of several parts are read as one text."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.secrets = secrets
        self._held: list[object] = []

    def feed(self, part: object) -> list[object]:
        """Take the next part; return the parts that may be shown."""
        self._held.append(part)
        for path, _ in _texts(part, ()):
            self._mask(path)
        open_at = self._first_open()
        if open_at < len(self._held) - MOST_HELD:
            for path in {path for one in self._held for path, _ in _texts(one, ())}:
                self._mask(path, beginnings=True)
            open_at = len(self._held)
        shown, self._held = self._held[:open_at], self._held[open_at:]
        return shown

    def flush(self) -> list[object]:
        """Return what is held back: the stream has ended."""
        shown, self._held = self._held, []
        return shown

    def _pieces(self, path: _Path) -> list[tuple[int, str]]:
        """Return the texts at one place of the parts held, each with the index of its part."""
        found = ((index, _at(part, path)) for index, part in enumerate(self._held))
        return [(index, text) for index, text in found if isinstance(text, str)]

    def _mask(self, path: _Path, *, beginnings: bool = False) -> None:
        pieces = self._pieces(path)
        joined = "".join(text for _, text in pieces)
        spans = list(_spans(joined, self.secrets))
        if beginnings and (open_from := _beginning(joined, self.secrets)) < len(joined):
            spans.append((open_from, len(joined)))
        at = 0
        for index, text in pieces if spans else ():
            self._held[index] = _with(self._held[index], path, _without(text, at, spans))
            at += len(text)

    def _first_open(self) -> int:
        """Return the index of the first part in which a secret may have begun, or the number of parts."""
        first = len(self._held)
        for path in {path for part in self._held for path, _ in _texts(part, ())}:
            pieces = self._pieces(path)
            joined = "".join(text for _, text in pieces)
            at, open_from = 0, _beginning(joined, self.secrets)
            for index, text in pieces:
                at += len(text)
                if at > open_from:
                    first = min(first, index)
                    break
        return first


def _without(text: str, at: int, spans: Sequence[tuple[int, int]]) -> str:
    """Return a piece, which begins *at*, without its share of the spans; the mask stands where a span begins."""
    kept, cursor = [], at
    for begin, end in spans:
        if at <= begin < at + len(text):
            kept += [text[cursor - at : begin - at], MASK]
        if begin < at + len(text):
            cursor = max(cursor, end)
    return "".join([*kept, text[cursor - at :]])


def _spans(text: str, secrets: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where secrets are, from left to right; the longest of those that begin at one place."""
    at = 0
    while found := min(((begin, -len(one)) for one in secrets if (begin := text.find(one, at)) >= 0), default=None):
        at = found[0] - found[1]
        yield found[0], at


def _beginning(text: str, secrets: Sequence[str]) -> int:
    """Return where the longest beginning of a secret starts with which the text ends, or the end of the text."""
    longest, first = max(map(len, secrets), default=1) - 1, {one[0] for one in secrets}
    for at in range(max(0, len(text) - longest), len(text)):
        if text[at] in first and any(one.startswith(text[at:]) for one in secrets):
            return at
    return len(text)


def _texts(value: object, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def _at(value: object, path: _Path) -> object:
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def _with(value: Any, path: _Path, text: str) -> object:
    """Return a copy of *value* with another text at one place, or *value* itself if it has that text."""
    if not path:
        return value if value == text else text
    key, made = path[0], _with(value[path[0]], path[1:], text)
    if made is value[key]:
        return value
    if isinstance(value, dict):
        return {**value, key: made}
    return [made if index == key else item for index, item in enumerate(value)]
