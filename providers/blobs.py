"""Where outputs go that are too large for a model: one method, and folders of files as the plain way to keep them."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Protocol

_HANDLE = re.compile(r"[\w-]{32}")


class Blobs(Protocol):
    """Takes bytes and answers a handle: a short text that nobody can guess, good for the tenant it was made for."""

    async def put(self, tenant: str, data: bytes) -> str:
        """Keep *data* for a tenant (``""`` where there are none)."""
        ...


class FolderBlobs:
    """Files below a folder, one folder a tenant; readable by this user alone. Deleting old ones is left to the host."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    async def put(self, tenant: str, data: bytes) -> str:
        """See ``Blobs``; the file is there in whole, or not at all."""
        handle = secrets.token_urlsafe(24)
        await asyncio.to_thread(self._write, self._path(tenant, handle), data)
        return handle

    async def get(self, tenant: str, handle: str) -> bytes | None:
        """What a handle of this tenant stands for; None when there is nothing."""
        if not _HANDLE.fullmatch(handle):
            return None
        return await asyncio.to_thread(self._read, self._path(tenant, handle))

    def _path(self, tenant: str, handle: str) -> Path:
        owner = sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()  # a tenant's name is no path
        return self.folder / owner / handle

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


__all__ = ["Blobs", "FolderBlobs"]
