"""The fast path from a small text or object to checked arguments; all that depends on the tool alone is computed before."""

from __future__ import annotations

from collections.abc import Callable

from jiter import from_json

from callgate.tools.arguments.objects import is_flat_object
from callgate.tools.arguments.parsing import parse_strict
from callgate.tools.limits import Limits
from callgate.tools.schemas.engines.base import Compiled, Validator
from callgate.tools.schemas.exact import fast_check


def strict_reader(
    validator: Validator | None,
    limits: Limits,
    *,
    exact: bool,
    floats: bool,
    settle: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> Callable[[str | dict[str, object]], dict[str, object]]:
    """Make a function from a JSON object or its text to arguments: it parses, validates and settles them.

    Without a *validator* the value is to be an object. *exact* is as for ``fast_check``.
    ``floats=False`` says that the schema allows no float. Then infinity, as which the parser reads ``1e999``, is not
    searched for, because validation refuses it. The function returns strict, valid arguments only. It raises some
    ``Exception`` for anything else, and the caller then parses it again with ``parse_arguments`` for a diagnosis.
    """
    small = 0 if floats else limits.small_text
    native = validator.native if isinstance(validator, Compiled) and not exact else None
    check = fast_check(validator, exact=exact)

    def read(given: str | dict[str, object]) -> dict[str, object]:
        if not isinstance(given, str):
            arguments = given.copy()
            if not is_flat_object(arguments, limits):
                raise ValueError("not flat")
        elif len(given) <= small and "\\u0000" not in given:
            arguments = from_json(given.encode(), catch_duplicate_keys=True, allow_inf_nan=False)
        else:
            arguments = parse_strict(given, limits)
        if native is None or not native(arguments):
            check(arguments)
        return arguments if settle is None else settle(arguments)

    return read
