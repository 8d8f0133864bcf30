"""Error messages of providers, as short texts for developers. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from callgate.runtime.models.wire.retry_policy import finite
from callgate.runtime.models.wire.shapes import is_mapping, items, mapping
from callgate.tools.arguments.exact_json import exact_json, exact_loads

MAX_MESSAGE = 500
"""Characters of a provider's message that an error quotes."""
_BEGINNING = 200
"""Characters of a body that an error quotes if the body is no answer."""
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\s]+")
_RETRY_DELAY = re.compile(r"""retryDelay[\\"']*\s*:\s*[\\"']*(\d+(?:\.\d*)?)s""", re.ASCII)
_MARKUP = re.compile(r"\s*<(?:!doctype|html|\?xml|head|body)", re.IGNORECASE)


def parse_json(body: bytes) -> object:
    """Parse a body as JSON; None if it is not JSON.

    jiter comes first because it is faster. The standard library accepts lone surrogates, which jiter refuses.
    """
    try:
        return exact_json(body)
    except ValueError:
        pass
    try:
        return exact_loads(body)
    except (ValueError, RecursionError):
        return None


def error_body_message(body: bytes, scrub: Callable[[str], str]) -> str:
    """The message in the body of an error response; "" for an HTML page. *scrub* removes secrets."""
    value = parse_json(body)
    if value is not None:
        return error_message(value, scrub)
    text = body.decode("utf-8", "replace")
    return "" if _MARKUP.match(text) else one_line(text, scrub)


def error_message(error: object, scrub: Callable[[str], str]) -> str:
    """The message of an error object of any provider: its kind and text, or else the whole object."""
    body = next(iter(items(error)), error)  # Gemini may wrap it in a list
    inner = mapping(body).get("error") or body
    if not is_mapping(inner):
        return one_line(inner if isinstance(inner, str) else _dumped(inner), scrub)
    kind = _first_text(inner, "code", "type", "status")
    words = _first_text(inner, "message", "detail", "msg")
    return one_line(": ".join(filter(None, [kind, words or _dumped(inner)])), scrub)


def beginning(body: bytes, scrub: Callable[[str], str]) -> str:
    """The first characters of a body that is no answer. *scrub* comes before the cut, which could split a secret."""
    return one_line(body.decode("utf-8", "replace"), scrub)[:_BEGINNING] or "it is empty"


def retry_delay(error: bytes | Mapping[str, object]) -> float | None:
    """The seconds in the ``retryDelay`` of a ``google.rpc.RetryInfo``; None if there is none.

    It is searched as text: proxies wrap Gemini's error in a list, in an event, or as text in an error of their own.
    """
    found = _RETRY_DELAY.search(error.decode("utf-8", "replace") if isinstance(error, bytes) else _dumped(error))
    return finite(float(found[1])) if found else None


def _first_text(fields: Mapping[str, object], *names: str) -> str:
    return next((text for name in names if isinstance(text := fields.get(name), str)), "")


def one_line(text: str, scrub: Callable[[str], str]) -> str:
    """Shorten a text to one bounded line without control characters; *scrub* removes secrets."""
    line = _UNSHOWN.sub(" ", scrub(text)).strip()
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, default=lambda item: type(item).__name__)
    except (TypeError, ValueError, RecursionError):
        return ""
