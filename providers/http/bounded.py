"""The limits of one HTTP body that comes in, a request's or a reply's: encoding, unpacked bytes, nesting, values. Pure."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate

from callgate.providers.http.decompression import Decompressor

MAX_NESTING = 256
"""Maximum depth of JSON from outside; a parser of an SDK may work by recursion. An output may have 200 levels."""
MAX_MEMORY = 32_000_000
"""Maximum memory of one message, in bytes, by default."""
PIECE = 65_536
"""Bytes that are measured at once."""

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{]}")

_HALF = re.compile(rb"\\u[dD][89abAB]")
_BELOW_WIDE = bytes(range(0xF0))


def longest(max_memory: int) -> int:
    """Return the size of the longest message within a limit of memory: a text is there nearly six times at once."""
    return max_memory // 6


def text_memory(data: bytes) -> int:
    """Return the bytes that the texts of a message may take in its parser and its reader together."""
    return len(data) * (5 + 17 * _width(data)) // 4


def has_more_values(data: bytes, limit: int) -> bool:
    """Return True if a JSON text has more values than *limit*; each one but the first has a comma or a bracket before it."""
    if len(data) <= 2 * limit:
        return False
    try:
        BoundedBody(None, len(data), max_depth=sys.maxsize, max_values=limit - 1).feed(data)
    except BodyRefused:
        return True
    return False


def _width(data: bytes) -> int:
    """Return the bytes of one character of its texts: one wide character makes all of a text wide."""
    if data.isascii() and b"\\u" not in data:
        return 1
    is_wide = data.translate(None, _BELOW_WIDE) or _HALF.search(data)  # one pattern for both takes ten times as long
    return 4 if is_wide else 2


class BodyRefused(Exception):
    """A body exceeds a limit, or has an encoding that was not asked for. The text quotes nothing of it."""


class TooDeep(BodyRefused):
    """The JSON of a body nests too deep."""


class NotUtf8(BodyRefused):
    """A body holds a null byte: it is no JSON in UTF-8. A parser that guesses UTF-16 or UTF-32 would see other values."""


class BoundedBody:
    """Reads one body in pieces.

    *accepted* are the content encodings that were asked for; the body is unpacked from them. *max_depth* and *max_values*
    are for JSON: they limit nested objects and arrays, and values of all kinds, before a parser sees them. An object or
    array in another one counts as two values.

    Raises:
        BodyRefused: the encoding was not asked for.
    """

    __slots__ = ("_depth", "_escaped", "_in_text", "_left", "_max_depth", "_unpack", "_values_left")

    def __init__(
        self,
        encoding: str | None,
        max_bytes: int,
        *,
        accepted: Collection[str] = (),
        max_depth: int | None = None,
        max_values: int = sys.maxsize,
    ) -> None:
        encoding = (encoding or "identity").strip().lower()
        if encoding != "identity" and encoding not in accepted:
            raise BodyRefused("has an unexpected content encoding")
        self._unpack = None if encoding == "identity" else Decompressor()
        self._left, self._max_depth, self._values_left = max_bytes, max_depth, max_values
        self._depth, self._in_text, self._escaped = 0, False, False

    def feed(self, part: bytes) -> bytes:
        """Return a piece, unpacked.

        Raises:
            BodyRefused: the body is too large, nests too deep, has too many values, or is no JSON in UTF-8.
            zlib.error: the body does not have its encoding.
        """
        return b"".join(self.pieces(part))

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield a part of the body, unpacked, in pieces of at most ``PIECE`` bytes. Nothing is unpacked beyond a limit.

        Raises:
            BodyRefused, zlib.error: as ``feed``.
        """
        if self._unpack is None:
            found: Iterable[bytes] = (part[at : at + PIECE] for at in range(0, len(part), PIECE))
        else:
            found = self._unpack.pieces(part, PIECE)
        for piece in found:
            self._left -= len(piece)
            if self._left < 0:
                raise BodyRefused("is too large")
            if self._max_depth is not None:
                self._measure(piece, self._max_depth)
            yield piece

    def _measure(self, part: bytes, limit: int) -> None:
        """Follow the depth of JSON, and count what begins a value; a text may go on in the next piece."""
        if b"\0" in part:
            raise NotUtf8("is not JSON in UTF-8")
        if self._escaped:
            part = part[1:]
        part = _ESCAPE.sub(b"", part)
        self._escaped = part.endswith(b"\\")
        pieces = part.split(b'"')
        outside = b"".join(pieces[1 if self._in_text else 0 :: 2])
        self._in_text ^= len(pieces) % 2 == 0
        self._values_left -= outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if self._values_left < 0:
            raise BodyRefused("has too many values")
        steps = array("b", outside.translate(_STEPS, _NO_BRACKETS))
        if steps:
            depths = list(accumulate(steps, initial=self._depth))
            if max(depths) > limit:
                raise TooDeep(f"nests deeper than {limit} levels")
            self._depth = depths[-1]
