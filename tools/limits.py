"""Limits of a call: the size of its arguments and its output, and its time in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cached_property

MOST_ALIKE = 64
"""Numbers of one hash side by side that arguments may have. Values of no attacker have two or three."""
_PARSER_BOUNDS = {"max_depth": 200, "max_output_depth": 200, "max_digits": 4300}  # jiter and Python go no further


@dataclass(frozen=True)
class Limits:
    """Limits of one tool call. Each limit is the greatest size that is allowed.

    ``max_bytes``: raw argument text, in UTF-8 bytes. An object that did not arrive as text is measured by a lower bound
    of its JSON: the characters of its keys and strings, and one for each value.
    ``max_depth``: nested objects and arrays, the arguments themselves included; at most 200.
    ``max_nodes``: values, that is objects, arrays, strings, numbers and literals; keys are not counted.
    ``max_digits``: digits of one number, as written; at most 4300.
    ``max_output_bytes``: JSON of a tool's output, in bytes; parsing does not use it. The parts of an asynchronous
    generator count together, and so do those that one attempt sends.
    ``max_output_depth``: nested objects and arrays of an output; at most 200.
    ``max_block_bytes``: data of one content block of an output, such as an image, in bytes before base64.
    ``max_content_bytes``: data of all content blocks of an output. Neither counts towards ``max_output_bytes``.

    Raises:
        ValueError: a limit is not a positive integer, or greater than the parser supports.
    """

    max_bytes: int = 262_144
    max_depth: int = 64
    max_nodes: int = 50_000
    max_digits: int = 400
    max_output_bytes: int = 1_048_576
    max_output_depth: int = 64
    max_block_bytes: int = 5_242_880
    max_content_bytes: int = 20_971_520

    def __post_init__(self) -> None:
        for name in (entry.name for entry in fields(self)):
            value, bound = getattr(self, name), _PARSER_BOUNDS.get(name)
            if type(value) is not int or value < 1 or (bound is not None and value > bound):
                raise ValueError(f"{name} must be a positive integer" + (f", {bound} at most" if bound else ""))

    @cached_property
    def small_text(self) -> int:
        """Characters of a text that is too short to exceed any limit."""
        return min(self.max_bytes // 4, 2 * self.max_depth + 1, self.max_nodes, self.max_digits)

    @cached_property
    def small_object(self) -> int:
        """Bytes of JSON within which a flat object keeps all limits, if its integers have at most 64 bits."""
        return min(self.max_bytes, self.max_nodes) if self.max_digits >= 20 else 0

    @cached_property
    def small_output(self) -> int:
        """Bytes of JSON within which an output keeps the limits of its size and of its content."""
        return min(self.max_output_bytes, self.max_block_bytes, self.max_content_bytes)

    @cached_property
    def small_bits(self) -> int:
        """Bits of an integer that is too small to exceed ``max_digits``."""
        return 3 * self.max_digits


DEFAULT_LIMITS = Limits()


_MAX_SECONDS = 1e10
"""More than 300 years. Later times do not fit into the clocks and columns that add to them."""


def fault_of_seconds(value: object, *, least: float | None = None, none: bool = True) -> str | None:
    """Return why *value* is no time in seconds, or None if it is one. Every deadline and timeout is checked here.

    Args:
        value: the setting of a caller.
        least: the smallest value; by default, it is above 0.
        none: also allow None, which means no limit.
    """
    if value is None and none:
        return None
    bound = "above 0" if least is None else f"at least {least:g}"
    text = f"give seconds, a number {bound}" + (", or None for no limit" if none else "")
    if isinstance(value, timedelta):
        return f"is a timedelta; times are seconds, so write {value.total_seconds():g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is of type {type(value).__name__}; {text}"
    fits = 0.0 < value <= _MAX_SECONDS if least is None else least <= value <= _MAX_SECONDS
    return None if fits else f"is {float(value) if abs(value) <= _MAX_SECONDS else 'out of range'}; {text}"
