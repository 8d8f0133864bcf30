"""``callgate audit verify|export|prune ADDRESS``: find changes to an audit log, export it, remove old rows."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from callgate.errors import StoreError
from callgate.hooks.stock.records.audit_export import AuditFile, Delivery, export_audit
from callgate.hooks.stock.records.audit_otlp import AuditOtlp
from callgate.hooks.stock.records.audit_retention import prune_audit
from callgate.hooks.stock.records.audit_verify import AuditReport, Head, Progress, verify_audit
from callgate.providers.stores.base import AuditRow
from callgate.runtime.commands.common import Command, Refused, confirm, opened, progress_table, read_keys, when, words

ANCHORS = "a file of anchors kept elsewhere: per line a JSON object with segment, number and hash, as logged"
KEYS = "a file with the signing keys of rows and checkpoints, one a line; the first key signs"
SINCE = "a row from this time on without a signature is a problem; such as 2026-12-01 or 2026-12-01T08:00:00Z (UTC)"
LINES = "a file of JSON Lines; rows are appended"
EXPORTED = "keep rows that this cursor has not passed; may be repeated"
EXPORTING = """Deliver the rows that a cursor has not passed, and move the cursor. Each destination has a cursor of its own.
Rows arrive at least once; segment and number identify a row."""
PRUNING = """Verify the log, write rows that are older to a file, and remove them under signed checkpoints. A later
verification needs the signing keys."""
PROGRESS = 10_000
"""Rows between two lines of the progress of an export."""
INCREMENTAL = "begin at the signed checkpoints of the last run, and store new ones if there is no problem"


def main(arguments: Sequence[str], out: TextIO = sys.stdout, answers: TextIO = sys.stdin) -> int:
    """Run ``callgate audit ...``; 0: done, and no problem; 1: there are problems, or it was refused; 2: it cannot be read."""
    command = Command("audit", "Verify, export and prune an audit log.", "cannot read the record")
    verify = command.add(
        "verify", _verify, "find rows that were changed, removed, moved or cut off", "address", "--namespace"
    )
    verify.add_argument("--anchors", type=Path, metavar="FILE", help=ANCHORS)
    verify.add_argument("--signing-keys", type=Path, metavar="FILE", help=KEYS)
    verify.add_argument("--signed-since", type=_instant, metavar="TIME", help=SINCE)
    verify.add_argument("--incremental", action="store_true", help=INCREMENTAL)
    export = command.add(
        "export",
        _export,
        "deliver new rows to a file or to an OTLP endpoint",
        "address",
        "--namespace",
        about=EXPORTING,
    )
    export.add_argument(
        "--cursor", type=words, required=True, metavar="NAME", help="the name of the position in the log"
    )
    target = export.add_mutually_exclusive_group(required=True)
    target.add_argument("--file", type=Path, metavar="FILE", help=LINES)
    target.add_argument("--otlp", metavar="URL", help="such as http://localhost:4318/v1/logs")
    pruning = command.add(
        "prune", _prune, "remove old rows", "address", "--namespace", "--older-than", "--yes", about=PRUNING
    )
    pruning.add_argument("--export", type=Path, required=True, metavar="FILE", help=LINES)
    pruning.add_argument("--signing-keys", type=Path, required=True, metavar="FILE", help=KEYS)
    pruning.add_argument("--exported-by", type=words, action="append", metavar="NAME", help=EXPORTED)
    return command.run(arguments, out, answers)


def _instant(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("write a date, or a date and a time: 2026-12-01T08:00:00") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _verifying(out: TextIO) -> Progress:
    write = progress_table(out, "rows", "segments", "problems")

    def show(report: AuditReport) -> None:
        write(report.rows, report.segments, len(report.problems))

    return show


async def _verify(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> int:
    try:
        heads = [] if args.anchors is None else read_anchors(args.anchors)
    except ValueError as error:
        raise StoreError(str(error)) from error
    keys = read_keys(args.signing_keys)
    async with opened(args.address, args.namespace) as store:
        report = await verify_audit(
            store.audit,
            heads,
            signing_keys=keys,
            signed_since=args.signed_since,
            incremental=args.incremental,
            progress=_verifying(out),
        )
    if report.ok and not (report.rows or report.segments or report.anchors):
        raise Refused("there is no audit log at this address and in this namespace; check --namespace")
    _show(report, out)
    return 0 if report.ok else 1


async def _export(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    deliver: Delivery = AuditOtlp(args.otlp) if args.file is None else AuditFile(args.file)
    write = progress_table(out, "rows")
    count = 0

    async def deliver_and_show(rows: Sequence[tuple[str, AuditRow]]) -> None:
        nonlocal count
        await deliver(rows)
        before, count = count, count + len(rows)
        if before // PROGRESS < count // PROGRESS:
            write(count)

    async with opened(args.address, args.namespace) as store:
        await export_audit(store.audit, args.cursor, deliver_and_show)
    out.write(f"exported: {count} rows\n")


async def _prune(args: argparse.Namespace, out: TextIO, answers: TextIO) -> int:
    before = time.time() - args.older_than
    keys = read_keys(args.signing_keys)
    write = progress_table(out, "removed")
    async with opened(args.address, args.namespace) as store:
        what = f"Audit rows from before {when(before)} are to be written to {args.export.name} and removed"
        confirm(what, args, out, answers)
        done = await prune_audit(
            store.audit,
            before,
            AuditFile(args.export),
            signing_keys=keys,
            exported_by=args.exported_by,
            progress=_verifying(out),
            removed=write,
        )
    if not done.report.ok:
        _show(done.report, out)
        out.write("nothing was removed\n")
        return 1
    out.write(f"removed: {done.rows} rows\n")
    return 0


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


def _show(report: object, out: TextIO) -> None:
    """Write a table if rich is installed, otherwise plain lines."""
    try:
        from rich.console import Console
    except ImportError:
        out.write(f"{report}\n")
    else:
        console = Console(file=out, soft_wrap=False)
        with console.capture() as shown:  # rich ends the process if the reader of the output has gone
            console.print(report)
        out.write(shown.get())
