"""The rows that a driver returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Row: TypeAlias = Sequence[Any]
"""One row: each column has the type that its statement selects."""
