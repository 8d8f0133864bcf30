"""One HTTP request to a provider, which can be sent several times. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import orjson

from callgate.providers.scrubbing import Scrubber
from callgate.tools.outputs import not_finite
from callgate.tools.values import pointer

MAX_VALUES = 250_000
"""Maximum number of JSON values in a response, or in one event of a stream: they take about 30 MB."""
_WHOLE = {"content-type": "application/json", "accept": "application/json", "accept-encoding": "gzip, deflate"}
_STREAMED = {
    "content-type": "application/json",
    "accept": "text/event-stream, application/x-ndjson, application/json",
    "accept-encoding": "identity",  # compression delays the pieces of a stream
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; ``scrubber`` removes its secrets from messages about it. Its response has at most ``max_values``."""

    url: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    scrubber: Scrubber = field(repr=False)
    streamed: bool = False
    max_values: int = MAX_VALUES

    @classmethod
    def of(
        cls, url: str, body: Mapping[str, object], headers: Mapping[str, str], scrubber: Scrubber, *, streamed: bool
    ) -> Self:
        """Encode the body as JSON and add the headers for it; the given *headers* override them.

        Raises:
            TypeError, ValueError: the body holds a value that JSON does not have.
        """
        return cls(url, _encoded(body), {**(_STREAMED if streamed else _WHOLE), **headers}, scrubber, streamed)


def _encoded(body: Mapping[str, object]) -> bytes:
    """Encode as JSON; the standard library encodes values that orjson refuses, such as integers above 64 bits.

    Raises:
        TypeError, ValueError: the body holds a value that JSON does not have.
    """
    try:
        data = orjson.dumps(body)
    except TypeError:
        try:
            return json.dumps(body, allow_nan=False).encode()
        except TypeError as error:
            raise TypeError(f"a message or an option holds a value that JSON does not have: {error}") from None
    if b"null" in data and (path := not_finite(body)) is not None:  # orjson writes null for NaN and infinity
        raise ValueError(
            f"the number at {pointer(path)} is NaN or infinite, which JSON does not have; give another, or None"
        )
    return data
