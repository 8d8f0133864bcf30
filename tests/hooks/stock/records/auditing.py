"""What the tests of records share: tools of every effect, hooks that end a call in each way, stores that wait or fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from callgate import Gate, Hook, InvokeContext, User
from callgate.errors import StoreError
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.memory.audit import MemoryAudit
from callgate.providers.stores.memory.store import MemoryStore
from tests.world import bare_gate

USER = User("u", tenant="acme", roles={"clerk"})


class Ends(Hook):
    """Ends calls by what their ``n`` or note asks for."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        if ctx.user.id == "nobody":
            ctx.abort("nobody is not known; password=hunter22", code="who")

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        match ctx.input.get("n"):
            case 101:
                ctx.retry_after(5, "busy")
            case 102:
                ctx.suspend("approval", "really?")
            case 103:
                ctx.respond(103)
            case 104:
                raise ValueError("a policy that breaks")
            case _:
                pass


class WaitingAudit(MemoryAudit):
    """An audit part as a database has it: every write waits."""

    def __init__(self, waits: float = 0.01) -> None:
        super().__init__()
        self.waits = waits
        self.appends = 0

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        self.appends += 1
        await asyncio.sleep(self.waits)
        await super().append(tenant, rows)

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        await asyncio.sleep(self.waits)
        await super().anchor(segment, number, hash, at)


class FailingAudit(MemoryAudit):
    """Its n-th operation fails: before it did anything, or after it did it all."""

    def __init__(self, at: int, *, after: bool, waits: bool = False) -> None:
        super().__init__()
        self.at, self.after, self.waits, self.operations = at, after, waits, 0

    async def _turn(self, done: Any) -> None:
        self.operations += 1
        if self.waits:
            await asyncio.sleep(0)
        if self.operations != self.at:
            await done
            return
        if self.after:
            await done
        else:
            done.close()
        raise StoreError("injected")

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        await self._turn(super().append(tenant, rows))

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        await self._turn(super().anchor(segment, number, hash, at))


def store_with(audit: MemoryAudit) -> MemoryStore:
    store = MemoryStore()
    store.audit = audit
    return store


def a_gate(*hooks: Any, **options: Any) -> Gate:
    return bare_gate(Ends(), *hooks, **options)


async def rows_of(audit: Any, tenant: str | None = None) -> list[AuditRow]:
    found: AsyncIterator[AuditRow] = audit.read(tenant)
    return [row async for row in found]


async def outcomes(audit: Any) -> list[tuple[Any, ...]]:
    return [
        (row.body["tool"], row.body["outcome"], row.body.get("code"))
        for row in await rows_of(audit)
        if row.body["kind"] == "outcome"
    ]
