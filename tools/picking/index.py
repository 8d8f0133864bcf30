"""``ToolIndex``: an inverted index of tools, updated as tools are added and removed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from callgate.errors import DefinitionError, UnknownTool
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import did_you_mean
from callgate.tools.picking.document import GROUPS_OF, pairs_of, read_tool, texts_of, weigh, worth
from callgate.tools.picking.entry import Entry, entry_of
from callgate.tools.picking.text import terms
from callgate.tools.picking.weights import IDF_PRIOR, LEAST_FACTOR, PAIR, SCORE_HALF, SCORE_STEEPNESS
from callgate.tools.values import clip

_BLOCK = 64
_Read = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
_NOTHING_READ: _Read = ((), ())


class ToolIndex:
    """Tools by name, in the order of registration, and the occurrences of each word.

    It takes tools as ``Gate`` does, ``ToolDefinition`` objects, and plain mappings of catalogues (with ``name``,
    ``description``, ``parameters`` or ``inputSchema``, ``tags``, ``title``, ``examples``). ``version`` grows with every
    change. The weights of a tool depend on that tool alone, so an index after additions and removals gives exactly the
    scores of a new index. A mapping is read when it is added: after a change, add it again with ``replace``.

    Raises:
        DefinitionError: two of the tools have one name, or a tool has none.
    """

    def __init__(self, tools: Iterable[object] = ()) -> None:
        self.version = 0
        self.entries: list[Entry | None] = []  # by slot; None where a tool was removed
        self.unsafe: set[int] = set()  # slots of tools with ``safe=False``
        self._holds = 0
        self._slots: dict[str, int] = {}
        self._read: list[_Read] = []  # by slot: the terms and pairs of the tool, which are removed with it
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        self._pairs: dict[tuple[str, str], int | array[int]] = {}  # neighbouring words: one slot, or several
        for tool in tools:
            self.add(tool)

    # ------------------------------------------------------------------ contents

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry is not None)

    def __repr__(self) -> str:
        return f"ToolIndex({len(self)} tools, version {self.version})"

    def add(self, tool: object, *, replace: bool = False) -> None:
        """Add a tool; with ``replace``, in place of the tool of that name.

        Raises:
            DefinitionError: the name is taken or missing.
        """
        entry = entry_of(tool)
        name = entry.name
        if not name:
            raise DefinitionError("a tool in an index needs a name")
        if name in self._slots and not replace:
            raise DefinitionError(f"Duplicate tool names: {clip(name)}")
        self.put(name, tool, entry.definition)

    def put(self, key: str, tool: object, definition: ToolDefinition | Mapping[str, object]) -> None:
        """Add a tool under a key of the caller's choice, or replace the tool with that key."""
        entry = Entry(key, tool, definition)
        fields = read_tool(texts_of(definition))
        weights, pairs, unsafe = (
            weigh(fields),
            pairs_of(fields),
            entry.unsafe,
        )  # read everything before the index changes
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = len(self.entries)
            self.entries.append(None)
            self._read.append(_NOTHING_READ)
        else:
            self._forget(slot)
        self.entries[slot] = entry
        self._read[slot] = tuple(weights), tuple(pairs)
        if unsafe:
            self.unsafe.add(slot)
        for term, weight in weights.items():
            found = self._postings.get(term)
            if found is None:
                found = self._postings[term] = (array("i"), array("d"))
            found[0].append(slot)
            found[1].append(weight)
        for pair in pairs:
            slots = self._pairs.get(pair)
            if slots is None:
                self._pairs[pair] = slot  # most pairs occur in one tool: a list for each would be most of the memory
            elif isinstance(slots, int):
                self._pairs[pair] = array("i", (slots, slot))
            else:
                slots.append(slot)
        self.version += 1

    def remove(self, name: str) -> None:
        """Remove a tool.

        Raises:
            UnknownTool: there is no tool of that name.
        """
        if name not in self._slots:
            raise UnknownTool(f"no tool {clip(str(name))!r}{did_you_mean(str(name), self._slots)}")
        slot = self._slots.pop(name)
        self._forget(slot)
        self.entries[slot] = None
        self.version += 1
        self._compact_if_due()

    def _forget(self, slot: int) -> None:
        self.unsafe.discard(slot)
        words, pairs = self._read[slot]
        self._read[slot] = _NOTHING_READ
        for term in words:
            slots, weights = self._postings[term]
            at = slots.index(slot)
            del slots[at], weights[at]
            if not slots:
                del self._postings[term]
        for pair in pairs:
            found = self._pairs[pair]
            if isinstance(found, int) or len(found) == 1:
                del self._pairs[pair]
            else:
                found.remove(slot)

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """A context manager in which no tool changes its slot."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._compact_if_due()

    def _compact_if_due(self) -> None:
        """Close the gaps of removed tools, once they are most of the slots."""
        if not self._holds and len(self.entries) > 64 + 2 * len(self._slots):
            self._compact()

    def _compact(self) -> None:
        kept = [slot for slot, entry in enumerate(self.entries) if entry is not None]
        moved = {old: new for new, old in enumerate(kept)}
        self.entries = [self.entries[slot] for slot in kept]
        self._read = [self._read[slot] for slot in kept]
        self._slots = {key: moved[slot] for key, slot in self._slots.items()}
        self.unsafe = {moved[slot] for slot in self.unsafe}
        for slots, _ in self._postings.values():
            slots[:] = array("i", map(moved.__getitem__, slots))
        for pair, found in self._pairs.items():
            self._pairs[pair] = moved[found] if isinstance(found, int) else array("i", map(moved.__getitem__, found))
        self.version += 1  # holders of slots have to look them up again

    # ------------------------------------------------------------------ search

    def entry(self, slot: int) -> Entry:
        """Return the tool in a slot.

        Raises:
            LookupError: the slot is empty.
        """
        entry = self.entries[slot]
        if entry is None:
            raise LookupError(f"slot {slot} is empty")
        return entry

    def slots(self) -> list[int]:
        """The used slots, in the order of registration."""
        return sorted(self._slots.values())

    def search(
        self, query: str, *, limit: int = 10, min_score: float = 0.0, slots: Sequence[int] | None = None
    ) -> list[tuple[int, float]]:
        """Search the best matching tools for a query: slot and score, 0 to 1; best first, ties by registration.

        With *slots* the result is that of an index with these tools alone: the others do not even affect the rarity of a
        word.
        """
        sums = self._sums(query, slots)
        # No tool among the best few can lie outside of the few blocks with the highest peaks, ties going to the earlier,
        # nor below the lowest of as many peaks. A weight of 0 is not a match.
        peaks = sorted([(-max(sums[at : at + _BLOCK]), at) for at in range(0, len(sums), _BLOCK)])[:limit]
        least = max(_weight_of(min_score), 5e-324, -peaks[-1][0] if len(peaks) == limit else 0.0)
        best = [
            (-weight, slot)
            for _, at in peaks
            for slot, weight in enumerate(sums[at : at + _BLOCK], at)
            if weight >= least
        ]
        found = [(slot, calibrated(-weight)) for weight, slot in sorted(best)[:limit]]
        return [(slot, score) for slot, score in found if score >= min_score]

    def weigh(self, query: str, slots: Sequence[int] | None = None) -> dict[int, float]:
        """Weigh every matching tool, by slot: above 0 and unbounded; ``calibrated`` makes a score of it."""
        return {slot: weight for slot, weight in enumerate(self._sums(query, slots)) if weight > 0.0}

    def _sums(self, query: str, slots: Sequence[int] | None) -> list[float]:
        """Weigh each tool for a query, by slot: 0 or more, unbounded."""
        mask = None if slots is None else _mask(slots, len(self.entries))
        sums = [0.0] * len(self.entries)
        for _, factor, positions, weights in self._matches(query, slots, mask):
            if weights is None:
                for slot in positions:
                    sums[slot] += factor
            else:
                for slot, weight in zip(positions, weights, strict=True):
                    sums[slot] += factor * weight
        return sums if mask is None else [weight if seen else 0.0 for weight, seen in zip(sums, mask, strict=True)]

    def _matches(
        self, query: str, slots: Sequence[int] | None, mask: bytearray | None
    ) -> Iterator[tuple[str, float, Sequence[int], array[float] | None]]:
        """List the terms of a query that occur: the term, its factor, its slots, and its weight in each.

        Two neighbouring words have no weight of their own. *mask* has a 1 for each of *slots*.
        """
        query_terms = terms(query)
        total = len(self._slots) if slots is None else len(slots)

        def rarity(positions: Sequence[int]) -> float:
            return _rarity(len(positions) if mask is None else sum(map(mask.__getitem__, positions)), total)

        for term in _with_groups(query_terms):
            if (found := self._postings.get(term)) is not None:
                factor = worth(term) * rarity(found[0])
                if factor >= LEAST_FACTOR:  # others are words of nearly every tool: most of the work, and no difference
                    yield term, factor, *found
        for pair in dict.fromkeys(pairwise(query_terms)):
            if (alike := self._pairs.get(pair)) is not None:
                positions = (alike,) if isinstance(alike, int) else alike
                yield " ".join(pair), PAIR * rarity(positions), positions, None

    def explain(self, query: str, slot: int, slots: Sequence[int] | None = None) -> dict[str, float]:
        """List the weight of each term of a query for one tool, highest first; their sum gives the score.

        A group of words shows as ``~`` and its number, two neighbouring words as both. *slots* as for ``search``.
        """
        mask = None if slots is None else _mask(slots, len(self.entries))
        found: dict[str, float] = {}
        for name, factor, positions, weights in self._matches(query, slots, mask):
            if slot in positions:
                found[name] = round(factor * (1.0 if weights is None else weights[positions.index(slot)]), 4)
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


class Snapshot:
    """The contents of an index at one moment, for use after an ``await``: tools may change meanwhile."""

    def __init__(self, index: ToolIndex) -> None:
        self._index = index
        self._version = index.version
        self.entries = index.entries.copy()

    def still(self, slots: Sequence[int] | None) -> Sequence[int] | None:
        """Keep those of *slots* (None for all) whose tool is unchanged; None where nothing changed and all are meant.

        A slot may now hold a tool that must not be picked: visibility was decided before.
        """
        if self._index.version == self._version:
            return slots
        before, now = self.entries, self._index.entries
        wanted = range(len(before)) if slots is None else slots
        return [slot for slot in wanted if slot < len(now) and now[slot] is not None and now[slot] is before[slot]]


def _with_groups(query_terms: Sequence[str]) -> dict[str, None]:
    """Each term once, in order, then the groups of the terms."""
    found = dict.fromkeys(query_terms)
    return found | dict.fromkeys(group for term in found for group in GROUPS_OF.get(term, ()))


def _rarity(df: int, total: int) -> float:
    """The rarity of a term: 1 for a word of one tool, towards 0 for a word of all."""
    total += IDF_PRIOR
    return math.log1p((total - df + 0.5) / (df + 0.5)) / math.log1p((total - 0.5) / 1.5)


def _mask(slots: Sequence[int], size: int) -> bytearray:
    mask = bytearray(size)
    for slot in slots:
        mask[slot] = 1
    return mask


def calibrated(weight: float) -> float:
    """Convert a weight to a score from 0 to 1, in the same order."""
    if weight <= 0.0:
        return 0.0
    power = float(weight**SCORE_STEEPNESS)
    return power / (power + float(SCORE_HALF**SCORE_STEEPNESS))


def _weight_of(score: float) -> float:
    """The lowest weight that could give a score: the inverse of ``calibrated``, slightly lower for rounding."""
    if score <= 0.0:
        return 0.0
    return math.inf if score >= 1.0 else SCORE_HALF * (score / (1.0 - score)) ** (1.0 / SCORE_STEEPNESS) * (1.0 - 1e-9)
