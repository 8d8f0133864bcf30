"""Checks of what an application hands over: the types of settings, and the signatures of functions.

A setting is checked against its annotation, so a new field needs no check of its own.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import Field, dataclass
from functools import lru_cache, partial, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Protocol, TypeAlias, TypeVar, Union


@dataclass(frozen=True, slots=True)
class Least:
    """In ``Annotated[int, Least(1)]``: the smallest number that a setting takes."""

    value: int


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


Count: TypeAlias = Annotated[int, Least(1)]
"""A number of things, 1 or more."""

Init = TypeVar("Init", bound=Callable[..., object])

_NUMBERS: dict[object, tuple[type | tuple[type, ...], str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
}
_NAMES: dict[object, str] = {NoneType: "None", str: "text", bool: "True or False", bytes: "bytes", type: "a class"}
_PLAIN = {bool, int, float, str, bytes, NoneType}
_SAME = {"ctx": "ctx", "context": "ctx", "next": "next", "input": "input", "arguments": "input"}
"""Names of parameters that say what the parameter receives."""


def fault_of_call(call: Callable[..., object], own: Sequence[str], marked: Collection[str] = ()) -> str | None:
    """Return the parameters of *call* if it cannot be called with *own* by position, else None.

    It cannot either if a parameter has the name of another position, as in ``(next, ctx)`` for ``(ctx, next)``.

    The signature is that of the outermost decorator: a decorator may pass arguments of its own.

    Args:
        call: the function.
        own: what it receives by position, in this order.
        marked: parameters that a provider fills, by name.
    """
    try:
        signature = inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):  # such as a method in C
        return None
    try:
        bound = signature.bind(*own, **dict.fromkeys(marked))
    except TypeError:
        return _shown(signature)
    meant = [_SAME.get(name, name) for name in own]
    for name, given in bound.arguments.items():
        said = _SAME.get(name)
        if said in meant and isinstance(given, str) and _SAME.get(given, given) != said:
            return _shown(signature)
    return None


def _shown(signature: inspect.Signature) -> str:
    return str(signature.replace(return_annotation=inspect.Signature.empty))


def fault_of_kind(value: object, kind: object) -> str | None:
    """Return why *value* is not of the annotated type *kind*, and what to give; None if it is. Values are not shown.

    Args:
        value: a setting of the application.
        kind: its annotation. Forms that cannot be checked, such as type variables, accept every value.
    """
    if _fits(value, kind):
        return None
    if (found := fault_of_function(value, kind)) is not None:
        return found
    least = [
        one.value for member in _members(kind) for one in getattr(member, "__metadata__", ()) if isinstance(one, Least)
    ]
    if least and _fits(value, int):
        return f"is {value}; give {_named(kind)}"
    return f"is of type {type(value).__name__}; give {_named(kind)}"


def fault_of_function(value: object, kind: object) -> str | None:
    """Return why a function cannot be called as its annotation says; None if it can, or for other values and kinds."""
    if callable(value) and not _fits(value, kind):
        for one in _members(kind):
            own, returns = typing.get_args(one) if typing.get_origin(one) is Callable else (None, None)
            if own is not None and (fault := _fault_of_result(value, returns)) is not None:
                return fault
            if isinstance(own, list):
                return f"takes {_shown_call(value)}, and is called with {_listed(own)}; give {_function_of(own)}"
    return None


def check_fields(
    made: _Dataclass, error: Callable[[str], Exception], *, skip: Collection[str] = (), where: str | None = None
) -> None:
    """Check the fields of a dataclass object against their annotations.

    Args:
        made: the object; call this first in its ``__post_init__``.
        error: makes the exception from a message that names the field.
        skip: fields with a check of their own, whose message says more.
        where: what the message begins with; default: the name of the class.

    Raises:
        Exception: that of *error*; a field is of another type.
    """
    kind = type(made)
    hints = annotations_of(kind)
    for name, one in kind.__dataclass_fields__.items():
        value = getattr(made, name)
        if not one.init or name in skip or value is one.default:  # the type checker has seen the defaults
            continue
        if (fault := fault_of_kind(value, hints[name])) is not None:
            raise error(f"{where or kind.__name__}: {name} {fault}")


def checks_kinds(error: Callable[[str], Exception], *, skip: Collection[str] = ()) -> Callable[[Init], Init]:
    """Decorate an ``__init__`` or a function: first, its arguments are checked against their annotations.

    Args:
        error: makes the exception from a message that names the argument.
        skip: arguments with a check of their own, whose message says more.

    Raises (the decorated method):
        Exception: that of *error*; an argument is of another type.
    """

    def decorate(init: Init) -> Init:
        where, signature = init.__qualname__.partition(".")[0], inspect.signature(init)

        @wraps(init)
        def check_and_call(*args: object, **given: object) -> object:
            try:
                named = signature.bind(*args, **given).arguments
            except TypeError:  # the call below says which argument is missing or not known
                named = {}
            for name, kind in annotations_of(init).items():
                if name in named and name not in skip and (fault := fault_of_kind(named[name], kind)) is not None:
                    raise error(f"{where}: {name} {fault}")
            return init(*args, **given)

        return typing.cast("Init", check_and_call)

    return decorate


def truth(owner: str, setting: str, answer: object) -> bool:
    """Return what a condition of the application answered. Each condition of a hook, a rule or a picker passes here.

    ``0`` or ``[]`` is refused as well: a hook that guards a tool would be skipped without notice.

    Raises:
        TypeError: the answer is no boolean.
    """
    return answer if isinstance(answer, bool) else refuse_result(owner, setting, answer, "True or False")


def refuse_result(owner: str, setting: str, value: object, give: str) -> NoReturn:
    """Refuse what a function of the application returned; a coroutine is closed, since nothing awaits it.

    Raises:
        TypeError: always; the message says what to return.
    """
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(f"{setting} of {owner} returned {type(value).__name__}; return {give}")


@lru_cache(256)
def annotations_of(annotated: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of a class or a function, for ``fault_of_kind``."""
    return typing.get_type_hints(annotated, include_extras=True)


