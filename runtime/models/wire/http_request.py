"""One request to a provider, ready to be sent as often as needed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from callgate.providers.scrubbing import Scrubber

_WHOLE = {"content-type": "application/json", "accept": "application/json", "accept-encoding": "gzip, deflate"}
_STREAMED = {
    "content-type": "application/json",
    "accept": "text/event-stream, application/x-ndjson, application/json",
    "accept-encoding": "identity",  # what is packed is held back
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request; ``scrubber`` takes its secrets out of what is told about it."""

    url: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    scrubber: Scrubber = field(repr=False)
    streamed: bool = False

    @classmethod
    def of(
        cls, url: str, body: Mapping[str, Any], headers: Mapping[str, str], scrubber: Scrubber, *, streamed: bool
    ) -> Self:
        """The body written as JSON, and the headers that belong to it under those given, which win.

        Raises:
            TypeError, ValueError: there is something in the body that is no JSON.
        """
        return cls(url, _encoded(body), {**(_STREAMED if streamed else _WHOLE), **headers}, scrubber, streamed)


def _encoded(body: Mapping[str, Any]) -> bytes:
    """JSON; what orjson does not write, such as whole numbers above 64 bits, Python's own writer does.

    Raises:
        TypeError, ValueError: there is something in it that is no JSON.
    """
    try:
        return orjson.dumps(body)
    except TypeError:
        return json.dumps(body, allow_nan=False).encode()
