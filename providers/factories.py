"""Factories of providers: the function, its marked parameters, and the check that nothing else is lacking."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import TypeGuard

from callgate.errors import ProviderError
from callgate.providers.markers import Injected, find_injected_of_factory, hints_of
from callgate.providers.recipe import function_of

_CACHED = type(functools.cache(object))
_HELPER = contextlib.contextmanager.__code__.co_filename


def _code_of(factory: Callable[..., object]) -> Callable[..., object]:
    """Return the function or class of a factory; of a callable object, its ``__call__``."""
    function = function_of(factory)
    if inspect.isroutine(function) or inspect.isclass(function) or isinstance(function, _CACHED):
        return function
    return type(function).__call__


def begins_on_loop(factory: Callable[..., object]) -> bool:
    """Return True for asynchronous code, also that of an asynchronous ``__call__``."""
    plain = inspect.unwrap(_code_of(factory))
    return (
        inspect.iscoroutinefunction(plain)
        or inspect.isasyncgenfunction(plain)
        or (inspect.isclass(plain) and hasattr(plain, "__aexit__"))
    )


def markers_of(factory: Callable[..., object]) -> Iterable[Injected]:
    """Return the marked parameters of a factory."""
    try:
        return find_injected_of_factory(inspect.unwrap(_code_of(factory)))
    except (TypeError, ValueError):  # a builtin has no signature, so no markers
        return ()


def is_factory(source: object, token: object) -> TypeGuard[Callable[..., object]]:
    """Return True for code, and for a callable object that cannot be the instance of a class *token* itself."""
    if inspect.isfunction(source) or inspect.ismethod(source) or inspect.isclass(source):
        return True
    if isinstance(source, functools.partial | _CACHED):
        return True
    is_instance = not inspect.isclass(token) or getattr(token, "_is_protocol", False) or isinstance(source, token)
    return callable(source) and not is_instance and type(source).__module__ != "unittest.mock"  # a mock is the instance


def refuse_unsupplied(name: str, factory: Callable[..., object], positional: int, named: Collection[str]) -> None:
    """Refuse a factory with a parameter that nothing supplies: neither arguments and names that are given, nor a default.

    Raises:
        ProviderError: it has one; the message has the line to write.
    """
    lacking = _unsupplied(factory, positional, named)
    if lacking is None:
        return
    parameter, annotation = lacking
    kind = annotation.__name__ if inspect.isclass(annotation) else "Db"
    raise ProviderError(
        f"the factory of {name} takes {parameter!r}, and nothing supplies it; write {parameter}: Annotated[{kind}, "
        f"Provide[{kind}]] there, or give it a default; a Scoped takes its arguments after the factory, too: "
        "Scoped(scope, factory, App.db)"
    )


def _unsupplied(factory: Callable[..., object], positional: int, named: Collection[str]) -> tuple[str, object] | None:
    """Return the first parameter that a call would lack, with its annotation; None where all are given, or unknown.

    A decorator and a class with a call of its own may supply arguments themselves, so their signature says nothing.
    """
    held = 0
    while isinstance(factory, functools.partial):
        held, named = held + len(factory.args), {*named, *factory.keywords}
        factory = factory.func
    call = factory
    if inspect.isclass(factory):
        if type(factory).__call__ is not type.__call__ or factory.__new__ is not object.__new__:
            return None
        call = factory.__init__
        held += 1  # self
    elif isinstance(factory, _CACHED) or _is_helper(factory):
        call = getattr(factory, "__wrapped__", factory)
    try:
        parameters = list(inspect.signature(call, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return None
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    wanted = [*places[held + positional :], *(one for one in parameters if one.kind is one.KEYWORD_ONLY)]
    for one in wanted:
        if one.default is one.empty and one.name not in named:
            return one.name, None if one.annotation is one.empty else _annotation(factory, one)
    return None


def _is_helper(factory: object) -> bool:
    """Return True for the function that ``@contextmanager`` returns: it passes its arguments on as they are."""
    return inspect.isfunction(factory) and factory.__code__.co_filename == _HELPER and hasattr(factory, "__wrapped__")


def _annotation(factory: Callable[..., object], parameter: inspect.Parameter) -> object:
    try:
        return hints_of(inspect.unwrap(factory)).get(parameter.name, parameter.annotation)
    except Exception:  # noqa: BLE001  (names for type checkers only: the text of the annotation is as good)
        return parameter.annotation
