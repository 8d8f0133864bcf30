"""What a model answered, whole or bit by bit: the same words for every wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from callgate.tools.calls import ToolCall


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counted them; None where it did not say. ``cached`` and ``reasoning`` are parts."""

    input: int | None = None
    output: int | None = None
    total: int | None = None
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's whole answer.

    ``messages`` is what to append to the history so that the provider gets its own answer back: in its own form, with
    signatures, thoughts and encrypted reasoning untouched. ``stop`` is the provider's own word for why it stopped;
    ``truncated`` says that it did so in the middle: for length, a filter, or because the stream was cut. ``error`` is
    the provider's own error body where it answered with one in place of a message. ``body`` is the answer as the wire
    spells it when it is not streamed (a stream is folded into the same form).
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


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A further piece of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A further piece of what the model shows of its reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A further piece of a tool call's arguments: ``index`` counts the calls of the answer from 0.

    For showing progress only: nothing here is checked, and ``tool`` is "" while the name has not come.
    """

    index: int
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallReady:
    """A call is complete. It comes only once the answer has ended well: a call of a cut answer is never run."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a stream; ``reply`` is what the same answer would have been in one piece."""

    reply: Reply


Event: TypeAlias = TextDelta | ReasoningDelta | CallDelta | CallReady | Done

_new, _put = object.__new__, vars(TextDelta)["text"].__set__


def text_delta(text: str) -> TextDelta:
    """``TextDelta(text)``, made by the thousand: the slot is set itself, past what keeps the class frozen."""
    made = _new(TextDelta)
    _put(made, text)
    return made
