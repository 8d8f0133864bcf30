"""``Scoped``: a provider of dependency-injector with one instance for each execution, request, session or gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar, overload

from dependency_injector import providers

from callgate.errors import ProviderError
from callgate.providers.ranks import ASKING, Rank, ScopeName

T = TypeVar("T")


class Scoped(providers.Provider[T]):
    """Dependency injection with one instance for each execution, request, session or gate, made on first use.

    *factory* is a function, a class, an async function, or a sync or async generator function (with or without
    ``@contextmanager``). A generator yields the instance; the code after its ``yield`` closes the instance, exactly once
    and in reverse order of creation. A context manager that the factory returns is entered and exited in the same way: the
    instance is the result of ``__enter__`` or ``__aenter__``. Locks and paths are not entered. If a request fails, its error is raised at the ``yield``, so that ``async with
    database.begin()`` rolls back. The other arguments are passed to the factory. Providers among them are resolved
    first, as are parameters of the factory that are marked ``Provide[...]``.

    An execution is one attempt of a tool: its body, ``will_execute``, ``did_execute`` and the ``around_execute`` hooks inside
    any hook that retries. Its instances are a *unit of work*: they are closed before the outcome of the call is
    recorded. If closing raises, the call fails. The effect of a tool that takes such an instance as a parameter is what
    the unit commits: when it rolls back, the effect did not happen. An exit that hides the error may have committed, so the
    effect is ``unknown``. Nested calls have executions of their own.

    A request is one tool call with its nested calls. A session instance is made by the first call that needs it, and
    closed by ``gate.end_session``, when the session expires, or when the gate closes. A call without a session id has its
    own session. ``"global"`` instances are made when the gate opens.

    Raises:
        ProviderError: the scope is unknown, or the factory is not callable.
    """

    __slots__ = ("args", "factory", "kwargs", "rank")

    @overload
    def __init__(
        self,
        scope: ScopeName,
        factory: Callable[..., AbstractAsyncContextManager[T]],
        /,
        *args: object,
        **kwargs: object,
    ) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., AbstractContextManager[T]], /, *args: object, **kwargs: object
    ) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., AsyncIterator[T]], /, *args: object, **kwargs: object
    ) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., Iterator[T]], /, *args: object, **kwargs: object
    ) -> None: ...
    @overload
    def __init__(
        self, scope: ScopeName, factory: Callable[..., Awaitable[T]], /, *args: object, **kwargs: object
    ) -> None: ...
    @overload
    def __init__(self, scope: ScopeName, factory: Callable[..., T], /, *args: object, **kwargs: object) -> None: ...
    def __init__(
        self, scope: ScopeName, factory: Callable[..., object] | None = None, /, *args: object, **kwargs: object
    ) -> None:
        try:
            self.rank = Rank[scope.upper()]
        except (KeyError, AttributeError):
            name = getattr(scope, "__name__", "factory")  # a factory in place of the scope
            raise ProviderError(
                f"no scope {scope!r}; scopes: execution, request, session, global; write Scoped('request', {name})"
            ) from None
        if not callable(factory):
            kind = "nothing" if factory is None else type(factory).__name__
            raise ProviderError(f"Scoped({scope!r}, ...) needs a factory, not {kind}; write Scoped({scope!r}, factory)")
        self.factory: Callable[..., object] = factory
        self.args = args
        self.kwargs = kwargs
        super().__init__()

    def __deepcopy__(self, memo: dict[object, Any] | None) -> Scoped[T]:
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
        """The providers among its arguments, and those that override it."""
        yield from (one for one in (*self.args, *self.kwargs.values()) if isinstance(one, providers.Provider))
        yield from super().related

    def _provide(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Return the instance for another provider of the container, while a tool call resolves it."""
        asking = ASKING.get()
        if asking is None:
            raise ProviderError("a scoped provider was called outside a tool call; use await ctx.resolve(...)")
        return asking.made_for(self)

    def __str__(self) -> str:
        return f"Scoped({str(self.rank)!r}, {getattr(self.factory, '__qualname__', repr(self.factory))})"
