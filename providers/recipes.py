"""Recipes of provided instances, compiled and checked once, at registration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from typing import Any, cast

from callgate.errors import ProviderError
from callgate.providers.injector import is_provider, is_scoped
from callgate.providers.markers import find_injected
from callgate.providers.ranks import Rank


@contextmanager
def _generator() -> Generator[None]:
    yield


@asynccontextmanager
async def _async_generator() -> AsyncGenerator[None]:
    yield


GENERATOR_MANAGERS = (type(_generator()), type(_async_generator()))
"""The types that ``@contextmanager`` and ``@asynccontextmanager`` return."""
WRAPPERS = (*GENERATOR_MANAGERS, closing, aclosing)
"""The types of objects that serve only to be entered. Such an object is entered even if it is given as a value."""


MISSING: Any = object()
_CACHED = type(functools.cache(object))
_LIFETIMES = {
    Rank.EXECUTION: "one execution of a tool",
    Rank.REQUEST: "one request",
    Rank.SESSION: "a session",
    Rank.GLOBAL: "the lifespan of the gate",
}


class Recipe:
    """The recipe of the instance for one token.

    ``rank`` is the scope that keeps the instance. ``factory`` makes it from ``args`` and ``kwargs``; ``foreign`` is a
    provider of dependency-injector that makes it, after the scoped instances among ``needs``; ``value`` is a given
    instance. Without any of the three the token has no provider, and a hook may bind it. ``is_async`` is True when the
    factory may await, and ``begins_on_loop`` when it is asynchronous itself.
    """

    __slots__ = (
        "args",
        "begins_on_loop",
        "factory",
        "foreign",
        "is_async",
        "key",
        "kwargs",
        "name",
        "needs",
        "rank",
        "scoped",
        "step",
        "value",
    )

    def __init__(self, key: object, name: str, rank: Rank = Rank.GLOBAL) -> None:
        self.key = key
        self.name = name
        self.rank = rank
        self.value: Any = MISSING
        self.factory: Callable[..., Any] | None = None
        self.foreign: Any = None
        self.scoped: Any = None
        self.args: tuple[Recipe, ...] = ()
        self.kwargs: tuple[tuple[str, Recipe], ...] = ()
        self.needs: tuple[Recipe, ...] = ()
        self.is_async = self.begins_on_loop = False
        self.step: Any = None

    @property
    def is_provided(self) -> bool:
        """True when the token has a provider."""
        return self.value is not MISSING or self.factory is not None or self.foreign is not None

    @property
    def is_overridden(self) -> bool:
        """True when the container overrides the scoped provider of the recipe."""
        return self.scoped is not None and self.scoped.last_overriding is not None

    @property
    def has_end(self) -> bool:
        """True when the factory is a generator function, or a class of context managers: its instances have an end."""
        function = inspect.unwrap(_function_of(self.factory))
        is_manager = inspect.isclass(function) and (hasattr(function, "__exit__") or hasattr(function, "__aexit__"))
        return is_manager or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)

    def __repr__(self) -> str:
        return f"<recipe of {self.name}>"


class Recipes:
    """The recipes of one registry: of values and factories by token, and of the providers of a container."""

    def __init__(self, container: object = None) -> None:
        self.container = container
        self._sources: dict[Any, Any] = {}
        self._made: dict[Any, Recipe] = {}
        self._by_token: dict[Any, Recipe] = {}
        self._map: Any = None
        self._names: dict[Any, str] = {}
        if container is not None:
            from dependency_injector import wiring

            self._map = wiring.ProvidersMap(container)
            self._names = dict(_names_of(container))

    def add(self, token: object, source: object) -> None:
        """Register a value, a factory or a ``Scoped`` for a token."""
        self._sources[token] = source

    def given(self, token: Any, instance: Any) -> Recipe:
        """Register an instance for a token, and return its recipe."""
        self._sources[token] = None
        recipe = self._made[token] = self._by_token[token, None] = Recipe(token, describe_token(token))
        recipe.value = instance
        return recipe

    @property
    def has_units(self) -> bool:
        """True when a provider has the scope ``"execution"``."""
        return any(is_unit(one) for one in (*self._sources.values(), *self._names))

    @property
    def has_sessions(self) -> bool:
        """True when an instance of a session or of a request can be had, such as by ``ctx.get``."""
        found = [*map(self.of, self._sources), *self.scoped_in_container()]
        return any(one.rank in (Rank.SESSION, Rank.REQUEST) for one in found)

    def for_provider(self, provider: object) -> Recipe:
        """Return the recipe of a provider, such as an overriding one."""
        return self._compile(provider, provider, describe_token(provider), ())

    def scoped_in_container(self) -> list[Recipe]:
        """Return the recipes of the ``Scoped`` providers of the container."""
        return [self.for_provider(one) for one in self._names if is_scoped(one)]

    def key_of(self, token: object, modifier: object = None) -> Any:
        """Return the key of a token's recipe and bindings: the provider in the container, or the token itself."""
        found = self._in_container(token, modifier)
        return token if found is None else found

    def _in_container(self, token: object, modifier: object) -> object:
        if self._map is None or token in self._sources or not (isinstance(token, str) or is_provider(token)):
            return None
        from dependency_injector import errors

        try:
            return self._map.resolve_provider(token, modifier)
        except (AttributeError, errors.Error):
            return None

    def of(self, token: Any, modifier: Any = None) -> Recipe:
        """The recipe for a token, with those of all that it needs.

        Raises:
            ProviderError: it needs itself, or keeps what lives shorter than itself; names the path.
        """
        try:
            return self._by_token[token, modifier]
        except KeyError:
            pass
        recipe = self._of_token(token, modifier, ())
        if recipe.is_provided:  # tokens without a provider may be new at each call
            self._by_token[token, modifier] = recipe
        return recipe

    def _of_token(self, token: object, modifier: object, path: tuple[Recipe, ...]) -> Recipe:
        found = self._in_container(token, modifier)
        if found is not None:
            return self._compile(found, found, describe_token(token), path)
        return self._compile(token, self._sources.get(token, MISSING), describe_token(token), path)

    def substitute(self, recipe: Recipe, source: object) -> Recipe:
        """Return another recipe for the same token and scope, made from *source*; for tests."""
        made = Recipe(recipe.key, recipe.name, recipe.rank)
        self._fill(made, source, (recipe,))
        if not is_scoped(source):
            made.rank = recipe.rank
        return made

    # ------------------------------------------------------------------ compiling

    def _compile(self, key: object, source: object, name: str, path: tuple[Recipe, ...]) -> Recipe:
        found = self._made.get(key)
        if found is not None:
            if found in path:
                raise ProviderError(
                    f"{_arrows((*path[path.index(found) :], found))}: these providers need each other; break the circle"
                )
            return found
        recipe = Recipe(key, self._names.get(key, name))
        if source is MISSING:
            recipe.rank = Rank.REQUEST  # only a hook can bind it, for a request
            if is_built_in(recipe):
                recipe.rank = Rank.EXECUTION
                recipe.factory = functools.partial(_unbound, name)
                self._made[key] = recipe
            return recipe
        self._made[key] = recipe
        try:
            self._fill(recipe, source, path)
        except BaseException:
            del self._made[key]
            raise
        return recipe

    def _fill(self, recipe: Recipe, source: Any, path: tuple[Recipe, ...]) -> None:
        path = (*path, recipe)
        if is_scoped(source):
            recipe.rank, recipe.scoped = source.rank, source
            self._from_factory(recipe, source.factory, source.args, source.kwargs, path)
        elif is_provider(source):
            self._from_container(recipe, source, path)
        elif _is_factory(source, recipe.key):
            self._from_factory(recipe, source, (), {}, path)
        elif isinstance(source, WRAPPERS):
            self._from_factory(recipe, lambda: source, (), {}, path)
        else:
            recipe.value = source
        _refuse_narrower(recipe)

    def _from_factory(
        self, recipe: Recipe, factory: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: tuple[Recipe, ...]
    ) -> None:
        marked = {
            one.name: self._of_token(one.token, one.modifier, path)
            for one in _markers_of(factory)
            if one.name not in kwargs
        }
        given = {name: self._argument(one, path) for name, one in kwargs.items()}
        recipe.factory = factory
        recipe.args = tuple(self._argument(one, path) for one in args)
        recipe.kwargs = tuple({**marked, **given}.items())
        recipe.needs = (*recipe.args, *marked.values(), *given.values())
        plain = inspect.unwrap(_function_of(factory))
        recipe.begins_on_loop = (
            inspect.iscoroutinefunction(plain)
            or inspect.isasyncgenfunction(plain)
            or (inspect.isclass(plain) and hasattr(plain, "__aexit__"))
        )
        recipe.is_async = recipe.begins_on_loop or any(
            need.is_async for need in recipe.needs if need.rank is not Rank.GLOBAL
        )

    def _argument(self, value: object, path: tuple[Recipe, ...]) -> Recipe:
        if is_provider(value):
            return self._compile(value, value, describe_token(value), path)
        constant = Recipe(None, repr(type(value)))
        constant.value = value
        return constant

    def _from_container(self, recipe: Recipe, provider: Any, path: tuple[Recipe, ...]) -> None:
        recipe.foreign = provider
        recipe.needs = tuple(
            self._compile(one, one, describe_token(one), path) for one in dict.fromkeys(provider.related)
        )
        from dependency_injector import providers

        if not isinstance(
            provider, providers.BaseSingleton | providers.Resource
        ):  # those live as long as the container
            recipe.rank = min((need.rank for need in recipe.needs), default=Rank.GLOBAL)
        recipe.is_async = True  # any of them may return an awaitable

    # ------------------------------------------------------------------ checking

    def check(self, recipe: Recipe, bound: Collection[object], wanted_by: str) -> None:
        """Check that everything that a recipe needs has a provider. *bound* are the keys that hooks bind.

        Raises:
            ProviderError: a token has no provider; the message shows *wanted_by*, the path and the token.
        """
        path = next(_unprovided(recipe, frozenset(bound), ()), None)
        if path is None:
            return
        through = f" (through {_arrows(path[:-1])})" if len(path) > 1 else ""
        raise ProviderError(
            f"{wanted_by} needs {path[-1].name}{through}, which has no provider; pass it to the gate (provide={{...}} or "
            "container=...), or declare it in `binds` of the hook that binds it"
        )


