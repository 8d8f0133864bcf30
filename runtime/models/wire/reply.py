"""A model's reply and its stream events, the same for every wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.tools.calls import ToolCall

REFUSALS = frozenset(
    {"refusal", "content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"}
)
"""Stop reasons, in lower case, of a refused answer, for a ``Reply`` that no codec of Callgate made."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the provider, or None. ``cached`` is a part of ``input``, ``reasoning`` a part of ``output``."""

    input: int | None = None
    output: int | None = None
    total: int | None = None
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's whole answer.

    Attributes:
        messages: the messages to append to the history, in the provider's own form, with signatures, thoughts and
            encrypted reasoning unchanged. A message of Anthropic may have a member ``container``, which
            ``Codec.request`` moves into the request.
        stop: the provider's own stop reason.
        truncated: the answer is incomplete because of its length, a filter, or a cut stream.
        error: the provider's error body, if it sent an error instead of a message.
        body: the response in the form that is not streamed; a stream is assembled into it.
        judged: how the answer ended, by the closed table of its wire. None derives ``ending`` from the content.
        problem: the reason why the answer is lost, or None.
        waiting: the items that the client must act on and that are no calls of a tool, as the provider sent them.
        provider_ran: the calls that the provider ran itself, and their results beside them, as it sent them.
        looks_like_call: the text looks like a tool call that the server did not read. Callgate does not run it.
    """

    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    reasoning: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    stop: str | None = None
    truncated: bool = False
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    id: str | None = None
    error: Mapping[str, Any] | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)
    judged: ReplyEnding | None = None
    problem: str | None = None
    waiting: tuple[Mapping[str, Any], ...] = ()
    provider_ran: tuple[Mapping[str, object], ...] = ()
    looks_like_call: bool = False

    @property
    def ending(self) -> ReplyEnding:
        """The way in which the answer ended."""
        if self.judged is not None:
            return self.judged
        if self.error is not None:
            return ReplyEnding.FAILED
        if self.stop is not None and self.stop.lower() in REFUSALS:
            return ReplyEnding.REFUSED
        if self.truncated:
            return ReplyEnding.TRUNCATED
        if self.waiting:
            return ReplyEnding.WAITING
        if self.calls:
            return ReplyEnding.CALLS
        return ReplyEnding.DONE if self.text else ReplyEnding.EMPTY


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the visible reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The next piece of a tool call's arguments; ``index`` counts the calls of the answer from 0.

    Use it to show progress only: its content is not validated, and ``tool`` is "" until the name has arrived.
    """

    index: int
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallReady:
    """A complete call. It is sent only after the answer ended normally, so that a call of a cut answer never runs."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a stream; ``reply`` equals the reply of the same answer in one piece."""

    reply: Reply


ReplyEvent: TypeAlias = TextDelta | ReasoningDelta | CallDelta | CallReady | Done

_new, _put = object.__new__, vars(TextDelta)["text"].__set__


def text_delta(text: str) -> TextDelta:
    """Make a ``TextDelta``; it sets the slot directly because a stream has thousands of them."""
    made = _new(TextDelta)
    _put(made, text)
    return made
