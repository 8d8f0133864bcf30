"""What the commands share that look into a store: how they open it, show what is in it, ask before they change it, and end."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from callgate.errors import CallgateError, StoreError
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.sql import SqlStore
from callgate.tools.values import clip

ADDRESS = "the store: sqlite:///callgate.db, postgresql://user@host/database"
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LEAST = 3_600.0  # a process that slept may still come back and settle what is younger


class Refused(Exception):
    """It is not done, and why."""


def ended(work: Coroutine[Any, Any, None], out: TextIO) -> int:
    """Run a command; 0 when it was done, 1 when it was not, 2 when the store could not be used."""
    try:
        asyncio.run(work)
    except Refused as refused:
        out.write(f"{refused}\n")
        return 1
    except (CallgateError, OSError) as error:
        out.write(f"cannot use the store: {error}\n")
        return 2
    return 0


@asynccontextmanager
async def opened(address: str) -> AsyncGenerator[Store, None]:
    """The store at an address, if it has its tables."""
    store = store_at(address)
    if isinstance(store, SqlStore) and await store.revision() is None:  # opening it would make what was mistyped
        raise StoreError(f"{store.name}: there are no tables")
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def duration(text: str) -> float:
    """Seconds, from a number with a unit.

    Raises:
        ArgumentTypeError: it is none, or less than an hour.
    """
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    seconds = 0.0 if found is None else float(found[1]) * _SECONDS[found[2]]
    if seconds < _LEAST:
        raise argparse.ArgumentTypeError("a number with s, m, h, d or w, such as 90d; an hour at the least")
    return seconds


def when(seconds: float) -> str:
    """A moment, for people."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "never"


def table(out: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under a head; nothing where there are none."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows) if rows else ():
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.write(f"{line.rstrip()}\n")


def counted(number: int, what: str, limit: int) -> str:
    """How many were shown, as the last line."""
    more = ", and perhaps more: --limit" if number == limit else ""
    return f"{number} {what if number == 1 else f'{what}s'}{more}\n"


def facts(out: TextIO, told: Mapping[str, Any], times: Collection[str]) -> None:
    """All that is known of one thing, a line each; *times* names those that are moments."""
    for name, value in told.items():
        if value is not None:
            text = when(value) if name in times else value if isinstance(value, str) else json.dumps(value)
            out.write(f"{name:<16}{clip(text, 2_000)}\n")


def ask(what: str, asked: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Ask whoever sits there, unless they have said yes already; no answer is a no.

    Raises:
        Refused: they do not agree.
    """
    if asked.yes:
        return
    out.write(f"{what}. Go on? [y/N] ")
    out.flush()
    if answers.readline().strip().lower() not in {"y", "yes"}:
        raise Refused("nothing was changed")
