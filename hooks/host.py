"""The services of the runtime that invocation contexts use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from callgate.hooks.approval import OnRepair
from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.base import Store


class Host(Protocol):
    """The services that a context uses: time, providers, the store, and the operations of the engine."""

    registry: ProviderRegistry
    store: Store
    waits: Any  # runtime/suspensions/suspensions.py, or None if no store keeps suspensions
    under_way: Any  # runtime/call/under_way.py
    monotonic: Any
    wall_offset: float
    closing: float  # seconds that the closing steps of one call may wait
    development: bool  # True prints the tracebacks of faults in full
    on_repair: OnRepair

    async def nested(self, ctx: Any, tool: Any, arguments: Any) -> Any:
        """Run another tool on behalf of *ctx*."""
        ...

    async def lease(self, ctx: Any, manager: AbstractAsyncContextManager[Any]) -> Any:
        """Enter *manager* and record it on the lease ledger."""
        ...

    async def send(self, ctx: Any, partial: Any) -> None:
        """Send a partial output to the consumer of the stream."""
        ...

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register a coroutine function to await when the gate closes; it runs once, even if it is registered again."""
        ...

    def abandon(self, ctx: Any, body: Any) -> None:
        """Abandon a running body, with the resources it holds."""
        ...
