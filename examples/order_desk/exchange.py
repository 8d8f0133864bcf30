"""One exchange with a provider: read the calls of a response, hydrate them, run them, and build the messages."""

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
    """The calls of one response, and the messages to the model in the provider's form."""

    passed: list[Passed]
    messages: list[dict[str, Any]]


async def exchange(gate: Gate, wire: str, response: Mapping[str, Any], user: User, *, trace: bool = False) -> Exchange:
    """Answer every tool call in *response* on behalf of *user*: in parallel where the tools allow it.

    With *trace*, calls run in sequence, and every result keeps its stages.

    Raises:
        WireError: *response* matches no provider.
    """
    spelling = codec(wire)
    translation = spelling.translate(gate.definitions(user=user))  # the definitions for this user's model
    calls = spelling.calls(response, translation)
    hydrated = [gate.hydrate(call, wire=wire) for call in calls]
    if trace:
        results = [await gate.call(call, user=user, trace=True) for call in hydrated]
    else:
        results = await gate.call_many(hydrated, user=user)
    passed = [Passed(wire, user, call, result) for call, result in zip(hydrated, results, strict=True)]
    return Exchange(passed, spelling.results(results, translation))
