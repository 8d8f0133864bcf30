"""What real providers refuse in a request, on every wire: results that fit no call, blobs that came back altered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from callgate.runtime.testing.model.requests import GivenResult, Message, OfferedTool, SeenCall
from callgate.runtime.testing.model.script import Think, Turn


class Refused(Exception):
    """The provider would answer the request with status 400, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def demand(fits: bool, reason: str) -> None:
    """Refuse the request unless it fits."""
    if not fits:
        raise Refused(reason)


def field(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], place: str = "") -> Any:
    """The value of a field that must be there, of this type."""
    where = f"{place}.{name}" if place else name
    demand(name in body, f"{where}: field required")
    demand(isinstance(body[name], kind), f"{where}: {type(body[name]).__name__} is not what belongs here")
    return body[name]


def offered(tools: Sequence[OfferedTool], names: str) -> tuple[OfferedTool, ...]:
    """The tools, whose names must match the pattern, differ, and whose parameters must be an object's."""
    for index, tool in enumerate(tools):
        place = f"tools.{index}"
        demand(re.fullmatch(names, tool.name) is not None, f"{place}.name: {tool.name!r} does not match {names}")
        demand(
            not tool.parameters or tool.parameters.get("type") in {"object", "OBJECT"}, f"{place}: type is not object"
        )
        if tool.strict:
            _strict(tool.parameters, place)
    seen = [tool.name for tool in tools]
    demand(len({*seen}) == len(seen), "tools: tool names must be unique")
    return tuple(tools)


def _strict(schema: Any, place: str) -> None:
    """OpenAI's rule for strict schemas: objects are closed, and all of their properties are required."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            closed = schema.get("additionalProperties") is False
            demand(closed, f"{place}: 'additionalProperties' is required to be supplied and to be false")
            missing = {*properties} - {*schema.get("required", ())}
            demand(not missing, f"{place}: 'required' must include every key in properties, not so {sorted(missing)}")
        for key, inner in schema.items():
            if key not in {"enum", "const", "default", "examples"}:
                _strict(inner, f"{place}.{key}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            _strict(inner, f"{place}.{index}")


def paired(messages: Iterable[Message], *, together: bool) -> tuple[Message, ...]:
    """The messages, each result with the tool that it answers for.

    Every call must be answered before the conversation goes on, and every result must answer a call: by its id, or,
    where the wire has none, by the tool's name and the order. With *together*, one message must answer all of them.
    """
    waiting: list[SeenCall] = []
    told: list[Message] = []
    for index, message in enumerate(messages):
        results: list[GivenResult] = []
        for result in message.results:
            call = next((call for call in waiting if _answers(result, call)), None)
            if call is None:
                what = result.call_id or result.tool or "a result"
                raise Refused(f"messages.{index}: {what} is the result of no call of the previous answer")
            waiting.remove(call)
            results.append(replace(result, tool=call.tool))
        if waiting and (together or not results):
            names = ", ".join(f"{call.id or call.tool}" for call in waiting)
            raise Refused(f"messages.{index}: calls without a result right after them: {names}")
        waiting += message.calls
        told.append(replace(message, results=tuple(results)))
    demand(not waiting, f"calls without a result: {', '.join(call.id or call.tool for call in waiting)}")
    demand(bool(told), "messages: at least one message is required")
    return tuple(told)


def _answers(result: GivenResult, call: SeenCall) -> bool:
    if result.call_id is not None and call.id is not None:
        return result.call_id == call.id
    return result.tool in {None, call.tool}


class Memory:
    """The opaque parts that were given out: each must come back as it was, with the calls that it came with."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._with: dict[str, str | None] = {}

    def keep(self, turn: Turn) -> None:
        """Remember what an answer on a wire with such parts gave out."""
        blob: str | None = None
        for part in turn.parts:
            if isinstance(part, Think) and part.signature is not None:
                self._texts[part.signature] = part.text
                blob = blob or part.signature
        for call in turn.calls:
            for key in (call.id or "", _same(call.tool, call.value)):
                known = self._with.setdefault(key, blob)
                self._with[key] = blob if known == blob else None  # the same call with and without: either will do

    def check(self, messages: Iterable[Message]) -> None:
        """Refuse parts that were altered, made up, or lost."""
        for index, message in enumerate(messages):
            signatures = {thought.signature for thought in message.thoughts}
            signatures |= {call.signature for call in message.calls}
            for signature in signatures - {None}:
                demand(
                    signature in self._texts, f"messages.{index}: invalid signature: it was never given out, or altered"
                )
            for thought in message.thoughts:
                kept = None if thought.signature is None else self._texts.get(thought.signature)
                if thought.text is not None and kept is not None:
                    demand(thought.text == kept, f"messages.{index}: reasoning must not be modified")
            for call in message.calls:
                blob = self._with.get(call.id or _same(call.tool, call.arguments))
                lost = blob is not None and blob not in signatures
                demand(
                    not lost, f"messages.{index}: the call of {call.tool} lost the reasoning or signature it came with"
                )


def _same(tool: str, arguments: Any) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True)}"
