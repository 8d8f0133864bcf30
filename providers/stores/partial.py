"""Missing parts of a store that supports some of the protocols only."""

from __future__ import annotations

from typing import Any

from callgate.errors import StoreUnsupported


def missing_part(reason: str) -> Any:
    """Return a property that raises ``StoreUnsupported`` with *reason*."""

    def refuse(_store: object) -> Any:
        raise StoreUnsupported(reason)

    return property(refuse)
