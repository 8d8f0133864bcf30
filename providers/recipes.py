"""Recipes of provided instances, compiled and checked once, at registration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.factories import begins_on_loop, is_factory, markers_of, refuse_unsupplied
from callgate.providers.injector import (
    AnyProvider,
    check_container,
    is_provider,
    is_scoped,
    is_undefined,
    nested_names,
    providers_in,
)
from callgate.providers.ranks import Rank
from callgate.providers.recipe import MISSING, WRAPPERS, Recipe

_LIFETIMES = {
    Rank.EXECUTION: "one execution of a tool",
    Rank.REQUEST: "one request",
    Rank.SESSION: "a session",
    Rank.GLOBAL: "the lifespan of the gate",
}


class Recipes:
    """The recipes of one registry: of values and factories by token, and of the providers of a container."""

    def __init__(self, container: object = None) -> None:
        self.container = container
        self._sources: dict[object, object] = {}
        self._made: dict[object, Recipe] = {}
        self._by_token: dict[object, Recipe] = {}
        self._map: Any = None
        self._names: dict[object, str] = {}
        self.renames = container is not None  # True when the key of a recipe may differ from its token
        self.optional: set[object] = set()  # keys that a parameter with a default wants
        if container is not None:
            from dependency_injector import wiring

            check_container(container)
            self._map = wiring.ProvidersMap(container)
            self._names = dict(providers_in(container))

    def add(self, token: object, source: object) -> None:
        """Register a value, a factory or a ``Scoped`` for a token."""
        self._sources[token] = source
        self.renames = self.renames or is_provider(source)

    def given(self, token: object, instance: object) -> Recipe:
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
        """Return the recipe of a provider, of the container or in place of one."""
        return self._compile(provider, provider, describe_token(provider), ())

    def all(self) -> list[Recipe]:
        """Return the recipes of all tokens, of the container, and of what they need."""
        for token in self._sources:
            self.of(token)
        for provider in self._names:
            self.for_provider(provider)
        return list(self._made.values())

    def scoped_in_container(self) -> list[Recipe]:
        """Return the recipes of the ``Scoped`` providers of the container."""
        return [self.for_provider(one) for one in self._names if is_scoped(one)]

    def key_of(self, token: object, modifier: object = None) -> object:
        """Return the key of a token's recipe and bindings: the provider in the container, or the token itself."""
        found = self._provider_of(token, modifier)
        return token if found is None else found

    def _provider_of(self, token: object, modifier: object) -> object:
        """Return the provider of dependency-injector that a token stands for, or None."""
        if token not in self._sources:
            return self._in_container(token, modifier)
        source = self._sources[token]
        if not is_provider(source):
            return None
        found = self._in_container(source)
        return source if found is None and not is_scoped(source) else found

    def _in_container(self, token: object, modifier: object = None) -> object:
        """Return the provider in the container, also for that of its class; None if the container has none."""
        if self._map is None or token in self._names:
            return token if token in self._names else None
        if not (isinstance(token, str) or is_provider(token)):
            return None
        from dependency_injector import errors

        try:
            return self._map.resolve_provider(token, modifier)
        except (AttributeError, errors.Error):
            return None

    def of(self, token: object, modifier: object = None) -> Recipe:
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
        found = self._provider_of(token, modifier)
        if found is not None:
            return self._compile(found, found, describe_token(token), path)
        return self._compile(token, self._sources.get(token, MISSING), describe_token(token), path)

    def substitute(self, recipe: Recipe, source: object) -> Recipe:
        """Return another recipe for the same token and scope, made from *source*; for tests."""
        made = Recipe(recipe.key, recipe.name, recipe.rank if recipe.is_provided else Rank.GLOBAL)
        self._fill(made, source, (recipe,))
        if recipe.is_provided and (recipe.foreign is None or not is_scoped(source)):
            made.rank = max(recipe.rank, made.rank) if is_scoped(source) else recipe.rank
            _refuse_narrower(made)
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

    def _fill(self, recipe: Recipe, source: object, path: tuple[Recipe, ...]) -> None:
        path = (*path, recipe)
        if is_provider(source):
            source = self._in_container(source) or source
        if is_scoped(source):
            recipe.rank, recipe.scoped = Rank(source.rank), source
            self._from_factory(recipe, source.factory, source.args, source.kwargs, path)
        elif is_provider(source):
            self._from_container(recipe, source, path)
        elif is_factory(source, recipe.key):
            self._from_factory(recipe, source, (), {}, path)
        elif isinstance(source, WRAPPERS):
            self._from_factory(recipe, lambda: source, (), {}, path)
        else:
            recipe.value = source
        _refuse_narrower(recipe)

    def _from_factory(
        self,
        recipe: Recipe,
        factory: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        path: tuple[Recipe, ...],
    ) -> None:
        marked = dict[str, Recipe]()
        for one in markers_of(factory):
            if one.name in kwargs:
                continue
            need = self._of_token(one.token, one.modifier, path)
            if need.is_provided or not one.optional:
                marked[one.name] = need
            else:  # only an override can supply it
                self.optional.add(need.key)
                recipe.maybe += ((one.name, need.key),)
        given = {name: self._argument(one, path) for name, one in kwargs.items()}
        behind = [self._argument(factory, path)] if is_provider(factory) else []
        refuse_unsupplied(recipe.name, factory, len(args), {*marked, *given})
        recipe.factory = behind[0].foreign if behind else factory
        recipe.args = tuple(self._argument(one, path) for one in args)
        recipe.kwargs = tuple({**marked, **given}.items())
        recipe.needs = (*recipe.args, *marked.values(), *given.values(), *behind)
        recipe.begins_on_loop = begins_on_loop(factory)
        recipe.is_async = recipe.begins_on_loop or any(
            need.is_async for need in recipe.needs if need.rank is not Rank.GLOBAL
        )

    def _argument(self, value: object, path: tuple[Recipe, ...]) -> Recipe:
        if is_provider(value):
            value = self._in_container(value) or value
            return self._compile(value, value, describe_token(value), path)
        constant = Recipe(None, repr(type(value)))
        constant.value = value
        return constant

    def _from_container(self, recipe: Recipe, provider: AnyProvider, path: tuple[Recipe, ...]) -> None:
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
        *through, last = path
        via = f" (through {_arrows(through)})" if through else ""
        advice = self.nested_name(last.key) or (
            "pass it to the gate (provide={...} or container=...), or declare it in `binds` of the hook that binds it"
        )
        raise ProviderError(f"{wanted_by} needs {last.name}{via}, which has no provider; {advice}")

    def nested_name(self, token: object) -> str:
        """Return the line to write for a provider that was taken from the class of a nested container; else nothing."""
        found = next(nested_names(self.container, token), None) if is_provider(token) and self.container else None
        return "" if found is None else f"it belongs to a nested container, so write {found}"


