"""Repeating a provider's response in the history: content that its API refuses is repaired, the rest is verbatim. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import jiter

from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.calls import ToolResult
from callgate.tools.values import dump

_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_MADE_ID = re.compile(r"call_[0-9]+_*")


def arguments_object(arguments: object) -> dict[str, object]:
    """A call's arguments as an object, for an API that accepts nothing else; other values become an empty object.

    A model may write invalid JSON. The history then has a valid replacement; ``ToolCall.arguments`` has the original.
    """
    if isinstance(arguments, str):
        try:
            arguments = jiter.from_json(arguments.encode("utf-8", "surrogatepass"), cache_mode="none")
        except ValueError:
            return {}
    return dict(arguments) if is_mapping(arguments) else {}


def arguments_text(arguments: object) -> str:
    """A call's arguments as JSON text, verbatim if they are valid; other text becomes an empty object.

    OpenAI accepts any text. Servers that fill a chat template with it (vLLM, Ollama) refuse the whole request.
    """
    if isinstance(arguments, str):
        try:
            jiter.from_json(arguments.encode(), cache_mode="none")
        except ValueError:
            return "{}"
        return arguments
    try:
        return dump(arguments).decode() if is_mapping(arguments) else "{}"
    except (TypeError, ValueError, RecursionError):
        return "{}"


def legal_name(name: object) -> str:
    """A tool name that OpenAI and Anthropic accept in a history: a model may call a name that they refuse."""
    text = name if isinstance(name, str) else ""
    return _REFUSED.sub("_", text)[:64] or "unnamed"


def without_nulls(fields: Mapping[str, object], *dropped: str) -> dict[str, object]:
    """Copy the fields that are not None, without the *dropped* ones."""
    return {key: value for key, value in fields.items() if value is not None and key not in dropped}


def provider_call_id(result: ToolResult) -> str | None:
    """The call id of a result if the provider made it; None if Callgate made it."""
    hydration = result.provenance.get("hydration") if is_mapping(result.provenance) else None
    made = getattr(hydration, "synthetic_id", None)
    if made is None:
        made = _MADE_ID.fullmatch(result.call_id) is not None
    return None if made else result.call_id


def sent_call(result: ToolResult) -> object:
    """The call of a result as the provider sent it, or None."""
    hydration = result.provenance.get("hydration") if is_mapping(result.provenance) else None
    return getattr(hydration, "chunk", None)


def join_pieces(pieces: Iterable[str]) -> str:
    """Join pieces of text; a character that was split into two surrogates is restored."""
    text = "".join(pieces)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def as_json(value: object) -> str:
    """A value as JSON text for display; "" if it cannot be written as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return ""
