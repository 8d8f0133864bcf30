"""``python -m callgate audit verify ADDRESS``: find changes to an audit record that Callgate did not make."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from callgate.errors import StoreError
from callgate.hooks.stock.records.audit_verify import AuditReport, Head, verify_audit
from callgate.providers.stores.address import store_at
from callgate.runtime.commands.common import Command, progress_table

ANCHORS = "a file of anchors kept elsewhere: per line a JSON object with segment, number and hash, as logged"
KEYS = "a file with the signing keys of the checkpoints, one a line; the first key signs"
INCREMENTAL = "begin at the signed checkpoints of the last run, and store new ones if there is no problem"


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate audit ...``; 0: the record is intact, 1: it is not, 2: it cannot be read."""
    command = Command("audit", "Inspect an audit record.", "cannot read the record")
    verify = command.add("verify", _verify, "find rows that were changed, removed, moved or cut off", "address")
    verify.add_argument("--anchors", type=Path, metavar="FILE", help=ANCHORS)
    verify.add_argument("--signing-keys", type=Path, metavar="FILE", help=KEYS)
    verify.add_argument("--incremental", action="store_true", help=INCREMENTAL)
    return command.run(arguments, out, sys.stdin)


async def _verify(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> int:
    write = progress_table(out, "rows", "segments", "problems")

    def show(report: AuditReport) -> None:
        write(report.rows, report.segments, len(report.problems))

    try:
        heads = [] if args.anchors is None else read_anchors(args.anchors)
        store = store_at(args.address)
    except ValueError as error:
        raise StoreError(str(error)) from error
    keys = read_keys(args.signing_keys)
    await store.open()
    try:
        report = await verify_audit(store.audit, heads, signing_keys=keys, incremental=args.incremental, progress=show)
    finally:
        await store.close()
    _show(report, out)
    return 0 if report.ok else 1


def read_keys(path: Path | None) -> list[str]:
    """Read signing keys from a file, one a line."""
    return [] if path is None else path.read_text("utf-8").split()


def read_anchors(path: Path) -> list[Head]:
    """Read anchors from a file.

    Raises:
        ValueError: a line is no anchor; the message names the line.
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
    """Write a table if rich is installed, otherwise plain lines."""
    try:
        from rich.console import Console
    except ImportError:
        out.write(f"{report}\n")
    else:
        Console(file=out, soft_wrap=False).print(report)
