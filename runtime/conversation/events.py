"""The result of a conversation, and its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from callgate.errors import ModelError
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, Reply, TextDelta, Usage
from callgate.tools.calls import Outcome, ToolCall, ToolResult


class Ending(StrEnum):
    """The reason why a conversation ended.

    ``done``: the model answered without calling a tool. ``max_rounds``, ``max_calls``, ``failures``, ``tokens`` and
    ``deadline`` are limits. ``suspended``: a call waits for a person or a client. ``waiting``: the client must answer the
    items in ``waiting``. ``refused``: the model or a filter refused to answer. ``truncated``: the last answer is incomplete.
    ``empty``: the last answer has neither text nor a call. ``lost``: the last answer is not known to be whole; none of
    its calls ran, and it is not in the history. ``error``: the provider gave no valid answer.
    """

    DONE = "done"
    MAX_ROUNDS = "max_rounds"
    MAX_CALLS = "max_calls"
    FAILURES = "failures"
    TOKENS = "tokens"
    DEADLINE = "deadline"
    SUSPENDED = "suspended"
    WAITING = "waiting"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    LOST = "lost"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Called:
    """One call of the model, and its result; ``round`` counts from 1."""

    round: int
    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Conversation:
    """The result of a conversation.

    ``messages`` is the history to keep, in the provider's own form. The provider accepts it: each call has
    exactly one result. To continue, append a user message. ``reply`` is the model's last complete answer, None
    if there was none. ``calls`` are those of this run, in order. ``rounds`` counts answers of the model. ``usage`` sums
    the tokens that the provider counts. Both continue after a suspension. ``state`` is the value for ``resume=``, None
    unless the conversation is suspended. ``waiting`` has the items of the last answer that are no calls of a tool and that
    the client must answer before it continues. ``error`` is the error of the provider.
    """

    ended: Ending
    messages: tuple[dict[str, Any], ...]
    reply: Reply | None = None
    calls: tuple[Called, ...] = ()
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    state: dict[str, Any] | None = field(default=None, repr=False)
    error: Exception | None = None
    waiting: tuple[Mapping[str, object], ...] = ()

    @property
    def ok(self) -> bool:
        """True if the model gave a final answer."""
        return self.ended is Ending.DONE

    @property
    def text(self) -> str:
        """The text of the model's last answer; "" if there was none."""
        return "" if self.reply is None else self.reply.text

    @property
    def pending(self) -> tuple[ToolResult, ...]:
        """The results of the suspended calls; ``result.pending`` is the suspension of each."""
        return tuple(one.result for one in self.calls if one.result.outcome is Outcome.SUSPENDED)


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A request to the model starts. ``tools`` are the ids of the tools in the request."""

    round: int
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundRestarted:
    """The answer broke off, or is lost, and the model is asked again: discard the pieces of this round."""

    round: int
    error: ModelError


@dataclass(frozen=True, slots=True)
class CallsStarted:
    """The model makes these calls, including calls that a limit or the gate refuses."""

    round: int
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The result of one call, as soon as it is known: one event for each call, in any order."""

    round: int
    result: ToolResult


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The model's answer and all its results are there. ``messages`` is the whole history; save it to survive a crash.

    A round with a suspended call ends only after the conversation is resumed; ``reply`` is None then.
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
    RoundStarted
    | TextDelta
    | ReasoningDelta
    | CallDelta
    | RoundRestarted
    | CallsStarted
    | CallFinished
    | RoundEnded
    | Ended
)
