"""``Gate(provide={token: factory})``: run once when the gate opens, closed in reverse when it ends."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.registry import ProviderRegistry, describe


class Factories:
    """The plain factories of a gate. A value that is no function or class is provided as it is.

    A function may be async; a generator's first value is the instance, and what follows its ``yield`` closes it, with
    ``@contextmanager`` or ``@asynccontextmanager`` on it or without. Other context managers are instances like any.
    """

    def __init__(self, provide: Mapping[Any, Any], registry: ProviderRegistry) -> None:
        self._provide = dict(provide)
        self._registry = registry
        self._managers: list[Any] = []
        registry.promise_singletons(self._provide)

    async def open(self) -> None:
        """Make every instance, in the order given; when one fails or is cancelled, close those made before.

        Raises:
            ProviderError: a factory failed; its error is the cause.
        """
        for token, source in self._provide.items():
            try:
                self._registry.set_singleton(token, await self._make(source))
            except BaseException as error:
                try:
                    await self.close()
                except Exception as closing:  # noqa: BLE001  (the first failure is the news)
                    error.add_note(f"closing what was made before failed, too: {type(closing).__name__}")
                if not isinstance(error, Exception):
                    raise
                raise ProviderError(f"the factory of {describe(token)} failed: {type(error).__name__}") from error

    async def close(self) -> None:
        """Close generators in reverse, every one, whatever another raises; tokens are not available after.

        Raises:
            BaseException: the first that a generator raised, or a cancellation.
        """
        managers, self._managers = self._managers, []
        failed: list[BaseException] = []
        for manager in reversed(managers):
            try:
                if isinstance(manager, contextlib.AbstractAsyncContextManager):
                    await manager.__aexit__(None, None, None)
                else:
                    manager.__exit__(None, None, None)
            except BaseException as error:  # noqa: BLE001  (raised below, when the others are closed)
                failed.append(error)
        for token in self._provide:
            self._registry.withdraw_singleton(token)
        if failed:
            raise next((error for error in failed if not isinstance(error, Exception)), failed[0])

    async def _make(self, source: Any) -> Any:
        if not _is_factory(source):
            return source
        made: Any = source()
        manager: Any = None
        if inspect.isasyncgen(made):
            manager = _closing_async(made)
        elif inspect.isgenerator(made):
            manager = _closing(made)
        elif isinstance(made, contextlib._AsyncGeneratorContextManager | contextlib._GeneratorContextManager):
            manager = made
        if manager is None:
            return await made if inspect.isawaitable(made) else made
        is_async = isinstance(manager, contextlib.AbstractAsyncContextManager)
        instance = await manager.__aenter__() if is_async else manager.__enter__()
        self._managers.append(manager)
        return instance


@contextlib.asynccontextmanager
async def _closing_async(made: Any) -> AsyncGenerator[Any, None]:
    async for instance in made:
        yield instance


@contextlib.contextmanager
def _closing(made: Any) -> Generator[Any, None, None]:
    yield from made


def _is_factory(source: Any) -> bool:
    made_of_code = inspect.isfunction(source) or inspect.ismethod(source) or inspect.isclass(source)
    return made_of_code or isinstance(source, functools.partial)
