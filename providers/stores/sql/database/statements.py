"""Statements that run for many rows at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson


class Statement:
    """One statement in both dialects.

    Args:
        lite: the statement of SQLite, which runs once for each row, with a parameter ``:name`` for each value.
        postgres: the statement of PostgreSQL, which runs once for all rows; ``{given}`` is the relation of their values.
        types: the PostgreSQL types of the values by name.
    """

    def __init__(self, lite: str, postgres: str, **types: str) -> None:
        self.lite = lite
        # One JSON text: psycopg would escape each item of an array by itself, which takes a third of the time of a call.
        columns = ", ".join(f"{name} {type}" for name, type in types.items())
        self.postgres = postgres.format(given=f"json_to_recordset(%s) AS given ({columns})")

    @staticmethod
    def parameters(values: Sequence[Mapping[str, object]]) -> tuple[str]:
        """Return the parameter of PostgreSQL for rows of values."""
        return (orjson.dumps(values, default=_as_text).decode(),)


class _NotFinite(float):
    """A float that JSON does not have; orjson would write null for a plain one."""


def sql_float(value: float) -> float:
    """Return a float that may be infinite as a value of a statement."""
    value = float(value)
    return value if math.isfinite(value) else _NotFinite(value)


def _as_text(value: object) -> str:
    """Write bytes and infinite floats as PostgreSQL reads them."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, _NotFinite):
        return repr(float(value))
    raise TypeError(f"{type(value).__name__} is no value of a statement")


def leased(values: Mapping[str, Any], waited: float) -> Mapping[str, object]:
    """Return the values of a statement that has waited for so many seconds. The lease that ends ``until`` begins now."""
    until: float | None = values.get("until")
    return values if until is None or waited <= 0.0 else {**values, "until": sql_float(until + waited)}
