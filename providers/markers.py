"""Injection markers: which parameters of a callable are supplied by the gate and never by a model."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

from dependency_injector import providers, wiring

from callgate.errors import ProviderError

__all__ = ["Injected", "Provide", "find_injected", "hints_of"]

T = TypeVar("T")
_MARKER: Any = wiring.Provide  # its stub calls it a function


class _Provide(Protocol):
    """dependency-injector's ``Provide``, typed: a checker reports ``db: Db = Provide[App.cache]``, as a cache is no ``Db``."""

    @overload
    def __getitem__(self, token: providers.Provider[T], /) -> T: ...
    @overload
    def __getitem__(self, token: type[T], /) -> T: ...
    @overload
    def __getitem__(self, token: str | tuple[Any, ...], /) -> Any: ...


Provide: _Provide = _MARKER
"""Marks a parameter that the gate supplies: ``db: Annotated[Db, Provide[App.db]]`` or ``db: Db = Provide[App.db]``.

The token is a container's provider, its dotted name, or a key of ``Gate(provide={...})`` such as a class.
"""


@dataclass(frozen=True, slots=True)
class Injected:
    """One injected parameter. ``token`` is the marker's provider: what look-ups and overrides are keyed by."""

    name: str
    token: Any
    modifier: Any = None
    annotation: Any = Any


def hints_of(call: Callable[..., Any]) -> dict[str, Any]:
    """Type hints with markers; raises ``ProviderError`` when a name in them cannot be resolved.

    Under postponed annotations, names local to the functions around ``call`` are found while those still run.
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
            f"{name}: the annotation name {error.name!r} is not defined where the function is"
        ) from error


def _enclosing_names(call: Any) -> dict[str, Any]:
    """The local names of the functions that ``call`` is defined in, of those that run now."""
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


def find_injected(call: Callable[..., Any]) -> tuple[Injected, ...]:
    """The parameters marked ``Annotated[T, Provide[...]]`` or defaulted to ``Provide[...]`` (libraries 18).

    A class stands for its constructor.
    """
    hints = hints_of(call)
    found: list[Injected] = []
    for parameter in inspect.signature(call).parameters.values():
        hint = hints.get(parameter.name, Any)
        marker = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, _MARKER)), None)
        if marker is None and isinstance(parameter.default, _MARKER):
            marker = parameter.default
        if marker is not None:
            plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
            found.append(Injected(parameter.name, marker.provider, marker.modifier, plain))
    return tuple(found)
