"""``callgate stores check|upgrade|show --store ADDRESS``: check and migrate the tables of a store, and show its figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TextIO

from callgate.errors import StoreError
from callgate.providers.stores.base import Store
from callgate.providers.stores.sql import SqlStore
from callgate.providers.stores.sql_database import HEAD
from callgate.runtime.commands.common import Command, named_store, opened

ADDRESS = "sqlite:///callgate.db, postgresql://user@host/database; the value of Gate(store=...)"


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate stores ...``; 0: the tables are up to date, 1: they are not, 2: the store cannot be used."""
    command = Command("stores", "Maintain the tables of a store.")
    for name, help in (
        ("check", "check whether the tables are up to date; changes nothing"),
        ("upgrade", "migrate the tables, or create them"),
    ):
        command.add(name, _run, help).add_argument("--store", required=True, metavar="ADDRESS", help=ADDRESS)
    shown = command.add(
        "show", _show, "show what an operator has to look at: unknown effects, suspended calls, late jobs"
    )
    shown.add_argument("--store", required=True, metavar="ADDRESS", help=ADDRESS)
    shown.add_argument("--namespace", default="", metavar="NAME", help="that of Options(namespace=...); default: none")
    return command.run(arguments, out, sys.stdin)


async def _run(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> int:
    work = check if args.verb == "check" else upgrade
    current, text = await work(named_store(args.store))
    out.write(f"{text}\n")
    return 0 if current else 1


async def _show(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> int:
    async with opened(args.store, args.namespace) as store:
        if not isinstance(store, SqlStore):
            raise StoreError(f"{store.name}: this store keeps no effects, suspended calls or jobs")
        figures = await store.figures()
    out.writelines(
        f"{text:<20} {shown:>12}\n"
        for text, shown in (
            ("unknown effects", f"{figures.unknown_effects:,}"),
            ("suspended calls", f"{figures.suspended_calls:,}"),
            ("longest waiting job", f"{figures.oldest_job:,.0f} s"),
        )
    )
    return 0


async def check(store: Store) -> tuple[bool, str]:
    """Check whether the tables of a store are up to date, and describe them; changes nothing.

    Raises:
        StoreError: the store cannot be reached.
    """
    if not isinstance(store, SqlStore):
        return await _without_tables(store)
    at = await store.revision()
    if at is not None and at > HEAD and await _serves(store):
        return True, f"{store.name}: the tables are at revision {at}, which also serves this version"
    if at == HEAD:
        return True, f"{store.name}: the tables are at revision {HEAD}, which is current"
    return False, f"{store.name}: {_shown(at)}; current is {HEAD}: run `callgate stores upgrade`"


async def upgrade(store: Store) -> tuple[bool, str]:
    """Migrate the tables of a store to the current revision, and describe what changed.

    Raises:
        StoreError: the store cannot be reached, or its tables belong to a newer Callgate.
    """
    if not isinstance(store, SqlStore):
        return await _without_tables(store)
    before = await store.revision()
    await store.open()  # migrates, in one transaction
    await store.close()
    if before is not None and before >= HEAD:
        what = "is current" if before == HEAD else "also serves this version"
        return True, f"{store.name}: the tables were at revision {before}, which {what}; nothing was changed"
    return True, f"{store.name}: from {_shown(before)} to revision {HEAD}"


async def _serves(store: SqlStore) -> bool:
    """Return True if newer tables serve this version: then the store opens, and migrates nothing."""
    try:
        await store.open()
    except StoreError:
        return False
    await store.close()
    return True


def _shown(revision: str | None) -> str:
    return "no tables" if revision is None else f"revision {revision}"


async def _without_tables(store: Store) -> tuple[bool, str]:
    await store.open()
    await store.close()
    return True, f"{store.name}: the store is reachable and needs no migration"
