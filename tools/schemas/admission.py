"""Admission of schemas from outside: static limits before compilation, then a budget for every value.

A client, an MCP server or an agent wrote such a schema, so it may be hostile.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.engines.base import Compiled, Rejected, Validator, guard_json
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.document import Document, read
from callgate.tools.schemas.engines.patterns import backtracks, pattern_cost
from callgate.tools.schemas.engines.raw import INPUT_LIMITS, SchemaLimits
from callgate.tools.values import clip

_REFUSED = frozenset({"$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"})
_NESTED = frozenset({"$id", "id", "$schema"})


def admit(schema: Mapping[str, object], limits: SchemaLimits = INPUT_LIMITS) -> tuple[Document, Budget]:
    """Read a schema from outside, and refuse it where a check could take unbounded time.

    Raises:
        SchemaRefused: the schema is too large, ``read`` refuses it, it uses keywords for libraries of schemas, a
            pattern needs backtracking, a name has control characters, or its references multiply beyond the limits.
    """
    document = read(schema, limits)
    for pattern, at in document.patterns:
        if (feature := backtracks(pattern)) is not None:
            message = f"{feature} is not accepted from outside: its cost has no bound; write the pattern without it"
            raise SchemaRefused("invalid_schema", message, clip(at, 200))
    if sum(pattern_cost(pattern) for pattern, _ in document.patterns) > limits.max_pattern_cost:
        message = "its regular expressions cost too much together; use shorter repeats and fewer classes"
        raise SchemaRefused("patterns_cost", message)
    for at, subschema in document.nodes.items():
        if isinstance(subschema, dict):
            _refuse_outside(subschema, at)
    return document, Budget(document, limits)


def _refuse_outside(schema: dict[str, object], at: str) -> None:
    for key, item in schema.items():
        if key in _REFUSED or (at and key in _NESTED and isinstance(item, str)):
            message = f"{key} is not accepted from outside"
            raise SchemaRefused("keyword_refused", message, clip(f"{at}/{key}", 200))
        if key == "$ref" and unquote(str(item))[1:2] not in {"", "/"}:
            message = (
                "a reference to an $anchor is not accepted from outside; write a JSON Pointer, such as #/$defs/name"
            )
            raise SchemaRefused("keyword_refused", message, clip(f"{at}/{key}", 200))
        if key in {"properties", "patternProperties", "$defs", "definitions"} and isinstance(item, dict):
            for name in item:
                if not name.isprintable():
                    raise SchemaRefused("bad_name", f"{clip(name)} has control characters", clip(f"{at}/{key}", 200))


class Guard:
    """Refuses a value that is too large, too deep, too costly for one schema, or not JSON, before validation."""

    __slots__ = ("_budget", "_limits")

    def __init__(self, budget: Budget, limits: SchemaLimits) -> None:
        self._budget, self._limits = budget, limits

    def __call__(self, value: object) -> None:
        """Raise ``Rejected`` for a value that must not be checked."""
        limits, budget = self._limits, self._budget
        nodes, characters = guard_json(
            value, depth=limits.value_depth, nodes=limits.value_nodes, characters=limits.value_characters
        )
        if budget.has_refs or budget.compares or budget.quick(nodes, characters) > limits.budget:
            budget.cost(value)


def guarded(validator: Validator, guard: Guard) -> Validator:
    """*validator* behind *guard*, for engines that do not limit their own work."""
    inner = validator.check

    def check(value: object) -> None:
        guard(value)
        inner(value)

    def find(value: object, limit: int) -> list[Issue]:
        try:
            guard(value)
        except Rejected as rejected:
            return [rejected.issue]
        return validator.issues(value, limit)

    return Compiled(f"{validator.id};guarded", validator.engine, validator.version, check, find)
