"""``callgate effects list|show|settle|prune ADDRESS``: inspect the effect ledger, and settle unknown effects."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from callgate.hooks.effects import Committed, Finding, NoEffect
from callgate.hooks.stock.records.audit_chain import Chain, micros
from callgate.hooks.stock.records.audit_signatures import keys_of, row_signer
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.address import signed_by
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import ENDED_STATES, EffectRecord, EffectState, EffectStore, overdue
from callgate.providers.stores.ledger_writes import sealing
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
    words,
    write_facts,
    write_json,
    write_table,
)
from callgate.runtime.effects.receipts import output_in
from callgate.runtime.effects.reconciling import settle_unknown
from callgate.runtime.lifespan.background import prune_all
from callgate.tools.values import clip

SETTLING = """Settle an `unknown` effect. First find out from the service behind the tool whether the effect happened.
A repeat of the call then gets the output, or runs. The command writes a row to the audit record, too."""
PRUNING = """Delete effects that are committed or had no effect, and suspended calls that have ended. Unknown effects stay.
A repeat of a call runs again once its effect is deleted."""
SHORT, SHORTEST = 16, 8
"""Characters of a key: shown in a table, and needed at least on the command line."""
WRITE_LIMIT = 10.0
"""Timeout for writing a row of the audit record, in seconds."""
_TIMES = {"lease_until", "began_at", "ended_at", "expires_at"}


def main(arguments: Sequence[str], out: TextIO = sys.stdout, answers: TextIO = sys.stdin) -> int:
    """Run ``callgate effects ...``; returns the exit code, see ``Command``."""
    command = Command("effects", "Inspect the effect ledger of a store.")
    listing = command.add("list", show_list, "list effects, newest first", *LISTING)
    states = [state.value for state in EffectState]
    listing.add_argument("--state", action="append", choices=states, help="only in this state; may be repeated")
    listing.add_argument("--tool", metavar="NAME", help="only of this tool")
    showing = command.add("show", show_one, "show one effect", "address", "--namespace", "--tenant", "--json")
    settling = command.add(
        "settle",
        settle,
        "record the outcome of an unknown effect",
        "address",
        "--namespace",
        "--tenant",
        "--yes",
        about=SETTLING,
    )
    for one in (showing, settling):
        one.add_argument("key", help=f"the key of the effect, or its beginning: at least {SHORTEST} characters")
    outcome = settling.add_mutually_exclusive_group(required=True)
    outcome.add_argument("--committed", action="store_true", help="the effect happened")
    outcome.add_argument("--no-effect", action="store_true", help="the effect did not happen, and will not")
    settling.add_argument("--output", type=_json, metavar="JSON", help="the output that a repeat gets (null)")
    settling.add_argument("--note", type=words, required=True, metavar="TEXT", help="how you know")
    settling.add_argument(
        "--signing-keys", type=Path, metavar="FILE", help="keys that sign the effect and the audit row, one a line"
    )
    settling.add_argument(
        "--by", type=words, metavar="NAME", help="who settles it (default: the user of the operating system)"
    )
    command.add(
        "prune", prune, "delete what has ended", "address", "--namespace", "--older-than", "--yes", about=PRUNING
    )
    return command.run(arguments, out, answers)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("this is not JSON; a text needs its quotes") from None


async def show_list(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """List the effects."""
    states = [EffectState(state) for state in args.state or ()]
    async with opened(args.address, args.namespace) as store:
        found = await store.effects.list(args.tenant, states=states, tool=args.tool, limit=args.limit)
    if args.json:
        write_json(out, [_as_json(tenant, effect) for tenant, effect in found])
        return
    now = time.time()
    rows = [
        (
            effect.key[:SHORT],
            f"{effect.state}, overdue" if overdue(effect, now) else str(effect.state),
            clip(effect.tool, 32),
            clip(tenant, 24),
            clip(effect.user, 24),
            when(effect.began_at),
            clip(effect.note or ""),
        )
        for tenant, effect in found
    ]
    write_table(out, ("key", "state", "tool", "tenant", "user", "began", "note"), rows, "effect", args.limit)


async def show_one(args: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """Show one effect."""
    async with opened(args.address, args.namespace) as store:
        tenant, effect = await _find(store.effects, args.key, args.tenant)
    write_facts(out, _as_json(tenant, effect), _TIMES, as_json=args.json)


async def _find(effects: EffectStore, key: str, tenant: str | None) -> tuple[str, EffectRecord]:
    """Find an effect by its key, or by the beginning of its key.

    Raises:
        Refused: there is no such effect, or more than one.
    """
    refuse_short(key, SHORTEST, "key")
    effect = await effects.get(tenant or "", key)
    if effect is not None:
        return tenant or "", effect
    found = {
        (owner, one.key): (owner, one)
        for states in ([EffectState.UNKNOWN], ())  # unknown effects are few, and never deleted
        for owner, one in await effects.list(tenant, states=states, limit=SEARCHED)
        if one.key.startswith(key)
    }
    hints = ("; give its whole key and --tenant", "give more of the key, or --tenant")
    return only_one(key, found, "effect", lambda one: f"{one[1][:SHORT]} of tenant {clip(one[0])!r}", hints)


def _as_json(tenant: str, effect: EffectRecord) -> dict[str, object]:
    receipt = None if effect.receipt is None else output_in(effect.receipt)
    return {"tenant": tenant, **asdict(effect), "receipt": receipt}


async def settle(args: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Record the outcome of an unknown effect, and who settled it.

    Raises:
        Refused: the effect is not unknown, the person did not agree, or another person has settled it.
    """
    if args.no_effect and args.output is not None:
        raise Refused("--output goes with --committed: a call without an effect has no output")
    found: Finding = NoEffect() if args.no_effect else Committed(args.output)
    word = "no_effect: a repeat runs" if args.no_effect else "committed: a repeat gets the output"
    keys = keys_of(read_keys(args.signing_keys))
    async with opened(args.address, args.namespace) as raw:
        store = signed_by(raw, keys)
        tenant, effect = await _find(raw.effects, args.key, args.tenant)
        if effect.mac and keys is None:
            raise Refused(f"{effect.key[:SHORT]} is signed: give --signing-keys FILE, with the keys of the gate")
        if keys is not None:
            if not effect.mac:
                raise Refused(
                    f"{effect.key[:SHORT]} is not signed; run `callgate stores sign` for rows from before the keys"
                )
            effect = await store.effects.get(tenant, effect.key) or effect  # refuses a row that was changed
        if overdue(effect, time.time()):  # an open gate does the same
            await store.effects.expire(time.time())
            effect = await store.effects.get(tenant, effect.key) or effect
        if effect.state is not EffectState.UNKNOWN:
            raise Refused(f"{effect.key[:SHORT]} is {effect.state}; only an unknown effect can be settled")
        about = f"{clip(effect.tool)} for {clip(effect.user)} of tenant {clip(tenant)!r}, begun {when(effect.began_at)}"
        confirm(f"{effect.key[:SHORT]}: {about}\nis to be {word}", args, out, answers)
        by = args.by or _operator()
        if not await _settled(store, tenant, effect, found, by, args.note, keys):
            raise Refused("another person has settled it in the meantime; nothing was changed")
    out.write(f"{effect.key[:SHORT]} is {word}; settled by {clip(by)}\n")


