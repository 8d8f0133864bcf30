"""``tools/list``: the definitions that a user may see, in the spelling of each protocol version."""

from __future__ import annotations

from mcp_types import ListToolsResult, Tool, ToolAnnotations

from callgate.runtime.gate import Gate
from callgate.tools.calls import User
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.values import thaw

WRAPPED = "result"
"""The property that holds an output which is no object, for clients up to version 2025-11-25."""
_REPEATABLE = (Effect.READ, Effect.IDEMPOTENT, Effect.KEYED)


class Listing:
    """Pages of tools. A definition is translated once for each era, as long as it does not change."""

    def __init__(self, gate: Gate, page: int) -> None:
        self._gate, self._page = gate, page
        self._made: dict[tuple[str, bool], tuple[ToolDefinition, Tool]] = {}

    def page(self, user: User, cursor: str | None, *, modern: bool) -> ListToolsResult:
        """Return the tools after *cursor*, which is the name of the last tool of the page before."""
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

    def output_schema(self, name: str) -> object | None:
        """Return the output schema of a tool; None without one."""
        return self._gate.registry.get(name).definition.output_schema if name in self._gate.registry else None

    def _tool(self, definition: ToolDefinition, modern: bool) -> Tool:
        known = self._made.get((definition.name, modern))
        if known is None or known[0] is not definition:
            known = self._made[definition.name, modern] = definition, tool_of(definition, modern=modern)
        return known[1]


def tool_of(definition: ToolDefinition, *, modern: bool) -> Tool:
    """Translate a definition. Before version 2026-07-28 an output schema that is no object is wrapped in one."""
    output = None if definition.output_schema is None else thaw(definition.output_schema)
    if output is not None and not modern and not is_object(definition):
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


def is_object(definition: ToolDefinition) -> bool:
    """Return True if every output of a tool is an object."""
    return definition.output_schema is not None and definition.output_schema.get("type") == "object"


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
