"""Statements that run for many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Statement:
    """One statement in both dialects.

    Args:
        lite: the statement of SQLite, which runs once for each row, with a parameter ``:name`` for each value.
        postgres: the statement of PostgreSQL, which runs once for all rows; ``{given}`` is the relation of their values.
        types: the PostgreSQL types of the values by name.
    """

    def __init__(self, lite: str, postgres: str, **types: str) -> None:
        self.lite = lite
        self.names = tuple(types)
        listed = ", ".join(f"%({name})s::{type}[]" for name, type in types.items())
        self.postgres = postgres.format(given=f"unnest({listed}) AS given ({', '.join(types)})")

    def columns(self, values: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Return the values by column."""
        return {name: [row[name] for row in values] for name in self.names}