def is_unit(source: object) -> bool:
    """Return True for a provider of the scope ``"execution"``."""
    return is_scoped(source) and source.rank is Rank.EXECUTION


def depends_on(recipe: Recipe, other: Recipe) -> bool:
    """Return True when a recipe needs another one, itself or through others."""
    return any(need is other or depends_on(need, other) for need in recipe.needs)


def scoped_among(recipe: Recipe, overrides: Collection[object] = ()) -> tuple[Recipe, ...]:
    """Return the nearest recipes that a provider of dependency-injector needs and the gate makes: scoped and overridden."""
    found: dict[Recipe, None] = {}
    for need in recipe.needs:
        is_made = need.scoped is not None or need.key in overrides
        found.update(dict.fromkeys([need] if is_made else scoped_among(need, overrides)))
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


def _unprovided(recipe: Recipe, bound: frozenset[object], path: tuple[Recipe, ...]) -> Iterator[tuple[Recipe, ...]]:
    path = (*path, recipe)
    is_missing = not recipe.is_provided or is_undefined(recipe.foreign)
    if is_missing and (recipe.key not in bound or any(one.rank > Rank.REQUEST for one in path)):
        yield path
    for need in recipe.needs:
        yield from _unprovided(need, bound, path)


def _refuse_narrower(recipe: Recipe) -> None:
    for need in recipe.needs:
        if need.is_provided and need.rank < recipe.rank:
            raise ProviderError(
                f"{recipe.name} lasts for {_LIFETIMES[recipe.rank]} and needs {need.name}, which lasts for {_LIFETIMES[need.rank]} "
                f"and would be used after it is closed; make {recipe.name} Scoped({str(need.rank)!r}, ...)"
            )


def _arrows(path: Iterable[Recipe]) -> str:
    return " -> ".join(one.name for one in path)
