"""Packed bodies, gzip and deflate, unpacked as they come; never more than asked for at a time. Pure."""

from __future__ import annotations

import zlib

PACKED = frozenset({"gzip", "x-gzip", "deflate"})
"""What can be unpacked: one layer of it, for a bomb needs two."""


class Unpacker:
    """Takes the pieces of one packed body."""

    __slots__ = ("_begun", "_inflate")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by its head
        self._begun = False

    def feed(self, data: bytes, most: int) -> bytes:
        """What this piece holds: one byte more than *most* where that is too much.

        Raises:
            zlib.error: it is packed in no such way.
        """
        try:
            found = self._inflate.decompress(data, most + 1)
        except zlib.error:
            if self._begun:
                raise
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # some send `deflate` without its head
            found = self._inflate.decompress(data, most + 1)
        self._begun = True
        return found
