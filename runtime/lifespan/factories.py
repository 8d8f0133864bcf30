"""The global scope at work: made as the gate opens, closed in reverse as it ends."""

from __future__ import annotations

from callgate.errors import ProviderError
from callgate.providers.logs import Event, emit
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import Exit, leave_all


class Factories:
    """The global instances of a registry.

    A value that is no function or class is provided as it is. A function may be async; a generator's first value is the
    instance, and what follows its ``yield`` closes it, with ``@contextmanager`` or ``@asynccontextmanager`` on it or
    without. Other context managers are instances like any.
    """

    def __init__(self, registry: ProviderRegistry) -> None:
        self._scope = registry.world.scope
        self._registry = registry

    async def open(self) -> None:
        """Make every instance, in the order given, each after what it needs; when one fails, close those made before.

        Raises:
            ProviderError: a factory failed; its error is the cause.
        """
        self._scope.reopen()
        for recipe in self._registry.global_recipes():
            try:
                await self._scope.provide(recipe)
            except BaseException as error:
                emit(Event.PROVIDER_FAILED, provider=recipe.name, phase="make", error=error)
                try:
                    await self.close()
                except Exception as closing:  # noqa: BLE001  (the first failure is the news)
                    error.add_note(f"closing what was made before failed, too: {type(closing).__name__}")
                if not isinstance(error, Exception):
                    raise
                raise ProviderError(f"the factory of {recipe.name} failed: {type(error).__name__}") from error

    async def close(self) -> None:
        """Close generators in reverse, every one, whatever another raises; tokens are not available after.

        Raises:
            BaseException: the first that a generator raised, or a cancellation.
        """
        await leave_all(self._scope.end(), on_failure=_tell)


def _tell(left: Exit, error: BaseException) -> None:
    emit(Event.PROVIDER_FAILED, provider=left.recipe.name, phase="close", error=error)
