"""Assembles a streamed message of Anthropic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callgate.runtime.models.wire.decoder import OTHER_API, SECOND
from callgate.runtime.models.wire.history import as_json, join_pieces
from callgate.runtime.models.wire.reading import FOREIGN, reported_error, text_or_empty, text_or_none
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, ReplyEvent, text_delta
from callgate.runtime.models.wire.shapes import items, mapping, place

_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_STARTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
_GOES_ON = "a block of the answer goes on after its end"


class _Block:
    """A content block so far: its first event, and the pieces of each text in it."""

    __slots__ = ("fields", "order", "pieces", "stopped", "tool")

    def __init__(self, fields: dict[str, object], order: int, tool: str) -> None:
        self.fields = fields
        self.order = order  # index among the calls
        self.tool = tool
        self.pieces: dict[str, list[str]] = {}
        self.stopped = False

    def whole(self) -> dict[str, object]:
        """The whole block; a call's input is its streamed text, or else the input of its first event."""
        block = dict(self.fields)
        for name, pieces in self.pieces.items():
            text = join_pieces(pieces)
            if name != "partial_json":
                block[name] = text_or_empty(block.get(name)) + text
            elif text:
                block["input"] = text
        return block


class AnthropicFold:
    """Assembles events into a message; see ``Fold``. A stop reason or ``message_stop`` ends it."""

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self.began = self.ended = self.closed = False
        self.lost: str | None = None
        self._tool_of = tool_of
        self._message: dict[str, object] = {}
        self._blocks: list[_Block] = []
        self._at: dict[object, _Block] = {}
        self._calls = 0

    def add(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Add one event; ``ping`` and unknown events are ignored."""
        kind = chunk.get("type")
        if kind == "content_block_delta":
            delta = chunk.get("delta")
            if isinstance(delta, dict):
                self._grow(chunk.get("index"), delta, events)
        elif kind == "content_block_start":
            self._start(chunk.get("index"), mapping(chunk.get("content_block")), events)
        elif kind == "content_block_stop":
            if (block := self._block(chunk.get("index"))) is not None:
                block.stopped = True
        elif kind == "message_delta":
            self._change(chunk)
        elif kind == "message_stop":
            self.ended = self.closed = True
        elif kind in ("message_start", "message"):
            whole = kind == "message"
            self._begin(chunk if whole else mapping(chunk.get("message")), events)
            self.ended = whole
        else:
            self._other(kind, chunk)

    def _other(self, kind: object, chunk: Mapping[str, object]) -> None:
        """Read an error, and find the chunk of another API; new events of this one are ignored."""
        if error := reported_error(chunk):
            self._message.setdefault("error", error)
            self.ended = True
        elif kind.startswith("response.") if isinstance(kind, str) else not FOREIGN.isdisjoint(chunk):
            self.lost = OTHER_API

    def body(self) -> dict[str, object]:
        """The message."""
        return {**self._message, "content": [block.whole() for block in self._blocks]}

    def _begin(self, message: Mapping[str, object], events: list[ReplyEvent]) -> None:
        if self.began:
            self.lost = SECOND
        self.began = True
        self._message |= {key: value for key, value in message.items() if key != "content"}
        for index, block in enumerate(items(message.get("content"))):
            self._start(index, mapping(block), events)

    def _change(self, chunk: Mapping[str, object]) -> None:
        """Read the stop reason and the usage. A stop reason that more content followed counts no longer."""
        changed = {key: value for key, value in mapping(chunk.get("delta")).items() if value is not None}
        usage = {key: value for key, value in mapping(chunk.get("usage")).items() if value is not None}
        self._message |= changed
        self._message["usage"] = {**mapping(self._message.get("usage")), **usage}
        if self.closed and changed.get("stop_reason"):
            self.lost = SECOND
        self.ended = self.ended or bool(changed.get("stop_reason"))

    def _block(self, index: object) -> _Block | None:
        return self._at.get(place(index))

    def _start(self, index: object, content: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Begin a block; if its index is used already, the earlier block stays unchanged."""
        index = place(index)
        if self.closed or (index is not None and index in self._at):
            self.lost = SECOND
        self.began, self.ended = True, False
        kind, name = content.get("type"), content.get("name")
        block = _Block(dict(content), self._calls, self._tool_of(name) if isinstance(name, str) else "")
        self._blocks.append(block)
        self._at[index] = block
        if kind == "tool_use":
            self._calls += 1
            given = content.get("input")
            events.append(CallDelta(block.order, block.tool, as_json(given) if given else ""))
        elif kind == "text" and (text := text_or_none(content.get("text"))):
            events.append(text_delta(text))
        elif kind == "thinking" and (thought := text_or_none(content.get("thinking"))):
            events.append(ReasoningDelta(thought))

    def _grow(self, index: object, delta: dict[str, object], events: list[ReplyEvent]) -> None:
        if self.ended:  # the stop reason came too early
            self.ended, self.lost = False, SECOND if self.closed else self.lost
        kind = delta.get("type")
        block = self._block(index)
        if block is None:
            block = self._unannounced(index, kind, events)
        if block.stopped:
            self.lost = _GOES_ON
        field = _GROWS.get(kind) if isinstance(kind, str) else None
        if field is None:
            self._attach(block, kind, delta)
            return
        piece = delta.get(field)
        if not isinstance(piece, str):
            return
        pieces = block.pieces.get(field)
        if pieces is None:
            pieces = block.pieces[field] = []
        pieces.append(piece)
        if field == "partial_json":
            if block.fields.get("type") == "tool_use":
                events.append(CallDelta(block.order, block.tool, piece))
        elif piece:
            events.append(text_delta(piece) if field == "text" else ReasoningDelta(piece))

    def _unannounced(self, index: object, kind: object, events: list[ReplyEvent]) -> _Block:
        """The block for a delta without an index (the latest block), or a new one if it never began."""
        if index is None and self._blocks:
            return self._blocks[-1]
        self._start(index, {"type": _STARTS.get(kind, "tool_use") if isinstance(kind, str) else "tool_use"}, events)
        return self._blocks[-1]

    def _attach(self, block: _Block, kind: object, delta: Mapping[str, object]) -> None:
        if kind == "signature_delta":
            block.fields["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            block.fields["citations"] = [*items(block.fields.get("citations")), delta.get("citation")]
        elif kind == "compaction_delta":
            for name in ("content", "encrypted_content"):
                if isinstance(piece := delta.get(name), str):
                    block.fields[name] = text_or_empty(block.fields.get(name)) + piece
