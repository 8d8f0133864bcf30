"""The shortest way from a small text to checked arguments; everything that depends on the tool alone is worked out before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jiter import from_json

from callgate.tools.arguments.parsing import parse_strict
from callgate.tools.limits import Limits


def strict_reader(
    check: Callable[[Any], object] | None, limits: Limits, *, floats: bool
) -> Callable[[str], dict[str, Any]]:
    """A function from the text of a JSON object to arguments: ``parse_strict``, then *check* if there is one.

    ``floats=False`` says that the schema admits no float anywhere: then ``1e999``, which the parser reads as infinity,
    need not be looked for, because validation refuses it. What it returns is plainly right; it raises some ``Exception``
    for anything else, and the caller then goes the long way to find out what it is.
    """
    small = 0 if floats else limits._small

    def read(text: str) -> dict[str, Any]:
        if len(text) <= small and "\\u0000" not in text:
            arguments: dict[str, Any] = from_json(text.encode(), catch_duplicate_keys=True, allow_inf_nan=False)
        else:
            arguments = parse_strict(text, limits)
        if check is not None:
            check(arguments)
        elif arguments.__class__ is not dict:
            raise ValueError("not an object")
        return arguments

    return read
