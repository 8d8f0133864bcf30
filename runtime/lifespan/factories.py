"""The instances of the global scope: made when the gate opens, closed in reverse when it closes."""

from __future__ import annotations

from callgate.errors import ProviderError
from callgate.providers.exits import Exit, Within, leave_all, plainly
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

    async def open(self) -> None:
        """Make every instance, each after its dependencies; after a failure close those made before.

        Raises:
            ProviderError: a factory failed; its error is the cause.
        """
        self._scope.reopen()
        for recipe in self._registry.global_recipes():
            try:
                await self._scope.provide(recipe)
            except BaseException as error:
                emit(LogEvent.PROVIDER_FAILED, provider=recipe.name, phase="make", error=error)
                try:
                    await self.close()
                except Exception as closing:  # noqa: BLE001  (the first failure is the cause)
                    error.add_note(f"closing what was made before failed, too: {type(closing).__name__}")
                if not isinstance(error, Exception):
                    raise
                raise ProviderError(f"the factory of {recipe.name} failed: {type(error).__name__}") from error

    async def close(self) -> None:
        """Close every generator, in reverse, even if another fails; then the tokens are no longer available.

        Raises:
            BaseException: the first error of a generator, or a cancellation.
        """
        await leave_all(self._scope.end(), on_failure=_log_failure, within=self._within)


def _log_failure(left: Exit, error: BaseException) -> None:
    emit(LogEvent.PROVIDER_FAILED, provider=left.recipe.name, phase="close", error=error)
