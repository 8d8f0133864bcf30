"""What a conversation comes to, and what it tells on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, Reply, TextDelta, Usage
from callgate.tools.calls import Outcome, ToolCall, ToolResult

__all__ = [
    "CallFinished",
    "Called",
    "CallsStarted",
    "Conversation",
    "ConversationEvent",
    "Ended",
    "Ending",
    "RoundEnded",
    "RoundStarted",
]


class Ending(StrEnum):
    """Why a conversation ended.

    ``done``: the model answered without asking for a tool. ``max_rounds``, ``max_calls``, ``failures``, ``tokens`` and
    ``deadline`` are limits. ``suspended``: a call waits for a person or a client. ``refused`` and ``truncated``: the
    last answer is a refusal or a filter's, or breaks off. ``error``: the provider did not answer as asked.
    """

    DONE = "done"
    MAX_ROUNDS = "max_rounds"
    MAX_CALLS = "max_calls"
    FAILURES = "failures"
    TOKENS = "tokens"
    DEADLINE = "deadline"
    SUSPENDED = "suspended"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Called:
    """One call of the model, and what it was told about it; ``round`` counts from 1."""

    round: int
    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a conversation came to.

    ``messages`` is the history to keep, in the provider's own form, and always one that the provider takes: every call
    in it has exactly one result. To go on, append the next user message to it. ``reply`` is the model's last whole
    answer, None if there was none. ``calls`` are those of this run, in order. ``rounds`` counts answers of the model
    and ``usage`` sums their tokens, as far as the provider counts them; both go on over a suspension. ``state`` is what
    ``resume=`` takes, None unless it is suspended. ``error`` says what went wrong with the provider.
    """

    ended: Ending
    messages: tuple[dict[str, Any], ...]
    reply: Reply | None = None
    calls: tuple[Called, ...] = ()
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    state: dict[str, Any] | None = field(default=None, repr=False)
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether the model came to an answer."""
        return self.ended is Ending.DONE

    @property
    def text(self) -> str:
        """The text of the model's last answer; "" if there was none."""
        return "" if self.reply is None else self.reply.text

    @property
    def pending(self) -> tuple[ToolResult, ...]:
        """The results of the calls that wait; ``result.pending`` says for what."""
        return tuple(one.result for one in self.calls if one.result.outcome is Outcome.SUSPENDED)


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The model is asked. ``tools`` are the ids of those that it is told of."""

    round: int
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallsStarted:
    """The model asks for these calls; those that a limit or the gate refuses are among them."""

    round: int
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class CallFinished:
    """What became of one call, as soon as it is known: once a call, in any order."""

    round: int
    result: ToolResult


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The model has answered, and so are its calls. ``messages`` is the whole history now: what to keep after a crash.

    A round with a suspended call ends only once the conversation is resumed; ``reply`` is None then.
    """

    round: int
    reply: Reply | None
    results: tuple[ToolResult, ...]
    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event."""

    conversation: Conversation


ConversationEvent: TypeAlias = (
    RoundStarted | TextDelta | ReasoningDelta | CallDelta | CallsStarted | CallFinished | RoundEnded | Ended
)
