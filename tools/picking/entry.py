"""``Entry``: one tool as selection sees it, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.document import member

__all__ = ["Entry", "definition_of", "entry_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One tool of an index: what was given, and what it says of itself.

    ``definition`` is the ``ToolDefinition``, or the mapping itself where the tool is only known from a catalogue.
    """

    key: str
    tool: Any
    definition: ToolDefinition | Mapping[str, Any]

    @property
    def name(self) -> str:
        """The wire name."""
        found = self.get("name")
        return found if isinstance(found, str) else ""

    @property
    def unsafe(self) -> bool:
        """Whether it says ``safe=False``, or anything else there but true: what is undefined is safe (contract 66)."""
        safe = self.get("safe")
        return safe is not None and safe is not True

    def get(self, name: str) -> Any:
        """A member of the definition, by its Python name; None where there is none."""
        return member(self.definition, name)


def definition_of(tool: Any) -> ToolDefinition | Mapping[str, Any]:
    """What a tool says of itself.

    Raises:
        TypeError: it is no tool, and no mapping.
        DefinitionError: it could be a tool, and something is missing.
    """
    return tool if isinstance(tool, ToolDefinition | Mapping) else as_tool(tool).definition


def entry_of(tool: Any) -> Entry:
    """A tool by itself, outside any index; raises like ``definition_of``."""
    return Entry("", tool, definition_of(tool))
