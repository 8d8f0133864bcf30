"""Assembles a streamed chat completion. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

from callgate.runtime.models.wire.decoder import OTHER_API, SECOND
from callgate.runtime.models.wire.folds.chat_calls import ChatCalls
from callgate.runtime.models.wire.history import join_pieces
from callgate.runtime.models.wire.reading import FOREIGN, reported_error, with_piece
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, ReplyEvent, text_delta
from callgate.runtime.models.wire.shapes import items, mapping

REASONING = ("reasoning_content", "reasoning", "reasoning_details")
"""Fields with reasoning, in order of preference because some servers send the same text in two of them: DeepSeek and
vLLM; Groq, Ollama and OpenRouter; OpenRouter's pieces with signatures."""
_APART = frozenset({"choices", "usage", "error"})


class _LegacyCall(TypedDict):
    """``function_call``, the single call of the older form."""

    name: str
    arguments: object


class ChatFold:
    """Assembles chunks; only the first choice is read. See ``Fold``.

    A finish reason or ``[DONE]`` ends the response, since servers omit one or the other. A piece of a call after the
    finish reason reopens it.
    """

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self.began = self.ended = self.closed = False
        self.lost: str | None = None
        self._tool_of = tool_of
        self._head: dict[str, object] | None = None
        self._late: dict[str, object] = {}
        self._which: object = None  # the index of the choice that is read
        self._choice: dict[str, object] = {}
        self._text: dict[str, list[str]] = {}
        self._parts: list[dict[str, object]] | None = None  # content as a list (Mistral)
        self._fields: dict[str, object] = {}
        self._legacy: _LegacyCall | None = None
        self._shown: str | None = None  # the field of REASONING that is shown
        self._calls = ChatCalls(tool_of)
        self._opening: dict[str, object] = {}  # the delta of the first chunk
        self._repeated = False  # the second chunk was the first one again
        self._roles = self._bare = 0  # chunks with a role, and with other members but without a role

    def add(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Add one chunk; a whole response counts as one."""
        if self._head is None:
            self._head = {key: value for key, value in chunk.items() if key not in _APART}
        if chunk.get("usage"):
            self._late["usage"] = chunk["usage"]
        choices = chunk.get("choices")
        if chunk.get("error") or not isinstance(choices, list):
            self._add_other(chunk)
        for choice in items(choices):
            if isinstance(choice, dict):
                self._which = choice.get("index") or 0 if self._which is None else self._which
                if (choice.get("index") or 0) == self._which:
                    self._add_choice(choice, chunk, events)

    def body(self) -> dict[str, object]:
        """The chat completion."""
        message: dict[str, object] = {"role": "assistant", "content": self._content()}
        message |= {key: join_pieces(pieces) for key, pieces in self._text.items() if key != "content"}
        message |= self._fields
        if calls := self._calls.entries():
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": None, **self._choice}
        head = {**(self._head or {}), "object": "chat.completion"}
        return {**head, "choices": [choice], **self._late}

    def _begins_again(self, chunk: Mapping[str, object], delta: object) -> bool:
        """Return True for a chunk of a second answer: its first chunk has the role again.

        Some servers send the role in every chunk, and others a new id; a role after a chunk without one, or with a new
        id, means that a proxy has asked again.
        """
        if not isinstance(delta, dict):
            return False
        if not delta.get("role"):
            self._bare += bool(delta)
            return self._bare == 1 and self._repeated
        self._roles += 1
        if self._roles == 1:
            self._opening = delta
            return False
        self._repeated = self._roles == 2 and delta == self._opening
        head = self._head or {}
        return self._bare > 0 or (isinstance(head.get("id"), str) and chunk.get("id") not in (None, head["id"]))

    def _add_other(self, chunk: Mapping[str, object]) -> None:
        """Read an error, and find the chunk of another API."""
        if error := reported_error(chunk):
            self._fail(error)
        elif not FOREIGN.isdisjoint(chunk):
            self.lost = OTHER_API

    def _fail(self, error: object) -> None:
        self._late.setdefault("error", error)
        self.ended = True

    def _add_choice(self, choice: dict[str, object], chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        delta, message, whole = choice.get("delta"), choice.get("message"), False
        if self.closed or self._begins_again(chunk, delta):
            self.lost = SECOND
        if not isinstance(delta, dict) and isinstance(message, dict):
            delta, whole = message, True
            events = self._replaced(message, events)
        self.began = True
        brings = isinstance(delta, dict) and self._add_delta(delta, events)
        reason = choice.get("finish_reason")
        if reason is not None:
            self._choice |= {key: choice[key] for key in ("finish_reason", "native_finish_reason") if key in choice}
        if choice.get("error"):
            self._fail(choice["error"])
        self.ended = bool(reason) or whole or (self.ended and not brings)  # a finish reason may come too early

    def _add_delta(self, delta: dict[str, object], events: list[ReplyEvent]) -> bool:
        """Add the members of a delta; return True if one of them has content."""
        brings = False
        for key, value in delta.items():
            if value is None:
                continue
            brings = brings or (bool(value) and key != "role")
            if key == "content" and isinstance(value, str) and self._parts is None:
                if value:
                    events.append(text_delta(value))
                self._text.setdefault("content", []).append(value)
            elif key == "tool_calls":
                self._calls.add(value, events)
            else:
                self._add_field(key, value, delta, events)
        return brings

    def _replaced(self, message: dict[str, object], events: list[ReplyEvent]) -> list[ReplyEvent]:
        """Let a whole message replace its own deltas; return the events to add to."""
        if not self.began or not (message.get("content") or message.get("tool_calls")):
            return events
        self._text, self._parts, self._fields, self._legacy = {}, None, {}, None
        self._calls = ChatCalls(self._tool_of)
        return []

    def _add_field(self, key: str, value: object, delta: Mapping[str, object], events: list[ReplyEvent]) -> None:
        if key == "content":
            self._add_parts(value, events)
        elif key in REASONING:
            self._add_reasoning(key, value, delta, events)
        elif key == "refusal" and isinstance(value, str):
            self._text.setdefault(key, []).append(value)
            if value:
                events.append(text_delta(value))
        elif key == "function_call":
            self._add_legacy(mapping(value), events)
        elif isinstance(value, list) and isinstance(known := self._fields.get(key, []), list):
            self._fields[key] = [*known, *value]
        elif isinstance(value, dict) and isinstance(known := self._fields.get(key, {}), dict):
            self._fields[key] = {**known, **{name: _longer(known.get(name), item) for name, item in value.items()}}
        elif key != "role" or key not in self._fields:
            self._fields[key] = value

    def _add_legacy(self, piece: Mapping[str, object], events: list[ReplyEvent]) -> None:
        if self._legacy is None:
            self._legacy = self._fields["function_call"] = _LegacyCall(name="", arguments="")
        known = self._legacy
        name, arguments = piece.get("name"), piece.get("arguments")
        if isinstance(name, str) and name != known["name"]:
            known["name"] += name
        if isinstance(arguments, str) and isinstance(known["arguments"], str):
            known["arguments"] += arguments
        else:
            known["arguments"] = with_piece(known["arguments"], arguments)
        if name or arguments:
            events.append(CallDelta(0, self._tool_of(known["name"]), arguments if isinstance(arguments, str) else ""))

    def _add_reasoning(self, key: str, value: object, delta: Mapping[str, object], events: list[ReplyEvent]) -> None:
        if key == "reasoning_details":
            details = self._fields.setdefault(key, [])
            text = details_text(value)
            for detail in items(value):
                _merge_detail(details, detail)
        else:
            text = value if isinstance(value, str) else ""
            self._text.setdefault(key, []).append(text)
        if not text:
            return
        if self._shown is None:
            self._shown = next((name for name in REASONING if isinstance(delta.get(name), str) and delta[name]), key)
        if key == self._shown:
            events.append(ReasoningDelta(text))

    def _add_parts(self, value: object, events: list[ReplyEvent]) -> None:
        """Add content that is a list of parts, some of them ``thinking``; adjacent parts of one kind are joined."""
        if self._parts is None:
            before = "".join(self._text.pop("content", ()))
            self._parts = [{"type": "text", "text": before}] if before else []
        for part in [{"type": "text", "text": value}] if isinstance(value, str) else items(value):
            text, thought = mapping(part).get("text"), thinking_text(part)
            if isinstance(text, str) and text:
                events.append(text_delta(text))
            if thought:
                events.append(ReasoningDelta(thought))
            last = self._parts[-1] if self._parts else {}
            if set(mapping(part)) == {"type", "text"} == set(last) and isinstance(text, str):
                self._parts[-1] = {"type": last["type"], "text": f"{last['text']}{text}"}
            elif thought and set(mapping(part)) == {"type", "thinking"} == set(last):
                pieces = [{"type": "text", "text": thinking_text(last) + thought}]
                self._parts[-1] = {"type": last["type"], "thinking": pieces}
            elif part:
                self._parts.append(dict(part) if isinstance(part, dict) else {"type": "text", "text": str(part)})

    def _content(self) -> object:
        if self._parts is not None:
            return self._parts
        pieces = self._text.get("content")
        return join_pieces(pieces) if pieces else None


def thinking_text(part: object) -> str:
    """The text of a ``thinking`` part."""
    thinking = mapping(part).get("thinking")
    pieces = [thinking] if isinstance(thinking, str) else [mapping(piece).get("text") for piece in items(thinking)]
    return "".join(piece for piece in pieces if isinstance(piece, str))


def details_text(details: object) -> str:
    """The visible text of OpenRouter's ``reasoning_details``."""
    shown = (mapping(detail).get("text") or mapping(detail).get("summary") for detail in items(details))
    return "".join(text for text in shown if isinstance(text, str))


def _merge_detail(details: object, detail: object) -> None:
    """Add a piece of ``reasoning_details``: text is appended, a signature may come late, encrypted data stays separate."""
    if not isinstance(detail, dict) or not isinstance(details, list):
        return
    last = details[-1] if details else {}
    same = all(last.get(key) == detail.get(key) for key in ("type", "index")) and details
    if not same or "data" in detail or (last.get("signature") and detail.get("signature")):
        details.append(dict(detail))
        return
    for key, value in detail.items():
        if key in {"text", "summary"} and isinstance(value, str) and isinstance(last.get(key), str):
            last[key] += value
        elif value is not None or key not in last:
            last[key] = value


def _longer(known: object, piece: object) -> object:
    """Append a piece of audio or transcript, which arrive as text."""
    return known + piece if isinstance(known, str) and isinstance(piece, str) and known != piece else piece
