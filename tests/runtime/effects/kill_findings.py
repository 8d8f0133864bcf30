"""What is wrong with what killed workers left behind; nothing, one hopes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from callgate.providers.stores.effects import OPEN_STATES, EffectState
from tests.runtime.effects.kill_loop import Left
from tests.runtime.effects.kill_worker import job_of


def problems_of(left: Left) -> list[str]:
    """All that breaks a promise, in words (I3, I4, I5)."""
    return [*left.problems, *_doubles(left), *_intents(left), *_receipts(left), *_answers(left), *_decisions(left)]


def _doubles(left: Left) -> Iterator[str]:
    """At most one effect of a key, unless its tool may run twice, and of an approval."""
    orders = Counter(line["order"] for line in left.lines if line["tool"] != "put" and not line["order"].endswith("/"))
    waits = Counter(line["wait"] for line in left.lines if line["wait"] is not None)
    for what, counted in (("key", orders), ("approval", waits)):
        for name, number in counted.items():
            if number > 1:
                yield f"double: {number} effects of the {what} {name}"


def _intents(left: Left) -> Iterator[str]:
    """Every effect was written down before: in the ledger and in the audit record."""
    for line in left.lines:
        row = left.rows.get(line["key"])
        if row is None or row.token < line["token"]:
            yield f"no intent in the ledger: {line}"
        if line["request"] not in left.intents:
            yield f"no intent in the audit record: {line}"


def _receipts(left: Left) -> Iterator[str]:
    """How an effect ended, as the ledger has it, is how it ended."""
    done = {(line["key"], line["token"]): line for line in left.lines}
    begun = {line["key"] for line in left.lines if line["tool"] != "put"}
    for row in left.rows.values():
        line = done.get((row.key, row.token))
        if row.state in OPEN_STATES:
            yield f"{row.tool} is {row.state} for ever"
        elif row.state is EffectState.NO_EFFECT and (line is not None or row.key in begun):
            yield f"{row.tool} counts as having had no effect, and had one"
        elif row.state is EffectState.COMMITTED:
            receipt: Any = json.loads(row.receipt or b"{}")
            if line is None or ("error" not in receipt and receipt.get("output") != line["output"]):
                yield f"a receipt of {row.tool} that is not what it returned: {receipt}, {line}"


def _answers(left: Left) -> Iterator[str]:
    """Who asks again is told the same, and a success that somebody was told is in the ledger."""
    by_output = {line["output"]: line for line in left.lines}
    told: defaultdict[int, set[str]] = defaultdict(set)
    states: Counter[EffectState | None] = Counter()
    for said in left.journal:
        if said.get("outcome") != "success":
            continue
        line = by_output.get(said["output"])
        if line is None:
            yield f"a success of nothing: {said}"
            continue
        row = left.rows.get(line["key"])
        states[None if row is None else row.state] += 1
        if "answer" in said and line["tool"] != "put":
            told[said["answer"]["ask"]].add(said["output"])
    for number, outputs in told.items():
        if len(outputs) > 1:
            yield f"{job_of(number)} was answered in {len(outputs)} ways"
    if lost := states.total() - states[EffectState.COMMITTED] - states[EffectState.UNKNOWN]:
        yield f"{lost} successes were lost: {states}"
    if states[EffectState.UNKNOWN] * 5 > states.total():  # a few are of workers that slept past their lease
        yield f"too many successes became unknown: {states}"


def _decisions(left: Left) -> Iterator[str]:
    """What was declined did not run."""
    used = {line["wait"] for line in left.lines}
    for said in left.journal:
        if said.get("code") == "declined" and said.get("decided") in used:
            yield f"declined, and run: {said}"
