"""Recovery of a gate whose event loop was closed before the gate: what belonged to that loop is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from callgate.providers.exits import Exit
from callgate.providers.logs import LogEvent, emit
from callgate.providers.sessions import SessionTable
from callgate.runtime.lifespan.background import BackgroundTasks
from callgate.runtime.lifespan.factories import Factories
from callgate.runtime.pipeline.services import Services
from callgate.runtime.pipeline.under_way import UnderWay

_ATTEMPTS = 8
_LIMIT = 0.25
"""Seconds of one attempt to close: a task of a closed loop never ends."""


async def drop_old(close: Callable[[], Awaitable[object]]) -> None:
    """Close a part that was opened in a closed loop, as far as it can be closed from here.

    Each step of closing forgets its task or connection before it waits for it. A step that fails or waits for a closed
    loop is therefore over at the next attempt.
    """
    for _ in range(_ATTEMPTS):
        try:
            async with asyncio.timeout(_LIMIT):
                await close()
        except Exception:  # noqa: BLE001, S112  (of the closed loop; the next attempt goes on behind it)
            continue
        return


async def drop_gate(
    services: Services, calls: UnderWay, sessions: SessionTable, made: Factories, background: BackgroundTasks
) -> None:
    """Forget the instances, sessions, calls and tasks of the closed loop, and log their number.

    Instances are not closed: their connections belong to the closed loop.
    """
    number, under_way, on_end = made.forget(), len(calls), sessions.on_end
    dropped = number

    def count(_id: str, _reason: str, exits: list[Exit]) -> None:
        nonlocal dropped
        dropped += len(exits)

    sessions.on_end = count
    try:
        sessions.end_all()
    finally:
        sessions.on_end = on_end
    calls.clear()
    calls.end()
    services.left_behind.tasks.clear()
    await drop_old(background.stop)
    emit(LogEvent.GATE_LOOP_CLOSED, instances=dropped, calls=under_way)
