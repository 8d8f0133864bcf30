"""The keys that waiting calls and cookies are signed with: from the environment, else one of the demonstration's own."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CALLGATE_SIGNING_KEYS"
"""Secrets with commas between them, the newest first; the same for every process."""


class UnsafeKey(Exception):
    """A file with a key that others may read."""


def signing_keys(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """The keys, the newest first.

    A service takes them from its environment or a vault. Where there are none, one is made and kept in the folder, in a
    file that only its owner may read: every process that is started on the folder has the same.

    Raises:
        UnsafeKey: others may read that file.
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
    """A file that is there whole or not at all, and is never replaced: another process may be making it, too."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
