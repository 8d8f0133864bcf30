"""Overrides in a container of dependency-injector: of providers, of nested containers, and of a configuration."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeGuard

from dependency_injector import providers

from callgate.errors import ProviderError
from callgate.providers.injector import AnyProvider, is_provider
from callgate.providers.ranks import ASKING
from callgate.providers.recipe import MISSING, Recipe
from callgate.providers.scope import World

Path = tuple[AnyProvider, tuple[object, ...]]
"""A configuration, and the names that lead to one of its options."""


class ContainerOverrides:
    """The overrides that a gate has put into a container, and takes back. Those of the application stay."""

    def __init__(self) -> None:
        self._applied: list[tuple[AnyProvider, object]] = []
        self._readers: list[object] = []

    def put(self, provider: AnyProvider, other: object) -> None:
        """Let *other* stand in the place of a provider."""
        provider.override(other)
        self._applied.append((provider, other))

    def undo(self) -> None:
        """Take everything back."""
        for provider, other in reversed(self._applied):
            rest = [one for one in provider.overridden if one is not other]
            provider.reset_override()
            for one in rest:
                provider.override(one)
        self._applied.clear()
        _forget_values(self._readers)

    def configure(self, values: Iterable[tuple[Path, object]], readers: Iterable[object]) -> None:
        """Set options; a mapping leaves the options that it does not name as they are. *readers* are all known providers."""
        found: dict[AnyProvider, object] = {}
        for (root, names), value in values:
            if root not in found:
                found[root] = copy.deepcopy(root() or {})
            found[root] = _merged(found[root], names, value)
        for root, options in found.items():
            self.put(root, providers.Object(options))
        self._readers = list(readers) if found else []
        _forget_values(self._readers)


def expanded(
    sources: Mapping[object, object], provider_of: Callable[[object], object]
) -> Iterator[tuple[object, object]]:
    """Yield the overrides, those of a nested container as the overrides of its providers.

    Raises:
        ProviderError: what stands in place of a container is none.
    """
    for token, source in sources.items():
        provider: object = provider_of(token)
        if not isinstance(provider, providers.Container):
            yield token, source
        elif isinstance(theirs := getattr(source, "providers", None), Mapping):
            own = provider.container.providers
            yield from ((own[name], one) for name, one in theirs.items() if name in own)
        else:
            raise ProviderError(
                f"a {type(source).__name__} cannot stand in place of a nested container; override one of its providers, "
                "such as {App.core.db: fake}, or give another container"
            )


def option_path(provider: object) -> Path | None:
    """Return the place of a configuration or option; None for another provider."""
    if isinstance(provider, providers.TypedConfigurationOption):
        provider = provider.option
    if isinstance(provider, providers.Configuration):
        return provider, ()
    if not isinstance(provider, providers.ConfigurationOption):
        return None
    names = tuple(provider.get_name_segments())
    # there is no public way to it, and the wiring of dependency-injector takes this one, too
    return provider._get_root(), names


def reads(provider: object, changed: Path) -> bool:
    """Return True if the value of a configuration or option may follow from a changed one."""
    place = option_path(provider)
    if place is None:
        return False
    (root, names), (other, theirs) = place, changed
    if root is other:
        pairs = zip(names, theirs, strict=False)
        return all(a == b or providers.is_provider(a) or providers.is_provider(b) for a, b in pairs)
    return any(reads(one, changed) for one in root.overridden)


def override_value(recipe: Recipe) -> object:
    """Return the value that an override gives to an option.

    Raises:
        ProviderError: it gives a factory.
    """
    if recipe.value is MISSING:
        raise ProviderError(
            "a configuration takes values, and its override is a factory; write the value: "
            '{App.config: {"url": ...}} or {App.config.url: ...}'
        )
    return recipe.value


def is_singleton(provider: object) -> TypeGuard[providers.BaseSingleton[object]]:
    """Return True for a provider that keeps its instance."""
    return isinstance(provider, providers.BaseSingleton | providers.Resource)


def is_resource(provider: object) -> bool:
    """Return True for a resource, which is opened once."""
    return isinstance(provider, providers.Resource)


def is_container_itself(provider: object) -> bool:
    """Return True for a provider that gives the container itself: its user may take anything from it."""
    return isinstance(provider, providers.Self)


def copied(provider: object) -> object:
    """Return a singleton like *provider*, without its instance, and with the same arguments."""
    if not is_singleton(provider):
        raise TypeError(type(provider))
    made = type(provider)(provider.provides)
    made.set_args(*provider.args)
    made.set_kwargs(**provider.kwargs)
    made.set_attributes(**provider.attributes)
    return made


def bridge(world: World, recipe: Recipe) -> object:
    """Return a provider that gives what an override gives."""
    return providers.Callable(lambda: (ASKING.get() or world.scope).take(recipe))


def instance_among(provider: object, objects: Iterable[object]) -> object:
    """Return the object that is the instance of a singleton, or None. Only a class tells without making an instance."""
    if not is_singleton(provider):
        return None
    for one in objects:
        if type(one) is provider.provides and provider() is one:
            return one
    return None


def _forget_values(readers: Iterable[object]) -> None:
    """Let options read their configuration again; it does not know those of ``required()``, which keep their value."""
    for one in readers:
        if isinstance(one, providers.ConfigurationOption):
            one.reset_cache()


def _merged(options: object, names: tuple[object, ...], value: object) -> object:
    if names:
        first = names[0]() if is_provider(names[0]) else names[0]
        own: Mapping[object, object] = options if isinstance(options, Mapping) else {}
        return {**own, first: _merged(own.get(first), names[1:], value)}
    if isinstance(value, Mapping) and isinstance(options, Mapping):
        named: Mapping[object, object] = value
        return {**options, **{name: _merged(options.get(name), (), one) for name, one in named.items()}}
    return copy.deepcopy(value)
