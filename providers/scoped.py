"""``Scoped``: a dependency-injector provider whose instance lives as long as a request, a session or the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, Literal, TypeVar, overload

from dependency_injector import providers

from callgate.errors import ProviderError

T = TypeVar("T")
ScopeName = Literal["request", "session", "global"]


class Rank(IntEnum):
    """How long an instance lives; a wider scope never takes from a narrower one."""

    REQUEST = 0
    SESSION = 1
    GLOBAL = 2

    def __str__(self) -> str:
        return self.name.lower()


ASKING: ContextVar[Any] = ContextVar("callgate_asking", default=None)
"""The scope for which one of dependency-injector's own providers is being called; it may take scoped ones."""


class Scoped(providers.Provider[T]):
    """One instance a request, a session or a gate, made when it is first asked for (contract 84; design 4).

    *factory* is a function, a class, an async function, or a generator function of either kind (with or without
    ``@contextmanager``): its first value is the instance, and what follows the ``yield`` closes it, in reverse order of
    making, exactly once. At the end of a request that failed the error is raised at the ``yield``, so that
    ``async with database.begin()`` rolls back. The other arguments are given to the factory; providers among them are
    resolved first, and so are parameters of the factory that are marked ``Provide[...]``.

    A request is one invocation with the calls nested in it. A session's instances are made by the first call that asks
    and closed by ``gate.end_session``, when the session expires or with the gate; a call without a session has one of
    its own. ``"global"`` instances are made as the gate opens.

    Raises:
        ProviderError: there is no such scope, or the factory cannot be called.
    """

    __slots__ = ("args", "factory", "kwargs", "rank")

    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., AbstractAsyncContextManager[T]], /, *args: Any, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., AbstractContextManager[T]], /, *args: Any, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., AsyncIterator[T]], /, *args: Any, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(self, scope: ScopeName, factory: Callable[..., Iterator[T]], /, *args: Any, **kwargs: Any) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(self, scope: ScopeName, factory: Callable[..., T], /, *args: Any, **kwargs: Any) -> None: ...
    def __init__(self, scope: ScopeName, factory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        try:
            self.rank = Rank[scope.upper()]
        except (KeyError, AttributeError):
            raise ProviderError(f"no scope {scope!r}; scopes: request, session, global") from None
        if not callable(factory):
            raise ProviderError(f"Scoped({scope!r}, ...) needs a factory, not {type(factory).__name__}")
        self.factory: Any = factory
        self.args = args
        self.kwargs = kwargs
        super().__init__()

    def __deepcopy__(self, memo: dict[Any, Any] | None) -> Scoped[T]:
        memo = {} if memo is None else memo
        copied = memo.get(id(self))
        if copied is None:
            copied = memo[id(self)] = type(self).__new__(type(self))
            providers.Provider.__init__(copied)
            copied.rank, copied.factory = self.rank, self.factory
            copied.args, copied.kwargs = providers.deepcopy((self.args, self.kwargs), memo)
            self._copy_overridings(copied, memo)
        return copied

    @property
    def related(self) -> Iterator[Any]:
        """The providers it takes, and those that override it."""
        yield from (one for one in (*self.args, *self.kwargs.values()) if isinstance(one, providers.Provider))
        yield from super().related

    def _provide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by other providers of the container, while an invocation asks for one of them."""
        asking = ASKING.get()
        if asking is None:
            raise ProviderError("a scoped provider is asked for outside of an invocation; use await ctx.resolve(...)")
        return asking.made_for(self)

    def __str__(self) -> str:
        return f"Scoped({str(self.rank)!r}, {getattr(self.factory, '__qualname__', repr(self.factory))})"
