"""The texts of a message that protobuf searches for half of a surrogate pair: 25 ms of the event loop for a million characters.

One search cannot be interrupted, so a thread would stall the event loop as well.
"""

from __future__ import annotations

_TAKEN_AS_THEY_ARE = frozenset({"data", "raw"})
"""Members of a part whose texts are not searched: JSON and files."""


def has_more_text(message: object, limit: int) -> bool:
    """Return True if the searched texts of a parsed message have more characters than *limit*."""
    waiting: list[object] = [message]
    while waiting and limit >= 0:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += (item for name, item in value.items() if name not in _TAKEN_AS_THEY_ARE)
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            limit -= len(value)
    return limit < 0
