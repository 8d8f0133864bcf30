"""Assembles a streamed response of OpenAI's Responses API. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callgate.runtime.models.wire.decoder import SECOND
from callgate.runtime.models.wire.history import join_pieces, without_nulls
from callgate.runtime.models.wire.reading import reported_error, text_or_empty
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, ReplyEvent, text_delta
from callgate.runtime.models.wire.shapes import items, mapping

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The item types that call a client's tool, and the field with the arguments. The provider runs all other calls."""
_PARTS = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning_summary_text.delta": "summary_text",
}
_THOUGHTS = frozenset({"reasoning_text", "summary_text"})


def item_type(item: Mapping[str, Any]) -> str:
    """The type of an output item."""
    return text_or_empty(item.get("type"))


def message_text(item: Mapping[str, Any]) -> str:
    """The text of a message item, a refusal included."""
    return _texts(item.get("content"), "text", "refusal")


def reasoning_text(item: Mapping[str, Any]) -> str:
    """The visible text of a reasoning item."""
    return _texts(item.get("summary"), "text") + _texts(item.get("content"), "text")


def _texts(parts: Any, *names: str) -> str:
    return "".join(text_or_empty(mapping(part).get(name)) for part in items(parts) for name in names)


class _Item:
    """An output item so far: its first form, its pieces of text, and its final form."""

    __slots__ = ("done", "fields", "order", "parts", "pieces", "tool")

    def __init__(self, fields: dict[str, Any], order: int, tool: str) -> None:
        self.fields = fields
        self.order = order  # index among the calls
        self.tool = tool
        self.done: dict[str, Any] | None = None
        self.pieces: list[str] = []  # of the arguments
        self.parts: dict[tuple[str, Any], list[str]] = {}  # of the content, by (kind of part, its index)

    def whole(self) -> dict[str, Any]:
        """The final item; streamed pieces replace what it lacks."""
        item = self.filled(self.fields if self.done is None else self.done)
        if self.done is None:
            for (kind, _), pieces in self.parts.items():
                field = "summary" if kind == "summary_text" else "content"
                name = "refusal" if kind == "refusal" else "text"
                item[field] = [*items(item.get(field)), {"type": kind, name: join_pieces(pieces)}]
        return item

    def filled(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """The item; if it has no arguments, the streamed ones are added."""
        field = CALLS.get(item_type(item))
        if field and self.pieces and not item.get(field):
            return {**item, field: join_pieces(self.pieces)}
        return dict(item)


class ResponsesFold:
    """Assembles events into a response; see ``Fold``.

    The last event has the whole response, which takes precedence; earlier events supply what it lacks.
    """

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self.began = self.ended = self.closed = False
        self.lost: str | None = None
        self._tool_of = tool_of
        self._response: dict[str, Any] = {}
        self._error: Any = None
        self._items: list[_Item] = []
        self._at: dict[str | int, _Item] = {}  # by output index, and by item id
        self._calls = 0
        self._number = -1  # of the last event

    def add(self, chunk: dict[str, Any], events: list[ReplyEvent]) -> None:
        """Add one event; unknown events are ignored."""
        kind = chunk.get("type")
        if isinstance(kind, str):
            take = _TAKE.get(kind)
            if take is not None:
                number = chunk.get("sequence_number")
                if isinstance(number, int):
                    again, self._number = number <= self._number, number
                else:
                    again = False
                if self.began and (again or kind == "response.created" or self.closed):
                    self.lost = SECOND
                self.began = self.began or kind != "error"
                take(self, chunk, events)
        elif chunk.get("object") == "response":  # a whole response instead of an event
            self.began = "output" in chunk
            self._end({"response": chunk}, events)
        elif error := reported_error(chunk):
            self._fail({"error": error}, events)

    def body(self) -> dict[str, Any]:
        """The response."""
        streamed = [item.whole() for item in self._items]
        last = [self._filled(item) for item in items(self._response.get("output"))]
        known = {item["id"] for item in map(mapping, last) if isinstance(item.get("id"), str)}
        late = [item for item in streamed if not (isinstance(item.get("id"), str) and item["id"] in known)]
        missing = max(0, len(streamed) - len(last))  # some servers omit items at the end, or all of them
        body = {**self._response, "output": [*last, *late[:missing]]}
        return {**body, "error": self._error} if self._error and not body.get("error") else body

    def _filled(self, item: Any) -> Any:
        item_id = mapping(item).get("id")
        known = self._at.get(item_id) if isinstance(item_id, str) else None
        return known.filled(item) if known else item

    def _begin(self, chunk: Mapping[str, Any], events: list[ReplyEvent]) -> None:
        self._response = self._response or dict(mapping(chunk.get("response")))

    def _end(self, chunk: Mapping[str, Any], events: list[ReplyEvent]) -> None:
        response = mapping(chunk.get("response"))
        self._response = {**self._response, **response}
        self.ended = self.closed = True
        if not self._items:
            for index, item in enumerate(items(response.get("output"))):
                self._done({"output_index": index, "item": item}, events)

    def _fail(self, chunk: dict[str, Any], events: list[ReplyEvent]) -> None:
        self._error = self._error or chunk.get("error") or without_nulls(chunk, "type", "sequence_number")
        self.ended = True

    def _arguments(self, chunk: dict[str, Any], events: list[ReplyEvent]) -> None:
        piece = chunk.get("delta")
        if isinstance(piece, str):
            item = self._item(chunk, "function_call", events)
            item.pieces.append(piece)
            events.append(CallDelta(item.order, item.tool, piece))

    def _arguments_done(self, chunk: dict[str, Any], events: list[ReplyEvent]) -> None:
        whole = chunk.get("arguments", chunk.get("input"))
        if whole and isinstance(whole, str):
            item = self._item(chunk, "function_call", events)
            if not item.pieces:
                events.append(CallDelta(item.order, item.tool, whole))
            item.pieces = [whole]

    def _text(self, chunk: dict[str, Any], events: list[ReplyEvent]) -> None:
        piece = chunk.get("delta")
        if not isinstance(piece, str) or not piece:
            return
        kind = _PARTS[chunk["type"]]
        thought = kind in _THOUGHTS
        item = self._item(chunk, "reasoning" if thought else "message", events)
        index = chunk.get("summary_index" if kind == "summary_text" else "content_index")
        key = (kind, index if isinstance(index, int) else None)
        pieces = item.parts.get(key)
        if pieces is None:
            pieces = item.parts[key] = []
        pieces.append(piece)
        events.append(ReasoningDelta(piece) if thought else text_delta(piece))

    def _item(self, chunk: Mapping[str, Any], kind: str, events: list[ReplyEvent]) -> _Item:
        """The item of an event: by id, by index, or the latest one; an unknown item begins here."""
        item_id, index = chunk.get("item_id"), chunk.get("output_index")
        found = self._at.get(item_id) if isinstance(item_id, str) else None
        if found is None and isinstance(index, int):
            found = self._at.get(index)
        if found is None and item_id is None and index is None and self._items:
            found = self._items[-1]
        return found or self._added({"output_index": index, "item": {"type": kind, "id": item_id}}, events)

    def _added(self, chunk: Mapping[str, Any], events: list[ReplyEvent]) -> _Item:
        fields = dict(mapping(chunk.get("item")))
        item = _Item(fields, self._calls, "")
        self._items.append(item)
        for key in (fields.get("id"), chunk.get("output_index")):
            if isinstance(key, str | int):
                self._at[key] = item
        field = CALLS.get(item_type(fields))
        if field:
            self._calls += 1
            item.tool = self._tool_of(text_or_empty(fields.get("name")))
            events.append(CallDelta(item.order, item.tool, text_or_empty(fields.get(field))))
        return item

    def _done(self, chunk: Mapping[str, Any], events: list[ReplyEvent]) -> None:
        """Complete an item, and send the deltas that were not streamed."""
        fields = dict(mapping(chunk.get("item")))
        item_id, index = fields.get("id"), chunk.get("output_index")
        item = (
            self._at.get(item_id)
            if isinstance(item_id, str)
            else self._at.get(index)
            if isinstance(index, int)
            else None
        )
        if item is None:
            item = self._added(chunk, events)
        elif (field := CALLS.get(item_type(fields))) and not item.pieces and not item.fields.get(field):
            events.append(CallDelta(item.order, item.tool, text_or_empty(fields.get(field))))
        item.done = fields
        if item.parts:
            return
        if item_type(fields) == "message" and (text := message_text(fields)):
            events.append(text_delta(text))
        if item_type(fields) == "reasoning" and (text := reasoning_text(fields)):
            events.append(ReasoningDelta(text))


REPEATED = (
    "response.audio.",
    "response.code_interpreter_call",
    "response.compaction.",
    "response.content_part.",
    "response.file_search_call.",
    "response.image_generation_call.",
    "response.mcp_call",
    "response.mcp_list_tools.",
    "response.output_text.annotation.",
    "response.output_text.done",
    "response.reasoning_summary_part.",
    "response.reasoning_summary_text.done",
    "response.reasoning_text.done",
    "response.refusal.done",
    "response.shell_call_",
    "response.web_search_call.",
)
"""Beginnings of the events that are not read, because the final item repeats their content."""
_TAKE: dict[str, Callable[[ResponsesFold, dict[str, Any], list[ReplyEvent]], Any]] = {
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
