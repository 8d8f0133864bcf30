"""The allowance for schemas of one sender together: a message, a client, a mounted server or a remote agent.

The limits of one schema are in ``SchemaLimits``. All that is counted here is cheap, so a refusal comes before compiling.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines.patterns import pattern_cost
from callgate.tools.schemas.engines.raw import SchemaLimits, require_json


@dataclass(frozen=True, slots=True)
class SchemaAllowance:
    """Limits for all definitions of one sender together.

    ``max_bytes`` is the approximate size of their JSON. ``max_pattern_cost`` is an estimate of the microseconds for
    compiling their regular expressions, ``max_seconds`` the CPU time for reading and compiling all of them.
    """

    max_tools: int = 512
    max_bytes: int = 2_097_152
    max_patterns: int = 1_024
    max_pattern_cost: int = 200_000
    max_seconds: float = 20.0


MESSAGE_ALLOWANCE = SchemaAllowance(
    max_tools=256, max_bytes=262_144, max_patterns=256, max_pattern_cost=100_000, max_seconds=5.0
)
"""For the tools of one message, which each message of a client may bring."""


class Spending:
    """Counts the cost of definitions against an allowance. Use it in one thread."""

    def __init__(self, allowance: SchemaAllowance, limits: SchemaLimits) -> None:
        self._allowance, self._limits = allowance, limits
        self._bytes = self._patterns = self._cost = 0
        self._until = time.thread_time() + allowance.max_seconds

    def count(self, definition: Mapping[str, object]) -> None:
        """Count a definition, without reading its schemas.

        Raises:
            SchemaRefused: the definitions cost too much together.
        """
        allowance = self._allowance
        try:
            self._bytes += require_json(dict(definition), self._limits)
        except SchemaRefused:  # its reader refuses it by itself; the work was done
            self._bytes += self._limits.max_bytes
        else:
            for pattern in patterns_in(definition):
                self._patterns += 1
                self._cost += pattern_cost(pattern)
        if self._bytes > allowance.max_bytes:
            raise _exceeded(f"have more than {allowance.max_bytes} bytes")
        if self._patterns > allowance.max_patterns:
            raise _exceeded(f"have more than {allowance.max_patterns} regular expressions")
        if self._cost > allowance.max_pattern_cost:
            raise _exceeded("have regular expressions that cost too much; use shorter repeats and fewer classes")

    def check_time(self) -> None:
        """Refuse to go on once the CPU time is used up.

        Raises:
            SchemaRefused: reading and compiling took too long.
        """
        if time.thread_time() > self._until:
            raise _exceeded(f"take more than {self._allowance.max_seconds:g} s to compile")


def _exceeded(text: str) -> SchemaRefused:
    return SchemaRefused("allowance", f"the tool definitions together {text}; send fewer, or simpler ones")


def patterns_in(definition: object) -> Iterator[str]:
    """Yield the regular expressions in a definition that is JSON; an annotation that looks like one counts, too."""
    stack = [definition]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            found = item.get("pattern")
            if isinstance(found, str):
                yield found
            keyed = item.get("patternProperties")
            if isinstance(keyed, Mapping):
                yield from (key for key in keyed if isinstance(key, str))
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
