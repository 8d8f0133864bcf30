"""Statements that run for many rows at once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from callgate.providers.stores.sql.database.rows import Row

if TYPE_CHECKING:
    from sqlite3 import Connection

_PARAMETER = re.compile(r":([a-z_]+)")


class Statement:
    """One statement in both dialects.

    Args:
        lite: the statement of SQLite, which runs once for each row, with a parameter ``:name`` for each value.
        postgres: the statement of PostgreSQL, which runs once for all rows; ``{given}`` is the relation of their values.
        types: the PostgreSQL types of the values by name.
    """

    def __init__(self, lite: str, postgres: str, **types: str) -> None:
        self.lite = lite
        # By place: sqlite3 looks up the name of each parameter each time, which takes a third of the time of a claim.
        self._names = tuple(_PARAMETER.findall(lite))
        self._by_place = _PARAMETER.sub("?", lite)
        self._returns = lite.lstrip().startswith(("SELECT", "WITH")) or "RETURNING" in lite
        # One JSON text: psycopg would escape each item of an array by itself, which takes a third of the time of a call.
        columns = ", ".join(f"{name} {type}" for name, type in types.items())
        self.postgres = postgres.format(given=f"json_to_recordset(%s) AS given ({columns})")

    def run_lite(self, connection: Connection, values: Sequence[Mapping[str, object]]) -> list[Row]:
        """Run the statement of SQLite for each of the values, and return the rows of all."""
        rows, names = list[Row](), self._names
        given = [[one[name] for name in names] for one in values]
        if self._returns:
            for one in given:
                rows += connection.execute(self._by_place, one).fetchall()
        elif self.lite:
            connection.executemany(self._by_place, given)
        return rows

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
