"""Incremental decompression of gzip and deflate bodies with a size limit. Pure."""

from __future__ import annotations

import zlib

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""The supported content encodings; one layer only, because decompression bombs use two."""


class Decompressor:
    """Decompresses one body in pieces."""

    __slots__ = ("_begun", "_inflate")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, detected by the header
        self._begun = False

    def feed(self, data: bytes, max_bytes: int) -> bytes:
        """Decompress a piece. If the output exceeds *max_bytes*, one byte more than that is returned.

        Raises:
            zlib.error: the data is neither gzip nor deflate.
        """
        try:
            found = self._inflate.decompress(data, max_bytes + 1)
        except zlib.error:
            if self._begun:
                raise
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers send `deflate` without its header
            found = self._inflate.decompress(data, max_bytes + 1)
        self._begun = True
        return found
