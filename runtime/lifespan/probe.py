"""The readiness probe of a service: whether the store of its gate answers."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from callgate.providers.stores.server_answers import answer_within

LIMIT = 2.0
"""Seconds that a store has to answer a probe."""
KEPT = 1.0
"""Seconds for which an answer counts: anyone may ask, so probes must cost the store nothing."""


class StoreProbe:
    """Asks the store of a gate, at most once at a time and once in ``KEPT`` seconds."""

    def __init__(self, gate: Any, limit: float | None = None) -> None:
        self._gate, self._limit = gate, LIMIT if limit is None else limit
        self._lock = asyncio.Lock()
        self._ready, self._until = False, -math.inf

    async def is_ready(self) -> bool:
        """Return True if the gate is open and its store has answered in time."""
        if not self._gate.is_open:
            return False
        now = asyncio.get_running_loop().time
        async with self._lock:
            if now() >= self._until:
                self._ready = await self._ask()
                self._until = now() + KEPT
        return self._ready

    async def _ask(self) -> bool:
        ping = getattr(self._gate.store, "ping", None)
        if ping is None:  # memory, or a store of another package
            return True
        try:
            # The inner limit ends the request at the server; the outer one is for a store that does not know it.
            with answer_within(self._limit):
                async with asyncio.timeout(self._limit * 1.5):
                    await ping()
        except Exception:  # noqa: BLE001  (whatever it is, the store does not answer)
            return False
        return True
