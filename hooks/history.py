"""Histories of input and output, put together only when somebody reads them (contract C27)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import orjson

from callgate.hooks.stages import Stage


@dataclass(frozen=True, slots=True)
class Entry:
    """One value: *at* in seconds on the gate's monotonic clock, *stage* where it was set (None: as it came in)."""

    at: float
    stage: Stage | None
    value: Any

    @classmethod
    def now(cls, ctx: Any, value: Any) -> Entry:
        """An entry for a value set in the current step; a deep copy, so later changes in place do not reach it."""
        return cls(ctx.host.monotonic(), ctx.step.stage, _snapshot(value))


def _snapshot(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a value that cannot be copied is kept as it is: better than no history)
        return value


def input_entries(ctx: Any) -> tuple[Entry, ...]:
    """Raw, as parsed, as set by hooks, as frozen; neighbours that are equal are one entry."""
    entries = [Entry(ctx.started, None, ctx.raw_input)]
    if ctx._input_state != 1:
        parsed = ctx.plan.parse_again(ctx)
        entries.append(Entry(ctx.started, Stage.WILL_PARSE_INPUT, parsed))
    entries += ctx._input_log or ()
    entries.sort(key=lambda entry: entry.at)
    if ctx._input_state != 1:
        entries.append(Entry(ctx.host.monotonic(), ctx.step.stage, _snapshot(ctx._input)))
    return _without_repeats(entries)


def output_entries(ctx: Any) -> tuple[Entry, ...]:
    """As the tool returned it, as set by hooks, as it is now."""
    entries: list[Entry] = []
    if isinstance(ctx._output_json, bytes):
        entries.append(Entry(ctx.started, Stage.DID_EXECUTE, orjson.loads(ctx._output_json)))
    entries += ctx._output_log or ()
    if entries or ctx._output is not None:
        entries.append(Entry(ctx.host.monotonic(), ctx.step.stage, _snapshot(ctx._output)))
    return _without_repeats(entries)


def _without_repeats(entries: list[Entry]) -> tuple[Entry, ...]:
    kept = entries[:1]
    for entry in entries[1:]:
        if type(entry.value) is not type(kept[-1].value) or entry.value != kept[-1].value:
            kept.append(entry)
    return tuple(kept)
