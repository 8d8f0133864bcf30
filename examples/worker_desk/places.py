"""The storage of a run: a temporary folder, and a separate schema if PostgreSQL is available."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from examples.order_desk.trouble import Trouble

POSTGRES = os.environ.get("CALLGATE_TEST_POSTGRES", "postgresql://127.0.0.1:5432/test")


@dataclass(frozen=True)
class Place:
    """The folder, the store's address, and its display name."""

    folder: Path
    store: str
    called: str


@contextmanager
def place(on: str) -> Generator[Place]:
    """Make the storage and delete it at the end.

    *on* is ``postgresql``, ``sqlite``, or ``auto``: PostgreSQL if it answers, else SQLite.

    Raises:
        Trouble: *on* is ``postgresql``, and PostgreSQL does not answer.
    """
    with TemporaryDirectory(prefix="callgate-worker-desk-", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        server = None if on == "sqlite" else _connected(required=on == "postgresql")
        if server is None:
            yield Place(folder, f"sqlite:///{folder}/store.db", "the embedded engine on SQLite")
            return
        name = f"callgate_worker_desk_{secrets.token_hex(6)}"
        with server:
            server.execute(f'CREATE SCHEMA "{name}"')
            try:
                address = f"{POSTGRES}{'&' if '?' in POSTGRES else '?'}options=-csearch_path%3D{name}"
                yield Place(folder, address, "Procrastinate on PostgreSQL")
            finally:
                server.execute(f'DROP SCHEMA "{name}" CASCADE')


def _connected(*, required: bool) -> Any:
    absent = [name for name in ("psycopg", "procrastinate") if find_spec(name) is None]
    trouble = f"not installed: {', '.join(absent)}"
    if not absent:
        import psycopg

        try:
            return psycopg.connect(POSTGRES, autocommit=True, connect_timeout=3)
        except psycopg.OperationalError as error:
            trouble = str(error).partition("\n")[0]
    if required:
        raise Trouble(f"there is no PostgreSQL (set CALLGATE_TEST_POSTGRES): {trouble}")
    return None
