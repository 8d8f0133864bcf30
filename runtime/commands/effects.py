"""``python -m callgate effects list|show|settle|prune ADDRESS``: look into the effect ledger, and end what nobody knows (I4)."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any, TextIO

from callgate.hooks.effects import Committed, Finding, NoEffect
from callgate.hooks.stock.records.audit_chain import Chain, micros
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import ENDED, Effect, EffectState, EffectStore, overdue
from callgate.runtime.commands.common import ADDRESS, Refused, ask, counted, duration, ended, facts, opened, table, when
from callgate.runtime.effects.receipts import output_in
from callgate.runtime.effects.reconciling import settle_unknown
from callgate.tools.values import clip

SETTLING = """End an effect that is `unknown`, once you know what came of it, from the service that the tool has used.
A repeat of the call is then answered with the output, or runs. What you say is written to the audit record, too."""
PRUNING = """Forget effects that are committed or had none, and calls that waited and wait no more. What is unknown stays.
Whoever repeats a call whose effect was forgotten runs it again."""
LOOK = 10_000
"""How many effects of all tenants, the newest first, are looked through for a key."""
SHORT, SHORTEST = 16, 8
"""Characters of a key that are shown in a table, and that have to be given at the least."""
WRITE_LIMIT = 10.0
"""Seconds that writing a row of the audit record may take."""
_TIMES = {"lease_until", "began_at", "ended_at", "expires_at"}


def main(arguments: Sequence[str], out: TextIO = sys.stdout, answers: TextIO = sys.stdin) -> int:
    """Run ``callgate effects ...``; 0 when it was done, 1 when it was not, 2 when the store could not be used."""
    asked = _parser().parse_args(arguments)
    work = {"list": show_list, "show": show_one, "settle": settle, "prune": prune}[asked.verb]
    return ended(work(asked, out, answers), out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="callgate effects", description="Look into the effect ledger of a store.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list", help="what is in the ledger, the newest first")
    showing = verbs.add_parser("show", help="all that is known of one effect")
    settling = verbs.add_parser("settle", help="say what came of an effect that is unknown", description=SETTLING)
    pruning = verbs.add_parser("prune", help="forget what is over", description=PRUNING)
    for one in (listing, showing, settling, pruning):
        one.add_argument("address", help=ADDRESS)
    for one in (showing, settling):
        one.add_argument("key", help=f"the key of the effect, or its beginning: {SHORTEST} characters at the least")
    for one in (listing, showing, settling):
        one.add_argument("--tenant", metavar="T", help="of this tenant; '' for effects of none. Default: of all")
    for one in (listing, showing):
        one.add_argument("--json", action="store_true", help="write JSON")
    states = [state.value for state in EffectState]
    listing.add_argument("--state", action="append", choices=states, help="in this state; may be given again")
    listing.add_argument("--tool", metavar="NAME", help="of this tool")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="so many at the most (100)")
    ends = settling.add_mutually_exclusive_group(required=True)
    ends.add_argument("--committed", action="store_true", help="it took place")
    ends.add_argument("--no-effect", action="store_true", help="it did not take place, and will not")
    settling.add_argument("--output", type=_json, metavar="JSON", help="what a repeat is answered with (null)")
    settling.add_argument("--note", required=True, metavar="TEXT", help="how you know")
    settling.add_argument("--by", metavar="NAME", help="who says so (you, as the system knows you)")
    pruning.add_argument(
        "--older-than", required=True, type=duration, metavar="TIME", help="ended so long ago: 90d, 12h"
    )
    for one in (settling, pruning):
        one.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("it is not JSON; a text needs its quotes") from None


# ---------------------------------------------------------------------- looking


async def show_list(asked: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """What is in the ledger."""
    states = [EffectState(state) for state in asked.state or ()]
    async with opened(asked.address) as store:
        found = await store.effects.list(asked.tenant, states=states, tool=asked.tool, limit=max(asked.limit, 0))
    if asked.json:
        out.write(json.dumps([_as_json(tenant, effect) for tenant, effect in found], indent=2) + "\n")
        return
    now = time.time()
    head = ("key", "state", "tool", "tenant", "user", "began", "note")
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
    table(out, head, rows)
    out.write(counted(len(rows), "effect", asked.limit))


async def show_one(asked: argparse.Namespace, out: TextIO, _answers: TextIO) -> None:
    """All that is known of one effect."""
    async with opened(asked.address) as store:
        tenant, effect = await _find(store.effects, asked.key, asked.tenant)
    told = _as_json(tenant, effect)
    if asked.json:
        out.write(json.dumps(told, indent=2) + "\n")
        return
    facts(out, told, _TIMES)


async def _find(effects: EffectStore, key: str, tenant: str | None) -> tuple[str, Effect]:
    """The effect of a key or of its beginning.

    Raises:
        Refused: there is none, or more than one.
    """
    if len(key) < SHORTEST:
        raise Refused(f"{clip(key)}: give {SHORTEST} characters of the key at the least")
    effect = await effects.get(tenant or "", key)
    if effect is not None:
        return tenant or "", effect
    found: dict[tuple[str, str], Effect] = {}
    for states in ([EffectState.UNKNOWN], ()):  # the unknown are few, and never forgotten
        for owner, one in await effects.list(tenant, states=states, limit=LOOK):
            if one.key.startswith(key):
                found[owner, one.key] = one
    if not found:
        raise Refused(
            f"{clip(key)}: there is no such effect among the newest {LOOK:,}; name its whole key and --tenant"
        )
    if len(found) > 1:
        told = ", ".join(f"{one[:SHORT]} of tenant {clip(owner)!r}" for owner, one in sorted(found)[:5])
        raise Refused(f"{clip(key)}: there are {len(found)} such effects: {told}; give more of the key, or --tenant")
    ((owner, _), effect) = found.popitem()
    return owner, effect


def _as_json(tenant: str, effect: Effect) -> dict[str, Any]:
    receipt = None if effect.receipt is None else output_in(effect.receipt)
    return {"tenant": tenant, **asdict(effect), "receipt": receipt}


# ---------------------------------------------------------------------- changing


async def settle(asked: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Write down what came of an effect that is unknown, and who says so.

    Raises:
        Refused: it is not unknown, the person did not agree, or somebody else has settled it meanwhile.
    """
    if asked.no_effect and asked.output is not None:
        raise Refused("--output goes with --committed: what had no effect has no output")
    found: Finding = NoEffect() if asked.no_effect else Committed(asked.output)
    word = "no_effect: a repeat runs" if asked.no_effect else "committed: a repeat is answered with the output"
    async with opened(asked.address) as store:
        tenant, effect = await _find(store.effects, asked.key, asked.tenant)
        if overdue(effect, time.time()):  # as an open gate would have done
            await store.effects.expire(time.time())
            effect = await store.effects.get(tenant, effect.key) or effect
        if effect.state is not EffectState.UNKNOWN:
            raise Refused(f"{effect.key[:SHORT]} is {effect.state}; only what is unknown can be settled")
        about = f"{clip(effect.tool)} for {clip(effect.user)} of tenant {clip(tenant)!r}, begun {when(effect.began_at)}"
        ask(f"{effect.key[:SHORT]}: {about}\nis to be {word}", asked, out, answers)
        by = asked.by or _who()
        if not await _settled(store, tenant, effect, found, by, asked.note):
            raise Refused("somebody else has settled it meanwhile; nothing was changed")
    out.write(f"{effect.key[:SHORT]} is {word}; {clip(by)} is noted as who said so\n")


