"""Reversible wire names for tools whose names a provider refuses. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from callgate.errors import DefinitionError
from callgate.tools.naming import legal_tool_name

WIRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")  # newer servers accept 128 characters


@dataclass(frozen=True, slots=True)
class NameMap:
    """Maps tool ids to wire names and back, for one request.

    An id that the provider accepts is its own wire name. In any other id the refused characters become ``_``, and a
    part of the id's SHA-256 is appended; so its wire name does not depend on the other tools of the request. Wire names
    are unique: if a legal id equals a generated name, the generated name gets a longer hash.
    """

    wire_names: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, tool_ids: Iterable[str], legal: re.Pattern[str] = WIRE_NAME) -> NameMap:
        """Make the map for these tools; *legal* matches the whole names that the provider accepts.

        A generated name is legal for every wire: it starts with a letter or ``_``, and has at most 64 letters, digits, ``_``
        and ``-``.

        Raises:
            DefinitionError: two tools have the same id, or *legal* refuses a generated name.
        """
        ids = list(tool_ids)
        twice = sorted(name for name, times in Counter(ids).items() if times > 1)
        if twice:
            raise DefinitionError(f"Duplicate tool names: {', '.join(twice)}")
        tools = {name: name for name in ids if legal.fullmatch(name)}
        for name in sorted(set(ids) - set(tools)):
            if not legal.fullmatch(made := legal_tool_name(name, tools)):
                raise DefinitionError(f"no name for the tool {name!r}: {made!r} is not legal either; rename the tool")
            tools[made] = name
        wire_names = {tool: wire for wire, tool in tools.items()}
        return cls({name: wire_names[name] for name in ids}, tools)

    def wire(self, tool_id: str) -> str:
        """The wire name of a tool; an unknown tool keeps its id."""
        return self.wire_names.get(tool_id, tool_id)

    def tool(self, wire_name: str) -> str:
        """The tool id of a wire name; an unknown name is returned unchanged, and hydration refuses it."""
        return self.tools.get(wire_name, wire_name)
