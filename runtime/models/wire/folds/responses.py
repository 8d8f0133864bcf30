"""Assembles a streamed response of OpenAI's Responses API. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from callgate.runtime.models.wire.decoder import OTHER_API, SECOND
from callgate.runtime.models.wire.folds.responses_items import (
    CALLS,
    Item,
    item_type,
    kind_of,
    message_text,
    reasoning_text,
)
from callgate.runtime.models.wire.history import without_nulls
from callgate.runtime.models.wire.reading import FOREIGN, plain_arguments, reported_error, text_or_empty
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, ReplyEvent, text_delta
from callgate.runtime.models.wire.shapes import items, mapping

_MANY = 64
"""Open items that are looked through for one whose ids are new; real answers have one or a few."""
_PARTS = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning_summary_text.delta": "summary_text",
}
_THOUGHTS = frozenset({"reasoning_text", "summary_text"})


class ResponsesFold:
    """Assembles events into a response; see ``Fold``.

    The last event has the whole response, which takes precedence; earlier events supply what it lacks. Item ids may
    change from event to event, as they do behind proxies that encrypt them: an item is also known by its call id, by its
    output index, or as the only one of its kind that is not done.
    """

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self.began = self.ended = self.closed = False
        self.lost: str | None = None
        self._tool_of = tool_of
        self._response: dict[str, object] = {}
        self._output: list[object] | None = None
        self._error: object = None
        self._created = False
        self._items: list[Item] = []
        self._open: dict[Item, None] = {}  # those that are not done, in order
        self._at: dict[str | int | tuple[str], Item] = {}  # by output index, by item id, and by (call id,)
        self._calls = 0
        self._number = self._highest = -1  # sequence numbers: of the last event, and the highest

    def add(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Add one event; unknown events are ignored."""
        kind = chunk.get("type")
        if isinstance(kind, str):
            if self._counts_again(chunk.get("sequence_number")) or (self.closed and kind.startswith("response.")):
                self.lost = SECOND
            take = _TAKE.get(kind)
            if take is not None:
                self.began = self.began or kind != "error"
                take(self, chunk, events)
            elif "." not in kind:
                self._foreign(chunk, events)
        elif chunk.get("object") == "response":  # a whole response instead of an event
            if self.began:
                self.lost = SECOND
            self.began = "output" in chunk
            self._end({"response": chunk}, events)
        else:
            self._foreign(chunk, events)

    def _counts_again(self, number: object) -> bool:
        """True if two sequence numbers in a row come again; some servers give single events a constant number."""
        if not isinstance(number, int):
            return False
        repeats = number <= self._highest and number == self._number + 1
        self._number, self._highest = number, max(number, self._highest)
        return repeats

    def body(self) -> dict[str, object]:
        """The response."""
        output = self._output if self._output is not None else [item.whole() for item in self._items]
        body = {**self._response, "output": output}
        return {**body, "error": self._error} if self._error and not body.get("error") else body

    def _foreign(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Fail with an error that has not the form of an event; a chunk of another API breaks the stream."""
        if error := reported_error(chunk):
            self._fail({"error": error}, events)
        elif not FOREIGN.isdisjoint(chunk):
            self.lost = self.lost or OTHER_API

    def _begin(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        if self._items or (self._created and chunk["type"] == "response.created"):
            self.lost = SECOND
        self._created = self._created or chunk["type"] == "response.created"
        # Only the last event says how the response ended.
        self._response = self._response or without_nulls(mapping(chunk.get("response")), "status")

    def _end(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        response = mapping(chunk.get("response"))
        ours, other = self._response.get("id"), response.get("id")
        if response.get("status") == "completed" and chunk.get("type", "response.completed") != "response.completed":
            self.lost = self.lost or f"{chunk['type']} has the status 'completed'"
        self._response = {**self._response, **response}
        self.ended = self.closed = True
        last = items(response.get("output"))
        if not self._items:
            for index, item in enumerate(last):
                self._done({"output_index": index, "item": item}, events)
        self._output = self._settled(list(last), other=bool(ours and other and ours != other))

    def _settled(self, last: list[object], *, other: bool) -> list[object]:
        """The final items, with what only earlier events had; some servers omit items at the end, or all of them.

        *other*: the response has another id than at its beginning. A proxy may have encrypted it; without the same calls
        it is another response.
        """
        left = dict.fromkeys(self._items)
        pairs: list[Item | None] = []
        for item in map(mapping, last):
            found = self._known(item)
            pairs.append(found if found in left else None)
            if found is not None:
                left.pop(found, None)
        kinds = [kind_of(mapping(item)) for item in last]
        unknown = [kind for kind, pair in zip(kinds, pairs, strict=True) if pair is None]
        extra = [kind_of(item.fields) for item in left]
        if "call" in unknown and "call" in extra and unknown.count("call") != extra.count("call"):
            self._disagree()  # which of them is which?
        if other and "call" in (*unknown, *extra):
            self.lost = SECOND
        for position, (kind, pair) in enumerate(zip(kinds, pairs, strict=True)):
            found = pair or next((item for item in left if kind_of(item.fields) == kind), None)
            if found is not None:
                left.pop(found, None)
                last[position] = self._agreed(found, mapping(last[position]))
        return [*last, *(item.whole() for item in left)]

    def _agreed(self, item: Item, last: Mapping[str, object]) -> dict[str, object]:
        """The final form of an item. A call that has two names, or two whole arguments, is not known."""
        if (field := CALLS.get(item_type(last))) is not None:
            first = item.done or {}
            known = {**item.fields, field: item.streamed() if item.done is None else None}  # once: it takes time
            for name in ("name", "namespace", field):
                ours, other = first.get(name) or known.get(name), last.get(name)
                if ours and other and ours != other and plain_arguments(ours) != plain_arguments(other):
                    self._disagree()
        return item.filled(last)

    def _disagree(self) -> None:
        self.lost = self.lost or "the events and the response disagree about a call"

    def _fail(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        self._error = self._error or chunk.get("error") or without_nulls(chunk, "type", "sequence_number")
        self.ended = True

    def _arguments(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        piece = chunk.get("delta")
        if isinstance(piece, str):
            item = self._item(chunk, "function_call", events)
            item.pieces.append(piece)
            events.append(CallDelta(item.order, item.tool, piece))

    def _arguments_done(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        whole = chunk.get("arguments", chunk.get("input"))
        if whole and isinstance(whole, str):
            item = self._item(chunk, "function_call", events)
            if not item.pieces:
                events.append(CallDelta(item.order, item.tool, whole))
            elif (ours := item.streamed()) and plain_arguments(ours) != plain_arguments(whole):
                self._disagree()
            item.pieces, item.arguments = [whole], True

    def _text(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        piece = chunk.get("delta")
        if not isinstance(piece, str) or not piece:
            return
        kind = _PARTS[str(chunk["type"])]
        thought = kind in _THOUGHTS
        item = self._item(chunk, "reasoning" if thought else "message", events)
        index = chunk.get("summary_index" if kind == "summary_text" else "content_index")
        key = (kind, index if isinstance(index, int) else None)
        pieces = item.parts.get(key)
        if pieces is None:
            pieces = item.parts[key] = []
        pieces.append(piece)
        events.append(ReasoningDelta(piece) if thought else text_delta(piece))

    def _item(self, chunk: Mapping[str, object], kind: str, events: list[ReplyEvent]) -> Item:
        """The item of a piece; an unknown item begins here."""
        item_id = chunk.get("item_id")
        found = self._at.get(item_id) if isinstance(item_id, str) else None
        if found is not None:
            return found
        fields = {"type": kind, "id": item_id}
        found = self._same(fields, chunk.get("output_index"))
        if found is None:
            return self._new(fields, chunk.get("output_index"), events)
        if isinstance(item_id, str):
            self._at[item_id] = found
        return found

    def _added(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        fields, index = dict(mapping(chunk.get("item"))), chunk.get("output_index")
        found = self._known(fields) or self._same(fields, index)
        if found is not None and found.done is not None and fields.get("call_id"):
            self.lost = SECOND  # the same call begins again
        if found is None or found.stated:
            self._new(fields, index, events).stated = True
        else:  # pieces of it came first
            self._remember(found, fields, index)

    def _known(self, item: Mapping[str, object]) -> Item | None:
        """The item with the same call id, or the same item id."""
        call_id, item_id = item.get("call_id"), item.get("id")
        found = self._at.get((call_id,)) if isinstance(call_id, str) else None
        if found is None and isinstance(item_id, str):
            found = self._at.get(item_id)
        return found if found is not None and found.may_be(item) else None

    def _same(self, item: Mapping[str, object], index: object) -> Item | None:
        """The open item that another form of it means, if its ids are new: by output index, or the next of its kind."""
        if isinstance(index, int) and index in self._at:
            found = self._at[index]
            return found if found.may_be(item) and found.done is None else None
        open_items = [
            one
            for one in islice(self._open, _MANY)
            if one.may_be(item) and (index is None or not isinstance(one.index, int))
        ]
        if len(open_items) > 1 and not item.get("call_id"):
            for one in open_items:
                one.vague = True
        return open_items[0] if open_items else None

    def _new(self, fields: Mapping[str, object], index: object, events: list[ReplyEvent]) -> Item:
        item = Item({}, index, self._calls, "")
        self._items.append(item)
        self._open[item] = None
        field = CALLS.get(item_type(fields))
        self._calls += field is not None
        self._remember(item, fields, index)
        if field:
            events.append(CallDelta(item.order, item.tool, text_or_empty(fields.get(field))))
        return item

    def _remember(self, item: Item, fields: Mapping[str, object], index: object) -> None:
        """Keep a form of an item, and find it by these ids from now on."""
        item.fields = {
            **item.fields,
            **{key: value for key, value in fields.items() if value or key not in item.fields},
        }
        item.tool = self._tool_of(text_or_empty(item.fields.get("name")))
        call_id = fields.get("call_id")
        for key in (fields.get("id"), index, (call_id,) if isinstance(call_id, str) else None):
            if isinstance(key, str | int | tuple):
                self._at[key] = item

    def _done(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Complete an item, and send the deltas that were not streamed."""
        fields, index = dict(mapping(chunk.get("item"))), chunk.get("output_index")
        item = self._known(fields) or self._same(fields, index)
        if item is None:
            item = self._new(fields, index, events)
        else:
            field = CALLS.get(item_type(fields))
            if field and not item.pieces and not item.fields.get(field):
                events.append(CallDelta(item.order, item.tool, text_or_empty(fields.get(field))))
            self._agreed(item, fields)
            self._remember(item, fields, index)
        shown, item.done, item.stated = item.parts or item.done, fields, True
        self._open.pop(item, None)
        if shown:
            return
        if item_type(fields) == "message" and (text := message_text(fields)):
            events.append(text_delta(text))
        if item_type(fields) == "reasoning" and (text := reasoning_text(fields)):
            events.append(ReasoningDelta(text))


_TAKE: dict[str, Callable[[ResponsesFold, Mapping[str, object], list[ReplyEvent]], object]] = {
    "response.created": ResponsesFold._begin,
    "response.queued": ResponsesFold._begin,
    "response.in_progress": ResponsesFold._begin,
    "response.output_item.added": ResponsesFold._added,
    **dict.fromkeys(_PARTS, ResponsesFold._text),
    "response.function_call_arguments.delta": ResponsesFold._arguments,
    "response.custom_tool_call_input.delta": ResponsesFold._arguments,
    "response.function_call_arguments.done": ResponsesFold._arguments_done,
    "response.custom_tool_call_input.done": ResponsesFold._arguments_done,
    "response.output_item.done": ResponsesFold._done,
    "response.completed": ResponsesFold._end,
    "response.incomplete": ResponsesFold._end,
    "response.failed": ResponsesFold._end,
    "response.cancelled": ResponsesFold._end,
    "error": ResponsesFold._fail,
}
