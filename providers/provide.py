"""``Provide``: the marker of parameters that the gate supplies."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, overload

from dependency_injector import providers, wiring

T = TypeVar("T")
_MARKER: Any = wiring.Provide  # its type stub declares a function


class _Provide(Protocol):
    """The type of ``Provide``: a type checker reports ``db: Db = Provide[App.cache]``."""

    @overload
    def __getitem__(self, token: providers.Provider[T], /) -> T: ...
    @overload
    def __getitem__(self, token: type[T], /) -> T: ...
    @overload
    def __getitem__(self, token: str | tuple[object, ...], /) -> Any: ...


Provide: _Provide = _MARKER
"""Marks a parameter that the gate supplies: ``db: Annotated[Db, Provide[App.db]]`` or ``db: Db = Provide[App.db]``.

The token is a container's provider, its dotted name, or a key of ``Gate(provide={...})`` such as a class.
"""
