"""The scripted model's side of OpenAI's Responses API."""

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
from callgate.runtime.testing.model.script import Call, ContentPart, Say, Turn
from callgate.runtime.testing.model.wire_format import (
    CREATED,
    WireFormat,
    content_text,
    openai_error,
    parse_if_text,
    pieces,
    read_each,
    sse,
    without_none,
)

_CUT = {"length": "max_output_tokens", "filter": "content_filter"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ResponsesFormat(WireFormat):
    """``/v1/responses`` without stored responses: each request has the whole conversation.

    As with OpenAI, encrypted reasoning is sent only if ``include`` asks for it. Only then must a request repeat it.
    """

    name = "openai_responses"

    def parse(self, path: str, body: Mapping[str, object]) -> ParsedRequest:
        require(
            not body.get("previous_response_id"),
            "previous_response_id: previous response not found: responses are not stored",
        )
        given = field(body, "input", (str, list))
        system = [Message("system", content_text(body["instructions"]))] if body.get("instructions") else []
        if isinstance(given, str):
            conversation: tuple[Message, ...] = (Message("user", given),)
        else:
            conversation = pair_results(
                _joined(_message(mapping(item), index) for index, item in enumerate(items(given))), together=False
            )
        tools = read_each(body.get("tools"), _tool)
        return ParsedRequest(
            field(body, "model", str),
            bool(body.get("stream")),
            check_tools(tools, r"[a-zA-Z0-9_-]{1,128}"),
            (*system, *conversation),
        )

    def keeps_signatures(self, request: ModelRequest) -> bool:
        return "reasoning.encrypted_content" in items(request.body.get("include"))

    def answer(self, turn: Turn, request: ModelRequest) -> dict[str, Any]:
        cut = _CUT.get(turn.stop or "")
        output = [_item(part, index, request, "completed") for index, part in enumerate(turn.parts)]
        if cut and output:
            output[-1] = _item(turn.parts[-1], len(output) - 1, request, "incomplete")
        return {
            **_head(request),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "output": output,
            "usage": _usage(turn.usage),
        }

    def events(self, turn: Turn, request: ModelRequest) -> list[bytes]:
        whole = self.answer(turn, request)
        begun = {**_head(request), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        events: list[tuple[str, dict[str, Any]]] = [
            ("created", {"response": begun}),
            ("in_progress", {"response": begun}),
        ]
        for index, (part, item) in enumerate(zip(turn.parts, whole["output"], strict=True)):
            empty = _item(part, index, request, "in_progress")
            events.append(("output_item.added", {"item": _emptied(empty), "output_index": index}))
            events += _item_events(part, {"item_id": item["id"], "output_index": index})
            events.append(("output_item.done", {"item": item, "output_index": index}))
        events.append((whole["status"], {"response": whole}))
        numbered = enumerate((f"response.{kind}", fields) for kind, fields in events)
        return [sse({"type": kind, "sequence_number": number, **fields}, kind) for number, (kind, fields) in numbered]

    def error(self, status: int, message: str) -> dict[str, object]:
        return openai_error(status, message)

    def error_event(self, message: str, number: int) -> bytes:
        error = {"type": "error", "code": "server_error", "message": message, "param": None}
        return sse({**error, "sequence_number": number}, "error")


def _joined(messages: Iterator[Message]) -> Iterator[Message]:
    """Join the adjacent items of one response to one message."""
    held: Message | None = None
    for message in messages:
        if message.role == "assistant" and held is not None:
            text, calls = held.text + message.text, (*held.calls, *message.calls)
            held = Message("assistant", text, calls, thoughts=(*held.thoughts, *message.thoughts))
        elif message.role == "assistant":
            held = message
        else:
            if held is not None:
                yield held
            held = None
            yield message
    if held is not None:
        yield held


def _message(item: Mapping[str, Any], index: int) -> Message:
    place = f"input[{index}]"
    kind = item.get("type", "message")
    if kind == "function_call":
        arguments = parse_if_text(field(item, "arguments", str, place))
        call = SeenCall(field(item, "name", str, place), arguments, field(item, "call_id", str, place))
        return Message("assistant", calls=(call,))
    if kind == "function_call_output":
        output = field(item, "output", (str, list), place)
        return Message("tool", results=(GivenResult(content_text(output), field(item, "call_id", str, place)),))
    if kind == "reasoning":
        field(item, "id", str, place)
        shown = content_text(field(item, "summary", list, place))
        return Message("assistant", thoughts=(SeenThought(shown, item.get("encrypted_content")),))
    require(kind == "message", f"{place}.type: {kind!r} is not understood")
    role = field(item, "role", str, place)
    require(role in _ROLES, f"{place}.role: {role!r} is not one of {', '.join(_ROLES)}")
    return Message(_ROLES[role], content_text(field(item, "content", (str, list), place)))


def _tool(tool: Mapping[str, Any], index: int) -> OfferedTool:
    place = f"tools[{index}]"
    require(tool.get("type") == "function", f"{place}.type: {tool.get('type')!r} is not 'function'")
    name = field(tool, "name", str, place)
    return OfferedTool(name, tool.get("description"), mapping(tool.get("parameters")), tool.get("strict"))


def _item(part: ContentPart, index: int, request: ModelRequest, status: str) -> dict[str, object]:
    place = f"{request.number}_{index}"
    if isinstance(part, Call):
        call = {"call_id": part.id, "name": part.tool, "arguments": part.written, "status": status}
        return {"id": f"fc_{place}", "type": "function_call", **call}
    if isinstance(part, Say):
        content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}]
        return {"id": f"msg_{place}", "type": "message", "role": "assistant", "status": status, "content": content}
    shown = [{"type": "summary_text", "text": part.text}] if part.text else []
    wanted = "reasoning.encrypted_content" in items(request.body.get("include"))
    secret = without_none(encrypted_content=part.signature if wanted else None)
    return {"id": f"rs_{place}", "type": "reasoning", "summary": shown, **secret}


