"""The scripted model's side of Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from callgate.runtime.testing.model.script import Call, Say, Think, Turn
from callgate.runtime.testing.model.wire_format import (
    CREATED,
    WireFormat,
    content_text,
    openai_error,
    parse_if_text,
    pieces,
    read_each,
    sse,
)

_STOP_REASONS = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ChatFormat(WireFormat):
    """``/v1/chat/completions``. Reasoning is sent as ``reasoning_content``, as by DeepSeek and vLLM."""

    name = "openai_chat"

    def parse(self, path: str, body: Mapping[str, object]) -> ParsedRequest:
        messages = read_each(field(body, "messages", list), _message)
        tools = read_each(body.get("tools"), _tool)
        return ParsedRequest(
            field(body, "model", str),
            bool(body.get("stream")),
            check_tools(tools, r"[a-zA-Z0-9_-]{1,64}"),
            pair_results(messages, together=False),
        )

    def answer(self, turn: Turn, request: ModelRequest) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": turn.text or None, "refusal": None}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [_call(call) for call in turn.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": turn.stop_reason(_STOP_REASONS)}
        return {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(turn.usage)}

    def events(self, turn: Turn, request: ModelRequest) -> list[bytes]:
        """See ``WireFormat``. The usage is sent only if the request has ``stream_options.include_usage``."""
        head = _head(request, "chat.completion.chunk")

        def chunk(delta: Mapping[str, object], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse({**head, "choices": [choice]})

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk(delta) for delta in _deltas(turn)]
        events.append(chunk({}, turn.stop_reason(_STOP_REASONS)))
        if mapping(request.body.get("stream_options")).get("include_usage"):
            events.append(sse({**head, "choices": [], "usage": _usage(turn.usage)}))
        return [*events, b"data: [DONE]\n\n"]

    def error(self, status: int, message: str) -> dict[str, object]:
        return openai_error(status, message)


def _message(message: Mapping[str, Any], index: int) -> Message:
    place = f"messages.{index}"
    role = field(message, "role", str, place)
    require(role in _ROLES, f"{place}.role: {role!r} is not one of {', '.join(_ROLES)}")
    text = content_text(message.get("content"))
    if role == "tool":
        require(isinstance(message.get("content"), str | list), f"{place}.content: field required")
        return Message("tool", results=(GivenResult(text, field(message, "tool_call_id", str, place)),))
    calls = tuple(_seen(mapping(call), f"{place}.tool_calls") for call in items(message.get("tool_calls")))
    thought = message.get("reasoning_content")
    return Message(_ROLES[role], text, calls, thoughts=(SeenThought(thought),) if thought else ())


def _seen(call: Mapping[str, object], place: str) -> SeenCall:
    function = field(call, "function", dict, place)
    arguments = parse_if_text(field(function, "arguments", str, place))
    require(call.get("type") == "function", f"{place}.type: field required")
    return SeenCall(field(function, "name", str, place), arguments, field(call, "id", str, place))


def _tool(tool: Mapping[str, object], index: int) -> OfferedTool:
    place = f"tools.{index}"
    require(tool.get("type") == "function", f"{place}.type: {tool.get('type')!r} is not 'function'")
    function = field(tool, "function", dict, place)
    name = field(function, "name", str, place)
    return OfferedTool(name, function.get("description"), mapping(function.get("parameters")), function.get("strict"))


def _call(call: Call) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.written}}


def _deltas(turn: Turn) -> Iterator[dict[str, Any]]:
    index = -1
    for part in turn.parts:
        if isinstance(part, Say):
            yield from ({"content": piece} for piece in pieces(part.text))
        elif isinstance(part, Think):
            yield from ({"reasoning_content": piece} for piece in pieces(part.text))
        else:
            index += 1
            whole = _call(part)
            first = {**whole, "index": index, "function": {"name": part.tool, "arguments": ""}}
            yield {"tool_calls": [first]}
            for piece in pieces(part.written):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _head(request: ModelRequest, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{request.number}", "object": kind, "created": CREATED, "model": request.model}


def _usage(usage: Usage) -> dict[str, object]:
    read, written = usage.input or 0, usage.output or 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": usage.total or read + written,
        "prompt_tokens_details": {"cached_tokens": usage.cached or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
    }


FORMAT = ChatFormat()
