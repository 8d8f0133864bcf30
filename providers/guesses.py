"""Hints for guessed names: attributes of other frameworks, and the camel case of the source documents."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import getattr_static
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def explain_attributes(lines: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Refuse guessed attributes with the line to write; type checkers and other attributes see no difference.

    Args:
        lines: the line to write for each attribute that callers are likely to guess.
    """

    def decorate(kind: type[T]) -> type[T]:
        for name, line in lines.items():
            setattr(kind, name, _Guess(kind.__name__, name, line))
        return kind

    return decorate


def explain_camel_case(kind: type[T]) -> type[T]:
    """Refuse the camel-case form of each public attribute with its name in snake case: ``tryGet``, write ``try_get``.

    The source documents of this package, and JSON, spell names in camel case; see docs/reference/names.md.
    """
    known = {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}  # a field with a factory is in none of the others
    names = [name for name in sorted(known) if "_" in name and not name.startswith("_") and not _is_guess(kind, name)]
    if "__dir__" not in vars(kind):
        setattr(kind, "__dir__", _dir)  # noqa: B010  (checkers refuse the assignment)
    return explain_attributes({camel(name): name for name in names})(kind)


def _dir(self: object) -> list[str]:
    return without_guesses(type(self), object.__dir__(self))


def camel(name: str) -> str:
    """Return a name of snake case in camel case."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def snake(name: str) -> str:
    """Return a name of camel case in snake case; other names stay as they are."""
    return _CAPITAL.sub("_", name).lower() if name[:1].islower() else name


def accepted(function: Callable[..., object], given: Mapping[str, object]) -> dict[str, Any]:
    """Return keywords of *function*, which *given* may spell in camel case.

    Raises:
        TypeError: a keyword is unknown, or there twice.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
    found: dict[str, Any] = {}
    for name, value in given.items():
        meant = snake(str(name))
        if meant not in known or meant in found:
            near = get_close_matches(meant, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            problem = f"got {meant!r} twice" if meant in found else f"has no option {name!r}; {hint}"
            raise TypeError(f"{function.__name__}() {problem}")
        found[meant] = value
    return found


class Explained(type):
    """A class whose guessed attributes are not in ``dir()``: neither completion nor ``create_autospec`` offers them."""

    def __dir__(cls) -> list[str]:
        return without_guesses(cls, super().__dir__())


def without_guesses(kind: type, names: Iterable[str]) -> list[str]:
    """Return the names of attributes that exist."""
    return [name for name in names if not _is_guess(kind, name)]


def _is_guess(kind: type, name: str) -> bool:
    return isinstance(getattr_static(kind, name, None), _Guess)


class _Guess:
    """A descriptor in place of a guessed attribute.

    With a ``__getattr__`` each access to the other attributes would take 20 ns longer; a call makes dozens.
    """

    def __init__(self, owner: str, name: str, line: str) -> None:
        self._message = f"{owner} has no attribute {name!r}; write: {line}"

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._message)
