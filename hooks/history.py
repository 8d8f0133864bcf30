"""Histories of input and output, assembled only when a hook reads them."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import orjson

from callgate.hooks.facts import RAW
from callgate.hooks.stages import STAGES, Stage
from callgate.providers.registry import MISSING
from callgate.tools.values import SCALARS, canonical, compact

_AS_IT_IS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_UNPARSED = frozenset(stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position)


class Entry(NamedTuple):
    """One value: *at* in seconds on the gate's monotonic clock, *stage* that set it (None for the caller's value)."""

    at: float
    stage: Stage | None
    value: Any


class Kept:
    """A snapshot of a value: its JSON if it has one, else a deep copy. Most snapshots are never read."""

    __slots__ = ("at", "copied", "json", "stage")

    def __init__(self, run: Any, value: Any) -> None:
        self.at, self.stage = run.plan.host.monotonic(), run.step.stage
        self.json = _as_json(value)
        self.copied = _snapshot(value) if self.json is None else None

    def entry(self) -> Entry:
        """Return an entry with a fresh copy of the value."""
        value = orjson.loads(self.json) if self.json is not None else _snapshot(self.copied)
        return Entry(self.at, self.stage, value)


def _as_json(value: Any) -> bytes | None:
    """Return the JSON of a value that survives a round trip, else None."""
    try:
        data = orjson.dumps(value, option=_AS_IT_IS)
    except TypeError:
        return None
    return None if data.find(b"null") >= 0 else compact(data)  # null may stand for a number that is not finite


def _snapshot(value: Any) -> Any:
    if value.__class__ in SCALARS:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a value that cannot be copied is kept itself)
        return value


def input_entries(ctx: Any) -> tuple[Entry, ...]:
    """Return the input as given, as parsed, as hooks set it, and as it is now; equal neighbours are one entry.

    After a hook has masked the input, the history shows only the masked value.
    """
    if ctx.run.masked is not MISSING or ctx.run.maskers or ctx.run.scrubber is not None:
        return (Entry(ctx.run.started, Stage.WILL_REDACT_INPUT, _snapshot(ctx.masked_input)),)
    log: list[Kept] = ctx.run.input_log or []
    entries = [Entry(ctx.run.started, None, _snapshot(ctx.raw_input))]
    parsed = ctx.run.input_state != RAW
    if parsed and not any(entry.stage is not None and entry.stage in _UNPARSED for entry in log):
        entries.append(Entry(ctx.run.started, Stage.WILL_PARSE_INPUT, ctx.run.plan.parse_again(ctx)))
    entries += [kept.entry() for kept in log]
    entries.append(
        Entry(ctx.run.plan.host.monotonic(), ctx.run.step.stage, _snapshot(ctx.run.input if parsed else ctx.input))
    )
    return _without_repeats(entries)


def output_entries(ctx: Any) -> tuple[Entry, ...]:
    """Return the output as the tool returned it, as hooks set it, and as it is now."""
    entries: list[Entry] = []
    if isinstance(ctx.run.output_json, bytes):
        entries.append(Entry(ctx.run.started, Stage.DID_EXECUTE, orjson.loads(ctx.run.output_json)))
    entries += [kept.entry() for kept in ctx.run.output_log or ()]
    if entries or ctx.run.output is not None:
        entries.append(Entry(ctx.run.plan.host.monotonic(), ctx.run.step.stage, _snapshot(ctx.run.output)))
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
