"""Types of a client's tool definition, and its JSON Schema."""

from __future__ import annotations

from typing import Any, Final, Literal, NoReturn, TypedDict

from callgate.tools.definition_rules import NAME, TEXT_LIMIT
from callgate.tools.schemas.engines.dialect import TYPES
from callgate.tools.values import FrozenDict, freeze

_References = TypedDict("_References", {"$ref": str, "$defs": dict[str, object]}, total=False)


class JsonSchemaProperty(_References, total=False):
    """The schema of one parameter. These are the usual keywords; any other of JSON Schema is allowed."""

    type: str | list[str]
    title: str
    description: str
    enum: list[Any]
    const: object
    default: object
    examples: list[Any]
    anyOf: list[JsonSchemaProperty]  # noqa: N815 - JSON Schema's spelling, here and below
    oneOf: list[JsonSchemaProperty]  # noqa: N815
    allOf: list[JsonSchemaProperty]  # noqa: N815
    items: JsonSchemaProperty | bool
    minItems: int  # noqa: N815
    maxItems: int  # noqa: N815
    uniqueItems: bool  # noqa: N815
    properties: dict[str, JsonSchemaProperty]
    required: list[str]
    additionalProperties: JsonSchemaProperty | bool  # noqa: N815
    minLength: int  # noqa: N815
    maxLength: int  # noqa: N815
    pattern: str
    format: str
    minimum: float
    maximum: float
    exclusiveMinimum: float  # noqa: N815
    exclusiveMaximum: float  # noqa: N815
    multipleOf: float  # noqa: N815


class _Parameters(_References):
    type: Literal["object"]
    properties: dict[str, JsonSchemaProperty]


class FunctionParameters(_Parameters, total=False):
    """The schema of all parameters of a tool: an object with properties."""

    required: list[str]
    additionalProperties: JsonSchemaProperty | bool  # noqa: N815
    description: str


_PROPERTY = {"$ref": "#/$defs/property"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_TYPE = {"enum": sorted(TYPES)}
_NAMES = {"type": "array", "items": _TEXT}
_SUBSCHEMAS = {"type": "array", "items": _PROPERTY, "minItems": 1}
_MEMBERS = {"type": "object", "additionalProperties": _PROPERTY}
_PARAMETERS = ("parameters", "inputSchema", "input_schema")


class Members(dict[str, object]):
    """A mapping of the source documents; reading a member as an attribute is answered with the line to write."""

    def __getattr__(self, name: str) -> NoReturn:
        """Answer ``result.success``, only asked for attributes that do not exist."""
        write = f"; write result[{name!r}], or result.get({name!r})" if name in _ANSWERS else ""
        raise AttributeError(f"a result is a mapping and has no attribute {name!r}{write}")


class _Schema(FrozenDict):
    """A schema as data; the source documents call methods of a library for TypeScript on it."""

    def __getattr__(self, name: str) -> NoReturn:
        """Answer ``ToolDefinitionSchema.parse``, only asked for attributes that do not exist."""
        write = {
            "parse": "; write validate_tool_definitions([definition])[0]",
            "safeParse": "; write safe_validate_tool_definitions([definition])",
        }.get(name, "")
        raise AttributeError(f"ToolDefinitionSchema is JSON Schema, a mapping, and has no attribute {name!r}{write}")


_ANSWERS = frozenset({"valid", "errors", "success", "data", "result", "error", "toolCallId", "toolName", "validated"})
ToolDefinitionSchema: Final[dict[str, Any]] = freeze(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tool definition",
        "description": "A tool that a client offers, flat or wrapped as {type: function, function: {…}}.",
        "anyOf": [
            {"$ref": "#/$defs/flat"},
            {"type": "object", "required": ["function"], "properties": {"function": {"$ref": "#/$defs/flat"}}},
        ],
        "properties": {"type": {"enum": ["function", None]}},
        "$defs": {
            "flat": {
                "type": "object",
                "required": ["name", "description"],
                "anyOf": [{"required": [name]} for name in _PARAMETERS],
                "properties": {
                    "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
                    "description": {"type": "string", "minLength": 1, "maxLength": TEXT_LIMIT, "pattern": r"\S"},
                    **{name: {"anyOf": [{"$ref": "#/$defs/parameters"}, {"type": "null"}]} for name in _PARAMETERS},
                },
            },
            "parameters": {
                "allOf": [_PROPERTY],
                "type": "object",
                "required": ["type", "properties"],
                "properties": {"type": {"const": "object"}},
            },
            "property": {
                "type": ["object", "boolean"],
                "properties": {
                    "type": {"anyOf": [_TYPE, {"type": "array", "items": _TYPE, "minItems": 1}]},
                    "description": _TEXT,
                    "enum": {"type": "array"},
                    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _SUBSCHEMAS),
                    "items": {"anyOf": [_PROPERTY, _SUBSCHEMAS]},
                    "properties": _MEMBERS,
                    "$defs": _MEMBERS,
                    "required": _NAMES,
                    "additionalProperties": _PROPERTY,
                    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
                    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
                    "minimum": {"type": "number"},
                    "maximum": {"type": "number"},
                    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
                },
            },
        },
    },
    _Schema,
)
"""The JSON Schema of a definition, for clients and their forms: every accepted definition is valid under it.

The reverse does not hold: it does not express limits, duplicate names, and errors that only an engine finds.
"""
