"""Run several calls concurrently, where their tools allow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from callgate.runtime.pipeline import scopes
from callgate.runtime.pipeline.results import cancelled_call
from callgate.tools.calls import ToolResult, User


async def call_many(
    gate: object,
    calls: Sequence[object],
    user: User,
    at_once: int,
    options: Mapping[str, object],
    *,
    trace: bool = False,
) -> list[ToolResult]:
    """See ``Gate.call_many``. A tool with ``parallel=False`` runs after the calls before it, and before those after it.

    Raises:
        ValueError: *at_once* is not positive.
        CancelledError: the caller cancelled the batch; every call in flight is cancelled and has ended.
    """
    if not at_once >= 1:
        raise ValueError("at_once must be at least 1")
    return await scopes.once(_call_many(gate, calls, user, at_once, options, trace=trace))


async def _call_many(
    gate: Any, calls: Sequence[object], user: User, at_once: int, options: Mapping[str, Any], *, trace: bool
) -> list[ToolResult]:
    results: dict[int, ToolResult] = {}
    # asyncio: as structured as anyio; a cancel scope would cancel at each checkpoint of a call's cleanup
    permits = asyncio.Semaphore(at_once)

    begun: set[int] = set()

    async def one(index: int) -> None:
        async with permits:
            begun.add(index)
            results[index] = await gate.call(calls[index], user=user, trace=trace, **options)

    start = 0
    while start < len(calls):
        end = start
        while end < len(calls) and gate.runs_in_parallel(calls[end]):
            end += 1
        if end - start <= 1:  # a single call, parallel or not, runs in the caller's task
            await one(start)
            start += 1
            continue
        try:
            # asyncio: see above
            async with asyncio.TaskGroup() as group:
                for index in range(start, end):
                    group.create_task(one(index))
        except BaseExceptionGroup as errors:  # such as a closed gate: raised as a single call raises it
            raise errors.exceptions[0] from None
        start = end
    return [results.get(n) or cancelled_call(call, begun=n in begun) for n, call in enumerate(calls)]
