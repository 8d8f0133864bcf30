"""``callgate jobs list|show|retry|cancel|prune ADDRESS``: inspect the jobs of a store, and retry dead ones."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from callgate.hooks.stock.records.audit_signatures import keys_of
from callgate.providers.stores.address import signed_by
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from callgate.runtime.commands.common import (
    LISTING,
    SEARCHED,
    Command,
    Refused,
    confirm,
    only_one,
    opened,
    progress_table,
    read_keys,
    refuse_short,
    when,
    write_facts,
    write_json,
    write_table,
)
from callgate.runtime.lifespan.background import prune_all
from callgate.tools.values import clip

RETRYING = """Queue a `dead` job again, with a new count of attempts. Workers find it within their `resend` time.
The effect ledger knows the effects of earlier attempts: no effect happens twice."""
SHORT, SHORTEST = 12, 6
"""Characters of an id: shown in a table, and needed at least on the command line."""
_TIMES = {"made_at", "run_at", "lease_until", "sent_at", "ended_at"}


def main(arguments: Sequence[str], out: TextIO = sys.stdout, answers: TextIO = sys.stdin) -> int:
    """Run ``callgate jobs ...``; returns the exit code, see ``Command``."""
    command = Command("jobs", "Inspect the jobs of a store.")
    verb = command.add
    listing = verb("list", show_list, "list jobs, newest first, and count them by state", *LISTING)
    listing.add_argument("--state", choices=[state.value for state in JobState], help="only in this state")
    retrying = verb(
        "retry", retry, "queue dead jobs again", "address", "--namespace", "--tenant", "--yes", about=RETRYING
    )
    which = retrying.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", help="the id of the job, or its beginning")
    which.add_argument("--all", action="store_true", help=f"all dead jobs among the newest {SEARCHED:,}")
    cancelling = verb("cancel", cancel, "cancel a job that has not ended", "address", "--namespace", "--yes")
    cancelling.add_argument(
        "--signing-keys",
        type=Path,
        metavar="FILE",
        help="the keys of the gate, which sign the end of the job, one a line",
    )
    for one in (
        verb("show", show_one, "show one job with its arguments", "address", "--namespace", "--json"),
        cancelling,
    ):
        one.add_argument("id", help=f"the id of the job, or its beginning: at least {SHORTEST} characters")
    verb("prune", prune, "delete jobs that have ended", "address", "--namespace", "--older-than", "--yes")
    return command.run(arguments, out, answers)


async def show_list(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """List the jobs, and count them by state."""
    state = None if args.state is None else JobState(args.state)
    async with opened(args.address, args.namespace) as store:
        found = await store.jobs.list(args.tenant, state=state, limit=args.limit)
        counts = await store.jobs.count()
    if args.json:
        write_json(out, [_as_json(tenant, job) for tenant, job in found])
        return
    rows = [
        (
            job.id[:SHORT],
            str(job.state),
            clip(job.tool, 32),
            clip(tenant, 24),
            clip(job.user, 24),
            f"{job.attempts} of {job.max_attempts}",
            when(job.made_at),
            clip(job.reason or ""),
        )
        for tenant, job in found
    ]
    head = ("id", "state", "tool", "tenant", "user", "attempts", "submitted", "reason")
    write_table(out, head, rows, "job", args.limit)
    numbers = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    out.write(f"of all tenants: {numbers or 'none'}\n")


async def show_one(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """Show one job."""
    async with opened(args.address, args.namespace) as store:
        tenant, job = await _find(store, args.id)
    write_facts(out, _as_json(tenant, job), _TIMES, as_json=args.json)


async def _find(store: Store, id: str) -> tuple[str, Job]:
    """Find a job by its id, or by the beginning of its id.

    Raises:
        Refused: there is no such job, or more than one.
    """
    refuse_short(id, SHORTEST, "id")
    found = {
        job.id: (tenant, job)
        for state in JobState
        for tenant, job in await store.jobs.list(None, state=state, limit=SEARCHED)
        if job.id.startswith(id)
    }
    return only_one(id, found, "job", lambda one: one[:SHORT], (" of any state", "give more of the id"))


def _as_json(tenant: str, job: Job) -> dict[str, object]:
    row: dict[str, object] = {"tenant": tenant, **asdict(job)}
    for name, value in (("body", job.body), ("progress", job.progress), ("result", job.result)):
        row[name] = None if value is None else json.loads(value)
    return row


async def retry(args: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Queue dead jobs again.

    Raises:
        Refused: the job is not dead, or the person did not agree.
    """
    async with opened(args.address, args.namespace) as store:
        if args.all:
            dead = list(await store.jobs.list(args.tenant, state=JobState.DEAD, limit=SEARCHED))
        else:
            dead = [await _find(store, args.id)]
            if dead[0][1].state is not JobState.DEAD:
                raise Refused(f"{dead[0][1].id[:SHORT]} is {dead[0][1].state}; only a dead job can be queued again")
        if dead:
            jobs = "job is" if len(dead) == 1 else "jobs are"
            confirm(f"{len(dead)} dead {jobs} to be queued again", args, out, answers)
        done = [await store.jobs.revive(tenant, job.id, time.time()) for tenant, job in dead]
    out.write(f"queued again: {sum(done)}\n")


async def cancel(args: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Cancel one job.

    Raises:
        Refused: the job has ended, it is signed and there are no keys, or the person did not agree.
    """
    keys = keys_of(read_keys(args.signing_keys))
    async with opened(args.address, args.namespace) as raw:
        store = signed_by(raw, keys)
        tenant, job = await _find(store, args.id)
        if job.state in FINAL_STATES:
            raise Refused(f"{job.id[:SHORT]} is {job.state}")
        if keys is None and job.state is not JobState.RUNNING:  # the worker of a running job signs its end
            raise Refused(f"{job.id[:SHORT]} is signed: give --signing-keys FILE, with the keys of the gate")
        confirm(f"{job.id[:SHORT]}, {clip(job.tool)} for {clip(job.user)}, is to be cancelled", args, out, answers)
        state = await store.jobs.cancel(tenant, job.id, time.time())
    if state not in (JobState.CANCELLED, JobState.RUNNING):
        raise Refused(f"{job.id[:SHORT]} has ended in the meantime")
    done = "is cancelled" if state is JobState.CANCELLED else "is running: its worker cancels it"
    out.write(f"{job.id[:SHORT]} {done}\n")


async def prune(args: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Delete jobs that have ended.

    Raises:
        Refused: the person did not agree.
    """
    before = time.time() - args.older_than
    async with opened(args.address, args.namespace) as store:
        confirm(f"Jobs that ended before {when(before)} are to be deleted", args, out, answers)
        deleted = await prune_all(store.jobs.prune, before, progress_table(out, "deleted so far"))
    out.write(f"deleted: {deleted} jobs\n")
