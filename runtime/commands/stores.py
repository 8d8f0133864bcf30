"""``callgate stores check|upgrade|sign|show --store ADDRESS``: maintain the tables of a store, and show its figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from callgate.errors import StoreError
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.sql.database.database import HEAD
from callgate.providers.stores.sql.database.schema import SERVES
from callgate.providers.stores.sql.signing import sign_rows
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.commands.common import Command, confirm, named_store, opened, read_keys

ADDRESS = "sqlite:///callgate.db, postgresql://user@host/database; the value of Gate(store=...)"


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate stores ...``; 0: the tables are up to date, 1: they are not, 2: the store cannot be used."""
    command = Command("stores", "Maintain the tables of a store.")
    for verb in (
        command.add("check", _check, "check whether the tables are up to date; changes nothing"),
        command.add("upgrade", _upgrade, "migrate the tables, or create them", "--yes"),
    ):
        verb.add_argument("--store", required=True, metavar="ADDRESS", help=ADDRESS)
    shown = command.add(
        "show", _show, "show what an operator has to look at: unknown effects, suspended calls, late jobs"
    )
    shown.add_argument("--store", required=True, metavar="ADDRESS", help=ADDRESS)
    shown.add_argument("--namespace", default="", metavar="NAME", help="that of Options(namespace=...); default: none")
    signing = command.add("sign", _sign, "sign the rows that were written before the gate had signing keys", "--yes")
    signing.add_argument("--store", required=True, metavar="ADDRESS", help=ADDRESS)
    signing.add_argument(
        "--namespace", default="", metavar="NAME", help="that of Options(namespace=...); default: none"
    )
    signing.add_argument(
        "--signing-keys", type=Path, required=True, metavar="FILE", help="the keys of the gate, one a line"
    )
    return command.run(arguments, out, sys.stdin)


async def _check(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> int:
    current, text = await check(named_store(args.store))
    out.write(f"{text}\n")
    return 0 if current else 1


async def _upgrade(args: argparse.Namespace, out: TextIO, answers: TextIO) -> int:
    store = named_store(args.store)
    before = await store.revision() if isinstance(store, SqlStore) else None
    if before is not None and before < SERVES:
        what = f"Processes of the version with revision {before} cannot use the tables afterwards: stop them all first"
        confirm(what, args, out, answers)
    _, text = await upgrade(store)
    out.write(f"{text}\n")
    return 0


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


async def _sign(args: argparse.Namespace, out: TextIO, answers: TextIO) -> int:
    keys = SigningKeys(read_keys(args.signing_keys))
    async with opened(args.store, args.namespace) as store:
        if not isinstance(store, SqlStore):
            raise StoreError(f"{store.name}: this store keeps no rows that can be signed later")
        confirm("Every unsigned row becomes valid, also a row that was written by hand", args, out, answers)
        signed = await sign_rows(store.signed(keys))
    out.writelines(f"{kind:<20} {number:>12,}\n" for kind, number in signed.items())
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
    first = "stop all processes of that version, and then " if at is not None and at < SERVES else ""
    return False, f"{store.name}: {_shown(at)}; current is {HEAD}: {first}run `callgate stores upgrade`"


async def upgrade(store: Store) -> tuple[bool, str]:
    """Migrate the tables of a store to the current revision, and describe what changed.

    Raises:
        StoreError: the store cannot be reached, or its tables belong to a newer Callgate.
    """
    if not isinstance(store, SqlStore):
        return await _without_tables(store)
    before = await store.revision()
    await store.upgrade()  # in one transaction
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
