"""``python -m callgate audit verify ADDRESS``: whether anybody changed an audit record."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from callgate.errors import CallgateError
from callgate.hooks.stock.records.audit_verify import AuditReport, Head, verify_audit
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store

ADDRESS = "where the record is: sqlite:///callgate.db, postgresql://user@host/database"
ANCHORS = (
    "a file of anchors kept elsewhere: a line of JSON each, with segment, number and hash, as the log event has them"
)


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate audit ...``; 0 when nothing is wrong, 1 when something is, 2 when it could not be looked at."""
    parser = argparse.ArgumentParser(prog="callgate audit", description="Look through an audit record.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verify = verbs.add_parser("verify", help="find rows that were changed, taken out, moved or cut off")
    verify.add_argument("address", help=ADDRESS)
    verify.add_argument("--anchors", type=Path, metavar="FILE", help=ANCHORS)
    asked = parser.parse_args(arguments)
    try:
        heads = [] if asked.anchors is None else read_anchors(asked.anchors)
        report = asyncio.run(verify_store(store_at(asked.address), heads))
    except (CallgateError, OSError, ValueError) as error:
        out.write(f"cannot look at the record: {error}\n")
        return 2
    _show(report, out)
    return 0 if report.ok else 1


async def verify_store(store: Store, anchors: Sequence[Head] = ()) -> AuditReport:
    """Open a store, verify its audit record, close it."""
    await store.open()
    try:
        return await verify_audit(store.audit, anchors)
    finally:
        await store.close()


def read_anchors(path: Path) -> list[Head]:
    """Anchors from a file.

    Raises:
        ValueError: a line is no anchor; the message says which.
    """
    heads: list[Head] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            heads.append((str(found["segment"]), int(found["number"]), str(found["hash"]), float(found.get("at", 0.0))))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"line {number} of {path.name} is no anchor; it needs segment, number and hash") from None
    return heads


def _show(report: Any, out: TextIO) -> None:
    """As a table where rich is installed, else as plain lines."""
    try:
        from rich.console import Console
    except ImportError:
        out.write(f"{report}\n")
    else:
        Console(file=out, soft_wrap=False).print(report)
