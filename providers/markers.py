"""Dependency injection markers for the parameters that the gate supplies and a model never does."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.injector import marker_type


@dataclass(frozen=True, slots=True)
class Injected:
    """One injected parameter. ``token`` is the provider of the marker, and the key of look-ups and overrides."""

    name: str
    token: Any
    modifier: Any = None
    annotation: Any = Any


def hints_of(call: Callable[..., object]) -> dict[str, Any]:
    """Return the type hints of a callable, with their markers.

    With postponed annotations, local names of the enclosing functions are resolved while those functions run.

    Raises:
        ProviderError: a name in the annotations cannot be resolved.
    """
    target = call.__init__ if inspect.isclass(call) else call
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        names = _enclosing_names(target)
    try:
        return typing.get_type_hints(target, localns=names, include_extras=True)
    except NameError as error:
        name = getattr(call, "__qualname__", repr(call))
        raise ProviderError(
            f"{name}: the annotation name {error.name!r} is not defined where the function is defined; import it there"
        ) from error


def _enclosing_names(call: object) -> dict[str, Any]:
    """Return the local names of the enclosing functions of ``call`` that are running."""
    around = getattr(call, "__qualname__", "").split(".<locals>")[:-1]
    wanted = {".<locals>".join(around[: depth + 1]) for depth in range(len(around))}
    found: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None and wanted:
        name = frame.f_code.co_qualname
        if name in wanted and frame.f_globals is getattr(call, "__globals__", None):
            wanted.discard(name)
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def find_injected(call: Callable[..., object]) -> tuple[Injected, ...]:
    """Return the parameters annotated ``Annotated[T, Provide[...]]`` or with the default ``Provide[...]``.

    For a class these are the parameters of its constructor.
    """
    hints = hints_of(call)
    found: list[Injected] = []
    kind = marker_type()
    if kind is None:
        return ()
    for parameter in inspect.signature(call).parameters.values():
        hint = hints.get(parameter.name, Any)
        marker = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, kind)), None)
        if marker is None and isinstance(parameter.default, kind):
            marker = parameter.default
        if marker is not None:
            plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
            found.append(Injected(parameter.name, marker.provider, marker.modifier, plain))
    return tuple(found)
