"""How much a call may bring and return: one set of limits, checked before anything is parsed and after a tool has run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

__all__ = ["DEFAULT_LIMITS", "Limits"]

_PARSER_BOUNDS = {"max_depth": 200, "max_digits": 4300}  # jiter and Python go no further


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one tool call may bring or return (design §10.9). Each limit is the greatest size still allowed.

    ``max_bytes``: raw argument text, in UTF-8 bytes. An object that never was text is measured by a lower bound of
    the JSON it would make: characters of its keys and strings, and one for each value.
    ``max_depth``: nested objects and arrays, the arguments themselves included; at most 200.
    ``max_nodes``: values, that is objects, arrays, strings, numbers and literals; keys are not counted.
    ``max_digits``: digits of one number, as written; at most 4300.
    ``max_output_bytes``: JSON of a tool's output, in bytes; parsing does not use it.

    Raises:
        ValueError: a limit is not a positive integer, or beyond what the parser can hold to.
    """

    max_bytes: int = 262_144
    max_depth: int = 64
    max_nodes: int = 50_000
    max_digits: int = 400
    max_output_bytes: int = 1_048_576
    _small: int = field(init=False, repr=False, compare=False)  # characters that cannot break any of these
    _bits: int = field(init=False, repr=False, compare=False)  # an integer of so few bits has no more digits

    def __post_init__(self) -> None:
        for name in (entry.name for entry in fields(self) if entry.init):
            value, bound = getattr(self, name), _PARSER_BOUNDS.get(name)
            if type(value) is not int or value < 1 or (bound is not None and value > bound):
                raise ValueError(f"{name} must be a positive integer" + (f", {bound} at most" if bound else ""))
        small = min(self.max_bytes // 4, 2 * self.max_depth + 1, self.max_nodes, self.max_digits)
        object.__setattr__(self, "_small", small)
        object.__setattr__(self, "_bits", 3 * self.max_digits)


DEFAULT_LIMITS = Limits()
