"""Tools: declarations, registries, and the tools of a client. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.tools.calculator import CalculatorTool as CalculatorTool
    from callgate.tools.calls import Issue as Issue
    from callgate.tools.client.client import ClientResult as ClientResult
    from callgate.tools.client.client import ClientToolProvider as ClientToolProvider
    from callgate.tools.client.definitions import safe_validate_tool_definitions as safe_validate_tool_definitions
    from callgate.tools.client.definitions import validate_tool_definitions as validate_tool_definitions
    from callgate.tools.client.pinning import ChangedTool as ChangedTool
    from callgate.tools.client.pinning import Pinned as Pinned
    from callgate.tools.client.pinning import Shadowing as Shadowing
    from callgate.tools.client.pinning import ToolPins as ToolPins
    from callgate.tools.client.schema import FunctionParameters as FunctionParameters
    from callgate.tools.client.schema import JsonSchemaProperty as JsonSchemaProperty
    from callgate.tools.client.schema import ToolDefinitionSchema as ToolDefinitionSchema
    from callgate.tools.declaring.component import ToolComponent as ToolComponent
    from callgate.tools.declaring.component import attach_validator as attach_validator
    from callgate.tools.declaring.declare import as_tool as as_tool
    from callgate.tools.declaring.declare import tool as tool
    from callgate.tools.declaring.executor import ToolExecutor as ToolExecutor
    from callgate.tools.declaring.executor import ToolSchema as ToolSchema
    from callgate.tools.definition import NoSchemaMode as NoSchemaMode
    from callgate.tools.definition import ToolAnnotations as ToolAnnotations
    from callgate.tools.definition import ToolDefinition as ToolDefinition
    from callgate.tools.record import ToolRecord as ToolRecord
    from callgate.tools.registry import ToolRegistry as ToolRegistry
    from callgate.tools.registry import validate_tool as validate_tool
    from callgate.tools.schemas.validation import wrap_properties as wrap_properties
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
