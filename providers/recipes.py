"""Recipes: how each provided instance is made, worked out and checked once, at registration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from dependency_injector import errors, providers, wiring

from callgate.errors import ProviderError
from callgate.providers.markers import find_injected
from callgate.providers.scoped import Rank, Scoped

MISSING: Any = object()
_LASTS = {Rank.REQUEST: "one request", Rank.SESSION: "a session", Rank.GLOBAL: "the life of the gate"}
_SINGLE: tuple[type, ...] = (providers.BaseSingleton, providers.Resource)
"""dependency-injector's own providers that keep their instance: as wide as the container."""


class Recipe:
    """How the instance for one token is made.

    ``rank`` is the scope that keeps it. ``factory`` makes it from ``args`` and ``kwargs``; ``foreign`` is a provider of
    dependency-injector that does so itself, once the scoped ones among ``needs`` are there. ``value`` is a given
    instance. With none of the three, nobody provides the token: a hook may bind it. ``waits`` says whether making it
    may wait.
    """

    __slots__ = (
        "args",
        "factory",
        "foreign",
        "key",
        "kwargs",
        "name",
        "needs",
        "rank",
        "scoped",
        "step",
        "value",
        "waits",
    )

    def __init__(self, key: Any, name: str, rank: Rank = Rank.GLOBAL) -> None:
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
        self.waits = False
        self.step: Any = None

    @property
    def is_provided(self) -> bool:
        """Whether there is something to make it from."""
        return self.value is not MISSING or self.factory is not None or self.foreign is not None

    @property
    def is_overridden(self) -> bool:
        """Whether another provider was put in the place of the scoped one that it comes from."""
        return self.scoped is not None and self.scoped.last_overriding is not None

    def __repr__(self) -> str:
        return f"<recipe of {self.name}>"


class Recipes:
    """The recipes of one registry: of given values and factories by token, and of what a container holds."""

    def __init__(self, container: Any = None) -> None:
        self.container = container
        self._sources: dict[Any, Any] = {}
        self._made: dict[Any, Recipe] = {}
        self._by_token: dict[Any, Recipe] = {}
        self._map = None if container is None else wiring.ProvidersMap(container)
        self._names = {} if container is None else dict(_names_of(container))

    def add(self, token: Any, source: Any) -> None:
        """Take a value, a factory or a ``Scoped`` for a token."""
        self._sources[token] = source

    def given(self, token: Any, instance: Any) -> Recipe:
        """The recipe of a token whose instance is given."""
        self._sources[token] = None
        recipe = self._made[token] = self._by_token[token, None] = Recipe(token, describe(token))
        recipe.value = instance
        return recipe

    def for_provider(self, provider: Any) -> Recipe:
        """The recipe of a provider that is at hand itself, such as one that overrides another."""
        return self._compile(provider, provider, describe(provider), ())

    def scoped_in_container(self) -> list[Recipe]:
        """The recipes of a container's ``Scoped`` providers."""
        return [self.for_provider(one) for one in self._names if isinstance(one, Scoped)]

    def key_of(self, token: Any, modifier: Any = None) -> Any:
        """What a token's recipe and bindings are known by: the container's own provider, or the token itself."""
        found = self._in_container(token, modifier)
        return token if found is None else found

    def _in_container(self, token: Any, modifier: Any) -> Any:
        if self._map is None or token in self._sources or not isinstance(token, str | providers.Provider):
            return None
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
        if recipe.is_provided:  # other tokens may be made up at each call
            self._by_token[token, modifier] = recipe
        return recipe

    def _of_token(self, token: Any, modifier: Any, path: tuple[Recipe, ...]) -> Recipe:
        found = self._in_container(token, modifier)
        if found is not None:
            return self._compile(found, found, describe(token), path)
        return self._compile(token, self._sources.get(token, MISSING), describe(token), path)

    def substitute(self, recipe: Recipe, source: Any) -> Recipe:
        """Another recipe for the same token and scope, made from *source*; for tests."""
        made = Recipe(recipe.key, recipe.name, recipe.rank)
        self._fill(made, source, (recipe,))
        if not isinstance(source, Scoped):
            made.rank = recipe.rank
        return made

    # ------------------------------------------------------------------ compiling

    def _compile(self, key: Any, source: Any, name: str, path: tuple[Recipe, ...]) -> Recipe:
        found = self._made.get(key)
        if found is not None:
            if found in path:
                raise ProviderError(f"{_arrows((*path[path.index(found) :], found))}: they need each other")
            return found
        recipe = Recipe(key, self._names.get(key, name))
        if source is MISSING:
            recipe.rank = Rank.REQUEST  # only a hook can bind it, for a request
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
        if isinstance(source, Scoped):
            recipe.rank, recipe.scoped = source.rank, source
            self._from_factory(recipe, source.factory, source.args, source.kwargs, path)
        elif isinstance(source, providers.Provider):
            self._from_container(recipe, source, path)
        elif _is_factory(source):
            self._from_factory(recipe, source, (), {}, path)
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
        recipe.waits = (
            inspect.iscoroutinefunction(plain)
            or inspect.isasyncgenfunction(plain)
            or any(need.waits for need in recipe.needs if need.rank is not Rank.GLOBAL)
        )

    def _argument(self, value: Any, path: tuple[Recipe, ...]) -> Recipe:
        if isinstance(value, providers.Provider):
            return self._compile(value, value, describe(value), path)
        constant = Recipe(None, repr(type(value)))
        constant.value = value
        return constant

    def _from_container(self, recipe: Recipe, provider: Any, path: tuple[Recipe, ...]) -> None:
        recipe.foreign = provider
        recipe.needs = tuple(self._compile(one, one, describe(one), path) for one in dict.fromkeys(provider.related))
        if not isinstance(provider, _SINGLE):
            recipe.rank = min((need.rank for need in recipe.needs), default=Rank.GLOBAL)
        recipe.waits = True  # any of them may answer an awaitable; asking costs nothing when it does not

    # ------------------------------------------------------------------ checking

    def check(self, recipe: Recipe, bound: Collection[Any], wanted_by: str) -> None:
        """Refuse a recipe that needs what nobody provides. *bound* are the keys that hooks bind.

        Raises:
            ProviderError: names who wants it, the path and the token.
        """
        path = next(_unprovided(recipe, frozenset(bound), ()), None)
        if path is None:
            return
        through = f" (through {_arrows(path[:-1])})" if len(path) > 1 else ""
        raise ProviderError(
            f"{wanted_by} needs {path[-1].name}{through}, which nobody provides; give it to the gate (provide={{...}} or "
            "container=...), or declare it in `binds` of the hook that binds it"
        )


