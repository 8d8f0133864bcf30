"""Filters before scoring: they exclude tools and record the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from callgate.providers.kinds import check_fields, truth
from callgate.tools.naming import Enabled, check_enabled, is_enabled
from callgate.tools.picking.entry import Entry
from callgate.tools.picking.index import ToolIndex
from callgate.tools.picking.results import Excluded

_READ_ONLY = "read-only"

Visible = Callable[[Any], bool]
"""A rule from a tool's definition to True where the caller may know of the tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickContext:
    """Facts about the request for which tools are picked; an omitted fact filters nothing.

    ``enabled``: names of the enabled tools, or a function of the name; an empty collection enables none. A mapping is
    refused, because one of names to False would enable them.
    ``capabilities``: required entries of a tool's ``capabilities``, such as ``{"streaming": True}``.
    ``mode``: the execution mode; a tool that lists ``capabilities["modes"]`` must list it. In the mode ``"read-only"``
    only tools with ``effect="read"`` are left.
    ``budget``: the maximum cost of one call, in the unit of ``metadata["cost"]``; a tool without a cost is free.
    ``quota_left``: the remaining calls of a tool, by name or as a function of the name; None or absent is no limit.

    Raises:
        TypeError: ``enabled`` is a text or a mapping, or a fact is of another type.
        ValueError: ``mode`` is another spelling of ``"read-only"``, which would not exclude tools with an effect.
    """

    enabled: Enabled | None = None
    capabilities: Mapping[str, object] = field(default_factory=dict[str, object])
    mode: str | None = None
    budget: float | None = None
    quota_left: Mapping[str, float | None] | Callable[[str], float | None] | None = None

    def __post_init__(self) -> None:
        check_enabled("PickContext", self.enabled)
        check_fields(self, TypeError)
        if self.mode is not None and self.mode != _READ_ONLY and _letters(self.mode) == _letters(_READ_ONLY):
            raise ValueError(f"PickContext: mode is {self.mode!r}; write {_READ_ONLY!r}")


def allowed_slots(
    index: ToolIndex, *, allow_unsafe: bool, visible: Visible | None, context: PickContext | None
) -> tuple[list[int] | None, tuple[Excluded, ...]]:
    """Return the slots to score, None for all, and the exclusions in the order of registration.

    Raises:
        TypeError: ``visible`` or ``enabled`` returned another type than a boolean, such as a coroutine.
    """
    if visible is None and context is None and (allow_unsafe or not index.unsafe):
        return None, ()
    unsafe = frozenset[int]() if allow_unsafe else index.unsafe
    slots: list[int] = []
    excluded: list[Excluded] = []
    for slot, entry in enumerate(index.entries):
        if entry is None:
            continue
        if visible is not None and not truth(
            "pick_tools", "visible", visible(entry.definition)
        ):  # first: no other property of a hidden tool is examined
            excluded.append(Excluded(entry.name, "not visible"))
        elif slot in unsafe:
            excluded.append(Excluded(entry.name, "unsafe"))
        elif context is not None and (reason := next(_against(entry, context), None)) is not None:
            excluded.append(Excluded(entry.name, reason))
        else:
            slots.append(slot)
    return (slots if excluded else None), tuple(excluded)


def _against(entry: Entry, context: PickContext) -> Iterator[str]:
    """The reason that excludes a tool for this request; empty without one."""
    name = entry.name
    if not is_enabled("PickContext", context.enabled, name):
        yield "not enabled"
    yield from _lacks(entry, context)
    if context.budget is not None and not _cost(entry) <= context.budget:
        yield "cost"
    left = _left(context.quota_left, name)
    if left is not None and not left > 0:
        yield "quota"


def _lacks(entry: Entry, context: PickContext) -> Iterator[str]:
    """The capabilities that the request needs and a tool lacks."""
    has = entry.get("capabilities")
    has = has if isinstance(has, Mapping) else {}
    for key, wanted in sorted(context.capabilities.items()):
        if has.get(key, False) != wanted:
            yield f"capability {key}"
    mode = context.mode
    if mode is None:
        return
    modes = has.get("modes")
    if (modes is not None and mode not in _names(modes)) or (mode == _READ_ONLY and entry.get("effect") != "read"):
        yield f"mode {mode}"


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


def _names(value: object) -> Collection[object]:
    """A list of names from outside: one name may stand alone, and other types give no names."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple | AbstractSet) else []


def _cost(entry: Entry) -> float:
    """The cost of a call; a cost that is not a number exceeds any budget."""
    metadata = entry.get("metadata")
    cost = metadata.get("cost") if isinstance(metadata, Mapping) else None
    if cost is None:
        cost = entry.get("cost")
    if cost is None:
        return 0.0
    return cost if isinstance(cost, int | float) and not isinstance(cost, bool) else math.inf


def _left(quota: Mapping[str, float | None] | Callable[[str], float | None] | None, name: str) -> float | None:
    return quota.get(name) if isinstance(quota, Mapping) else quota(name) if quota is not None else None
