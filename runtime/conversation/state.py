"""The state of a suspended conversation as plain JSON, so that another process can resume it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from callgate.errors import CallgateError
from callgate.providers.kinds import fault_of_kind
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.result_text import result_text
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult, User
from callgate.tools.values import thaw

VERSION = 1


class StateRefused(CallgateError, ValueError):
    """The state is not for this version, wire or user, or a result is for a call that does not wait."""

    code = "state"


@dataclass(slots=True)
class LoopState:
    """The progress of a conversation: the whole state of its loop.

    ``called`` counts calls that the gate got, ``failures`` the failed calls in a row, ``tokens`` the tokens that the
    provider counted. ``open`` are the calls of the last answer that wait for results; ``results`` are those that exist.
    ``waiting`` are its items that the client must answer, after its calls.
    """

    messages: list[dict[str, object]]
    rounds: int = 0
    called: int = 0
    failures: int = 0
    tokens: int = 0
    usage: Usage = field(default_factory=Usage)
    open: Sequence[ToolCall] = ()
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    waiting: Sequence[Mapping[str, object]] = ()

    def count(self, usage: Usage) -> None:
        """Add the token usage of one answer; the larger counts if the provider's total is not the sum of the parts."""
        self.tokens += max(usage.total or 0, (usage.input or 0) + (usage.output or 0))
        sums = {name: _sum(getattr(self.usage, name), getattr(usage, name)) for name in asdict(usage)}
        self.usage = Usage(**sums)

    def dump(self, wire: str, user: User) -> dict[str, object]:
        """Return the state as plain JSON, stable under encoding. It holds messages, arguments and outputs."""
        kept = {
            "version": VERSION,
            "wire": wire,
            "user": [user.tenant, user.id],
            "messages": self.messages,
            # the wire reads from the chunk what it wants back beside the result
            "calls": [{**call.to_dict(), "chunk": call.chunk} for call in self.open],
            "results": [result_as_json(result) for result in self.results.values()],
            "rounds": self.rounds,
            "called": self.called,
            "failures": self.failures,
            "tokens": self.tokens,
            "usage": asdict(self.usage),
        } | ({"waiting": self.waiting} if self.waiting else {})
        state: dict[str, object] = json.loads(json.dumps(kept))
        return state


def load_state(state: object, wire: str, user: User) -> LoopState:
    """Return the progress in a state.

    Raises:
        StateRefused: the state is invalid, or belongs to another version, wire or user.
    """
    kept: Mapping[str, object] = state if isinstance(state, Mapping) else {}
    try:
        version, other, whose = kept["version"], kept["wire"], kept["user"]
    except KeyError:
        raise StateRefused("resume= takes the state of a suspended conversation") from None
    if version != VERSION:
        raise StateRefused(f"the state is of version {version!r}; this Callgate reads version {VERSION}")
    if other != wire:
        raise StateRefused(f"the state is of the wire {other!r}, and the client speaks {wire!r}")
    if whose != [user.tenant, user.id]:
        raise StateRefused("the state is another user's")
    try:
        return _progress(thaw(dict(kept)))  # the caller may change its state while calls run
    except (AttributeError, TypeError, KeyError, ValueError):
        raise StateRefused("the state is damaged") from None


def answer(progress: LoopState, results: Mapping[str, ToolResult]) -> None:
    """Record the results of suspended calls.

    Raises:
        StateRefused: no call of that id waits, or the value is not a ``ToolResult`` that a model can read.
    """
    waiting = {call.id: call for call in progress.open if call.id not in progress.results}
    for call_id, result in results.items():
        if call_id not in waiting:
            raise StateRefused(f"results: no call {call_id!r} waits; waiting: {', '.join(waiting) or 'none'}")
        if (fault := _fault_of(result)) is not None:
            raise StateRefused(f"results: give a ToolResult for {call_id!r} that a model can read; {fault}")
        if result.outcome is not Outcome.SUSPENDED:  # it still waits
            progress.results[call_id] = replace(result, call_id=call_id, tool=waiting[call_id].name)


def _fault_of(result: object) -> str | None:
    """Return why a model cannot read a result, or None: a later error would lose the results of calls that run meanwhile."""
    if not isinstance(result, ToolResult):
        return f"it is of type {type(result).__name__}"
    if (fault := fault_of_kind(result.outcome, Outcome) or fault_of_kind(result.error, ErrorInfo | None)) is not None:
        return f"its outcome or its error {fault}"
    try:
        json.dumps(result.output, allow_nan=False)
        result_text(result).encode()
    except (TypeError, ValueError):
        return "its output, its error or its arguments are not JSON"
    return None


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _progress(state: Mapping[str, Any]) -> LoopState:
    results = [result_from_json(kept) for kept in state["results"]]
    progress = LoopState(
        [dict(message) for message in state["messages"]],
        **{name: _count(state[name]) for name in ("rounds", "called", "failures", "tokens")},
        usage=Usage(**{name: None if value is None else _count(value) for name, value in state["usage"].items()}),
        open=[ToolCall.from_dict(kept) for kept in state["calls"]],
        results={result.call_id: result for result in results},
        waiting=[dict(item) for item in state.get("waiting", ())],
    )
    known = [call.id for call in progress.open]
    if not known or len(set(known)) < len(known) or not set(progress.results) <= set(known):
        raise ValueError("calls and results do not fit")
    if not all(isinstance(text, str) for call in progress.open for text in (call.id, call.name)):
        raise ValueError("no calls")
    return progress


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not a count")
    return value