async def _settled(store: Store, tenant: str, effect: Effect, found: Finding, by: str, note: str) -> bool:
    """The end of an effect and a row of the audit record about it: both or neither."""
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
    chain = Chain(
        store.audit.append, None, time.time, in_place=True, limit=WRITE_LIMIT, every=1
    )  # a segment of its own
    async with AsyncExitStack() as sealings, AsyncExitStack() as transactions:
        sealed = await sealings.enter_async_context(chain.sealing([body]))
        written = await transactions.enter_async_context(store.transaction())
        done = await settle_unknown(written.effects, now, tenant, effect, found, note=f"{by}: {note}")
        if done:
            await sealed.put(written.audit, tenant)
            await written.audit.anchor(sealed.rows[0].segment, 1, sealed.rows[0].hash, now)
    return done


async def prune(asked: argparse.Namespace, out: TextIO, answers: TextIO) -> None:
    """Forget what is over.

    Raises:
        Refused: the person did not agree.
    """
    before = time.time() - asked.older_than
    async with opened(asked.address) as store:
        states = " or ".join(ENDED)
        ask(f"Effects that are {states}, and calls that waited, from before {when(before)}", asked, out, answers)
        effects, waits = await store.effects.prune(before), await store.waits.prune(before)
    out.write(f"forgotten: {effects} effects, {waits} calls that waited\n")


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
