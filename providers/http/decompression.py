"""Incremental decompression of gzip and deflate bodies with a size limit. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""The supported content encodings; one layer only, because decompression bombs use two."""


class Decompressor:
    """Decompresses one body in pieces."""

    __slots__ = ("_begun", "_inflate")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, detected by the header
        self._begun = False

    def pieces(self, data: bytes, size: int) -> Iterator[bytes]:
        """Decompress a part of the body, and yield pieces of at most *size* bytes: a kilobyte may hold a megabyte.

        Raises:
            zlib.error: the data is neither gzip nor deflate.
        """
        found = b""
        while data or len(found) == size:
            try:
                found = self._inflate.decompress(data, size)
            except zlib.error:
                if self._begun:
                    raise
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers send `deflate` without its header
                found = self._inflate.decompress(data, size)
            self._begun = True
            data = self._inflate.unconsumed_tail
            yield found
