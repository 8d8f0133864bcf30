"""Integers that a float cannot hold, for tools that are called strictly."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.tools.calls import Issue
from callgate.tools.schemas.engines.base import MAX_ISSUES, Check, Compiled, Rejected, Validator
from callgate.tools.values import dump

_LARGE = 2**53
_EXPECTED = "must be an integer that is written without a fraction or an exponent"


def wants_exact(schema: object) -> bool:
    """Return True if a schema tells whole numbers from others: by ``integer``, ``multipleOf``, or a number as a constant."""
    if isinstance(schema, Mapping):
        node: Mapping[object, object] = schema
        kinds, constants = node.get("type"), node.get("enum")
        if kinds == "integer" or "multipleOf" in node or (isinstance(kinds, list | tuple) and "integer" in kinds):
            return True
        named = [*(constants if isinstance(constants, list | tuple) else ()), node.get("const")]
        return any(type(one) in {int, float} for one in named) or any(wants_exact(part) for part in node.values())
    return isinstance(schema, list | tuple) and any(wants_exact(part) for part in schema)


def fast_check(validator: Validator | None, *, exact: bool) -> Check:
    """Return the check of parsed arguments on the fast path: that of *validator*, or that they are an object.

    With *exact* it also refuses a float like ``5.0``, which may have had a fraction in the text: for those the slow path
    reads the text again, with ``parse_arguments(exact=True)``. It searches for floats once.
    """
    inner = _is_object if validator is None else validator.check
    if not exact:
        return inner
    if isinstance(validator, Compiled) and validator.inner is not None:
        inner = validator.inner

    def check(value: object) -> None:
        inner(value)
        members: dict[object, object] = value if isinstance(value, dict) else {"": value}
        for member in members.values():  # a loop: most arguments are flat
            if member.__class__ in _CAN_HOLD and _has_whole_float(member):
                raise Rejected(_EXPECTED, "type")

    return check


def _is_object(value: object) -> None:
    if value.__class__ is not dict:
        raise Rejected("must be an object", "type")


def exact_integers(validator: Validator, schema: Mapping[str, object] | None) -> Validator:
    """Return *validator* with a rule for integers: a large one is not written as a float, which may have rounded it.

    JSON Schema takes ``90071992547409935.0`` for an integer, and its float is another number. A *schema* without integers
    needs no such rule.
    """
    if b'"integer"' not in dump(schema):
        return validator
    inner, find_inner = validator.check, validator.issues

    def check(value: object) -> None:
        inner(value)
        if _has_large_float(value) and find(value, 1):
            raise Rejected(_EXPECTED, "type")

    def find(value: object, limit: int) -> list[Issue]:
        issues = find_inner(value, limit)
        if issues or not _has_large_float(value):
            return issues
        wanted = find_inner(_with_fractions(value), MAX_ISSUES)  # where an integer is wanted, a fraction is refused
        return [type(one)(one.pointer, "type", _EXPECTED) for one in wanted if one.keyword == "type"][:limit]

    return Compiled(validator.id, validator.engine, validator.version, check, find, inner)


def _has_whole_float(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    if isinstance(value, dict):
        return any(_has_whole_float(item) for item in value.values() if item.__class__ in _CAN_HOLD)
    return isinstance(value, list) and any(_has_whole_float(item) for item in value if item.__class__ in _CAN_HOLD)


def _has_large_float(value: object) -> bool:
    if isinstance(value, float):
        return abs(value) >= _LARGE
    if isinstance(value, dict):
        return any(_has_large_float(item) for item in value.values() if item.__class__ in _CAN_HOLD)
    return isinstance(value, list) and any(_has_large_float(item) for item in value if item.__class__ in _CAN_HOLD)


_CAN_HOLD = frozenset({float, dict, list})


def _with_fractions(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_fractions(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_fractions(item) for item in value]
    return 0.5 if isinstance(value, float) and abs(value) >= _LARGE else value