def scoped_among(recipe: Recipe) -> tuple[Recipe, ...]:
    """The nearest scoped recipes that a provider of dependency-injector will ask for."""
    found: dict[Recipe, None] = {}
    for need in recipe.needs:
        found.update(dict.fromkeys([need] if need.scoped is not None else scoped_among(need)))
    return tuple(found)


def describe(token: Any) -> str:
    """A token as errors name it."""
    return (
        getattr(token, "__qualname__", None) or repr(token) if not isinstance(token, providers.Provider) else str(token)
    )


def _unprovided(recipe: Recipe, bound: frozenset[Any], path: tuple[Recipe, ...]) -> Iterator[Any]:
    path = (*path, recipe)
    is_missing = not recipe.is_provided or _is_undefined(recipe.foreign)
    if is_missing and (recipe.key not in bound or any(one.rank is not Rank.REQUEST for one in path)):
        yield path
    for need in recipe.needs:
        yield from _unprovided(need, bound, path)


def _is_undefined(provider: Any) -> bool:
    """A ``Dependency`` that nobody has filled."""
    return isinstance(provider, providers.Dependency) and not provider.is_defined


def _refuse_narrower(recipe: Recipe) -> None:
    for need in recipe.needs:
        if need.is_provided and need.rank < recipe.rank:
            raise ProviderError(
                f"{recipe.name} lasts for {_LASTS[recipe.rank]} and needs {need.name}, which lasts for {_LASTS[need.rank]} "
                f"and would be used after it is closed; make {recipe.name} Scoped({str(need.rank)!r}, ...)"
            )


def _arrows(path: Iterable[Recipe]) -> str:
    return " -> ".join(one.name for one in path)


def _function_of(factory: Any) -> Any:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


def _markers_of(factory: Any) -> Iterable[Any]:
    function = _function_of(factory)
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function).__call__
    try:
        return find_injected(cast("Callable[..., Any]", inspect.unwrap(function)))
    except (TypeError, ValueError):  # a builtin has no signature, so no marks
        return ()


def _is_factory(source: Any) -> bool:
    made_of_code = inspect.isfunction(source) or inspect.ismethod(source) or inspect.isclass(source)
    return made_of_code or isinstance(source, functools.partial)


def _names_of(container: Any, prefix: str = "") -> Iterable[tuple[Any, str]]:
    for name, provider in container.providers.items():
        yield provider, prefix + name
        if isinstance(provider, providers.Container):
            yield from _names_of(provider.container, f"{prefix}{name}.")
