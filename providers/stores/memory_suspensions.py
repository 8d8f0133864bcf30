"""Suspended calls and agreed definitions of outside tools, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from callgate.errors import StoreConflict
from callgate.providers.stores.effects import Pin, Wait, WaitState
from callgate.providers.stores.memory_changes import Changes

Key: TypeAlias = tuple[str, str]


class MemoryWaits:
    """Suspended calls by tenant and id."""

    def __init__(self) -> None:
        self._waits: dict[Key, Wait] = {}

    async def put(self, tenant: str, wait: Wait) -> None:
        """See ``WaitStore``."""
        if (tenant, wait.id) in self._waits:
            raise StoreConflict("a call that waits has that id already")
        self._place((tenant, wait.id), wait)

    async def get(self, tenant: str, id: str) -> Wait | None:
        """See ``WaitStore``."""
        return self._waits.get((tenant, id))

    async def replace(self, tenant: str, wait: Wait) -> bool:
        """See ``WaitStore``."""
        found = self._waits.get((tenant, wait.id))
        if found is None or found.number != wait.number - 1 or found.state is not WaitState.WAITING:
            return False
        self._place((tenant, wait.id), wait)
        return True

    async def list(
        self, tenant: str, *, state: WaitState = WaitState.WAITING, user: str | None = None, limit: int = 100
    ) -> Sequence[Wait]:
        """See ``WaitStore``."""
        found = [
            wait
            for (owner, _), wait in self._waits.items()
            if owner == tenant and wait.state is state and user in {None, wait.user}
        ]
        return sorted(found, key=lambda wait: (wait.made_at, wait.id))[:limit]

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, Wait]]:
        """See ``WaitStore``."""
        found = [
            (wait.expires_at, *at)
            for at, wait in self._waits.items()
            if wait.state is WaitState.WAITING and wait.expires_at is not None and wait.expires_at <= now
        ]
        return [(tenant, self._waits[tenant, id]) for _, tenant, id in sorted(found)[:limit]]

    async def prune(self, before: float) -> int:
        """See ``WaitStore``."""
        old = [at for at, wait in self._waits.items() if wait.made_at < before and wait.state is not WaitState.WAITING]
        for at in old:
            self._place(at, None)
        return len(old)

    def _place(self, at: Key, wait: Wait | None) -> None:
        """Put it in the place of what is there; None forgets that."""
        if wait is None:
            del self._waits[at]
        else:
            self._waits[at] = wait


class HeldWaits(MemoryWaits):
    """Suspended calls within a transaction: everybody sees at once what it writes, and ``forget`` takes that back."""

    def __init__(self, outer: MemoryWaits) -> None:
        super().__init__()
        self._waits = outer._waits
        self._changes = Changes[Key, Wait](self._waits.get, super()._place)

    def forget(self) -> None:
        """See ``Changes``."""
        self._changes.forget()

    def _place(self, at: Key, wait: Wait | None) -> None:
        self._changes.place(at, wait)


class MemoryPins:
    """Pins by tenant, provider and tool."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, str, str], Pin] = {}

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        """See ``PinStore``."""
        return self._pins.get((tenant, provider, tool))

    async def add(self, tenant: str, pin: Pin) -> Pin:
        """See ``PinStore``."""
        return self._pins.setdefault((tenant, pin.provider, pin.tool), pin)

    async def put(self, tenant: str, pin: Pin) -> None:
        """See ``PinStore``."""
        self._pins[tenant, pin.provider, pin.tool] = pin

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        """See ``PinStore``."""
        found = [pin for at, pin in self._pins.items() if at[:2] == (tenant, provider)]
        return sorted(found, key=lambda pin: pin.tool)
