"""Assembles a streamed response of Gemini. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from callgate.runtime.models.wire.decoder import OTHER_API, SECOND
from callgate.runtime.models.wire.history import as_json, join_pieces
from callgate.runtime.models.wire.reading import FOREIGN, count, reported_error
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, ReplyEvent, text_delta
from callgate.runtime.models.wire.shapes import items, mapping

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")
_VALUES = ("stringValue", "numberValue", "boolValue")
UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
"""The default of the field, with which some servers say that the answer goes on; its number is 0."""
UNSPECIFIED_BLOCK = "BLOCKED_REASON_UNSPECIFIED"
PROVIDER_RAN = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts of tools that the provider ran itself: the calls and their results."""
_ONE_ANSWER = ("responseId", "modelVersion")
"""Fields of a chunk that stay the same within an answer."""
_OTHER_API = FOREIGN - {"candidates"}


def call_of(part: object) -> Mapping[str, object] | None:
    """The function call in a part, or None; some proxies spell the field with an underscore."""
    call = mapping(part).get("functionCall")
    if call is None:
        call = mapping(part).get("function_call")
    return call if isinstance(call, Mapping) else None


class GeminiFold:
    """Assembles chunks; only the first candidate is read. See ``Fold``.

    Calls arrive whole, unless the request asked for streamed arguments: then values arrive with their JSON paths. Parts
    with text only are joined; a part with a signature stays separate and unchanged.
    """

    def __init__(self, tool_of: Callable[[str], str]) -> None:
        self.began = self.ended = self.closed = False
        self.lost: str | None = None
        self._tool_of = tool_of
        self._head: dict[str, object] = {}
        self._candidate: dict[str, object] = {}
        self._parts: list[dict[str, object]] = []
        self._text: list[str] | None = None  # the pieces of the last part, while it has only text
        self._thought: object = None
        self._open: _OpenCall | None = None
        self._given: dict[str, dict[str, object]] = {}  # parts with calls, by id
        self._calls = 0
        self._first: Mapping[str, object] | None = None
        self._tokens = 0
        self._served = False  # the provider ran a tool, after which its token counts begin again

    def add(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Add one chunk; a whole response counts as one."""
        if "candidates" not in chunk and (error := reported_error(chunk)):
            self._head.setdefault("error", error)
            self.ended = True
            return
        if not _OTHER_API.isdisjoint(chunk):
            self.lost = OTHER_API
        elif self._begins_again(chunk):
            self.lost = SECOND
        for candidate in items(chunk.get("candidates")):
            if isinstance(candidate, dict) and not candidate.get("index"):
                self.began = True
                self._add_candidate(candidate, events)
        self._head |= {key: value for key, value in chunk.items() if key != "candidates" and value is not None}
        blocked = mapping(chunk.get("promptFeedback")).get("blockReason")
        if blocked and (blocked != UNSPECIFIED_BLOCK or not self._candidate):
            self.began = self.ended = True

    def _begins_again(self, chunk: Mapping[str, object]) -> bool:
        """Tell whether a chunk is the first one of another answer.

        It has another id, or it repeats the first chunk with the same token counts or the same call. Without ids the
        count of the answer's tokens must not fall.
        """
        if self._first is None:
            self._first = chunk if "candidates" in chunk else None
        elif chunk == self._first and ("usageMetadata" in chunk or self._calls):
            return True
        if any(chunk[name] != self._head.get(name, chunk[name]) for name in _ONE_ANSWER if chunk.get(name)):
            return True
        before, self._tokens = (
            self._tokens,
            count(mapping(chunk.get("usageMetadata")), "candidatesTokenCount") or self._tokens,
        )
        return self._tokens < before and not self._served and "responseId" not in self._head

    def body(self) -> dict[str, object]:
        """The response."""
        self._close_text()
        candidates = [{"content": {"role": "model", "parts": self._parts}, **self._candidate}]
        return {**({"candidates": candidates} if self._parts or self._candidate else {}), **self._head}

    def _add_candidate(self, candidate: Mapping[str, object], events: list[ReplyEvent]) -> None:
        content = candidate.get("content")
        if isinstance(content, dict):
            for part in items(content.get("parts")):
                if isinstance(part, dict):
                    if part and part != {"text": ""}:
                        self.ended = False  # of several finish reasons the last one counts
                    self._add_part(part, events)
        for key, value in candidate.items():
            if key != "content" and value is not None:
                self._candidate[key] = value
        if candidate.get("finishReason") not in (None, 0, "", UNSPECIFIED):
            self.ended = True

    def _add_part(self, part: dict[str, object], events: list[ReplyEvent]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            thought = part.get("thought")
            if text:
                events.append(ReasoningDelta(text) if thought else text_delta(text))
            if len(part) == 1 or (len(part) == 2 and "thought" in part):
                if self._text is None or self._thought != thought:
                    self._close_text()
                    self._text, self._thought = [], thought
                self._text.append(text)
                return
        self._close_text()
        self._served = self._served or any(name in part for name in PROVIDER_RAN)
        call = call_of(part)
        if call is not None:
            self._add_call(part, call, events)
        else:
            self._parts.append(dict(part))

    def _close_text(self) -> None:
        if self._text is not None:
            text = join_pieces(self._text)
            if text:
                self._parts.append(
                    {"text": text} if self._thought is None else {"text": text, "thought": self._thought}
                )
            self._text = None

    def _add_call(self, part: dict[str, object], call: Mapping[str, object], events: list[ReplyEvent]) -> None:
        if self._open and not call.get("name"):
            self._open.add(call)
            extra = {key: value for key, value in part.items() if key not in {"functionCall", "function_call"}}
            self._open.part.update(extra)
            pieces = [mapping(piece).get("stringValue") for piece in items(call.get("partialArgs"))]
            shown = "".join(piece for piece in pieces if isinstance(piece, str))
            events.append(CallDelta(self._open.order, self._open.tool, shown))
            if not call.get("willContinue"):
                self._open = None
            return
        self._open = None
        call_id = call.get("id")
        known = self._given.get(call_id) if isinstance(call_id, str) and call_id else None
        if known is not None and call_of(known) == call:  # the server repeats it
            known.update(part)
            return
        if not call:
            return
        part = dict(part)
        self._parts.append(part)
        if isinstance(call_id, str):
            self._given[call_id] = part
        name = call.get("name")
        tool = self._tool_of(name) if isinstance(name, str) else ""
        arguments = call.get("args")
        events.append(CallDelta(self._calls, tool, as_json(arguments) if arguments else ""))
        if call.get("willContinue") or call.get("partialArgs"):
            self._open = _OpenCall(part, call, self._calls, tool)
            if not call.get("willContinue"):
                self._open = None
        self._calls += 1


class _OpenCall:
    """A call with streamed arguments: each value has its JSON path, and text arrives in pieces."""

    def __init__(self, part: dict[str, object], call: Mapping[str, object], order: int, tool: str) -> None:
        self.part = part
        self.order = order
        self.tool = tool
        self.call = {key: value for key, value in call.items() if key not in {"partialArgs", "willContinue"}}
        self.args: object = {}
        part.pop("function_call", None)
        self.add(call)

    def add(self, call: Mapping[str, object]) -> None:
        """Set the values of one piece. An invalid path, or another value of an argument, makes the arguments unreadable."""
        given, known = call.get("args"), self.args
        if given and isinstance(known, dict):
            whole = mapping(given)
            if whole and all(known.get(name, value) == value for name, value in whole.items()):
                known.update(whole)
            else:
                self.args = "unreadable arguments"
        for piece in items(call.get("partialArgs")):
            if not isinstance(self.args, dict) or not _put(self.args, mapping(piece)):
                self.args = "unreadable path"  # not JSON, so that hydration refuses it
        open_still = {"willContinue": True} if call.get("willContinue") else {}
        self.part["functionCall"] = {**self.call, "args": self.args, **open_still}


def _put(args: Mapping[str, object], piece: Mapping[str, object]) -> bool:
    """Set or extend the value at the piece's path; return False if the path is invalid."""
    path = piece.get("jsonPath")
    if not isinstance(path, str) or not path.startswith("$"):
        return False
    steps: list[str | int] = []
    at = 1
    while match := _STEP.match(path, at):
        at = match.end()
        steps.append(int(match[2]) if match[2] is not None else next(g for g in match.group(1, 3, 4) if g is not None))
    if at != len(path) or not steps:
        return False
    here: object = args
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        known = _get(here, step)
        if after is None:
            value = next((piece[name] for name in _VALUES if name in piece), None)
            grown = known + value if isinstance(known, str) and isinstance(value, str) else value
            return _set(here, step, grown)
        if not isinstance(known, dict | list):
            known = [] if isinstance(after, int) else {}
            if not _set(here, step, known):
                return False
        here = known
    return False


def _get(node: object, step: str | int) -> object:
    if isinstance(node, list) and isinstance(step, int):
        return node[step] if step < len(node) else None
    return node.get(step) if isinstance(node, dict) else None


def _set(node: object, step: str | int, value: object) -> bool:
    if isinstance(node, dict) and isinstance(step, str):
        node[step] = value
        return True
    if isinstance(node, list) and isinstance(step, int) and step <= len(node):
        node[step : step + 1] = [value]
        return True
    return False
