"""Requests that a scripted model received, in a form that is the same for all wires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the request offers; ``parameters`` is the schema as sent."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call of an earlier response, as the request repeats it; ``arguments`` is parsed if it is JSON."""

    tool: str
    arguments: Any = None
    id: str | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class GivenResult:
    """The result of a call, as the request gives it to the model.

    ``content`` is text, or an object if the wire has one. ``is_error`` is None if the wire does not mark errors. ``tool``
    comes from the matching call.
    """

    content: Any
    call_id: str | None = None
    tool: str | None = None
    is_error: bool | None = None


@dataclass(frozen=True, slots=True)
class SeenThought:
    """Reasoning of an earlier response, as the request repeats it: its text and its signature."""

    text: str | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation: ``role`` is ``system``, ``user``, ``assistant`` or ``tool`` (results only)."""

    role: str
    text: str = ""
    calls: tuple[SeenCall, ...] = ()
    results: tuple[GivenResult, ...] = ()
    thoughts: tuple[SeenThought, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The body of a request, parsed by its wire."""

    model: str = ""
    stream: bool = False
    tools: tuple[OfferedTool, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request that a scripted model received.

    Attributes:
        number: the number of the request, from 1.
        wire: the wire's name.
        path: the path with its query string, without credentials.
        headers: the headers in lower case, without credentials.
        key: True if the request had an API key, in a header or in the query string.
        body: the parsed JSON, or None.
        refused: the reason for a response with status 400 or 404; such a request uses no turn of the script.
    """

    number: int
    wire: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    key: bool = False
    body: Any = None
    parsed: ParsedRequest = field(default_factory=ParsedRequest, repr=False)
    refused: str | None = None

    @property
    def model(self) -> str:
        """The requested model."""
        return self.parsed.model

    @property
    def stream(self) -> bool:
        """True if the request asks for a stream."""
        return self.parsed.stream

    @property
    def tools(self) -> tuple[OfferedTool, ...]:
        """The offered tools, in order."""
        return self.parsed.tools

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation; the system message comes first if the wire sends it apart."""
        return self.parsed.messages

    @property
    def results(self) -> tuple[GivenResult, ...]:
        """The results since the last message of the assistant, which answer its latest calls."""
        found: list[GivenResult] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            found[:0] = message.results
        return tuple(found)

    @property
    def text(self) -> str:
        """The text of the last message that has text."""
        return next((message.text for message in reversed(self.messages) if message.text), "")

    def __str__(self) -> str:
        last = self.messages[-1] if self.messages else Message("no role")
        text = last.text or ", ".join(f"the result of {result.tool or result.call_id}" for result in last.results)
        shown = f"{len(self.messages)} messages, the last from {last.role}: {text[:80]!r}"
        return f"request {self.number}, {self.wire} {self.path}, {shown}"
