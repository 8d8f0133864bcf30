"""The server's side of a wire: reading requests, writing responses and streams. Shared helpers for the five formats."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeVar

from callgate.runtime.models.wire.shapes import items, mapping
from callgate.runtime.testing.model.requests import ModelRequest, ParsedRequest
from callgate.runtime.testing.model.script import Turn

T = TypeVar("T")

CREATED = 1_760_000_000
"""The time of creation in every response, in seconds since 1970."""


class WireFormat(ABC):
    """One provider's API, as the provider implements it."""

    name: ClassVar[str]
    """The wire's name in ``callgate.codec``."""
    call_prefix: ClassVar[str | None] = "call_"
    """The first characters of a call's id; None where calls need no id."""
    stream_type: ClassVar[str] = "text/event-stream"
    """The content type of a streamed response."""

    def keeps_signatures(self, request: ModelRequest) -> bool:
        """True if later requests must repeat the signatures of this response."""
        return False

    @abstractmethod
    def parse(self, path: str, body: Mapping[str, object]) -> ParsedRequest:
        """Read a request.

        Raises:
            RequestRefused: the provider would refuse it.
        """

    @abstractmethod
    def answer(self, turn: Turn, request: ModelRequest) -> dict[str, object]:
        """The body of a response that is not streamed."""

    @abstractmethod
    def events(self, turn: Turn, request: ModelRequest) -> list[bytes]:
        """The framed events of a streamed response."""

    @abstractmethod
    def error(self, status: int, message: str) -> dict[str, object]:
        """The body of an error response."""

    def error_event(self, message: str, number: int) -> bytes:
        """An error in the middle of a stream, as event *number*."""
        return sse(self.error(500, message))


def openai_error(status: int, message: str) -> dict[str, object]:
    """The error body of OpenAI's two APIs."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = "rate_limit_exceeded" if status == 429 else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def read_each(values: object, read: Callable[[Mapping[str, object], int], T]) -> list[T]:
    """Read the objects of a list, each with its index."""
    return [read(mapping(value), index) for index, value in enumerate(items(values))]


def sse(data: Mapping[str, object], event: str | None = None) -> bytes:
    """Frame a server-sent event."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def pieces(text: str, size: int = 8) -> Iterator[str]:
    """Split a text into pieces of *size* characters, as a model streams tokens."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def content_text(content: object) -> str:
    """The text of a content: a string, or a list of parts with ``text`` fields."""
    if isinstance(content, str):
        return content
    return "".join(str(mapping(part).get("text") or "") for part in items(content))


def parse_if_text(arguments: object) -> object:
    """Parse arguments that are JSON text; other values are returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def without_none(**fields: object) -> dict[str, object]:
    """A dict of the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
