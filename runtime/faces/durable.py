"""The steps of a call in a durable workflow. The workflow engine repeats a step, and the effect ledger answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from callgate.errors import NotPending, StoreError
from callgate.providers.principal import User
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.result_json import result_as_json, result_from_json
from callgate.runtime.jobs.running import STORE_FAILED
from callgate.runtime.suspensions.resolution import CallState
from callgate.tools.calls import Outcome, ToolCall, ToolResult

IN_FLIGHT_PAUSE = 1.0
"""Seconds until a step asks again for a call that another process runs, or that a dead process left running."""

_OPEN = {CallState.WORKING, CallState.INPUT_REQUIRED}


@dataclass(frozen=True, slots=True)
class DurableStep:
    """The outcome of one step of a call: its result, or the handle under which it is suspended."""

    result: ToolResult | None = None
    handle: str | None = None

    def dump(self) -> dict[str, Any]:
        """Return the step as a JSON object, for the records of the engine."""
        return {"handle": self.handle, "result": None if self.result is None else result_as_json(self.result)}

    @classmethod
    def load(cls, kept: Mapping[str, Any]) -> Self:
        """Return the step that ``dump`` wrote."""
        return cls(None if kept["result"] is None else result_from_json(kept["result"]), kept["handle"])


async def first_step(gate: Any, call: ToolCall, user: User, options: CallOptions) -> DurableStep:
    """Run a call. If another process runs it already, wait for its end or for that of its lease.

    Raises:
        StoreError: a store failed before the tool ran; the engine repeats the step.
        GateClosed: the gate is not open in this event loop.
    """
    while True:
        result: ToolResult = await gate.call(call, user=user, **options)
        if result.outcome is not Outcome.IN_FLIGHT:
            return _ended(result)
        await asyncio.sleep(IN_FLIGHT_PAUSE)


async def next_step(gate: Any, handle: str, user: User, deadline: float | None) -> DurableStep:
    """Return how a suspended call goes on. An approved read runs here, because no store keeps its output.

    Raises:
        StoreError: a store failed; the engine repeats the step.
        NotPending: no call of this user has the handle.
    """
    found = await gate.outcome(handle, user=user)
    if found.state in _OPEN:
        return DurableStep(handle=handle if found.pending is None else found.pending.handle)
    if found.result is None:
        return _ended(await gate.repeat_read(handle, user, deadline=deadline))
    return _ended(found.result)


async def is_decided(gate: Any, handle: str, user: User) -> bool:
    """Return whether a suspended call has ended, or waits for another decision."""
    found = await gate.outcome(handle, user=user)
    return found.state not in _OPEN or (found.pending is not None and found.pending.handle != handle)


async def withdraw(gate: Any, handle: str, user: User) -> None:
    """Withdraw a suspended call, unless it has ended."""
    with suppress(NotPending):
        await gate.waits.withdraw(handle, user)


def _ended(result: ToolResult) -> DurableStep:
    if result.outcome is Outcome.SUSPENDED:
        return DurableStep(handle=result.pending.handle)
    if result.error is not None and result.error.code in STORE_FAILED:
        raise StoreError(f"{result.tool}: {result.error.code}; the tool did not run")
    return DurableStep(result)
