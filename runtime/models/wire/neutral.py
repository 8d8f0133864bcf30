"""The documents' own flat tool format, ``{type, name, description, parameters, strict}`` (contract 58, C3, C4). Pure.

It is what clients hand over and what hosts may store; of the providers only OpenAI's Responses API reads it. Whatever
else a definition holds (effect, tags, safety) is not in it: ``ToolDefinition.to_dict`` has the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.tools.definition import ToolDefinition

FIELDS = ("type", "name", "description", "parameters", "strict")


def to_neutral(definition: ToolDefinition) -> dict[str, Any]:
    """The five fields of a definition, those that are set; a copy, ``parameters`` verbatim."""
    whole = definition.to_dict()
    return {name: whole[name] for name in FIELDS if name in whole}


def from_neutral(tool: Mapping[str, Any]) -> ToolDefinition:
    """A definition from the flat form, or from one wrapped in ``{type, function: {...}}`` (C4).

    Raises:
        DefinitionError: it is neither, or it breaks a rule of definitions.
    """
    return ToolDefinition.from_dict(tool)