def _members(kind: object) -> tuple[object, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value: Any, kind: object) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in args)
    if origin is Annotated:
        bounds = (one.value for one in args[1:] if isinstance(one, Least))
        return _fits(value, args[0]) and all(value >= bound for bound in bounds)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in args)
    if origin is Callable:
        own, returns = (args[0] if isinstance(args[0], list) else None, args[-1]) if args else (None, Any)
        takes = callable(value) and (own is None or _takes(value, len(own)))
        return takes and _fault_of_result(value, returns) is None
    plain = NoneType if kind is None else origin or kind
    return callable(value) if plain is Callable else _is_one(value, plain, args)


def _is_one(value: object, plain: object, args: tuple[object, ...]) -> bool:
    if plain in _NUMBERS:
        return isinstance(value, _NUMBERS[plain][0]) and not isinstance(value, bool)
    if not isinstance(plain, type) or plain is object or plain is Any:
        return True
    if typing.is_typeddict(plain):
        return isinstance(value, Mapping)
    if getattr(plain, "_is_protocol", False):
        return plain in type(value).__mro__ or _has_members(value, plain)
    if isinstance(value, str | bytes) and plain.__module__ == "collections.abc":
        return False  # a text in place of a collection of texts
    return isinstance(value, plain) and _items_fit(value, plain, args)


def _has_members(value: object, protocol: type) -> bool:
    """Return whether *value* has the methods of a protocol; a class in place of an object has not."""
    if "__call__" in vars(protocol):
        return callable(value)
    return not isinstance(value, type) and all(hasattr(value, name) for name in _methods_of(protocol))


@lru_cache
def _methods_of(protocol: type) -> frozenset[str]:
    return frozenset(
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name, member in vars(base).items()
        if not name.startswith("_") and callable(member)
    )


def _items_fit(value: object, plain: type, args: tuple[object, ...]) -> bool:
    if not 0 < len(args) < 3:
        return True
    if isinstance(value, Mapping):
        return len(args) != 2 or all(_fits(key, args[0]) and _fits(item, args[1]) for key, item in value.items())
    first, last = args[0], args[-1]
    if plain is tuple and isinstance(value, tuple) and (len(args) == 1 or last is not ...):
        return len(value) == len(args) and all(map(_fits, value, args))
    if isinstance(value, list | tuple | AbstractSet):
        return all(_fits(item, first) for item in value)
    return True


def _takes(call: Callable[..., object], number: int) -> bool:
    return fault_of_call(call, [""] * number) is None


def _fault_of_result(call: object, returns: object) -> str | None:
    """Return why *call* cannot return a plain value where one is annotated: its coroutine or generator counts as true."""
    kinds = {NoneType if one is None else typing.get_origin(one) or one for one in _members(returns)}
    if not kinds <= _PLAIN | {Awaitable}:
        return None
    function: Any = call if inspect.isroutine(call) or isinstance(call, partial) else getattr(type(call), "__call__")  # noqa: B004, B009
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "yields, so calling it runs nothing; give a function that returns"
    is_async = inspect.iscoroutinefunction(function) and Awaitable not in kinds
    return "is async; give a plain function" if is_async else None


def _shown_call(call: Callable[..., object]) -> str:
    try:
        return _shown(inspect.signature(call, follow_wrapped=False))
    except (TypeError, ValueError):
        return "other arguments"


def _listed(own: object) -> str:
    return f"({', '.join(_named(one) for one in own)})" if isinstance(own, list) else "()"


def _function_of(own: object) -> str:
    if not isinstance(own, list):
        return "a function"
    return f"a function of {_listed(own)}" if own else "a function without parameters"


def _named(kind: object) -> str:
    """Name a type as a developer would say it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_named, args)))
    if origin is Annotated:
        bounds = "".join(f", at least {one.value}" for one in args[1:] if isinstance(one, Least))
        return _named(args[0]) + bounds
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is Callable or kind is Callable:
        return _function_of(args[0]) if args else "a function"
    plain = NoneType if kind is None else origin or kind
    if plain in _NUMBERS:
        return _NUMBERS[plain][1]
    if not isinstance(plain, type):
        return "another value"
    if issubclass(plain, Mapping):
        known = len(args) == 2 and object not in args and Any not in args
        return f"a mapping of {_named(args[0])} to {_named(args[1])}" if known else "a mapping"
    if plain not in _NAMES and plain.__module__ in ("collections.abc", "builtins") and issubclass(plain, Iterable):
        of = f" of {_named(args[0])}" if args and args[0] is not ... else ""
        return ("a tuple" if plain is tuple else "a set" if plain in (set, frozenset) else "a list") + of
    return _NAMES.get(plain) or ("anything" if plain in (object, Any) else plain.__name__)
