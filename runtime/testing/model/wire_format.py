"""What every wire's spelling of a scripted model does, and what they share: framing, pieces, parts of texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from callgate.runtime.testing.model.requests import Asked, Heard
from callgate.runtime.testing.model.script import Turn

CREATED = 1_760_000_000
"""When answers say that they were made, in seconds since 1970: always the same."""


class Wire(Protocol):
    """One provider's API, from the provider's side."""

    @property
    def name(self) -> str:
        """The wire's name, as ``models.codec`` knows it."""
        ...

    @property
    def call_prefix(self) -> str | None:
        """How the ids of calls begin; None where calls need none."""
        ...

    def remembers(self, asked: Asked) -> bool:
        """Whether the opaque parts of this answer must come back."""
        ...

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        """The request in neutral words.

        Raises:
            Refused: the provider would not take it.
        """
        ...

    def answer(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """The whole answer."""
        ...

    def events(self, turn: Turn, asked: Asked) -> list[bytes]:
        """The answer as a stream, one framed event each."""
        ...

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an answer that is an error."""
        ...

    def error_event(self, message: str, number: int) -> bytes:
        """An error in the middle of a stream, as the event of this number."""
        ...


def sse(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """A server-sent event."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def pieces(text: str, size: int = 8) -> Iterator[str]:
    """The text in pieces of so many characters, as a model's tokens come."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def listed(value: Any) -> Sequence[Any]:
    """The value where it is a list, else nothing."""
    return value if isinstance(value, list) else ()


def mapped(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text_of(content: Any) -> str:
    """The text of a content that is a text or a list of parts, of which some have one."""
    if isinstance(content, str):
        return content
    return "".join(str(mapped(part).get("text") or "") for part in listed(content))


def parsed(arguments: Any) -> Any:
    """Arguments that are text as their value, where they have one."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def without_none(**fields: Any) -> dict[str, Any]:
    """An object of the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
