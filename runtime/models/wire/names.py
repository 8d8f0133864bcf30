"""Reversible wire names for tools whose own name a provider would refuse (contract C5). Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from callgate.errors import DefinitionError

WIRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")  # newer servers take 128 characters
LIMIT = 64
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_START = re.compile(r"^(?![A-Za-z_])")


@dataclass(frozen=True, slots=True)
class NameMap:
    """Tool ids to wire names and back, for one request (contract 50, C5).

    An id that the provider takes is its own wire name. Any other one has its refused characters replaced by ``_`` and
    ends in a part of its own SHA-256, so that its wire name does not depend on which tools are offered beside it. Wire
    names are unique: should a legal id look like a made name, the made one takes a longer hash.
    """

    wire_names: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, tool_ids: Iterable[str], legal: re.Pattern[str] = WIRE_NAME) -> NameMap:
        """The map for these tools, for a provider that takes the names which *legal* matches as a whole.

        A made name is legal for every provider here: it starts with a letter or ``_``.

        Raises:
            DefinitionError: the same id comes twice (contract 30, C6).
        """
        ids = list(tool_ids)
        twice = sorted(name for name, times in Counter(ids).items() if times > 1)
        if twice:
            raise DefinitionError(f"Duplicate tool names: {', '.join(twice)}")
        tools = {name: name for name in ids if legal.fullmatch(name)}
        for name in sorted(set(ids) - set(tools)):
            tools[_made(name, tools)] = name
        wire_names = {tool: wire for wire, tool in tools.items()}
        return cls({name: wire_names[name] for name in ids}, tools)

    def wire(self, tool_id: str) -> str:
        """The wire name of a tool; one that was not translated keeps its id."""
        return self.wire_names.get(tool_id, tool_id)

    def tool(self, wire_name: str) -> str:
        """The tool id behind a wire name; an unknown one comes back as it is, for hydration to refuse (C10a)."""
        return self.tools.get(wire_name, wire_name)


def _made(name: str, taken: Mapping[str, str]) -> str:
    """A legal name for a foreign one: what can be kept of it, and 8 or more hex digits of its hash."""
    stem = _START.sub("_", _REFUSED.sub("_", name))
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    candidates = (f"{stem[: LIMIT - 1 - length]}_{mark[:length]}" for length in (8, 16, 32, LIMIT - 1))
    return next(candidate for candidate in candidates if candidate not in taken)