async def _settled(
    store: Store, tenant: str, effect: EffectRecord, found: Finding, by: str, note: str, keys: SigningKeys | None
) -> bool:
    """Write the outcome and a row of the audit record about it in one transaction; False if it was settled before."""
    now = time.time()
    state = EffectState.NO_EFFECT if isinstance(found, NoEffect) else EffectState.COMMITTED
    body = {
        "v": 1,
        "kind": "note",
        "at_us": micros(now),
        "request_id": effect.request_id,
        "call_id": effect.call_id,
        "session_id": effect.session_id,
        "tool": effect.tool,
        "tenant": tenant or None,
        "user": effect.user,
        "input_hash": effect.input_hash,
        "effect_key": effect.key,
        "state": state.value,
        "by": by,
        "note": note,
    }
    # The row is a segment of its own.
    sign = row_signer(keys, store.audit)
    chain = Chain(store.audit.append, None, time.time, in_place=True, limit=WRITE_LIMIT, every=1, sign=sign)
    async with store.transaction() as written, sealing(chain, [body], written.audit) as rows:
        done = await settle_unknown(written.effects, now, tenant, effect, found, note=f"{by}: {note}")
        if done:
            await written.audit.append(tenant, rows)
            await written.audit.anchor(rows[0].segment, 1, rows[0].hash, now)
    return done


async def prune(args: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Delete what has ended.

    Raises:
        Refused: the person did not agree.
    """
    before = time.time() - args.older_than
    states = " or ".join(ENDED_STATES)
    async with opened(args.address, args.namespace) as store:
        what = f"Effects that are {states}, and suspended calls that have ended, from before {when(before)}"
        confirm(f"{what}, are to be deleted", args, out, answers)
        write = progress_table(out, "deleted so far")
        effects, calls = [await prune_all(part.prune, before, write) for part in (store.effects, store.suspensions)]
    out.write(f"deleted: {effects} effects, {calls} suspended calls\n")


def _operator() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
