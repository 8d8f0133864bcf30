"""Anchors of the audit log outside of its store: a file, and an HTTP endpoint. For ``Audit(on_anchor=...)``."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from callgate.errors import StoreError
from callgate.providers.http.post import post_bounded


class AnchorFile:
    """Appends each anchor to a file as one JSON line, which is on the disk when the call returns.

    ``callgate audit verify --anchors`` reads the file. Keep it where the database account cannot write.

    Args:
        path: the file. It is created for its owner alone.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    async def __call__(self, segment: str, number: int, hash: str, at: float) -> None:
        """Append an anchor.

        Raises:
            OSError: the file cannot be written.
        """
        await asyncio.to_thread(self._append, _line(segment, number, hash, at))

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)  # one write: lines of several processes do not mix
            os.fsync(file)
        finally:
            os.close(file)


class AnchorEndpoint:
    """Sends each anchor to an HTTP endpoint: a POST of one JSON object with segment, number, hash and time.

    Args:
        url: the URL of a service that keeps what it gets, such as a log with write-once storage.
        headers: HTTP headers, such as an authorization.
        timeout: seconds for one request and its whole answer, of which at most 64 kB are read.
        client: an ``httpx.AsyncClient`` of the application; without it each request has its own.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, timeout: float = 5.0, client: object = None
    ) -> None:
        self._url, self._headers = url, {"content-type": "application/json", **(headers or {})}
        self._timeout, self._client = timeout, client

    async def __call__(self, segment: str, number: int, hash: str, at: float) -> None:
        """Send an anchor.

        Raises:
            StoreError: the endpoint cannot be reached, did not answer in time, or did not accept the anchor.
        """
        content = _line(segment, number, hash, at)
        answer = await post_bounded(
            "the endpoint of anchors", self._url, content, self._headers, self._timeout, self._client
        )
        if not 200 <= answer.status < 300:
            raise StoreError(f"the endpoint of anchors answered with status {answer.status}")


def _line(segment: str, number: int, hash: str, at: float) -> bytes:
    return json.dumps({"segment": segment, "number": number, "hash": hash, "at": at}).encode() + b"\n"
