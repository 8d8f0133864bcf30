"""The fast path from a small text or object to checked arguments; all that depends on the tool alone is computed before."""

from __future__ import annotations

from collections.abc import Callable

from jiter import from_json

from callgate.tools.arguments.objects import is_flat_object
from callgate.tools.arguments.parsing import parse_strict
from callgate.tools.limits import Limits


def strict_reader(
    check: Callable[[object], object] | None,
    limits: Limits,
    *,
    floats: bool,
    settle: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> Callable[[str | dict[str, object]], dict[str, object]]:
    """Make a function from a JSON object or its text to arguments: it parses, then calls *check* and *settle*, if given.

    ``floats=False`` says that the schema allows no float. Then infinity, as which the parser reads ``1e999``, is not
    searched for, because validation refuses it. The function returns strict, valid arguments only. It raises some
    ``Exception`` for anything else, and the caller then parses it again with ``parse_arguments`` for a diagnosis.
    """
    small = 0 if floats else limits.small_text

    def read(given: str | dict[str, object]) -> dict[str, object]:
        if not isinstance(given, str):
            arguments = given.copy()
            if not is_flat_object(arguments, limits):
                raise ValueError("not flat")
        elif len(given) <= small and "\\u0000" not in given:
            arguments = from_json(given.encode(), catch_duplicate_keys=True, allow_inf_nan=False)
        else:
            arguments = parse_strict(given, limits)
        if check is not None:
            check(arguments)
        elif arguments.__class__ is not dict:
            raise ValueError("not an object")
        return arguments if settle is None else settle(arguments)

    return read
