"""What an attack costs: the result of a coroutine, its memory, and its time."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Coroutine
from typing import Any

from callgate.runtime.testing.virtual_time import run_virtual


def cost_of(work: Coroutine[Any, Any, Any]) -> tuple[Any, int, float]:
    """Run *work* in virtual time; its result or error, the peak of its memory in bytes, and its seconds."""

    async def timed() -> tuple[Any, float]:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(3_600):
                found: Any = await work
        except Exception as error:  # noqa: BLE001  (the result of an attack)
            found = error
        return found, asyncio.get_running_loop().time() - began

    tracemalloc.start()
    try:
        found, seconds = run_virtual(timed())
        return found, tracemalloc.get_traced_memory()[1], seconds
    finally:
        tracemalloc.stop()
