"""The keys that sign suspended calls and cookies: from the environment, else a generated one."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CALLGATE_SIGNING_KEYS"
"""Comma-separated secrets, newest first; the same for every process."""


class UnsafeKey(Exception):
    """A key file that other users of the machine may read."""


def signing_keys(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the signing keys, newest first.

    A service takes them from its environment or a vault. Without any, the function makes one. It stores the key in the
    folder, in a file that only its owner may read. All processes on the folder share that key.

    Raises:
        UnsafeKey: other users may read that file.
    """
    given = [key.strip() for key in environment.get(VARIABLE, "").split(",") if key.strip()]
    return given or [_kept_key(folder / "signing.key")]


def _kept_key(path: Path) -> str:
    if not path.exists():
        _make(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UnsafeKey(f"{path} may be read by others; remove it, and what waits is void")
    return path.read_text("ascii").strip()


def _make(path: Path) -> None:
    """Create the file atomically and never replace it: another process may create it at the same time."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
