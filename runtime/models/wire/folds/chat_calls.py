"""Assembles the tool calls of a streamed chat completion, and decides which call a piece belongs to. Pure.

OpenAI sends an index with each piece, and the id and name with the first one. Compatible servers omit the index or send
0 for every call. They omit ids, reuse one, or make a new one for each piece. They repeat the name, send it late, or send
whole calls; some send the arguments as an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jiter

from callgate.runtime.models.wire.history import as_json, join_pieces
from callgate.runtime.models.wire.reading import with_piece
from callgate.runtime.models.wire.reply import CallDelta, ReplyEvent
from callgate.runtime.models.wire.shapes import place

_Index: TypeAlias = int | float | str
_OWN = frozenset({"index", "id", "type", "function", "custom"})


class _Slot:
    """One call so far. ``whole`` has arguments that are not text; with ``clash``, two forms of them disagree."""

    __slots__ = ("clash", "custom", "extra", "id", "inner", "name", "order", "pieces", "tool", "whole")

    def __init__(self, order: int) -> None:
        self.order = order
        self.id: object = None
        self.name = ""
        self.tool = ""
        self.pieces: list[str] = []
        self.whole: object = None
        self.clash = False
        self.custom = False
        self.extra: dict[str, object] = {}  # other fields, such as a thought signature, which go back to the provider
        self.inner: dict[str, object] = {}

    def complete(self) -> bool:
        """True if the arguments are a complete JSON object."""
        if self.whole is not None:
            return True
        if not self.pieces or not self.pieces[-1].endswith(("}", " ", "\n")):
            return False
        try:
            return jiter.from_json("".join(self.pieces).encode(), cache_mode="none").__class__ is dict
        except ValueError:
            return False

    def has(self, arguments: object) -> bool:
        """True if the arguments equal *arguments* exactly."""
        return bool(arguments == (self.whole if self.whole is not None else "".join(self.pieces)))

    def entry(self) -> dict[str, object]:
        """The call in the form that is not streamed."""
        arguments = join_pieces(self.pieces) if self.whole is None else self.whole
        named = {"name": self.name, **self.inner}
        if self.custom:
            entry = {"type": "custom", "custom": {**named, "input": arguments}}
        else:
            entry = {"type": "function", "function": {**named, "arguments": arguments}}
        return {"id": self.id, **entry, **self.extra}


class ChatCalls:
    """The calls of one response, assembled from their pieces."""

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self._tool_of = tool_of
        self._slots: list[_Slot] = []
        self._at: dict[_Index, _Slot] = {}  # the latest call at an index
        self._ids: dict[tuple[_Index | None, str], _Slot] = {}

    def entries(self) -> list[dict[str, object]]:
        """``tool_calls`` in the form that is not streamed."""
        return [slot.entry() for slot in self._slots]

    def add(self, entries: object, events: list[ReplyEvent]) -> None:
        """Add the ``tool_calls`` of one delta."""
        touched: list[_Slot] = []
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, dict):
                continue
            function = entry.get("function")
            if isinstance(function, dict) and len(entry) == 2 and len(function) == 1 and "index" in entry:
                piece, index = function.get("arguments"), entry["index"]  # the form of nearly all pieces
                slot = self._at.get(index) if isinstance(index, int) else None
                if slot is not None and isinstance(piece, str) and slot.whole is None:
                    slot.pieces.append(piece)
                    events.append(CallDelta(slot.order, slot.tool, piece))
                    continue
            self._add(entry, touched, events)

    def _add(self, entry: Mapping[str, object], touched: list[_Slot], events: list[ReplyEvent]) -> None:
        function, custom = entry.get("function"), entry.get("custom")
        is_custom = isinstance(custom, dict) and bool(custom) and (entry.get("type") == "custom" or not function)
        inner = custom if is_custom else function
        inner = inner if isinstance(inner, dict) else {}
        name = inner.get("name")
        name = name if isinstance(name, str) else ""
        arguments = inner.get("input" if is_custom else "arguments")
        slot = self._slot(entry, name, arguments, touched)
        if slot is None:
            return
        touched.append(slot)
        slot.custom = slot.custom or is_custom
        slot.extra |= {key: value for key, value in entry.items() if key not in _OWN and value is not None}
        own = {"name", "input" if is_custom else "arguments"}
        slot.inner |= {key: value for key, value in inner.items() if key not in own and value is not None}
        self._name(slot, name)
        events.append(CallDelta(slot.order, slot.tool, _take_arguments(slot, arguments)))

    def _name(self, slot: _Slot, name: str) -> None:
        if not name or name == slot.name:
            return
        slot.name = name if name.startswith(slot.name) else slot.name + name
        slot.tool = self._tool_of(slot.name)

    def _slot(self, entry: Mapping[str, object], name: str, arguments: object, touched: list[_Slot]) -> _Slot | None:
        """The call that a piece belongs to, which may be new; None if the server repeats a whole call."""
        index = place(entry.get("index"))
        call_id = entry.get("id")
        key = (index, call_id) if isinstance(call_id, str) and call_id else None
        known = self._ids.get(key) if key else None
        if known is None and call_id and index is not None and index not in self._at:  # one id at two indexes
            known = next((one for one in self._slots if one.id == call_id and name in {"", one.name}), None)
            if known is not None and not (arguments and known.complete()):
                self._at[index] = known
            else:
                known = None
        slot = known or self._latest(index, touched)
        brings = arguments not in (None, "", {})
        if slot is not None and known and name == slot.name and brings and slot not in touched and slot.has(arguments):
            return None
        if slot is None or self._begins(slot, name, brings, call_id, index, touched):
            slot = self._new(index)
        if call_id and not slot.id:
            slot.id = call_id
        if key:
            self._ids[key] = slot
        return slot

    def _latest(self, index: _Index | None, touched: list[_Slot]) -> _Slot | None:
        """The latest call at the index; without an index, the latest call unless this delta has filled it already."""
        if index is not None:
            return self._at.get(index)
        return self._slots[-1] if self._slots and self._slots[-1] not in touched else None

    def _begins(
        self, slot: _Slot, name: str, brings: bool, call_id: object, index: _Index | None, touched: list[_Slot]
    ) -> bool:
        """True if a piece begins a new call, although its index or id is that of *slot*."""
        if call_id and slot.id and call_id != slot.id:  # servers that make an id for every piece send no name with it
            return bool(name) or (brings and slot.complete())
        if not name:
            return False
        announced = slot.whole == {} and bool(call_id)  # an empty object may stand for arguments that follow
        if slot in touched or (brings and slot.complete() and not announced):
            return True
        if not slot.name or name == slot.name:
            return False
        return index is None or (any(slot.pieces) and not name.startswith(slot.name))

    def _new(self, index: _Index | None) -> _Slot:
        slot = _Slot(len(self._slots))
        self._slots.append(slot)
        if index is not None:
            self._at[index] = slot
        return slot


def _take_arguments(slot: _Slot, arguments: object) -> str:
    if arguments is None:
        return ""
    if isinstance(arguments, str) and slot.whole is None:
        slot.pieces.append(arguments)
        return arguments
    shown = arguments if isinstance(arguments, str) else "" if arguments == {} else as_json(arguments)
    if slot.clash:  # compared no more, so that any number of pieces takes linear time
        slot.pieces.append(shown)
    elif shown or (slot.whole is None and not slot.pieces):
        known = "".join(slot.pieces) if slot.whole is None else slot.whole
        made = with_piece(known, arguments)
        slot.clash = isinstance(made, str) and known not in ("", {}) and made is not known
        slot.pieces, slot.whole = ([made], None) if isinstance(made, str) else ([], made)
    return shown
