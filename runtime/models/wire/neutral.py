"""The neutral flat tool format, ``{type, name, description, parameters, strict}``. Pure.

Clients send it and hosts may store it; among providers, only OpenAI's Responses API reads it. It leaves out the other
fields of a definition (effect, tags, safety); ``ToolDefinition.to_dict`` has them all.
"""

from __future__ import annotations

from callgate.tools.definition import ToolDefinition

NEUTRAL_FIELDS = ("type", "name", "description", "parameters", "strict")


def to_neutral(definition: ToolDefinition) -> dict[str, object]:
    """Copy those of the five fields that the definition sets, ``parameters`` verbatim."""
    whole = definition.to_dict()
    return {name: whole[name] for name in NEUTRAL_FIELDS if name in whole}
