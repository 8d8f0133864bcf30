"""Storage for outputs that are too large for a model: a protocol with one method, and storage in files."""

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
    """Storage for bytes. A handle is a short random text that is valid for one tenant."""

    async def put(self, tenant: str, data: bytes) -> str:
        """Store *data* for a tenant (``""`` without tenants) and return its handle."""
        ...


class FolderBlobs:
    """Storage in files, with one folder for each tenant. Only this user can read them; the host deletes old files."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    async def put(self, tenant: str, data: bytes) -> str:
        """See ``Blobs``. The file appears only when it is complete."""
        handle = secrets.token_urlsafe(24)
        await asyncio.to_thread(self._write, self._path(tenant, handle), data)
        return handle

    async def get(self, tenant: str, handle: str) -> bytes | None:
        """Return the data of a handle of this tenant, or None."""
        if not _HANDLE.fullmatch(handle):
            return None
        return await asyncio.to_thread(self._read, self._path(tenant, handle))

    def _path(self, tenant: str, handle: str) -> Path:
        owner = sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()  # the name of a tenant is not a safe path
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
