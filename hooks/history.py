"""Histories of input and output, put together only when somebody reads them (contract C27)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import orjson

from callgate.hooks.stages import STAGES, Stage
from callgate.providers.registry import MISSING
from callgate.tools.values import SCALARS, canonical, compact

_AS_IT_IS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
RAW = 1
"""``ctx._input_state`` before the input is parsed."""
_UNPARSED = frozenset(stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position)


class Entry(NamedTuple):
    """One value: *at* in seconds on the gate's monotonic clock, *stage* where it was set (None: as it came in)."""

    at: float
    stage: Stage | None
    value: Any


class Kept:
    """A value as it was, to be read by nobody most of the time: its JSON if it has one, else a deep copy."""

    __slots__ = ("at", "copied", "json", "stage")

    def __init__(self, ctx: Any, value: Any) -> None:
        self.at, self.stage = ctx.plan.host.monotonic(), ctx.step.stage
        self.json = _as_json(value)
        self.copied = _snapshot(value) if self.json is None else None

    def entry(self) -> Entry:
        """With a copy of the value that is the reader's own."""
        value = orjson.loads(self.json) if self.json is not None else _snapshot(self.copied)
        return Entry(self.at, self.stage, value)


def _as_json(value: Any) -> bytes | None:
    """The JSON of a value that comes back from it as it was; None for others."""
    try:
        data = orjson.dumps(value, option=_AS_IT_IS)
    except TypeError:
        return None
    return None if data.find(b"null") >= 0 else compact(data)  # which may have been a number that is not finite


def _snapshot(value: Any) -> Any:
    if value.__class__ in SCALARS:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a value that cannot be copied is kept as it is: better than no history)
        return value


def input_entries(ctx: Any) -> tuple[Entry, ...]:
    """Raw, as parsed, as set by hooks, as it is now; neighbours that are equal are one entry.

    Once a hook has masked the input, the mask is all that a history shows (contract C15b).
    """
    if ctx._masked is not MISSING or ctx._maskers or ctx.scrubber is not None:
        return (Entry(ctx.started, Stage.WILL_REDACT_INPUT, _snapshot(ctx.masked_input)),)
    log: list[Kept] = ctx._input_log or []
    entries = [Entry(ctx.started, None, _snapshot(ctx.raw_input))]
    parsed = ctx._input_state != RAW
    if parsed and not any(entry.stage is not None and entry.stage in _UNPARSED for entry in log):
        entries.append(Entry(ctx.started, Stage.WILL_PARSE_INPUT, ctx.plan.parse_again(ctx)))
    entries += [kept.entry() for kept in log]
    entries.append(Entry(ctx.host.monotonic(), ctx.step.stage, _snapshot(ctx._input if parsed else ctx.input)))
    return _without_repeats(entries)


def output_entries(ctx: Any) -> tuple[Entry, ...]:
    """As the tool returned it, as set by hooks, as it is now."""
    entries: list[Entry] = []
    if isinstance(ctx._output_json, bytes):
        entries.append(Entry(ctx.started, Stage.DID_EXECUTE, orjson.loads(ctx._output_json)))
    entries += [kept.entry() for kept in ctx._output_log or ()]
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
