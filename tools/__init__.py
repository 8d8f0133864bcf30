"""Tools: declarations, registries, and the tools of a client. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.tools.calculator import CalculatorTool
    from callgate.tools.calls import Issue
    from callgate.tools.client.client import ClientResult, ClientToolProvider
    from callgate.tools.client.definitions import safe_validate_tool_definitions, validate_tool_definitions
    from callgate.tools.client.pinning import ChangedTool, Pinned, Shadowing, ToolPins
    from callgate.tools.client.schema import FunctionParameters, JsonSchemaProperty, ToolDefinitionSchema
    from callgate.tools.declaring.component import ToolComponent, attach_validator
    from callgate.tools.declaring.declare import as_tool, tool
    from callgate.tools.declaring.executor import ToolExecutor, ToolSchema
    from callgate.tools.definition import NoSchemaMode, ToolAnnotations, ToolDefinition
    from callgate.tools.record import ToolRecord
    from callgate.tools.registry import ToolRegistry, validate_tool
    from callgate.tools.schemas.validation import wrap_properties
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "CalculatorTool": "callgate.tools.calculator",
            "ChangedTool": "callgate.tools.client.pinning",
            "ClientResult": "callgate.tools.client.client",
            "ClientToolProvider": "callgate.tools.client.client",
            "FunctionParameters": "callgate.tools.client.schema",
            "Issue": "callgate.tools.calls",
            "JsonSchemaProperty": "callgate.tools.client.schema",
            "NoSchemaMode": "callgate.tools.definition",
            "Pinned": "callgate.tools.client.pinning",
            "Shadowing": "callgate.tools.client.pinning",
            "ToolAnnotations": "callgate.tools.definition",
            "ToolComponent": "callgate.tools.declaring.component",
            "ToolDefinition": "callgate.tools.definition",
            "ToolDefinitionSchema": "callgate.tools.client.schema",
            "ToolExecutor": "callgate.tools.declaring.executor",
            "ToolPins": "callgate.tools.client.pinning",
            "ToolRecord": "callgate.tools.record",
            "ToolRegistry": "callgate.tools.registry",
            "ToolSchema": "callgate.tools.declaring.executor",
            "as_tool": "callgate.tools.declaring.declare",
            "attach_validator": "callgate.tools.declaring.component",
            "safe_validate_tool_definitions": "callgate.tools.client.definitions",
            "tool": "callgate.tools.declaring.declare",
            "validate_tool": "callgate.tools.registry",
            "validate_tool_definitions": "callgate.tools.client.definitions",
            "wrap_properties": "callgate.tools.schemas.validation",
        },
    )

__all__ = [
    "CalculatorTool",
    "ChangedTool",
    "ClientResult",
    "ClientToolProvider",
    "FunctionParameters",
    "Issue",
    "JsonSchemaProperty",
    "NoSchemaMode",
    "Pinned",
    "Shadowing",
    "ToolAnnotations",
    "ToolComponent",
    "ToolDefinition",
    "ToolDefinitionSchema",
    "ToolExecutor",
    "ToolPins",
    "ToolRecord",
    "ToolRegistry",
    "ToolSchema",
    "as_tool",
    "attach_validator",
    "safe_validate_tool_definitions",
    "tool",
    "validate_tool",
    "validate_tool_definitions",
    "wrap_properties",
]
