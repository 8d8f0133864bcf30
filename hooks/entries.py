"""Histories of input and output, assembled only when a hook reads them."""

from __future__ import annotations

from typing import Any

from callgate.hooks.facts import RAW
from callgate.hooks.history import Entry, Kept, snapshot
from callgate.hooks.run import CallContext
from callgate.hooks.stages import STAGES, Stage
from callgate.providers.registry import MISSING
from callgate.tools.values import canonical

_UNPARSED = frozenset(stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position)


def input_entries(ctx: CallContext) -> tuple[Entry, ...]:
    """Return the input as given, as parsed, and as hooks set it; equal neighbours are one entry, of the first writer.

    After a hook has masked the input, the history shows only the masked value.
    """
    run = ctx.run
    if run.masked is not MISSING or run.maskers or run.scrubber is not None:
        at, step = run.masked_by or (run.started, run.plan.start)
        return (Entry(at, Stage.WILL_REDACT_INPUT, snapshot(ctx.masked_input), step.name),)
    log: list[Kept] = run.input_log or []
    early = [kept for kept in log if kept.step.stage in _UNPARSED]
    entries = [Entry(run.started, None, snapshot(run.raw_input), "caller"), *(kept.entry() for kept in early)]
    if run.input_state != RAW:
        parsed = run.plan.parse_again(run.hydration, run.input, early[-1].value() if early else run.raw_input)
        entries.append(Entry(run.read_at, Stage.WILL_PARSE_INPUT, parsed, "parse"))
    entries += [kept.entry() for kept in log[len(early) :]]
    return _without_repeats(entries)


def output_entries(ctx: CallContext) -> tuple[Entry, ...]:
    """Return the output as the tool returned it, and as wrappers and hooks set it."""
    run = ctx.run
    entries = [kept.entry() for kept in run.output_log or ()]
    if not entries and run.executed:  # no hook could change it, so it was not noted when the tool returned
        at, tool = run.finished or run.plan.now(), run.plan.running
        entries.append(Entry(at, tool.stage, snapshot(run.output), tool.name))
    return _without_repeats(entries)


def _without_repeats(entries: list[Entry]) -> tuple[Entry, ...]:
    kept = entries[:1]
    for entry in entries[1:]:
        if not _same(entry.value, kept[-1].value):
            kept.append(entry)
    return tuple(kept)


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON: ``1`` and ``True`` differ."""
    try:
        return canonical(one) == canonical(other)
    except (TypeError, ValueError):
        return type(one) is type(other) and bool(one == other)
