"""Checks that real providers make on every wire: results without a call, altered signatures, invalid tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, overload

from callgate.runtime.testing.model.requests import GivenResult, Message, OfferedTool, SeenCall
from callgate.runtime.testing.model.script import Think, Turn

T = TypeVar("T")


class RequestRefused(Exception):
    """The provider would refuse the request with status 400, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require(fits: bool, reason: str) -> None:
    """Refuse the request unless *fits* is true."""
    if not fits:
        raise RequestRefused(reason)


@overload
def field(body: Mapping[str, object], name: str, kind: type[T], place: str = "") -> T: ...


@overload
def field(body: Mapping[str, object], name: str, kind: tuple[type, ...], place: str = "") -> object: ...


def field(body: Mapping[str, object], name: str, kind: type | tuple[type, ...], place: str = "") -> object:
    """The value of a required field of this type."""
    where = f"{place}.{name}" if place else name
    require(name in body, f"{where}: field required")
    require(isinstance(body[name], kind), f"{where}: {type(body[name]).__name__} is not the right type")
    return body[name]


def check_tools(tools: Sequence[OfferedTool], names: str) -> tuple[OfferedTool, ...]:
    """Check the tools: their names match *names* and differ, and their parameters are objects."""
    for index, tool in enumerate(tools):
        place = f"tools.{index}"
        require(re.fullmatch(names, tool.name) is not None, f"{place}.name: {tool.name!r} does not match {names}")
        require(
            not tool.parameters or tool.parameters.get("type") in {"object", "OBJECT"}, f"{place}: type is not object"
        )
        if tool.strict:
            _strict(tool.parameters, place)
    seen = [tool.name for tool in tools]
    require(len({*seen}) == len(seen), "tools: tool names must be unique")
    return tuple(tools)


def _strict(schema: object, place: str) -> None:
    """Check OpenAI's rule for strict schemas: objects are closed, and all properties are required."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            closed = schema.get("additionalProperties") is False
            require(closed, f"{place}: 'additionalProperties' is required to be supplied and to be false")
            missing = {*properties} - {*schema.get("required", ())}
            require(
                not missing, f"{place}: 'required' must include every key in properties; missing: {sorted(missing)}"
            )
        for key, inner in schema.items():
            if key not in {"enum", "const", "default", "examples"}:
                _strict(inner, f"{place}.{key}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            _strict(inner, f"{place}.{index}")


def pair_results(messages: Iterable[Message], *, together: bool) -> tuple[Message, ...]:
    """Pair each result with its call, and add the tool's name to it.

    Every call needs a result before the conversation goes on, and every result needs a call. They match by id, or by the
    tool's name and order if the wire has no ids. With *together*, one message must have the results of all calls.
    """
    pending: list[SeenCall] = []
    paired: list[Message] = []
    for index, message in enumerate(messages):
        results: list[GivenResult] = []
        for result in message.results:
            call = next((call for call in pending if _answers(result, call)), None)
            if call is None:
                what = result.call_id or result.tool or "a result"
                raise RequestRefused(f"messages.{index}: {what} is the result of no call of the previous answer")
            pending.remove(call)
            results.append(replace(result, tool=call.tool))
        if pending and (together or not results):
            names = ", ".join(f"{call.id or call.tool}" for call in pending)
            raise RequestRefused(f"messages.{index}: calls without a result right after them: {names}")
        pending += message.calls
        paired.append(replace(message, results=tuple(results)))
    require(not pending, f"calls without a result: {', '.join(call.id or call.tool for call in pending)}")
    require(bool(paired), "messages: at least one message is required")
    return tuple(paired)


def _answers(result: GivenResult, call: SeenCall) -> bool:
    if result.call_id is not None and call.id is not None:
        return result.call_id == call.id
    return result.tool in {None, call.tool}


class SignatureMemory:
    """The signatures that the model has sent: requests must repeat them unchanged, with the same calls."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._with: dict[str, str | None] = {}

    def keep(self, turn: Turn) -> None:
        """Remember the signatures of a response."""
        blob: str | None = None
        for part in turn.parts:
            if isinstance(part, Think) and part.signature is not None:
                self._texts[part.signature] = part.text
                blob = blob or part.signature
        for call in turn.calls:
            for key in (call.id or "", _same(call.tool, call.value)):
                known = self._with.setdefault(key, blob)
                self._with[key] = (
                    blob if known == blob else None
                )  # the same call was sent with and without a signature: accept both

    def check(self, messages: Iterable[Message]) -> None:
        """Refuse a request whose signatures were altered, invented or lost."""
        for index, message in enumerate(messages):
            signatures = {thought.signature for thought in message.thoughts}
            signatures |= {call.signature for call in message.calls}
            for signature in signatures - {None}:
                require(
                    signature in self._texts, f"messages.{index}: invalid signature: it was never sent, or was altered"
                )
            for thought in message.thoughts:
                kept = None if thought.signature is None else self._texts.get(thought.signature)
                if thought.text is not None and kept is not None:
                    require(thought.text == kept, f"messages.{index}: reasoning must not be modified")
            for call in message.calls:
                blob = self._with.get(call.id or _same(call.tool, call.arguments))
                lost = blob is not None and blob not in signatures
                require(
                    not lost, f"messages.{index}: the call of {call.tool} lost the reasoning or signature it came with"
                )


def _same(tool: str, arguments: object) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True)}"
