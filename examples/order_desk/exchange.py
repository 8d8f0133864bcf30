"""From a provider's answer to what is sent back to it: read the calls, hydrate them, let them pass the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate import Gate, HydrationResult, ToolResult, User, codec


@dataclass(frozen=True)
class Passed:
    """One call that has passed the gate."""

    wire: str
    user: User
    hydrated: HydrationResult
    result: ToolResult


@dataclass(frozen=True)
class Exchange:
    """One answer's calls, and the messages that go back to the model, in its provider's spelling."""

    passed: list[Passed]
    messages: list[dict[str, Any]]


async def exchange(gate: Gate, wire: str, response: Mapping[str, Any], user: User, *, trace: bool = False) -> Exchange:
    """Answer every tool call in *response* on behalf of *user*: in parallel where the tools allow it.

    With *trace* one after the other, and every result keeps its stages.

    Raises:
        WireError: *response* is no provider's answer at all.
    """
    spelling = codec(wire)
    translation = spelling.translate(gate.definitions(user=user))  # what this user's model was offered
    calls = spelling.calls(response, translation)
    hydrated = [gate.hydrate(call, wire=wire) for call in calls]
    if trace:
        results = [await gate.call(call, user=user, trace=True) for call in hydrated]
    else:
        results = await gate.call_many(hydrated, user=user)
    passed = [Passed(wire, user, call, result) for call, result in zip(hydrated, results, strict=True)]
    return Exchange(passed, spelling.results(results, translation))
