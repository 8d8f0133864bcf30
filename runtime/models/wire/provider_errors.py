"""What a provider says when it does not answer: a short text for developers. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jiter

from callgate.runtime.models.wire.shapes import is_mapping, items, mapping

LONGEST = 500
"""Characters of a provider's message that an error quotes."""
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\s]+")
_MARKUP = re.compile(r"\s*<(?:!doctype|html|\?xml|head|body)", re.IGNORECASE)


def parsed(body: bytes) -> Any:
    """The JSON value in a body; None where there is none.

    jiter first, which keeps whole numbers whole; Python's own parser takes half surrogates, which it does not.
    """
    try:
        return jiter.from_json(body)
    except ValueError:
        pass
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def quoted(body: bytes, scrub: Callable[[str], str]) -> str:
    """What the body of an error answer says; pages made for browsers say nothing. *scrub* takes secrets out."""
    value = parsed(body)
    if value is not None:
        return said(value, scrub)
    text = body.decode("utf-8", "replace")
    return "" if _MARKUP.match(text) else short(text, scrub)


def said(error: Any, scrub: Callable[[str], str]) -> str:
    """The message in an error body, whatever its shape: kind, then words; or else all of it."""
    body = next(iter(items(error)), error)  # Gemini may wrap it in a list
    inner = mapping(body).get("error") or body
    if not is_mapping(inner):
        return short(inner if isinstance(inner, str) else _dumped(inner), scrub)
    kind = next((inner[name] for name in ("code", "type", "status") if isinstance(inner.get(name), str)), "")
    words = next((inner[name] for name in ("message", "detail", "msg") if isinstance(inner.get(name), str)), "")
    return short(": ".join(filter(None, [kind, words or _dumped(inner)])), scrub)


def short(text: str, scrub: Callable[[str], str]) -> str:
    """One line, without control characters, bounded."""
    line = _UNSHOWN.sub(" ", scrub(text)).strip()
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, default=lambda item: type(item).__name__)
    except (TypeError, ValueError, RecursionError):
        return ""
