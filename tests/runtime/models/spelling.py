"""An answer in one piece, spelled as a stream of its wire: text and arguments cut into pieces, calls one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.runtime.models.streaming import chat_chunk, lines, piece, sse
from tests.runtime.models.wires import function, function_call, gemini, gemini_call, ollama, response, tool_use

Cut = Callable[[str], list[str]]
Call = tuple[str, dict[str, Any], str]


def answer(wire: str, text: str, thought: str, calls: Sequence[Call]) -> dict[str, Any]:
    """The answer in one piece; its arguments are of the wire's own kind, text for OpenAI's two."""
    spelled = [(name, json.dumps(arguments), call_id) for name, arguments, call_id in calls]
    if wire == "openai_chat":
        body: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": thought}
        body |= {"tool_calls": [function(*call) for call in spelled]} if calls else {}
        return {"id": "c", "choices": [{"index": 0, "message": body, "finish_reason": "stop"}]}
    if wire == "openai_responses":
        message = {"type": "message", "id": "msg", "content": [{"type": "output_text", "text": text}]}
        reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": thought}]}
        return response(reasoning, message, *(function_call(*call) for call in spelled), id="c")
    if wire == "anthropic":
        thinking = {"type": "thinking", "thinking": thought, "signature": "S+/=="}
        blocks = [thinking, {"type": "text", "text": text}, *(tool_use(*call) for call in calls)]
        return {"id": "c", "role": "assistant", "content": blocks, "stop_reason": "end_turn"}
    if wire == "gemini":
        parts = [{"text": thought, "thought": True}] if thought else []
        parts += [{"text": text}] if text else []
        return {**gemini(*parts, *(gemini_call(*call) for call in calls)), "responseId": "c"}
    message = {"content": text, **({"thinking": thought} if thought else {})}
    return {"model": "m", **ollama(*(function(*call) for call in calls), **message)}


def streamed(wire: str, body: dict[str, Any], cut: Cut) -> bytes:
    """The same answer as a stream."""
    return {
        "openai_chat": _chat,
        "openai_responses": _responses,
        "anthropic": _anthropic,
        "gemini": _gemini,
        "ollama": _ollama,
    }[wire](body, cut)


def _chat(body: dict[str, Any], cut: Cut) -> bytes:
    message = body["choices"][0]["message"]
    chunks = [chat_chunk(role="assistant", content="")]
    chunks += [chat_chunk(reasoning_content=text) for text in cut(message["reasoning_content"])]
    chunks += [chat_chunk(content=text) for text in cut(message["content"])]
    for index, call in enumerate(message.get("tool_calls", ())):
        chunks.append(chat_chunk(tool_calls=[piece(index, call["id"], call["function"]["name"], "", type="function")]))
        chunks += [chat_chunk(tool_calls=[piece(index, arguments=text)]) for text in cut(call["function"]["arguments"])]
    return sse(*chunks, chat_chunk("stop"), done=True)


def _responses(body: dict[str, Any], cut: Cut) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**body, "output": [], "status": "in_progress"}}
    ]
    for index, item in enumerate(body["output"]):
        empty = {key: type(value)() for key, value in item.items() if key in {"arguments", "content", "summary"}}
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, **empty}})
        at = {"output_index": index, "item_id": item["id"], "content_index": 0, "summary_index": 0}
        kind, text = _shown(item)
        events += [{"type": f"response.{kind}.delta", "delta": text, **at} for text in cut(text)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return sse(*events, {"type": "response.completed", "response": {**body, "output": []}})


def _shown(item: dict[str, Any]) -> tuple[str, str]:
    if item["type"] == "message":
        return "output_text", item["content"][0]["text"]
    if item["type"] == "reasoning":
        return "reasoning_summary_text", item["summary"][0]["text"]
    return "function_call_arguments", item["arguments"]


def _anthropic(body: dict[str, Any], cut: Cut) -> bytes:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}]
    for index, block in enumerate(body["content"]):
        empty = {
            key: type(value)() for key, value in block.items() if key in {"text", "thinking", "input", "signature"}
        }
        events.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        kind, field, text = _grown(block)
        deltas = [{"type": kind, field: piece} for piece in cut(text)]
        if "signature" in block:
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    return sse(
        *events, {"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}}, {"type": "message_stop"}
    )


def _grown(block: dict[str, Any]) -> tuple[str, str, str]:
    if block["type"] == "tool_use":
        return "input_json_delta", "partial_json", json.dumps(block["input"])
    return f"{block['type']}_delta", block["type"], block[block["type"]]


def _gemini(body: dict[str, Any], cut: Cut) -> bytes:
    def chunks() -> Iterator[dict[str, Any]]:
        for part in body["candidates"][0]["content"]["parts"]:
            for text in cut(part["text"]) if "text" in part else [None]:
                yield {**gemini({**part, **({} if text is None else {"text": text})}, finish=None), "responseId": "c"}
        yield {**gemini({"text": ""}), "responseId": "c"}

    return sse(*chunks())


def _ollama(body: dict[str, Any], cut: Cut) -> bytes:
    message = body["message"]
    rows: list[dict[str, Any]] = [{"thinking": text, "content": ""} for text in cut(message.get("thinking", ""))]
    rows += [{"content": text} for text in cut(message["content"])]
    rows += [{"content": "", "tool_calls": [call]} for call in message.get("tool_calls", ())]
    last = {**body, "message": {"role": "assistant", "content": ""}}
    return lines(*({"model": "m", "message": {"role": "assistant", **row}, "done": False} for row in rows), last)
