"""Histories of input and output, put together only when somebody reads them (contract C27)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import orjson

from callgate.hooks.stages import STAGES, Stage
from callgate.providers.registry import MISSING
from callgate.tools.values import SCALARS, canonical

RAW = 1
"""``ctx._input_state`` before the input is parsed."""
_UNPARSED = frozenset(stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position)


class Entry(NamedTuple):
    """One value: *at* in seconds on the gate's monotonic clock, *stage* where it was set (None: as it came in)."""

    at: float
    stage: Stage | None
    value: Any

    @classmethod
    def now(cls, ctx: Any, value: Any) -> Entry:
        """An entry for a value set in the current step; a deep copy, so later changes in place do not reach it."""
        return cls(ctx.host.monotonic(), ctx.step.stage, _snapshot(value))


def _snapshot(value: Any) -> Any:
    if value.__class__ in SCALARS:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a value that cannot be copied is kept as it is: better than no history)
        return value


def _copied(entry: Entry) -> Entry:
    return Entry(entry.at, entry.stage, _snapshot(entry.value))


def input_entries(ctx: Any) -> tuple[Entry, ...]:
    """Raw, as parsed, as set by hooks, as it is now; neighbours that are equal are one entry.

    Once a hook has masked the input, the mask is all that a history shows (contract C15b).
    """
    if ctx._masked is not MISSING or ctx._maskers or ctx.scrubber is not None:
        return (Entry(ctx.started, Stage.WILL_REDACT_INPUT, _snapshot(ctx.masked_input)),)
    log: list[Entry] = ctx._input_log or []
    entries = [Entry(ctx.started, None, _snapshot(ctx.raw_input))]
    parsed = ctx._input_state != RAW
    if parsed and not any(entry.stage is not None and entry.stage in _UNPARSED for entry in log):
        entries.append(Entry(ctx.started, Stage.WILL_PARSE_INPUT, ctx.plan.parse_again(ctx)))
    entries += map(_copied, log)
    entries.append(Entry(ctx.host.monotonic(), ctx.step.stage, _snapshot(ctx._input if parsed else ctx.input)))
    return _without_repeats(entries)


def output_entries(ctx: Any) -> tuple[Entry, ...]:
    """As the tool returned it, as set by hooks, as it is now."""
    entries: list[Entry] = []
    if isinstance(ctx._output_json, bytes):
        entries.append(Entry(ctx.started, Stage.DID_EXECUTE, orjson.loads(ctx._output_json)))
    entries += map(_copied, ctx._output_log or ())
    if entries or ctx._output is not None:
        entries.append(Entry(ctx.host.monotonic(), ctx.step.stage, _snapshot(ctx._output)))
    return _without_repeats(entries)


def _without_repeats(entries: list[Entry]) -> tuple[Entry, ...]:
    kept = entries[:1]
    for entry in entries[1:]:
        if not _same(entry.value, kept[-1].value):
            kept.append(entry)
    return tuple(kept)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: ``1`` and ``True`` are not."""
    try:
        return canonical(one) == canonical(other)
    except (TypeError, ValueError):
        return type(one) is type(other) and bool(one == other)