def is_unit(source: Any) -> bool:
    """Return True for a provider of the scope ``"execution"``."""
    return is_scoped(source) and source.rank is Rank.EXECUTION


def depends_on(recipe: Recipe, other: Recipe) -> bool:
    """Return True when a recipe needs another one, itself or through others."""
    return any(need is other or depends_on(need, other) for need in recipe.needs)


def scoped_among(recipe: Recipe) -> tuple[Recipe, ...]:
    """Return the nearest scoped recipes that a provider of dependency-injector needs."""
    found: dict[Recipe, None] = {}
    for need in recipe.needs:
        found.update(dict.fromkeys([need] if need.scoped is not None else scoped_among(need)))
    return tuple(found)


def describe_token(token: object) -> str:
    """Return the name of a token for errors."""
    return getattr(token, "__qualname__", None) or repr(token) if not is_provider(token) else str(token)


def is_built_in(recipe: Recipe) -> bool:
    """Return True for a token that the runtime binds in each execution."""
    return getattr(recipe.key, "bound_in_executions", False) is True


def takes_built_in(recipe: Recipe) -> bool:
    """Return True when a recipe is or needs a token that the runtime binds in each execution."""
    return is_built_in(recipe) or any(map(takes_built_in, recipe.needs))


def _unbound(name: str) -> object:
    raise ProviderError(f"{name} exists only during the execution of a tool")


