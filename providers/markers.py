"""Dependency injection markers for the parameters that the gate supplies and a model never does."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.injector import closing_type, marker_type


@dataclass(frozen=True, slots=True)
class Injected:
    """One injected parameter. ``token`` is the provider of the marker, and the key of look-ups and overrides.

    An ``optional`` parameter has a default of its own, which it keeps where there is no provider.
    """

    name: str
    token: object
    modifier: object = None
    annotation: object = Any
    optional: bool = False


def hints_of(call: Callable[..., object]) -> dict[str, object]:
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


def _enclosing_names(call: object) -> dict[str, object]:
    """Return the local names of the enclosing functions of ``call`` that are running."""
    around = getattr(call, "__qualname__", "").split(".<locals>")[:-1]
    wanted = {".<locals>".join(around[: depth + 1]) for depth in range(len(around))}
    found: dict[str, object] = {}
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
    closing = closing_type()
    for parameter in inspect.signature(call).parameters.values():
        hint = hints.get(parameter.name, Any)
        if isinstance(parameter.default, closing) or any(
            isinstance(item, closing) for item in getattr(hint, "__metadata__", ())
        ):
            name, shown = parameter.name, getattr(call, "__qualname__", repr(call))
            raise ProviderError(
                f"{shown}: parameter {name!r} is marked Closing[...], and a gate closes what it opens; write Annotated[T, "
                "Provide[...]]: a Resource closes with the gate, and Scoped('request', factory) with the call"
            )
        marker = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, kind)), None)
        if marker is None and isinstance(parameter.default, kind):
            marker = parameter.default
        if marker is not None:
            plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
            optional = parameter.default is not parameter.empty and parameter.default is not marker
            found.append(Injected(parameter.name, marker.provider, marker.modifier, plain, optional))
    return tuple(found)


def find_injected_of_factory(factory: Callable[..., object]) -> tuple[Injected, ...]:
    """Return the injected parameters of a factory, which may come from a package that does not use markers.

    Raises:
        ProviderError: see ``hints_of``; only for a factory whose module can have markers.
    """
    try:
        return find_injected(factory)
    except ProviderError:
        # httpx, SQLAlchemy and others import names of their annotations for type checkers only.
        if _can_have_markers(factory):
            raise
        return ()


def _can_have_markers(factory: Callable[..., object]) -> bool:
    """Check whether the module of a function imports Callgate, dependency-injector, or a marked type."""
    target = factory.__init__ if inspect.isclass(factory) else factory
    for value in vars(sys.modules.get(target.__module__, typing)).values():
        is_code = isinstance(value, type | FunctionType)
        name = value.__name__ if isinstance(value, ModuleType) else value.__module__ if is_code else ""
        if str(name).partition(".")[0] in {"callgate", "dependency_injector"} or _is_marked(value):
            return True
    return False


def _is_marked(hint: object) -> bool:
    kind = marker_type()
    return typing.get_origin(hint) is typing.Annotated and any(
        isinstance(one, kind) for one in typing.get_args(hint)[1:]
    )
