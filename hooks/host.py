"""What the runtime lends the contexts of its invocations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from callgate.providers.registry import ProviderRegistry
from callgate.providers.stores.base import Store


class Host(Protocol):
    """What the runtime lends a context: time, providers, the store, and the verbs that need an engine."""

    registry: ProviderRegistry
    store: Store
    waits: Any  # runtime/suspensions/suspensions.py, or None where nothing keeps what waits
    monotonic: Any
    wall_offset: float

    async def nested(self, ctx: Any, tool: Any, arguments: Any) -> Any:
        """Run another tool on behalf of *ctx*."""
        ...

    async def lease(self, ctx: Any, manager: AbstractAsyncContextManager[Any]) -> Any:
        """Enter *manager* and keep it on the ledger."""
        ...

    async def send(self, ctx: Any, partial: Any) -> None:
        """Hand a partial output to whoever streams the call."""
        ...

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something awaited as the gate closes; once, however often it is asked for."""
        ...

    def abandon(self, ctx: Any, body: Any) -> None:
        """Leave a running body behind, with what it holds."""
        ...