def _unprovided(recipe: Recipe, bound: frozenset[object], path: tuple[Recipe, ...]) -> Iterator[Any]:
    path = (*path, recipe)
    is_missing = not recipe.is_provided or _is_undefined(recipe.foreign)
    if is_missing and (recipe.key not in bound or any(one.rank > Rank.REQUEST for one in path)):
        yield path
    for need in recipe.needs:
        yield from _unprovided(need, bound, path)


def _is_undefined(provider: object) -> bool:
    """Return True for a ``Dependency`` without a provider."""
    if not is_provider(provider):
        return False
    from dependency_injector import providers

    return isinstance(provider, providers.Dependency) and not provider.is_defined


def _refuse_narrower(recipe: Recipe) -> None:
    for need in recipe.needs:
        if need.is_provided and need.rank < recipe.rank:
            raise ProviderError(
                f"{recipe.name} lasts for {_LIFETIMES[recipe.rank]} and needs {need.name}, which lasts for {_LIFETIMES[need.rank]} "
                f"and would be used after it is closed; make {recipe.name} Scoped({str(need.rank)!r}, ...)"
            )


def _arrows(path: Iterable[Recipe]) -> str:
    return " -> ".join(one.name for one in path)


def _function_of(factory: object) -> Any:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


def _markers_of(factory: object) -> Iterable[Any]:
    function = _function_of(factory)
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function).__call__
    try:
        return find_injected(cast("Callable[..., Any]", inspect.unwrap(function)))
    except (TypeError, ValueError):  # a builtin has no signature, so no markers
        return ()


def _is_factory(source: object, token: object) -> bool:
    """Return True for code, and for a callable object that cannot be the instance of a class *token* itself."""
    if inspect.isfunction(source) or inspect.ismethod(source) or inspect.isclass(source):
        return True
    if isinstance(source, functools.partial | _CACHED):
        return True
    is_instance = not inspect.isclass(token) or getattr(token, "_is_protocol", False) or isinstance(source, token)
    return callable(source) and not is_instance and type(source).__module__ != "unittest.mock"  # a mock is the instance


def _names_of(container: Any, prefix: str = "") -> Iterable[tuple[object, str]]:
    from dependency_injector import providers

    for name, provider in container.providers.items():
        yield provider, prefix + name
        if isinstance(provider, providers.Container):
            yield from _names_of(provider.container, f"{prefix}{name}.")
