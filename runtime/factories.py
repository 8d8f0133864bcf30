"""``Gate(provide={token: factory})``: run once when the gate opens, closed in reverse when it ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.registry import ProviderRegistry, describe


class _NotOpen:
    """Stands for a global provider until the gate opens."""

    def __init__(self, token: Any) -> None:
        self.token = token


class Factories:
    """The plain factories of a gate. A value that is no function or class is provided as it is."""

    def __init__(self, provide: Mapping[Any, Any], registry: ProviderRegistry) -> None:
        self._provide = dict(provide)
        self._registry = registry
        self._stack = AsyncExitStack()
        registry.register_singletons({token: _NotOpen(token) for token in self._provide})

    async def open(self) -> None:
        """Make every instance, in the order given; when one fails, close those made before.

        Raises:
            ProviderError: a factory failed; its error is the cause.
        """
        for token, source in self._provide.items():
            try:
                self._registry.set_singleton(token, await self._make(source))
            except Exception as error:
                await self.close()
                raise ProviderError(f"the factory of {describe(token)} failed: {type(error).__name__}") from error

    async def close(self) -> None:
        """Close generators and context managers in reverse; tokens are not available after."""
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        finally:
            for token in self._provide:
                self._registry.set_singleton(token, _NotOpen(token))

    async def _make(self, source: Any) -> Any:
        if not _is_factory(source):
            return source
        if inspect.isasyncgenfunction(source):
            return await self._stack.enter_async_context(asynccontextmanager(source)())
        if inspect.isgeneratorfunction(source):
            return self._stack.enter_context(contextmanager(source)())
        made = source()
        return await made if inspect.isawaitable(made) else made


def _is_factory(source: Any) -> bool:
    return inspect.isfunction(source) or inspect.ismethod(source) or inspect.isclass(source) or _is_partial(source)


def _is_partial(source: Any) -> bool:
    inner: Callable[..., Any] | None = getattr(source, "func", None)
    return inner is not None and callable(source)
