"""Suspended calls and approved definitions of outside tools, in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from callgate.errors import StoreConflict
from callgate.providers.stores.effects import (
    PRUNE_BATCH,
    Pin,
    SuspensionPosition,
    SuspensionRecord,
    SuspensionState,
    is_listed,
    may_follow,
)
from callgate.providers.stores.kept_texts import keepable
from callgate.providers.stores.memory.changes import MemoryKey, MemoryPart


class MemorySuspensions(MemoryPart[MemoryKey, SuspensionRecord]):
    """Suspensions by tenant and id."""

    def __init__(self) -> None:
        self._suspensions: dict[MemoryKey, SuspensionRecord] = {}
        self._waiting: dict[tuple[str, str], dict[MemoryKey, SuspensionRecord]] = {}  # by tenant and user

    async def put(self, tenant: str, wait: SuspensionRecord) -> None:
        if (tenant, wait.id) in self._suspensions:
            raise StoreConflict("a suspended call has that id already")
        self._write((tenant, wait.id), wait)

    def waiting(self) -> int:
        """Return the number of calls that wait."""
        return sum(map(len, self._waiting.values()))

    async def get(self, tenant: str, id: str) -> SuspensionRecord | None:
        return self._suspensions.get((tenant, id))

    async def replace(self, tenant: str, wait: SuspensionRecord) -> bool:
        found = self._suspensions.get((tenant, wait.id))
        if found is None or found.number != wait.number - 1 or not may_follow(found.state, wait.state):
            return False
        self._write((tenant, wait.id), wait)
        return True

    async def list(
        self,
        tenant: str,
        *,
        state: SuspensionState = SuspensionState.WAITING,
        user: str | None = None,
        limit: int = 100,
        after: SuspensionPosition | None = None,
        kind: str | None = None,
        valid_at: float | None = None,
        having: Collection[bytes] | None = None,
        behind: bytes = b"",
        newest: bool = False,
    ) -> Sequence[SuspensionRecord]:
        found = [
            one
            for (owner, _), one in self._suspensions.items()
            if owner == tenant
            and one.state is state
            and kind in {None, one.kind}
            and (after is None or ((one.made_at, one.id) < after if newest else (one.made_at, one.id) > after))
            and (valid_at is None or one.expires_at is None or one.expires_at > valid_at)
            and is_listed(one, user, having, behind)
        ]
        return sorted(found, key=lambda one: (one.made_at, one.id), reverse=newest)[:limit]

    async def count(self, tenant: str, user: str, limit: int, *, kind: str | None = None) -> int:
        own = self._waiting.get((tenant, user), {}).values()
        return sum(
            1 for _ in islice((1 for one in own if (one.tool != "" if kind is None else one.kind == kind)), limit)
        )

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, SuspensionRecord]]:
        found = [
            (one.expires_at, *key)
            for key, one in self._suspensions.items()
            if one.state is SuspensionState.WAITING and one.expires_at is not None and one.expires_at <= now
        ]
        return [(tenant, self._suspensions[tenant, id]) for _, tenant, id in sorted(found)[:limit]]

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        old = [
            key
            for key, one in self._suspensions.items()
            if one.made_at < before and one.state is not SuspensionState.WAITING
        ]
        for key in old[:limit]:
            self._write(key, None)
        return len(old[:limit])

    def _read(self, key: MemoryKey) -> SuspensionRecord | None:
        return self._suspensions.get(key)

    def _write(self, key: MemoryKey, value: SuspensionRecord | None) -> None:
        self._note(key, value)
        if (before := self._suspensions.get(key)) is not None:
            own = self._waiting.get((key[0], before.user), {})
            if own.pop(key, None) is not None and not own:
                del self._waiting[key[0], before.user]
        if value is None:
            del self._suspensions[key]
            return
        self._suspensions[key] = value
        if value.state is SuspensionState.WAITING:
            self._waiting.setdefault((key[0], value.user), {})[key] = value


@keepable
class MemoryPins:
    """Pins by tenant, provider and tool."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, str, str], Pin] = {}

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        return self._pins.get((tenant, provider, tool))

    async def add(self, tenant: str, pin: Pin) -> Pin:
        return self._pins.setdefault((tenant, pin.provider, pin.tool), pin)

    async def put(self, tenant: str, pin: Pin) -> None:
        self._pins[tenant, pin.provider, pin.tool] = pin

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        found = [pin for key, pin in self._pins.items() if key[:2] == (tenant, provider)]
        return sorted(found, key=lambda pin: pin.tool)
