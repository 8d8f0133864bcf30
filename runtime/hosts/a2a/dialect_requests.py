"""Parsing of requests in the older dialect of A2A: ``message/stream`` and ``tasks/resume``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from callgate.providers.ids import new_id
from callgate.runtime.hosts.a2a.messages import BadMessage, ClientMessage, call_id_in, parse
from callgate.runtime.hosts.a2a.parts import data_part
from callgate.runtime.models.wire.shapes import are_mappings, is_list, mapping
from callgate.runtime.suspensions.pending import Answer

if TYPE_CHECKING:
    from a2a.types import Message, Part


MAX_RESULTS = 64
"""Maximum number of results in one ``tasks/resume``."""


def parse_start(params: Mapping[str, object]) -> tuple[ClientMessage, Message]:
    """Parse the parameters of ``message/stream``; returns the parsed message and the SDK's.

    Raises:
        BadMessage: the parameters are malformed.
    """
    from a2a.types import Part

    message = mapping(params.get("message"))
    parts = message.get("parts")
    if not is_list(parts) or not are_mappings(parts):
        raise BadMessage("message.parts must be a list of objects")
    texts = [text for part in parts if part.get("kind") == "text" and isinstance(text := part.get("text"), str)]
    data = [part.get("data") for part in parts if part.get("kind") == "data"]
    if len(texts) + len(data) < len(parts):
        raise BadMessage("a part must be of kind text or data")
    parts_shown = [*(Part(text=text) for text in texts if text), *map(data_part, data)]
    if params.get("tools"):
        data.append({"type": "tools", "tools": params["tools"]})
    parsed = parse(texts, data)
    return parsed, _message(parts_shown, _text_of(message, "contextId"), _text_of(message, "taskId"))


def parse_resume(params: Mapping[str, object]) -> tuple[ClientMessage, Message]:
    """Parse the parameters of ``tasks/resume``; an empty list of results only asks to resume the task if it can.

    Raises:
        BadMessage: the parameters are malformed.
    """
    results, task_id = params.get("toolResults"), _text_of(params, "taskId")
    if not is_list(results) or len(results) > MAX_RESULTS or not are_mappings(results) or not task_id:
        raise BadMessage(f"tasks/resume takes a taskId and toolResults, a list of at most {MAX_RESULTS}")
    answers: dict[str, Answer] = {}
    for result in results:
        call_id, success = call_id_in(result, "toolCallId"), result.get("success")
        if call_id in answers or not isinstance(success, bool):
            raise BadMessage("a result needs a unique toolCallId, and success: true or false")
        error = None if success else _text_of(result, "error") or "The client's tool failed."
        answers[call_id] = Answer(
            result.get("result") if success else None, error, _text_of(result, "toolName") or None
        )
    parts_shown = data_part({"type": "tool_results", "toolResults": list(results)} if results else {"type": "continue"})
    return ClientMessage(answers=answers, resumes=not answers), _message([parts_shown], "", task_id)


def _message(parts: list[Part], context_id: str, task_id: str) -> Message:
    from a2a.types import Message, Role

    return Message(message_id=new_id(), role=Role.ROLE_USER, parts=parts, context_id=context_id, task_id=task_id)


def _text_of(data: Mapping[str, object], name: str) -> str:
    given = data.get(name)
    if given is None:
        return ""
    if not isinstance(given, str):
        raise BadMessage(f"{name} must be a text")
    return given
