"""Shared parts of the commands: verbs and options, exit codes, tables, and the confirmation before a change."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from callgate.errors import CallgateError, StoreError
from callgate.providers.stores.address import in_namespace, store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql.store import SqlStore
from callgate.tools.values import clip

K = TypeVar("K")
T = TypeVar("T")
Work: TypeAlias = Callable[[argparse.Namespace, TextIO, TextIO], Coroutine[Any, Any, int | None]]
"""A verb: takes its options, the output and the input of the person, and returns an exit code (None: 0)."""

SEARCHED = 10_000
"""Maximum number of rows, newest first, that are searched for the beginning of a key or an id."""
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LEAST = 3_600.0  # a suspended process may still come back and settle a younger row


class Refused(Exception):
    """The command did not do its work; the text says why."""


def duration(text: str) -> float:
    """Read a number with a unit, in seconds.

    Raises:
        ArgumentTypeError: the text is no duration, or less than an hour.
    """
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    seconds = 0.0 if found is None else float(found[1]) * _SECONDS[found[2]]
    if seconds < _LEAST:
        raise argparse.ArgumentTypeError("give a number with s, m, h, d or w, such as 90d; at least one hour")
    return seconds


def words(text: str) -> str:
    """Read a text with a meaning.

    Raises:
        ArgumentTypeError: the text is empty.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("give a text that is not empty")
    return text


def number_of_rows(text: str) -> int:
    """Read the maximum number of rows of a list.

    Raises:
        ArgumentTypeError: the text is no number of rows.
    """
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError("give a whole number from 1 to 999999")
    return int(text)


def port(text: str) -> int:
    """Read the number of a port.

    Raises:
        ArgumentTypeError: the text is no port.
    """
    if not re.fullmatch(r"[1-9]\d{0,4}", text) or int(text) > 65_535:
        raise argparse.ArgumentTypeError("give a port, from 1 to 65535")
    return int(text)


def listed_names(text: str) -> tuple[str, ...]:
    """Read names with commas between them.

    Raises:
        ArgumentTypeError: a name is empty, such as in the value of a variable that is not set.
    """
    found = tuple(one.strip() for one in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError("give names with commas between them, such as mail,reports; or leave it out")
    return found


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "address": {"help": "a store that exists: sqlite:///callgate.db, postgresql://user@host/database"},
    "--namespace": {"metavar": "N", "default": "", "help": "the rows of Options(namespace=N) (default: without one)"},
    "--tenant": {"metavar": "T", "help": "only this tenant; '' for rows without a tenant (default: all)"},
    "--json": {"action": "store_true", "help": "write JSON"},
    "--limit": {"type": number_of_rows, "default": 100, "metavar": "N", "help": "maximum number of rows (100)"},
    "--older-than": {"required": True, "type": duration, "metavar": "TIME", "help": "ended before: 90d, 12h"},
    "--yes": {"action": "store_true", "help": "do not ask for confirmation"},
}
"""Options that several verbs have."""
LISTING = ("address", "--namespace", "--tenant", "--json", "--limit")
"""Options of a verb that lists rows."""


class Command:
    """A command with verbs. Exit code 0: done; 1: not done; 2: wrong options, or a store that cannot be used."""

    def __init__(self, name: str, description: str, failure: str = "cannot use the store") -> None:
        self._parser = argparse.ArgumentParser(prog=f"callgate {name}", description=description)
        self._verbs = self._parser.add_subparsers(dest="verb", required=True)
        self._failure = failure

    def add(self, name: str, work: Work, help: str, *options: str, about: str | None = None) -> argparse.ArgumentParser:
        """Add a verb with some of the ``OPTIONS``; returns its parser, for options of its own."""
        verb: argparse.ArgumentParser = self._verbs.add_parser(name, help=help, description=about)
        verb.set_defaults(work=work)
        for option in options:
            verb.add_argument(option, **OPTIONS[option])
        return verb

    def run(self, arguments: Sequence[str], out: TextIO, answers: TextIO) -> int:
        """Run the verb that *arguments* name; returns the exit code.

        Raises:
            BrokenPipeError: the reader of *out* has gone.
        """
        args = self._parser.parse_args(arguments)
        try:
            return asyncio.run(args.work(args, out, answers)) or 0
        except Refused as refused:
            return failed(out, str(refused), 1)
        except BrokenPipeError:  # the reader of the output has gone; errors of connections are StoreErrors
            raise
        except (CallgateError, OSError) as error:
            return failed(out, f"{self._failure}: {error}", 2)


