"""A scripted model that speaks OpenAI's Responses."""

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
from callgate.runtime.testing.model.script import Call, Say, Spoken, Turn
from callgate.runtime.testing.model.wire_format import (
    CREATED,
    Wire,
    listed,
    mapped,
    parsed,
    pieces,
    sse,
    text_of,
    without_none,
)

CUT = {"length": "max_output_tokens", "filter": "content_filter"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class OpenAIResponses:
    """``/v1/responses``, which keeps nothing: the whole conversation comes with each request.

    Encrypted reasoning is given only where ``include`` asks for it, as with OpenAI; so only then must it come back.
    """

    name = "openai_responses"
    call_prefix = "call_"

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        """See ``Wire``."""
        demand(not body.get("previous_response_id"), "previous_response_id: previous response not found: none is kept")
        given = field(body, "input", (str, list))
        system = [Message("system", text_of(body["instructions"]))] if body.get("instructions") else []
        if isinstance(given, str):
            told: tuple[Message, ...] = (Message("user", given),)
        else:
            told = paired(_joined(_message(mapped(item), index) for index, item in enumerate(given)), together=False)
        tools = [_tool(mapped(tool), index) for index, tool in enumerate(listed(body.get("tools")))]
        return Heard(
            field(body, "model", str),
            bool(body.get("stream")),
            offered(tools, r"[a-zA-Z0-9_-]{1,128}"),
            (*system, *told),
        )

    def remembers(self, asked: Asked) -> bool:
        """See ``Wire``."""
        return "reasoning.encrypted_content" in listed(asked.body.get("include"))

    def answer(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """See ``Wire``."""
        cut = CUT.get(turn.stop or "")
        items = [_item(part, index, asked, "completed") for index, part in enumerate(turn.parts)]
        if cut and items:
            items[-1] = _item(turn.parts[-1], len(items) - 1, asked, "incomplete")
        return {
            **_head(asked),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "output": items,
            "usage": _usage(turn.usage),
        }

    def events(self, turn: Turn, asked: Asked) -> list[bytes]:
        """See ``Wire``."""
        whole = self.answer(turn, asked)
        begun = {**_head(asked), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        told: list[tuple[str, dict[str, Any]]] = [
            ("created", {"response": begun}),
            ("in_progress", {"response": begun}),
        ]
        for index, (part, item) in enumerate(zip(turn.parts, whole["output"], strict=True)):
            empty = _item(part, index, asked, "in_progress")
            told.append(("output_item.added", {"item": _emptied(empty), "output_index": index}))
            told += _item_events(part, {"item_id": item["id"], "output_index": index})
            told.append(("output_item.done", {"item": item, "output_index": index}))
        told.append((whole["status"], {"response": whole}))
        numbered = enumerate((f"response.{kind}", fields) for kind, fields in told)
        return [sse({"type": kind, "sequence_number": number, **fields}, kind) for number, (kind, fields) in numbered]

    def error(self, status: int, message: str) -> dict[str, Any]:
        """See ``Wire``."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        code = "rate_limit_exceeded" if status == 429 else None
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def error_event(self, message: str, number: int) -> bytes:
        """See ``Wire``."""
        error = {"type": "error", "code": "server_error", "message": message, "param": None}
        return sse({**error, "sequence_number": number}, "error")


def _joined(messages: Iterator[Message]) -> Iterator[Message]:
    """What one answer was made of, items in a row, as one message again."""
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
        arguments = parsed(field(item, "arguments", str, place))
        call = SeenCall(field(item, "name", str, place), arguments, field(item, "call_id", str, place))
        return Message("assistant", calls=(call,))
    if kind == "function_call_output":
        output = field(item, "output", (str, list), place)
        return Message("tool", results=(GivenResult(text_of(output), field(item, "call_id", str, place)),))
    if kind == "reasoning":
        field(item, "id", str, place)
        shown = text_of(field(item, "summary", list, place))
        return Message("assistant", thoughts=(SeenThought(shown, item.get("encrypted_content")),))
    demand(kind == "message", f"{place}.type: {kind!r} is not understood")
    role = field(item, "role", str, place)
    demand(role in ROLES, f"{place}.role: {role!r} is none of {', '.join(ROLES)}")
    return Message(ROLES[role], text_of(field(item, "content", (str, list), place)))


def _tool(tool: Mapping[str, Any], index: int) -> OfferedTool:
    place = f"tools[{index}]"
    demand(tool.get("type") == "function", f"{place}.type: {tool.get('type')!r} is not 'function'")
    name = field(tool, "name", str, place)
    return OfferedTool(name, tool.get("description"), mapped(tool.get("parameters")), tool.get("strict"))


def _item(part: Spoken, index: int, asked: Asked, status: str) -> dict[str, Any]:
    place = f"{asked.number}_{index}"
    if isinstance(part, Call):
        call = {"call_id": part.id, "name": part.tool, "arguments": part.written, "status": status}
        return {"id": f"fc_{place}", "type": "function_call", **call}
    if isinstance(part, Say):
        content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}]
        return {"id": f"msg_{place}", "type": "message", "role": "assistant", "status": status, "content": content}
    shown = [{"type": "summary_text", "text": part.text}] if part.text else []
    wanted = "reasoning.encrypted_content" in listed(asked.body.get("include"))
    secret = without_none(encrypted_content=part.signature if wanted else None)
    return {"id": f"rs_{place}", "type": "reasoning", "summary": shown, **secret}


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"arguments": "", "content": [], "summary": []}
    return {key: empty.get(key, value) for key, value in item.items()}


def _item_events(part: Spoken, of: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(part, Call):
        deltas = [("function_call_arguments.delta", {**of, "delta": piece}) for piece in pieces(part.written)]
        return [*deltas, ("function_call_arguments.done", {**of, "arguments": part.written, "name": part.tool})]
    if isinstance(part, Say):
        of = {**of, "content_index": 0}
        shape: dict[str, Any] = {"type": "output_text", "annotations": [], "logprobs": []}
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


def _head(asked: Asked) -> dict[str, Any]:
    return {
        "id": f"resp_{asked.number}",
        "object": "response",
        "created_at": CREATED,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "store": bool(asked.body.get("store", True)),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    read, written = usage.input or 0, usage.output or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.total or read + written,
    }


WIRE: Wire = OpenAIResponses()