def _emptied(item: Mapping[str, object]) -> dict[str, object]:
    empty: dict[str, object] = {"arguments": "", "content": [], "summary": []}
    return {key: empty.get(key, value) for key, value in item.items()}


def _item_events(part: ContentPart, of: Mapping[str, object]) -> list[tuple[str, dict[str, object]]]:
    if isinstance(part, Call):
        deltas = [("function_call_arguments.delta", {**of, "delta": piece}) for piece in pieces(part.written)]
        return [*deltas, ("function_call_arguments.done", {**of, "arguments": part.written, "name": part.tool})]
    if isinstance(part, Say):
        of = {**of, "content_index": 0}
        shape: dict[str, object] = {"type": "output_text", "annotations": [], "logprobs": []}
        return [
            ("content_part.added", {**of, "part": {**shape, "text": ""}}),
            *(("output_text.delta", {**of, "delta": piece, "logprobs": []}) for piece in pieces(part.text)),
            ("output_text.done", {**of, "text": part.text, "logprobs": []}),
            ("content_part.done", {**of, "part": {**shape, "text": part.text}}),
        ]
    if not part.text:
        return []
    of = {**of, "summary_index": 0}
    return [
        ("reasoning_summary_part.added", {**of, "part": {"type": "summary_text", "text": ""}}),
        *(("reasoning_summary_text.delta", {**of, "delta": piece}) for piece in pieces(part.text)),
        ("reasoning_summary_text.done", {**of, "text": part.text}),
        ("reasoning_summary_part.done", {**of, "part": {"type": "summary_text", "text": part.text}}),
    ]


def _head(request: ModelRequest) -> dict[str, object]:
    return {
        "id": f"resp_{request.number}",
        "object": "response",
        "created_at": CREATED,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "store": bool(request.body.get("store", True)),
    }


def _usage(usage: Usage) -> dict[str, object]:
    read, written = usage.input or 0, usage.output or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.total or read + written,
    }


FORMAT = ResponsesFormat()
