"""``python -m callgate stores check|upgrade --store ADDRESS``: whether the tables of a store are up to date, and the way there."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TextIO

from callgate.errors import CallgateError
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.sql import SqlStore
from callgate.providers.stores.sql_database import HEAD

ADDRESS = "sqlite:///callgate.db, postgresql://user@host/database; what the gate is given as store="


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate stores ...``; 0 when the tables are up to date, 1 when they are not, 2 when it cannot be done."""
    parser = argparse.ArgumentParser(prog="callgate stores", description="Look after the tables of a store.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, told in (("check", "say whether they are up to date"), ("upgrade", "bring them up to date")):
        verbs.add_parser(verb, help=told).add_argument("--store", required=True, metavar="ADDRESS", help=ADDRESS)
    asked = parser.parse_args(arguments)
    work = check if asked.verb == "check" else upgrade
    try:
        current, told = asyncio.run(work(store_at(asked.store)))
    except (CallgateError, OSError) as error:
        out.write(f"cannot {asked.verb} the store: {error}\n")
        return 2
    out.write(f"{told}\n")
    return 0 if current else 1


async def check(store: Store) -> tuple[bool, str]:
    """Whether a store's tables are up to date, and a sentence about it; changes nothing.

    Raises:
        StoreError: it cannot be reached.
    """
    if not isinstance(store, SqlStore):
        return await _without_tables(store)
    at = await store.revision()
    if at == HEAD:
        return True, f"{store.name}: the tables are at revision {HEAD}, which is current"
    return False, f"{store.name}: {_shown(at)}; current is {HEAD}: run `python -m callgate stores upgrade`"


async def upgrade(store: Store) -> tuple[bool, str]:
    """Bring a store's tables up to date; a sentence that says from where to where.

    Raises:
        StoreError: it cannot be reached, or its tables are of a newer Callgate.
    """
    if not isinstance(store, SqlStore):
        return await _without_tables(store)
    before = await store.revision()
    await store.open()  # takes the steps, in one transaction
    await store.close()
    if before == HEAD:
        return True, f"{store.name}: the tables were at revision {HEAD}, which is current; nothing was changed"
    return True, f"{store.name}: from {_shown(before)} to revision {HEAD}"


def _shown(revision: str | None) -> str:
    return "no tables" if revision is None else f"revision {revision}"


async def _without_tables(store: Store) -> tuple[bool, str]:
    await store.open()
    await store.close()
    return True, f"{store.name}: it answers, and has no tables that could be out of date"
