"""``tools/list``: the definitions that a user may see, in the spelling of each protocol version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import ListToolsResult, Tool, ToolAnnotations

from callgate.runtime.gate import Gate
from callgate.tools.calls import User
from callgate.tools.content import is_content_schema
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.values import thaw

WRAPPED = "result"
"""The property that holds an output; see ``is_wrapped``."""
_DEEPEST = 16
"""Levels of references and choices in a schema that are followed."""
_REPEATABLE = (Effect.READ, Effect.IDEMPOTENT, Effect.KEYED)


class Listing:
    """Pages of tools. A definition is translated once for each era, as long as it does not change."""

    def __init__(self, gate: Gate, page: int) -> None:
        self._gate, self._page = gate, page
        self._made: dict[tuple[str, bool], tuple[ToolDefinition, Tool]] = {}
        self._version = gate.registry.version  # of the tools that ``_made`` is for

    def page(self, user: User, cursor: str | None, *, modern: bool) -> ListToolsResult:
        """Return the tools after *cursor*, which is the name of the last tool of the page before."""
        registry = self._gate.registry
        if registry.version != self._version:
            self._version = registry.version
            self._made = {key: one for key, one in self._made.items() if key[0] in registry}
        seen = sorted(self._gate.tools_for(user), key=lambda one: one.name)
        left = seen if cursor is None else [one for one in seen if one.name > cursor]
        shown = left[: self._page]
        return ListToolsResult(
            tools=[self._tool(one, modern) for one in shown],
            next_cursor=shown[-1].name if len(left) > len(shown) else None,
            ttl_ms=0,  # what a user may see changes with their roles
            cache_scope="private",
        )

    def shows(self, name: str, user: User) -> bool:
        """Return True if the user may see a tool."""
        return self._gate.may_see(name, user)

    def _tool(self, definition: ToolDefinition, modern: bool) -> Tool:
        known = self._made.get((definition.name, modern))
        if known is None or known[0] is not definition:
            known = self._made[definition.name, modern] = definition, tool_of(definition, modern=modern)
        return known[1]


def tool_of(definition: ToolDefinition, *, modern: bool) -> Tool:
    """Translate a definition."""
    output = structured_schema(definition)
    if output is not None and is_wrapped(definition, modern=modern):
        output = {"type": "object", "properties": {WRAPPED: output}, "required": [WRAPPED]}
    parameters = {} if definition.parameters is None else thaw(definition.parameters)
    return Tool(
        name=definition.name,
        title=definition.title,
        description=definition.description,
        input_schema={"type": "object", **parameters},
        output_schema=output,
        annotations=_annotations(definition),
    )


def structured_schema(definition: ToolDefinition) -> dict[str, object] | None:
    """Return the schema of ``structuredContent``; None for a tool without one, and for a tool that returns content."""
    schema = definition.output_schema
    return None if schema is None or is_content_schema(schema) else thaw(schema)


def is_wrapped(definition: ToolDefinition, *, modern: bool) -> bool:
    """Return True if ``structuredContent`` has the output as a member, because not every output can stand there.

    Before version 2026-07-28 it is an object. Since then any value may stand there, but the official SDK takes null for a
    result without structure.
    """
    schema = definition.output_schema or {}
    return not _excludes_null(schema, schema, _DEEPEST) if modern else schema.get("type") != "object"


def _excludes_null(schema: object, root: Mapping[str, Any], left: int) -> bool:
    """Return True if it is certain that a schema does not allow null."""
    if not isinstance(schema, Mapping) or not left:
        return False
    kinds = schema.get("type")
    if kinds is not None:
        return kinds != "null" if isinstance(kinds, str) else "null" not in kinds
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return _excludes_null((root.get("$defs") or {}).get(reference[8:]), root, left - 1)
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    return bool(choices) and all(_excludes_null(one, root, left - 1) for one in choices)


def _annotations(definition: ToolDefinition) -> ToolAnnotations:
    """Return the hints: those of the author, else what the effect says. An undeclared effect counts as destructive."""
    own, effect = definition.annotations, definition.effect
    reads, destroys = effect is Effect.READ, effect is None or effect is Effect.IRREVERSIBLE
    return ToolAnnotations(
        title=definition.title,
        read_only_hint=reads if own.read_only_hint is None else own.read_only_hint,
        destructive_hint=destroys if own.destructive_hint is None else own.destructive_hint,
        idempotent_hint=effect in _REPEATABLE if own.idempotent_hint is None else own.idempotent_hint,
        open_world_hint=own.open_world_hint,
    )
