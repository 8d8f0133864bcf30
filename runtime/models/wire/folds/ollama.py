"""Assembles a streamed response of Ollama. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callgate.runtime.models.wire.decoder import OTHER_API, SECOND
from callgate.runtime.models.wire.history import as_json, join_pieces
from callgate.runtime.models.wire.reading import FOREIGN, reported_error
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, ReplyEvent, text_delta
from callgate.runtime.models.wire.shapes import items, mapping

_OTHER_API = FOREIGN - {"message"}
_KNOWN = frozenset({"role", "content", "thinking", "tool_calls"})


class OllamaFold:
    """Assembles lines; see ``Fold``. Calls arrive whole, in any line.

    Lines have no id. A second answer is known by its time, which goes back, or by a line after the last one.
    """

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self.began = self.ended = self.closed = False
        self.lost: str | None = None
        self._tool_of = tool_of
        self._last: dict[str, object] = {}
        self._fields: dict[str, object] = {}
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[object] = []
        self._time = ""

    def add(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Add one line."""
        message = chunk.get("message")
        if isinstance(message, dict):
            if self.closed or self._goes_back(chunk.get("created_at")):
                self.lost = SECOND
            self.began = True
            content = message.get("content")
            if content.__class__ is str and content:
                self._text.append(content)
                events.append(text_delta(content))
            if len(message) != 2 or "role" not in message:  # nearly all lines have only these fields
                self._add_rest(message, events)
            if self._last and not chunk.get("done") and "error" not in chunk:
                return
        elif error := reported_error(chunk):
            chunk = {**chunk, "error": error}
        elif not _OTHER_API.isdisjoint(chunk):
            self.lost = OTHER_API
        self._add_last(chunk)

    def _goes_back(self, time: object) -> bool:
        """True if the time of a line, in UTC, is before that of an earlier line."""
        if not isinstance(time, str) or not time.endswith("Z"):
            return False
        before, self._time = self._time, time[:-1]  # the number of digits differs
        return self._time < before

    def body(self) -> dict[str, object]:
        """The response."""
        message: dict[str, object] = {"role": "assistant", "content": join_pieces(self._text), **self._fields}
        if self._thinking:
            message["thinking"] = join_pieces(self._thinking)
        if self._calls:
            message["tool_calls"] = self._calls
        return {**self._last, "message": message}

    def _add_last(self, chunk: Mapping[str, object]) -> None:
        """Add the fields beside the message: of the first line, the last line, or a line without a message."""
        known = {key: value for key, value in self._last.items() if value is not None}
        self._last = {**known, **chunk} if chunk.get("done") else {**chunk, **known}
        self.closed = self.closed or bool(chunk.get("done"))
        self.ended = self.ended or bool(chunk.get("done") or chunk.get("error"))

    def _add_rest(self, message: Mapping[str, object], events: list[ReplyEvent]) -> None:
        thinking = message.get("thinking")
        if thinking and isinstance(thinking, str):
            self._thinking.append(thinking)
            events.append(ReasoningDelta(thinking))
        for entry in items(message.get("tool_calls")):
            self._add_call(entry, events)
        for key, value in message.items():
            if value and key not in _KNOWN:
                self._fields[key] = value

    def _add_call(self, entry: object, events: list[ReplyEvent]) -> None:
        function = mapping(mapping(entry).get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        shown = arguments if isinstance(arguments, str) else as_json(arguments) if arguments else ""
        tool = self._tool_of(name) if isinstance(name, str) else ""
        events.append(CallDelta(len(self._calls), tool, shown))
        self._calls.append(entry)
