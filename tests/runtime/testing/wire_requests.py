"""Requests as each wire spells them, written by hand, for tests of the scripted model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
each_wire = pytest.mark.parametrize("wire", WIRES)
SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}


def path(wire: str, *, stream: bool = False) -> str:
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return {
        "openai_chat": "/v1/chat/completions",
        "openai_responses": "/v1/responses",
        "anthropic": "/v1/messages",
        "gemini": f"/v1beta/models/m:{verb}",
        "ollama": "/api/chat",
    }[wire]


def body(wire: str, history: Sequence[Any] = (), *, stream: bool = False) -> dict[str, Any]:
    """A request with one user message, a tool, and then *history* in the wire's own form."""
    user: dict[str, Any] = {"role": "user", "content": "give me my money back"}
    named = {"name": "refund", "description": "Pays an order back."}
    function = {"type": "function", "function": {**named, "parameters": SCHEMA}}
    if wire == "gemini":
        said = {"role": "user", "parts": [{"text": user["content"]}]}
        return {
            "contents": [said, *history],
            "tools": [{"functionDeclarations": [{**named, "parametersJsonSchema": SCHEMA}]}],
        }
    model = {"model": "m", "stream": stream}
    if wire == "openai_responses":
        tool = {"type": "function", **named, "parameters": SCHEMA, "strict": False}
        return {**model, "input": [user, *history], "tools": [tool], "include": ["reasoning.encrypted_content"]}
    if wire == "anthropic":
        tool = {**named, "input_schema": SCHEMA}
        return {**model, "max_tokens": 64, "messages": [user, *history], "tools": [tool]}
    return {**model, "messages": [user, *history], "tools": [function]}


def answered(wire: str, answer: Any) -> list[dict[str, Any]]:
    """The messages of a history that repeat a whole response."""
    match wire:
        case "openai_chat":
            return [answer["choices"][0]["message"]]
        case "openai_responses":
            return list(answer["output"])
        case "anthropic":
            return [{"role": "assistant", "content": answer["content"]}]
        case "gemini":
            return [answer["candidates"][0]["content"]]
        case _:
            return [answer["message"]]


def results(wire: str, told: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """The messages that give results, each as (call id, tool, text)."""
    match wire:
        case "openai_chat":
            return [{"role": "tool", "tool_call_id": id, "content": text} for id, _, text in told]
        case "openai_responses":
            return [{"type": "function_call_output", "call_id": id, "output": text} for id, _, text in told]
        case "anthropic":
            blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, _, text in told]
            return [{"role": "user", "content": blocks}]
        case "gemini":
            parts = [{"functionResponse": {"name": tool, "response": {"output": text}}} for _, tool, text in told]
            return [{"role": "user", "parts": parts}]
        case _:
            return [{"role": "tool", "tool_name": tool, "content": text} for _, tool, text in told]


@dataclass(frozen=True)
class Line:
    """A connection of one wire to a scripted model."""

    http: httpx.AsyncClient
    url: str
    wire: str

    async def ask(self, history: Sequence[Any] = (), *, stream: bool = False, **more: Any) -> httpx.Response:
        asked = {**body(self.wire, history, stream=stream), **more}
        return await self.http.post(self.url + path(self.wire, stream=stream), json=asked)

    async def turn(self, history: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The history with the answer to it."""
        answer = await self.ask(history)
        assert answer.status_code == 200, answer.text
        return [*history, *answered(self.wire, answer.json())]


def reason(wire: str, answer: httpx.Response) -> str:
    """The message of an error in the wire's form."""
    error = answer.json()["error"]
    return str(error if wire == "ollama" else error["message"])


def streamed(wire: str, text: str) -> list[Any]:
    """The payloads of a stream's events."""
    if wire == "ollama":
        return [json.loads(line) for line in text.splitlines()]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
