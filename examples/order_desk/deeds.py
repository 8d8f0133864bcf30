"""The actions of each hook in a run, read from results and audit rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from callgate.hooks import AuditReport, AuditRow, verify_audit, verify_rows
from callgate.stores import EffectRecord, Store
from examples.order_desk.exchange import Passed


@dataclass(frozen=True)
class Deed:
    """One action of a hook, its count, and one example."""

    hook: str
    did: str
    times: int
    example: str


@dataclass(frozen=True)
class Audited:
    """The audit log of this run, its verification, and the verification of a changed copy."""

    rows: list[AuditRow]
    report: AuditReport
    forged: AuditReport

    def of(self, call_id: str) -> list[dict[str, Any]]:
        """Return the bodies of a call's rows: the intent before its effect, and the outcome."""
        return [dict(row.body) for row in self.rows if row.body["call_id"] == call_id]


async def audited(store: Store) -> Audited:
    """Read and verify the audit log after the gate has closed; then verify a copy with one changed word."""
    await store.open()
    try:
        everything = [row async for row in store.audit.read(None)]
        report = await verify_audit(store.audit)
    finally:
        await store.close()
    rows = [row for row in everything if row.segment == everything[-1].segment]  # a store may also hold earlier runs
    place = next(n for n, row in enumerate(everything) if row.body.get("outcome") == "denied")
    forged = list(everything)
    forged[place] = replace(forged[place], body={**forged[place].body, "outcome": "success"})
    return Audited(rows, report, await verify_rows(forged))


async def recorded(store: Store) -> list[EffectRecord]:
    """Return the effect ledger after the gate has closed, in the order of the effects' start."""
    await store.open()
    try:
        found = [effect for _, effect in await store.effects.list(None, limit=1_000)]
    finally:
        await store.close()
    return sorted(found, key=lambda effect: effect.began_at)


def deeds(passed: Sequence[Passed], audit: Audited, secret: str, seen: Iterable[str]) -> list[Deed]:
    """Return one line per action. *seen* are further texts, outside results and audit log, that must hold no secret."""
    by_call = {row.body["call_id"]: row.body for row in audit.rows if row.body["kind"] == "outcome"}
    bodies = [by_call[one.result.call_id] for one in passed]
    done: dict[tuple[str, str], list[str]] = {}
    for one, body in zip(passed, bodies, strict=True):
        for hook, did, example in _of_call(one, body):
            done.setdefault((hook, did), []).append(example)
    found = [Deed(hook, did, len(examples), examples[0]) for (hook, did), examples in done.items()]
    places = [*(str(one.result) for one in passed), *(json.dumps(dict(row.body)) for row in audit.rows), *seen]
    leaks = sum(secret in text for text in places)
    found.append(Deed("Secrets", "let one out", leaks, f"looked for in {len(places)} results, rows, messages, spans"))
    return sorted(found, key=lambda deed: deed.hook)


def _of_call(one: Passed, body: dict[str, Any] | Any) -> Iterable[tuple[str, str, str]]:
    result = one.result
    if result.error is not None and not body["own"]:
        wait = "" if result.retry_after is None else f"; try again in {result.retry_after / 1000:.0f} s"
        yield body["hook"], f"{result.outcome}", f"{body['reason'] or result.error.public}{wait}"
    if body["cache_hit"]:
        yield "Cache", "answered", f"{result.tool} for {one.user.id}; the tool did not run"
    if body["attempt"] > 1:
        yield "Retry", "tried again", f"{result.tool}: {result.outcome} at attempt {body['attempt']}"
    if body["masked"]:
        yield "Redact", "masked in the record", ", ".join(body["masked"])
    output: Any = result.output
    text: str = output if isinstance(output, str) else ""
    if (question := asks_consent(output)) is not None:
        yield "Consent", "asked the user", question
    if "***" in text:
        yield "Secrets", "scrubbed an output", next(line for line in text.splitlines() if "***" in line)
    if "[cut," in text:
        yield "OutputPolicy", "cut an output", text[text.rindex("…") :]


def asks_consent(output: Any) -> str | None:
    """Return the challenge if ``Consent`` made the result instead of the tool."""
    asked = isinstance(output, dict) and output.get("type") == "consent_required"
    return str(output["message"]) if asked else None