def failed(out: TextIO, reason: str, code: int) -> int:
    """Write why a command failed, and return its exit code.

    The reason goes to standard error, because another program may read standard output. A caller with an output of its own
    gets it there.
    """
    (sys.stderr if out is sys.stdout else out).write(f"{reason}\n")
    return code


def named_store(address: str, *, migrate: bool = True) -> Store:
    """Return the store at an address that a person wrote; see ``store_at``.

    Raises:
        StoreError: the address is wrong.
    """
    try:
        return store_at(address, migrate=migrate)
    except ValueError as error:
        raise StoreError(str(error)) from error


@asynccontextmanager
async def opened(address: str, namespace: str = "") -> AsyncGenerator[Store, None]:
    """Open the store at an address, for a namespace. A mistyped address creates nothing, and no tables are migrated.

    Raises:
        StoreError: the address is wrong, there is no store of Callgate at it, or its tables are older than this version.
    """
    found = named_store(address, migrate=False)
    if isinstance(found, MemoryStore) or (isinstance(found, SqlStore) and not found.durable):
        raise StoreError(
            f"{found.name}: a store in memory belongs to its process; give the address of a store that is kept"
        )
    store = in_namespace(found, namespace)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def when(seconds: float) -> str:
    """Format a time, in seconds since the epoch."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "never"


def write_json(out: TextIO, value: object) -> None:
    """Write JSON, in ASCII: a terminal obeys nothing of it."""
    out.write(json.dumps(value, indent=2) + "\n")


def write_table(out: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]], what: str, limit: int) -> None:
    """Write aligned columns under a head, if there are rows, and the number of rows of *what*."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows) if rows else ():
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.write(f"{line.rstrip()}\n")
    more = ", and perhaps more: --limit" if len(rows) == limit else ""
    out.write(f"{len(rows)} {what if len(rows) == 1 else f'{what}s'}{more}\n")


def progress_table(out: TextIO, *columns: str) -> Callable[..., None]:
    """Return a function that writes a line of figures; the first call writes the head of the table."""
    widths = [max(len(column), 12) for column in columns]
    lines: list[Sequence[object]] = [columns]

    def write(*figures: int) -> None:
        lines.append([f"{figure:,}" for figure in figures])
        for line in lines:
            cells = (str(cell).rjust(width) for cell, width in zip(line, widths, strict=True))
            out.write("  ".join(cells) + "\n")
        lines.clear()
        out.flush()

    return write


def write_facts(out: TextIO, facts: Mapping[str, Any], times: Collection[str], *, as_json: bool) -> None:
    """Write all columns of one row, a line each; *times* names the columns that hold times."""
    if as_json:
        write_json(out, facts)
        return
    for name, value in facts.items():
        if value is not None:
            text = when(value) if name in times else value if isinstance(value, str) else json.dumps(value)
            out.write(f"{name:<16}{clip(text, 2_000)}\n")


def refuse_short(given: str, shortest: int, name: str) -> None:
    """Refuse the beginning of a key or an id that is too short.

    Raises:
        Refused: always then.
    """
    if len(given) < shortest:
        raise Refused(f"{clip(given)}: give at least {shortest} characters of the {name}")


def only_one(given: str, found: Mapping[K, T], what: str, label: Callable[[K], str], hints: tuple[str, str]) -> T:
    """Return the one row that was found. *label* names a row by its key; *hints* are for no row and for several.

    Raises:
        Refused: there is no row, or more than one.
    """
    if not found:
        raise Refused(f"{clip(given)}: there is no such {what} among the newest {SEARCHED:,}{hints[0]}")
    if len(found) > 1:
        labels = ", ".join(sorted(map(label, found))[:5])
        raise Refused(f"{clip(given)}: there are {len(found)} such {what}s: {labels}; {hints[1]}")
    return next(iter(found.values()))


def confirm(what: str, args: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Ask the person for confirmation, unless ``--yes`` was given; no answer means no.

    Raises:
        Refused: the person does not agree.
    """
    if args.yes:
        return
    out.write(f"{what}. Go on? [y/N] ")
    out.flush()
    if answers.readline().strip().lower() not in {"y", "yes"}:
        raise Refused("nothing was changed")


def read_keys(path: Path | None) -> list[str]:
    """Read signing keys from a file, one a line.

    Raises:
        StoreError: the file holds no keys: signatures would be left unchecked.
    """
    if path is None:
        return []
    try:
        keys = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        keys = []
    if not keys:
        raise StoreError(f"{path.name} holds no signing keys; write one a line")
    return keys
