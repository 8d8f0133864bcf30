"""The fast path from a small text to checked arguments; all that depends on the tool alone is computed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jiter import from_json

from callgate.tools.arguments.parsing import parse_strict
from callgate.tools.limits import Limits


def strict_reader(
    check: Callable[[Any], object] | None,
    limits: Limits,
    *,
    floats: bool,
    settle: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Callable[[str], dict[str, Any]]:
    """Make a function from the text of a JSON object to arguments: ``parse_strict``, then *check* and *settle*, if given.

    ``floats=False`` says that the schema allows no float. Then infinity, as which the parser reads ``1e999``, is not
    searched for, because validation refuses it. The function returns strict, valid arguments only. It raises some
    ``Exception`` for any other text, and the caller then parses it again with ``parse_arguments`` for a diagnosis.
    """
    small = 0 if floats else limits.small_text

    def read(text: str) -> dict[str, Any]:
        if len(text) <= small and "\\u0000" not in text:
            arguments: dict[str, Any] = from_json(text.encode(), catch_duplicate_keys=True, allow_inf_nan=False)
        else:
            arguments = parse_strict(text, limits)
        if check is not None:
            check(arguments)
        elif arguments.__class__ is not dict:
            raise ValueError("not an object")
        return arguments if settle is None else settle(arguments)

    return read
