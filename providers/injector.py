"""Type checks for objects of dependency-injector, without an import of that package.

An object exists only after its package was imported, so a package that is not loaded has no objects to recognise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard

from callgate.errors import ProviderError


class AnyProvider(Protocol):
    """A provider of dependency-injector."""

    def __call__(self) -> object: ...  # noqa: D102

    @property
    def last_overriding(self) -> AnyProvider | None: ...  # noqa: D102  (as there)

    @property
    def overridden(self) -> Sequence[AnyProvider]: ...  # noqa: D102

    @property
    def related(self) -> Iterator[AnyProvider]: ...  # noqa: D102

    def override(self, provider: object, /) -> object: ...  # noqa: D102

    def reset_override(self) -> None: ...  # noqa: D102


class ScopedProvider(AnyProvider, Protocol):
    """A ``Scoped``."""

    factory: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]

    @property
    def rank(self) -> int: ...  # noqa: D102  (a ``Rank``)


def is_provider(value: object) -> TypeGuard[AnyProvider]:
    """Check whether *value* is a provider of dependency-injector."""
    kind = getattr(sys.modules.get("dependency_injector.providers"), "Provider", None)
    return kind is not None and isinstance(value, kind)


def is_scoped(value: object) -> TypeGuard[ScopedProvider]:
    """Check whether *value* is a ``Scoped``."""
    kind = getattr(sys.modules.get("callgate.providers.scoped"), "Scoped", None)
    return kind is not None and isinstance(value, kind)


def is_undefined(provider: object) -> bool:
    """Return True for a ``Dependency`` without a provider."""
    if not is_provider(provider):
        return False
    from dependency_injector import providers

    return isinstance(provider, providers.Dependency) and not provider.is_defined


def marker_type() -> Any:
    """Return the class of ``Provide[...]`` markers, or None while no marker can exist."""
    return getattr(sys.modules.get("dependency_injector.wiring"), "Provide", None)


def closing_type() -> Any:
    """Return the class of ``Closing[...]`` markers, or an empty tuple while no marker can exist."""
    return getattr(sys.modules.get("dependency_injector.wiring"), "Closing", ())


def check_container(container: object) -> None:
    """Check that *container* is an object of a container, and not its class or something else.

    Raises:
        ProviderError: it is not; the message has the line to write.
    """
    name = container.__name__ if isinstance(container, type) else f"{type(container).__name__} object"
    if not hasattr(container, "providers"):
        raise ProviderError(
            f"container takes an object of a dependency-injector container, not {name}; write Gate(container=Container()), "
            "or Gate(provide={token: factory}) without a container"
        )
    if isinstance(container, type):
        raise ProviderError(f"container takes an object, and {name} is a class; write Gate(container={name}())")


def providers_in(container: Any, prefix: str = "") -> Iterator[tuple[object, str]]:
    """Yield the providers of a container and of the containers in it, with their dotted names."""
    from dependency_injector import providers

    for name, provider in container.providers.items():
        yield provider, prefix + name
        if isinstance(provider, providers.Container):
            yield from providers_in(provider.container, f"{prefix}{name}.")


def nested_names(container: Any, token: object, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a provider that was taken from the class of a container in *container*."""
    from dependency_injector import providers

    prefix = prefix or getattr(container.declarative_parent, "__name__", "container")
    for name, provider in container.providers.items():
        if isinstance(provider, providers.Container):
            own = getattr(provider.container.declarative_parent, "providers", {})
            yield from (f"{prefix}.{name}.{inner}" for inner, one in own.items() if one is token)
            yield from nested_names(provider.container, token, f"{prefix}.{name}")


def open_resources(container: Any) -> list[Any]:
    """Return the open resources of a dependency-injector container, each after those that it needs."""
    if container is None:
        return []
    from dependency_injector import providers

    found = [one for one in container.traverse(types=[providers.Resource]) if one.initialized]
    return sorted(found, key=lambda one: sum(other in found for other in providers.traverse(one)))
