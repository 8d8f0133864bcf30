"""The scripted model's side of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.runtime.testing.model.checks import check_tools, field, pair_results, require
from callgate.runtime.testing.model.requests import (
    GivenResult,
    Message,
    ModelRequest,
    OfferedTool,
    ParsedRequest,
    SeenCall,
    SeenThought,
)
from callgate.runtime.testing.model.script import Call, ContentPart, Say, Think, Turn
from callgate.runtime.testing.model.wire_format import (
    WireFormat,
    content_text,
    pieces,
    read_each,
    sse,
)

_STOP_REASONS = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicFormat(WireFormat):
    """``/v1/messages``. In a response that is not streamed, malformed arguments are sent as text."""

    name = "anthropic"
    call_prefix = "toolu_"

    def parse(self, path: str, body: Mapping[str, object]) -> ParsedRequest:
        field(body, "max_tokens", int)
        system = content_text(body.get("system"))
        messages = read_each(field(body, "messages", list), _message)
        tools = read_each(body.get("tools"), _tool)
        require(bool(messages), "messages: at least one message is required")
        conversation = pair_results(messages, together=True)
        return ParsedRequest(
            field(body, "model", str),
            bool(body.get("stream")),
            check_tools(tools, r"[a-zA-Z0-9_-]{1,128}"),
            (Message("system", system), *conversation) if system else conversation,
        )

    def keeps_signatures(self, request: ModelRequest) -> bool:
        return True

    def answer(self, turn: Turn, request: ModelRequest) -> dict[str, object]:
        return {
            **_head(request),
            "content": [_block(part) for part in turn.parts],
            "stop_reason": turn.stop_reason(_STOP_REASONS),
            "usage": _usage(turn.usage),
        }

    def events(self, turn: Turn, request: ModelRequest) -> list[bytes]:
        start = {
            **_head(request),
            "content": [],
            "stop_reason": None,
            "usage": {**_usage(turn.usage), "output_tokens": 1},
        }
        events = [_event("message_start", message=start), _event("ping")]
        for index, part in enumerate(turn.parts):
            events.append(_event("content_block_start", index=index, content_block=_empty(part)))
            events += [_event("content_block_delta", index=index, delta=delta) for delta in _deltas(part)]
            events.append(_event("content_block_stop", index=index))
        ended = {"stop_reason": turn.stop_reason(_STOP_REASONS), "stop_sequence": None}
        events.append(_event("message_delta", delta=ended, usage={"output_tokens": turn.usage.output or 0}))
        return [*events, _event("message_stop")]

    def error(self, status: int, message: str) -> dict[str, object]:
        return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": message}}

    def error_event(self, message: str, number: int) -> bytes:
        return sse(self.error(529, message), "error")


def _message(message: Mapping[str, object], index: int) -> Message:
    place = f"messages.{index}"
    role = field(message, "role", str, place)
    require(role in {"user", "assistant"}, f"{place}.role: unexpected role {role!r}")
    content = field(message, "content", (str, list), place)
    blocks = [mapping(block) for block in items(content)]
    kinds = [field(block, "type", str, f"{place}.content") for block in blocks]
    require(bool(content), f"{place}: messages must have non-empty content")
    require(role == "assistant" or not {"tool_use", "thinking"} & {*kinds}, f"{place}: only an assistant calls tools")
    require(role == "user" or "tool_result" not in kinds, f"{place}: only a user gives results")
    first = [kind == "tool_result" for kind in kinds]
    require(first == sorted(first, reverse=True), f"{place}: tool_result blocks must come first")
    calls = tuple(_seen(block, place) for block in blocks if block["type"] == "tool_use")
    results = tuple(_result(block, place) for block in blocks if block["type"] == "tool_result")
    thoughts = tuple(
        _thought(block, place) for block, kind in zip(blocks, kinds, strict=True) if kind.endswith("thinking")
    )
    text = content if isinstance(content, str) else content_text([block for block in blocks if block["type"] == "text"])
    only_results = bool(results) and not text
    return Message("tool" if only_results else role, text, calls, results, thoughts)


def _seen(block: Mapping[str, object], place: str) -> SeenCall:
    value = field(block, "input", dict, f"{place}.tool_use")
    return SeenCall(field(block, "name", str, place), value, field(block, "id", str, place))


def _result(block: Mapping[str, object], place: str) -> GivenResult:
    call_id = field(block, "tool_use_id", str, f"{place}.tool_result")
    return GivenResult(content_text(block.get("content")), call_id, is_error=bool(block.get("is_error")))


def _thought(block: Mapping[str, object], place: str) -> SeenThought:
    if block["type"] == "redacted_thinking":
        return SeenThought(None, field(block, "data", str, place))
    return SeenThought(field(block, "thinking", str, place), field(block, "signature", str, place))


def _tool(tool: Mapping[str, Any], index: int) -> OfferedTool:
    place = f"tools.{index}"
    schema = field(tool, "input_schema", dict, place)
    require(schema.get("type") == "object", f"{place}.input_schema.type: field required")
    unknown = {*tool} - {"name", "description", "input_schema", "type", "cache_control", "strict", "input_examples"}
    require(not unknown, f"{place}: extra inputs are not permitted: {', '.join(sorted(unknown))}")
    return OfferedTool(field(tool, "name", str, place), tool.get("description"), schema, tool.get("strict"))


def _block(part: ContentPart) -> dict[str, object]:
    if isinstance(part, Call):
        return {"type": "tool_use", "id": part.id, "name": part.tool, "input": part.value}
    if isinstance(part, Say):
        return {"type": "text", "text": part.text, "citations": None}
    if not part.text:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _empty(part: ContentPart) -> dict[str, object]:
    block = _block(part)
    empty: dict[str, object] = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) if key != "type" else value for key, value in block.items()}


def _deltas(part: ContentPart) -> list[dict[str, object]]:
    if isinstance(part, Call):
        return [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(part.written)]]
    if isinstance(part, Say):
        return [{"type": "text_delta", "text": piece} for piece in pieces(part.text)]
    shown: list[dict[str, object]] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(part.text)]
    return (
        [*shown, {"type": "signature_delta", "signature": part.signature}] if isinstance(part, Think) and shown else []
    )


def _event(kind: str, **fields: object) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _head(request: ModelRequest) -> dict[str, object]:
    return {
        "id": f"msg_{request.number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "stop_sequence": None,
    }


def _usage(usage: Usage) -> dict[str, object]:
    """The usage; tokens read from the cache are counted apart from the other input."""
    cached = usage.cached or 0
    return {
        "input_tokens": max(0, (usage.input or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.output or 0,
        "service_tier": "standard",
    }


FORMAT = AnthropicFormat()
