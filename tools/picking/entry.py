"""``Entry``: one tool of an index and its definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.document import member


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One tool of an index: the given object and its definition.

    ``definition`` is the ``ToolDefinition``, or the mapping itself where the tool is known from a catalogue only.
    """

    key: str
    tool: object
    definition: ToolDefinition | Mapping[str, object]

    @property
    def name(self) -> str:
        """The wire name."""
        found = self.get("name")
        return found if isinstance(found, str) else ""

    @property
    def unsafe(self) -> bool:
        """True for ``safe=False`` and any other value except True; without a value a tool is safe."""
        safe = self.get("safe")
        return safe is not None and safe is not True

    def get(self, name: str) -> object:
        """A member of the definition, by its Python name; None where it is absent."""
        return member(self.definition, name)


def definition_of(tool: object) -> ToolDefinition | Mapping[str, object]:
    """Return the definition of a tool.

    Raises:
        TypeError: the object is neither a tool nor a mapping.
        DefinitionError: the object lacks a part of a tool.
    """
    return tool if isinstance(tool, ToolDefinition | Mapping) else as_tool(tool).definition


def entry_of(tool: object) -> Entry:
    """Make an entry outside of any index. Raises like ``definition_of``."""
    return Entry("", tool, definition_of(tool))
