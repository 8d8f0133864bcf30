"""A scripted model that speaks Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.testing.model.checks import demand, field, offered, paired
from callgate.runtime.testing.model.requests import (
    Asked,
    GivenResult,
    Heard,
    Message,
    OfferedTool,
    SeenCall,
    SeenThought,
)
from callgate.runtime.testing.model.script import Call, Say, Think, Turn
from callgate.runtime.testing.model.wire_format import CREATED, Wire, listed, mapped, parsed, pieces, sse, text_of

ENDED = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class OpenAIChat:
    """``/v1/chat/completions``. Reasoning is shown as ``reasoning_content``, as DeepSeek and vLLM do."""

    name = "openai_chat"
    call_prefix = "call_"

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        """See ``Wire``."""
        messages = [_message(mapped(message), index) for index, message in enumerate(field(body, "messages", list))]
        tools = [_tool(mapped(tool), index) for index, tool in enumerate(listed(body.get("tools")))]
        return Heard(
            field(body, "model", str),
            bool(body.get("stream")),
            offered(tools, r"[a-zA-Z0-9_-]{1,64}"),
            paired(messages, together=False),
        )

    def remembers(self, asked: Asked) -> bool:
        """See ``Wire``."""
        return False

    def answer(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """See ``Wire``."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [_call(call) for call in turn.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": turn.ended(ENDED)}
        return {**_head(asked, "chat.completion"), "choices": [choice], "usage": _usage(turn.usage)}

    def events(self, turn: Turn, asked: Asked) -> list[bytes]:
        """See ``Wire``. Tokens are counted only where the request has ``stream_options.include_usage``."""
        head = _head(asked, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse({**head, "choices": [choice]})

        told = [chunk({"role": "assistant", "content": ""})]
        told += [chunk(delta) for delta in _deltas(turn)]
        told.append(chunk({}, turn.ended(ENDED)))
        if mapped(asked.body.get("stream_options")).get("include_usage"):
            told.append(sse({**head, "choices": [], "usage": _usage(turn.usage)}))
        return [*told, b"data: [DONE]\n\n"]

    def error(self, status: int, message: str) -> dict[str, Any]:
        """See ``Wire``."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        code = "rate_limit_exceeded" if status == 429 else None
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def error_event(self, message: str, number: int) -> bytes:
        """See ``Wire``."""
        return sse(self.error(500, message))


def _message(message: Mapping[str, Any], index: int) -> Message:
    place = f"messages.{index}"
    role = field(message, "role", str, place)
    demand(role in ROLES, f"{place}.role: {role!r} is none of {', '.join(ROLES)}")
    text = text_of(message.get("content"))
    if role == "tool":
        demand(isinstance(message.get("content"), str | list), f"{place}.content: field required")
        return Message("tool", results=(GivenResult(text, field(message, "tool_call_id", str, place)),))
    calls = tuple(_seen(mapped(call), f"{place}.tool_calls") for call in listed(message.get("tool_calls")))
    thought = message.get("reasoning_content")
    return Message(ROLES[role], text, calls, thoughts=(SeenThought(thought),) if thought else ())


def _seen(call: Mapping[str, Any], place: str) -> SeenCall:
    function = field(call, "function", dict, place)
    arguments = parsed(field(function, "arguments", str, place))
    demand(call.get("type") == "function", f"{place}.type: field required")
    return SeenCall(field(function, "name", str, place), arguments, field(call, "id", str, place))


def _tool(tool: Mapping[str, Any], index: int) -> OfferedTool:
    place = f"tools.{index}"
    demand(tool.get("type") == "function", f"{place}.type: {tool.get('type')!r} is not 'function'")
    function = field(tool, "function", dict, place)
    name = field(function, "name", str, place)
    return OfferedTool(name, function.get("description"), mapped(function.get("parameters")), function.get("strict"))


def _call(call: Call) -> dict[str, Any]:
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


def _head(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{asked.number}", "object": kind, "created": CREATED, "model": asked.model}


def _usage(usage: Usage) -> dict[str, Any]:
    read, written = usage.input or 0, usage.output or 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": usage.total or read + written,
        "prompt_tokens_details": {"cached_tokens": usage.cached or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
    }


WIRE: Wire = OpenAIChat()
