"""Calls that a model wrote into its text, because its server did not read them. Reading them is an option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from callgate.runtime.models.wire.shapes import mapping
from callgate.tools.arguments.exact_json import RepeatedKeys, exact_loads

LIKE_A_CALL = re.compile(
    r"<tool_calls?>|<function(?:_call|=)|\[TOOL_CALLS\]|<\|python_tag\|>|<[|\uff5c]tool[_\u2581]calls?[_\u2581](?:section[_\u2581])?begin"
)
"""The beginnings of calls in the text of models whose server did not read them."""

_BAR, _GAP = "[|\uff5c]", "[_\u2581]"
_JSON_CALLS = (
    re.compile(r"<(tool_calls?|function_call)>(?P<json>.*?)</\1>", re.DOTALL),  # Hermes, Qwen
    re.compile(r"<\|python_tag\|>(?P<json>\s*\{.*?\})\s*(?:<\|eom_id\|>|<\|eot_id\|>|$)", re.DOTALL),  # Llama
    re.compile(r"\[TOOL_CALLS\](?P<json>\s*\[.*\])\s*(?:</s>|$)", re.DOTALL),  # Mistral
)
_NAMED_CALLS = (
    re.compile(r"<function=(?P<name>[^<>\s]+)>(?P<json>.*?)</function>", re.DOTALL),  # Llama 3.1
    re.compile(
        r"\[TOOL_CALLS\](?P<name>[^\[\]{}\s]+)\[ARGS\](?P<json>\s*\{.*?\})\s*(?=\[TOOL_CALLS\]|</s>|$)", re.DOTALL
    ),
    re.compile(  # DeepSeek, with and without the kind and the code fence; Kimi has an argument mark and a number
        rf"<{_BAR}tool{_GAP}call{_GAP}begin{_BAR}>\s*(?:function<{_BAR}tool{_GAP}sep{_BAR}>)?"
        rf"(?:functions\.)?(?P<name>[^<>\s:]+)(?::\d+)?\s*"
        rf"(?:<{_BAR}tool{_GAP}sep{_BAR}>|<{_BAR}tool{_GAP}call{_GAP}argument{_GAP}begin{_BAR}>|)\s*"
        rf"(?:```json)?(?P<json>.*?)(?:```)?\s*<{_BAR}tool{_GAP}call{_GAP}end{_BAR}>",
        re.DOTALL,
    ),
)
_FRAMES = re.compile(
    rf"<{_BAR}tool{_GAP}calls{_GAP}(?:section{_GAP})?(?:begin|end){_BAR}>|<{_BAR}end{_GAP}of{_GAP}sentence{_BAR}>|</s>"
)
_MOST, _MOST_CALLS = 262_144, 64
"""Characters of a text in which calls are looked for, and calls in it: each may be searched to the end of the text."""


def message_with_calls(message: Mapping[str, object]) -> dict[str, object] | None:
    """Return a message with the calls in its text as ``tool_calls``; None if it has calls already, or none in its text."""
    content = message.get("content")
    if message.get("tool_calls") or message.get("function_call") or not isinstance(content, str):
        return None
    found = read_calls(content)
    if found is None:
        return None
    text, calls = found
    return {**message, "content": text, "tool_calls": [{"type": "function", "function": call} for call in calls]}


def read_calls(text: str) -> tuple[str, list[dict[str, object]]] | None:
    """Return the text without its calls, and the calls as ``{"name": ..., "arguments": {...}}`` in order.

    None if there is no call, or if any part that looks like a call cannot be read whole: then none of them may run.
    """
    if len(text) > _MOST or not 0 < sum(1 for _ in LIKE_A_CALL.finditer(text)) <= _MOST_CALLS:
        return None
    found: list[tuple[int, int, list[dict[str, object]]]] = []
    try:
        for pattern in _JSON_CALLS:
            found += [(*match.span(), list(_calls(exact_loads(match["json"])))) for match in pattern.finditer(text)]
        for pattern in _NAMED_CALLS:
            for match in pattern.finditer(text):
                found.append((*match.span(), [_call(match["name"], exact_loads(match["json"]))]))
    except (ValueError, RecursionError):
        return None
    found.sort(key=lambda one: one[:2])
    rest, at = "", 0
    for start, end, _ in found:
        if start < at:  # a call within another
            return None
        rest, at = rest + text[at:start], end
    rest = _FRAMES.sub("", rest + text[at:]).strip()
    calls = [call for _, _, some in found for call in some]
    return None if not calls or LIKE_A_CALL.search(rest) else (rest, calls)


def _calls(value: object) -> Iterator[dict[str, object]]:
    for one in value if isinstance(value, list) else [value]:
        call = mapping(one)
        if isinstance(one, RepeatedKeys) or {"arguments", "parameters"} <= call.keys():
            raise ValueError("a call has one name and one object of arguments")
        yield _call(call.get("name"), call.get("arguments", call.get("parameters", {})))


def _call(name: object, arguments: object) -> dict[str, object]:
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call needs a name and an object of arguments")
    return {"name": name, "arguments": arguments}
