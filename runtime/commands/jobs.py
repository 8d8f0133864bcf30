"""``python -m callgate jobs list|show|again|cancel|prune ADDRESS``: look into the jobs of a store, and run dead ones again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import OVER, Job, JobState
from callgate.runtime.commands.common import ADDRESS, Refused, ask, counted, duration, ended, facts, opened, table, when
from callgate.tools.values import clip

AGAIN = """Queue a job that is `dead` once more, as one that no worker took yet. Workers find it within their `resend` time.
What an attempt before has done, the effect ledger knows: it is not done twice."""
LOOK = 10_000
"""How many jobs, the newest of each state first, are looked through for an id."""
SHORT, SHORTEST = 12, 6
"""Characters of an id that are shown in a table, and that have to be given at the least."""
_TIMES = {"made_at", "run_at", "lease_until", "sent_at", "ended_at"}


def main(arguments: Sequence[str], out: TextIO = sys.stdout, answers: TextIO = sys.stdin) -> int:
    """Run ``callgate jobs ...``; 0 when it was done, 1 when it was not, 2 when the store could not be used."""
    asked = _parser().parse_args(arguments)
    work = {"list": show_list, "show": show_one, "again": again, "cancel": cancel, "prune": prune}[asked.verb]
    return ended(work(asked, out, answers), out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="callgate jobs", description="Look into the jobs of a store.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list", help="the jobs, the newest first, and how many there are in each state")
    showing = verbs.add_parser("show", help="all that is known of one job, its arguments too")
    reviving = verbs.add_parser("again", help="queue what is dead once more", description=AGAIN)
    cancelling = verbs.add_parser("cancel", help="cancel one that is not over")
    pruning = verbs.add_parser("prune", help="forget what is over")
    for one in (listing, showing, reviving, cancelling, pruning):
        one.add_argument("address", help=ADDRESS)
    for one in (showing, cancelling):
        one.add_argument("id", help=f"the id of the job, or its beginning: {SHORTEST} characters at the least")
    which = reviving.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", help="the id of the job, or its beginning")
    which.add_argument("--all", action="store_true", help=f"every dead job of the newest {LOOK:,}")
    for one in (listing, reviving):
        one.add_argument("--tenant", metavar="T", help="of this tenant; '' for jobs of none. Default: of all")
    for one in (listing, showing):
        one.add_argument("--json", action="store_true", help="write JSON")
    listing.add_argument("--state", choices=[state.value for state in JobState], help="in this state")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="so many at the most (100)")
    pruning.add_argument(
        "--older-than", required=True, type=duration, metavar="TIME", help="ended so long ago: 90d, 12h"
    )
    for one in (reviving, cancelling, pruning):
        one.add_argument("--yes", action="store_true", help="do not ask")
    return parser


# ---------------------------------------------------------------------- looking


async def show_list(asked: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """The jobs, and how many there are in each state."""
    state = None if asked.state is None else JobState(asked.state)
    async with opened(asked.address) as store:
        found = await store.jobs.list(asked.tenant, state=state, limit=max(asked.limit, 0))
        counts = await store.jobs.count()
    if asked.json:
        out.write(json.dumps([_as_json(tenant, job) for tenant, job in found], indent=2) + "\n")
        return
    rows = [
        (
            job.id[:SHORT],
            str(job.state),
            clip(job.tool, 32),
            clip(tenant, 24),
            clip(job.user, 24),
            f"{job.attempts} of {job.most}",
            when(job.made_at),
            clip(job.reason or ""),
        )
        for tenant, job in found
    ]
    table(out, ("id", "state", "tool", "tenant", "user", "attempts", "submitted", "reason"), rows)
    out.write(counted(len(rows), "job", asked.limit))
    told = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    out.write(f"of all tenants: {told or 'none'}\n")


async def show_one(asked: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """All that is known of one job."""
    async with opened(asked.address) as store:
        tenant, job = await _find(store, asked.id)
    told = _as_json(tenant, job)
    if asked.json:
        out.write(json.dumps(told, indent=2) + "\n")
        return
    facts(out, told, _TIMES)


async def _find(store: Store, id: str) -> tuple[str, Job]:
    """The job of an id or of its beginning.

    Raises:
        Refused: there is none, or more than one.
    """
    if len(id) < SHORTEST:
        raise Refused(f"{clip(id)}: give {SHORTEST} characters of the id at the least")
    found = {
        job.id: (tenant, job)
        for state in JobState
        for tenant, job in await store.jobs.list(None, state=state, limit=LOOK)
        if job.id.startswith(id)
    }
    if not found:
        raise Refused(f"{clip(id)}: there is no such job among the newest {LOOK:,} of any state")
    if len(found) > 1:
        told = ", ".join(sorted(one[:SHORT] for one in found)[:5])
        raise Refused(f"{clip(id)}: there are {len(found)} such jobs: {told}; give more of the id")
    return next(iter(found.values()))


def _as_json(tenant: str, job: Job) -> dict[str, Any]:
    told = {"tenant": tenant, **asdict(job)}
    for name in ("body", "progress", "result"):
        told[name] = None if told[name] is None else json.loads(told[name])
    return told


# ---------------------------------------------------------------------- changing


async def again(asked: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Queue what is dead once more.

    Raises:
        Refused: it is not dead, or the person did not agree.
    """
    async with opened(asked.address) as store:
        if asked.all:
            dead = list(await store.jobs.list(asked.tenant, state=JobState.DEAD, limit=LOOK))
        else:
            dead = [await _find(store, asked.id)]
            if dead[0][1].state is not JobState.DEAD:
                raise Refused(f"{dead[0][1].id[:SHORT]} is {dead[0][1].state}; only what is dead is queued again")
        if dead:
            ask(
                f"{len(dead)} dead {'job is' if len(dead) == 1 else 'jobs are'} to be queued again", asked, out, answers
            )
        done = [await store.jobs.revive(tenant, job.id, time.time()) for tenant, job in dead]
    out.write(f"queued again: {sum(done)}\n")


async def cancel(asked: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Cancel one.

    Raises:
        Refused: it is over, or the person did not agree.
    """
    async with opened(asked.address) as store:
        tenant, job = await _find(store, asked.id)
        if job.state in OVER:
            raise Refused(f"{job.id[:SHORT]} is {job.state}")
        ask(f"{job.id[:SHORT]}, {clip(job.tool)} for {clip(job.user)}, is to be cancelled", asked, out, answers)
        state = await store.jobs.cancel(tenant, job.id, time.time())
    if state not in (JobState.CANCELLED, JobState.RUNNING):
        raise Refused(f"{job.id[:SHORT]} is over meanwhile")
    told = "is cancelled" if state is JobState.CANCELLED else "runs: its worker is told"
    out.write(f"{job.id[:SHORT]} {told}\n")


async def prune(asked: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Forget what is over.

    Raises:
        Refused: the person did not agree.
    """
    before = time.time() - asked.older_than
    async with opened(asked.address) as store:
        ask(f"Jobs that ended before {when(before)}", asked, out, answers)
        forgotten = await store.jobs.prune(before)
    out.write(f"forgotten: {forgotten} jobs\n")
