"""The instances of the global scope: made when the gate opens, closed in reverse when it closes."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.exits import Exit, Within, leave_all, plainly
from callgate.providers.injector import open_resources
from callgate.providers.logs import LogEvent, emit
from callgate.providers.registry import ProviderRegistry


class Factories:
    """The global instances of a registry.

    A function or class is called, and may be async. Of a generator the first value is the instance, and the code after
    its ``yield`` closes it; ``@contextmanager`` and ``@asynccontextmanager`` are optional. Any other value, such as
    another context manager, is provided as it is.
    """

    def __init__(self, registry: ProviderRegistry, within: Within = plainly) -> None:
        """Use the providers of *registry*; *within* runs the closing of each, and may bound its time."""
        self._within = within
        self._scope = registry.world.scope
        self._registry = registry
        self._theirs: list[object] = []  # the resources of the container that were open before the gate

    async def open(self) -> None:
        """Make every instance, each after its dependencies; after a failure close those made before.

        Raises:
            ProviderError: a factory failed; its error is the cause.
        """
        self._scope.reopen()
        self._theirs = open_resources(self._registry.container)
        for recipe in self._registry.global_recipes():
            try:
                await self._scope.provide(recipe)
            except BaseException as raised:
                error = as_failure(raised)
                emit(LogEvent.PROVIDER_FAILED, provider=recipe.name, phase="make", error=error)
                try:
                    await self.close()
                except Exception as closing:  # noqa: BLE001  (the first failure is the cause)
                    error.add_note(f"closing what was made before failed, too: {type(closing).__name__}")
                if isinstance(error, Exception):
                    raise ProviderError(f"the factory of {recipe.name} failed: {type(error).__name__}") from error
                raise

    def forget(self) -> int:
        """End the scope without closing its instances; return the number of those that would have been closed."""
        return len(self._scope.end())

    async def close(self) -> None:
        """Close every generator, in reverse, even if another fails; then the tokens are no longer available.

        Resources of the container that were opened since the gate has opened are closed after them.

        Raises:
            BaseException: the first error of a generator or resource, or a cancellation.
        """
        async with AsyncExitStack() as stack:
            for one in open_resources(self._registry.container):
                if one not in self._theirs:
                    stack.push_async_callback(self._shut, one)
            await leave_all(self._scope.end(), on_failure=_log_failure, within=self._within)

    async def _shut(self, resource: object) -> None:
        try:
            await self._within(_shut_down(resource), str(resource))
        except Exception as error:
            emit(LogEvent.PROVIDER_FAILED, provider=str(resource), phase="close", error=error)
            raise


async def _shut_down(resource: Any) -> None:
    closing = resource.shutdown()
    if inspect.isawaitable(closing):
        await closing


def _log_failure(left: Exit, error: BaseException) -> None:
    emit(LogEvent.PROVIDER_FAILED, provider=left.recipe.name, phase="close", error=error)


def as_failure(error: BaseException) -> BaseException:
    """Return an error in place of a cancellation without a request; any other error stays.

    A task group takes such a cancellation for the end of its task: a service that did not start would say nothing.
    """
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or task is None or task.cancelling():
        return error
    return RuntimeError("it raised CancelledError, and nothing cancelled the gate")
