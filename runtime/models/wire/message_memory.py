"""The memory that an SDK takes for one JSON-RPC message of MCP, estimated before it parses the message.

An SDK builds models of what it reads, and a list of errors for what it refuses: up to 31 kB for a value of three bytes.
The weights below were measured with both kinds of protocol versions; ``tests/runtime/remote/mcp/test_memory.py`` holds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from callgate.providers.http.bounded import MAX_MEMORY, MAX_NESTING, BodyRefused, BoundedBody, text_memory

SMALL = 2_048
"""A message of this size cannot reach the limit."""

VALUE, TOOL, INNER, BLOCK, TYPED = 1_024, 1_408, 2_048, 24_576, 49_152
"""Bytes for a value that is kept as it is, within a tool, within a content block, for a block, and for any other value."""

_FREE = frozenset({"structuredContent", "arguments", "_meta"})
_BLOCKS = frozenset({"content", "contents"})


def parse_bounded(data: bytes, max_memory: int = MAX_MEMORY) -> object:
    """Return the parsed message.

    Raises:
        BodyRefused: it may take more memory than *max_memory*.
        ValueError: it is no JSON.
    """
    from pydantic_core import from_json  # the SDK has loaded it; nothing else imports this module

    left = max_memory - text_memory(data)
    if left < 0:
        raise BodyRefused("is too large")
    scan = BoundedBody(None, len(data), max_depth=MAX_NESTING, max_values=2 * left // VALUE)  # an upper bound of values
    scan.feed(data)
    message = from_json(data)
    if _weight(message, left) > left:
        raise BodyRefused("has too many values")
    return message


def _weight(message: object, limit: int) -> int:
    """Return the weight of a message, or the first sum above *limit*."""
    total = 0
    waiting: list[tuple[object, int]] = [(message, TYPED)]
    if isinstance(message, dict):
        waiting = [(value, TYPED) for key, value in message.items() if key not in ("result", "params")]
        for part in (message.get("result"), message.get("params")):
            waiting += _parts(part) if isinstance(part, dict) else [(part, TYPED)]
    while waiting and total <= limit:
        value, cost = waiting.pop()
        total += cost
        if isinstance(value, dict | list):
            inner = INNER if cost == BLOCK else cost
            waiting += ((one, inner) for one in (value.values() if isinstance(value, dict) else value))
    return total


def _parts(part: Mapping[str, object]) -> list[tuple[object, int]]:
    """Return the members of a result or of parameters, each with the weight of its values."""
    parts: list[tuple[object, int]] = []
    for key, value in part.items():
        if key in _BLOCKS and isinstance(value, list):
            parts += ((block, BLOCK) for block in value)
        else:
            parts.append((value, VALUE if key in _FREE else TOOL if key == "tools" else TYPED))
    return parts
