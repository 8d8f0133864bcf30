"""What a scripted model was asked, in words of no wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the request offered it; ``parameters`` is the schema as it was sent."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call of an earlier answer, as the request repeats it; ``arguments`` is parsed where it is JSON."""

    tool: str
    arguments: Any = None
    id: str | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class GivenResult:
    """What the model was told that a call gave.

    ``content`` is text, or the object where the wire carries one. ``is_error`` is None where the wire has no word for
    it. ``tool`` is known from the call that it answers.
    """

    content: Any
    call_id: str | None = None
    tool: str | None = None
    is_error: bool | None = None


@dataclass(frozen=True, slots=True)
class SeenThought:
    """Reasoning of an earlier answer, as the request repeats it: its text and its opaque part."""

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
class Heard:
    """A request's body, read by its wire."""

    model: str = ""
    stream: bool = False
    tools: tuple[OfferedTool, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that a scripted model received.

    ``number`` counts from 1. ``headers`` are lower-case and hold no credentials; ``key`` says whether one came, in a
    header or in the query. ``body`` is the parsed JSON, None where it was none. ``refused`` says why the request was
    answered with 400, as its provider would have, or 404: such a request takes no turn of the script.
    """

    number: int
    wire: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    key: bool = False
    body: Any = None
    heard: Heard = field(default_factory=Heard, repr=False)
    refused: str | None = None

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.heard.model

    @property
    def stream(self) -> bool:
        """Whether the answer was to be streamed."""
        return self.heard.stream

    @property
    def tools(self) -> tuple[OfferedTool, ...]:
        """The tools offered, in order."""
        return self.heard.tools

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, the system's words first where the wire keeps them apart."""
        return self.heard.messages

    @property
    def results(self) -> tuple[GivenResult, ...]:
        """The results given since the model's last answer: those that answer its latest calls."""
        found: list[GivenResult] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            found[:0] = message.results
        return tuple(found)

    @property
    def text(self) -> str:
        """The text of the last message that has any."""
        return next((message.text for message in reversed(self.messages) if message.text), "")

    def __str__(self) -> str:
        last = self.messages[-1] if self.messages else Message("nobody")
        said = last.text or ", ".join(f"the result of {result.tool or result.call_id}" for result in last.results)
        shown = f"{len(self.messages)} messages, the last from {last.role}: {said[:80]!r}"
        return f"request {self.number}, {self.wire} {self.path}, {shown}"
