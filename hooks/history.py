"""Histories of input and output, assembled only when a hook reads them."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import orjson

from callgate.hooks.facts import RAW
from callgate.hooks.stages import STAGES, Stage
from callgate.hooks.step import Step
from callgate.providers.registry import MISSING
from callgate.tools.values import SCALARS, canonical, compact

_AS_IT_IS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_UNPARSED = frozenset(stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position)


class Entry(NamedTuple):
    """One value of the input or the output.

    ``at`` is in seconds on the gate's monotonic clock. ``stage`` and ``by`` name the stage and the step that set it: a
    hook, ``"tool"`` or a built-in step; for the caller's arguments they are None and ``"caller"``.
    """

    at: float
    stage: Stage | None
    value: Any
    by: str


class Kept(NamedTuple):
    """One value of a history. ``json`` is its JSON, where the value may change later and has one."""

    at: float
    step: Step
    json: bytes | None
    kept: Any

    def entry(self) -> Entry:
        """Return an entry with a fresh copy of the value."""
        return Entry(self.at, self.step.stage, self.value(), self.step.name)

    def value(self) -> Any:
        """Return a fresh copy of the value."""
        return orjson.loads(self.json) if self.json is not None else _snapshot(self.kept)


def kept_own(run: Any, value: Any) -> Kept:
    """Keep a value that the run alone holds; it needs no snapshot."""
    return Kept(run.plan.now(), run.step, None, value)


_kept: Any = tuple.__new__  # without the argument handling of the class, which costs more than the rest


def kept_now(run: Any, value: Any) -> Kept:
    """Keep a value as it is now; the tool may still change it."""
    try:
        data = orjson.dumps(value, option=_AS_IT_IS)
    except TypeError:
        return Kept(run.plan.now(), run.step, None, _snapshot(value))
    if data.find(b"null") >= 0:  # null may stand for a number that is not finite
        return Kept(run.plan.now(), run.step, None, _snapshot(value))
    return _kept(Kept, (run.plan.now(), run.step, compact(data), None))  # type: ignore[no-any-return]


def _snapshot(value: Any) -> Any:
    if value.__class__ in SCALARS:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a value that cannot be copied is kept itself)
        return value


def input_entries(ctx: Any) -> tuple[Entry, ...]:
    """Return the input as given, as parsed, and as hooks set it; equal neighbours are one entry, of the first writer.

    After a hook has masked the input, the history shows only the masked value.
    """
    run = ctx.run
    if run.masked is not MISSING or run.maskers or run.scrubber is not None:
        at, step = run.masked_by or (run.started, run.plan.start)
        return (Entry(at, Stage.WILL_REDACT_INPUT, _snapshot(ctx.masked_input), step.name),)
    log: list[Kept] = run.input_log or []
    early = [kept for kept in log if kept.step.stage in _UNPARSED]
    entries = [Entry(run.started, None, _snapshot(run.raw_input), "caller"), *(kept.entry() for kept in early)]
    if run.input_state != RAW:
        parsed = run.plan.parse_again(run, early[-1].value() if early else run.raw_input)
        entries.append(Entry(run.read_at, Stage.WILL_PARSE_INPUT, parsed, "parse"))
    entries += [kept.entry() for kept in log[len(early) :]]
    return _without_repeats(entries)


def output_entries(ctx: Any) -> tuple[Entry, ...]:
    """Return the output as the tool returned it, and as wrappers and hooks set it."""
    run = ctx.run
    entries = [kept.entry() for kept in run.output_log or ()]
    if not entries and run.executed:  # no hook could change it, so it was not noted when the tool returned
        at, tool = run.finished or run.plan.now(), run.plan.running
        entries.append(Entry(at, tool.stage, _snapshot(run.output), tool.name))
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
