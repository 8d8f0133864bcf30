"""The printed report, made from results, traces, plans and the database."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from callgate import Gate, Outcome, ToolResult
from callgate.hooks.stages import STAGES
from callgate.stores import EffectRecord, EffectState
from examples.order_desk.answers import Then
from examples.order_desk.deeds import Audited, Deed, asks_consent
from examples.order_desk.exchange import Passed
from examples.order_desk.telemetry import Telemetry
from examples.order_desk.trouble import shown

WIDTH = 100
BOOKS = ("orders", "reservations", "refunds")
COLOURS = {
    Outcome.SUCCESS: "green",
    Outcome.INVALID: "yellow",
    Outcome.DENIED: "magenta",
    Outcome.RETRY_LATER: "cyan",
    Outcome.CONFLICT: "red",
    Outcome.ERROR: "red",
    Outcome.UNKNOWN: "bold red",
}


class Report:
    """Print to standard output; without a terminal, in 100 columns and without colour."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(markup=False, highlight=False, emoji=False)
        if console is None and not self.console.is_terminal and not os.environ.get("COLUMNS"):
            self.console.width = WIDTH

    def recording(self, name: str, wire: str, status: Any, stand_in: str) -> None:
        """Print the name of the recording."""
        self._title(f"Recorded exchange {name}", f"wire {wire}, HTTP status {shown(status)}; {stand_in}")

    def tools(self, gate: Gate) -> None:
        """Print the tools and their effects."""
        definitions = [record.definition for record in gate.registry.list()]
        told = [f"{tool.name} ({tool.effect or 'no effect declared'})" for tool in definitions]
        self._title(_count(len(told), "tool"), ", ".join(told))

    def notes(self, notes: Sequence[str]) -> None:
        """Print notes for the reader before the calls."""
        for note in notes:
            self.console.print(Text(f"note: {note}", "yellow"))

    def calls(self, exchanges: Iterable[tuple[Sequence[Passed], Then | None]], audit: Audited | None = None) -> None:
        """Print one line per call, and one per event between calls."""
        table = _table("wire", "user", "tool", "outcome", "code or note", "ms", "what the model is told")
        for passed, then in exchanges:
            for one in passed:
                result = one.result
                note, taken = _note(one, audit), _milliseconds(result)
                cells = [one.wire, one.user.id, shown(result.tool), result.outcome, note, taken]
                for column, cell in zip(table.columns, cells, strict=False):
                    column.width = max(column.width or len(str(column.header)), min(len(cell), 22))
                cells.append(shown(_told(result)))
                colour = COLOURS.get(result.outcome, "white")
                table.add_row(*(Text(cell, colour if cell is result.outcome else "") for cell in cells))
            if then is not None:
                table.add_row(*[""] * 6, Text(f"({then})", "italic"))
        if table.rows:
            table.columns[-1].ratio, table.expand = 1, True  # the last column takes the remaining width
            self.console.print(table)

    def deeds(self, deeds: Sequence[Deed]) -> None:
        """Print the actions of each hook."""
        self._title("What the hooks did", "for the log; a model is told less")
        table = _table("hook", "what it did", "times", "for example")
        for deed in deeds:
            table.add_row(deed.hook, deed.did, str(deed.times), Text(shown(deed.example)))
        table.columns[-1].ratio, table.expand = 1, True
        table.columns[-1].no_wrap = False
        self.console.print(table)

    def exceptions(self, logged: Iterable[Mapping[str, Any]]) -> None:
        """Print the unexpected exceptions of the log; a model is told none of their text."""
        faults = [event for event in logged if "exception" in event]
        self._title("Exceptions in the log", "each once, with its traceback; the id is in the result of the call")
        table = _table("request id", "tool", "stage", "last line of the traceback")
        for event in faults:
            last = str(event["exception"]).rstrip().rsplit("\n", 1)[-1]
            table.add_row(
                *(Text(shown(str(text))) for text in (event["request_id"][:8], event["tool"], event["stage"], last))
            )
        self.console.print(table)

    def trace(self, passed: Passed) -> None:
        """Print the stages of one call, in the order of execution."""
        result = passed.result
        self._title(
            f"Stages of {shown(result.call_id)}", f"{shown(result.tool)} for {passed.user.id}: {result.outcome}"
        )
        if not result.trace:
            self.console.print("No stage ran: there is no such tool, hence no plan.")
            return
        table = _table("phase", "stage", "step", "verdict", "µs")
        for stage, step, verdict, seconds in result.trace:
            colour = "green" if verdict == "ok" else "yellow"
            table.add_row(STAGES[stage].phase, stage, step, Text(verdict, colour), f"{seconds * 1e6:.0f}")
        self.console.print(table)

    def plan(self, explanation: object) -> None:
        """Print the plan of one tool, with the reason for or against each hook."""
        self._title("gate.explain()")
        self._indented(str(explanation))

    def messages(self, wire: str, messages: Sequence[Any]) -> None:
        """Print the messages to the model."""
        self._title(f"Back to the model, as {wire} spells it")
        self._indented(json.dumps(messages, indent=1))

    def audit(self, audit: Audited, call_ids: Sequence[str]) -> None:
        """Print audit rows of some calls, and the verification of the audit log."""
        self._title("The audit record", f"what it says of {', '.join(call_ids)}")
        for body in (body for call_id in call_ids for body in audit.of(call_id)):
            ended = body.get("code") or body.get("outcome") or "about to take effect"
            self._indented(f"{body['tool']} for {body['user']}: {ended}\n  {json.dumps(body['input'])}")
        self.console.print(Text(f"verified: {audit.report}"))
        forged = audit.forged.problems[0]
        self.console.print(Text(f"with one word of row {forged.number} changed: {forged.kind}, {forged.text}"))

    def ledger(self, effects: Sequence[EffectRecord]) -> None:
        """Print the state of every effect: committed, no effect, or unknown."""
        self._title("The ledger of effects", "one row for each key, however often it was asked for")
        table = _table("tool", "user", "first asked by", "state", "what a repeat is told")
        for effect in effects:
            told = {
                EffectState.COMMITTED: "the receipt",
                EffectState.UNKNOWN: "that the outcome is unknown; it does not run",
            }
            table.add_row(
                effect.tool,
                shown(effect.user),
                shown(effect.call_id),
                effect.state,
                told.get(effect.state, "nothing: it runs"),
            )
        self.console.print(table)

    def metrics(self, telemetry: Telemetry) -> None:
        """Print the collected metrics and spans."""
        calls, denials, errors = (telemetry.counts(f"callgate.{name}") for name in ("calls", "denials", "errors"))
        if not calls:  # without OpenTelemetry the hooks do nothing
            return
        self._title("Metrics", f"by OpenTelemetry, with {_count(len(telemetry.spans()), 'span')}")
        table = _table("tool", "calls", "refused", "broke")
        for tool in sorted(calls):
            table.add_row(shown(tool), str(calls[tool]), str(denials.get(tool, 0)), str(errors.get(tool, 0)))
        self.console.print(table)

    def books(self, db: sqlite3.Connection, *, places_held: int) -> None:
        """Print the content of the database after the run, and the permits still held."""
        count = {table: db.execute(f"select count(*) from {table}").fetchone()[0] for table in BOOKS}  # noqa: S608
        self._title("The books", f"rows: {', '.join(f'{number} in {table}' for table, number in count.items())}")
        self.console.print(f"permits still held: {places_held}")

    def summary(self, passed: Sequence[Passed]) -> None:
        """Print the last line."""
        counts = Counter(one.result.outcome for one in passed)
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
        self.console.print(f"\n{_count(len(passed), 'call')}: {told or 'the model asked for no tool'}")

    def _title(self, title: str, rest: str = "") -> None:
        self.console.print(Text.assemble("\n", (title, "bold"), f": {rest}" if rest else ""))

    def _indented(self, text: str) -> None:
        for line in text.splitlines():
            self.console.print(Text(f"  {shown(line)}"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for column in columns:
        right = column in {"ms", "µs", "times", "calls", "refused", "broke"}
        table.add_column(column, no_wrap=True, justify="right" if right else "left", overflow="ellipsis")
    return table


def _note(one: Passed, audit: Audited | None) -> str:
    """Return the error's code; for a success, its unusual facts."""
    result = one.result
    replayed = ["replayed"] if result.replayed else []
    if result.error is not None:
        wait = [] if result.retry_after is None else [f"in {result.retry_after / 1000:.0f} s"]
        return ", ".join([result.error.code, *wait, *replayed])
    notes = replayed + (["asks the user"] if asks_consent(result.output) else [])
    for body in () if audit is None else audit.of(result.call_id):
        if body.get("cache_hit"):
            notes.append("from cache")
        if body["kind"] == "outcome" and body["attempt"] > 1:
            notes.append(f"at attempt {body['attempt']}")
    return ", ".join(notes + [rule.replace("_", " ") for rule in one.hydrated.provenance.rules])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _milliseconds(result: ToolResult) -> str:
    return "" if result.duration is None else f"{result.duration * 1000:.0f}"


def _told(result: ToolResult) -> str:
    if result.error is not None:  # drop "The arguments are not valid: ", which repeats the code
        head, _, rest = result.error.public.partition(": ")
        return rest if rest and result.error.code.startswith("invalid_") else f"{head}: {rest}" if rest else head
    return result.output if isinstance(result.output, str) else json.dumps(result.output, separators=(",", ":"))
