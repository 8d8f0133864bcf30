"""Callgate: the one gate that a model's tool call passes.

The face: what applications import. Everything else lives in ``callgate.tools``, ``callgate.hooks``,
``callgate.providers`` and ``callgate.runtime``.
"""

from importlib import metadata as _metadata

from callgate.errors import (
    CallgateError,
    ControlAbort,
    ControlRespond,
    ControlRetryAfter,
    DeadlineExceeded,
    DefinitionError,
    Denied,
    GateClosed,
    HookError,
    Invalid,
    InvocationError,
    OutcomeUnknown,
    ProviderError,
    ProviderMissing,
    RegistrationError,
    RetryLater,
    SchemaRefused,
    StageError,
    Suspended,
    ToolError,
    ToolFailed,
    UnknownTool,
)
from callgate.hooks.base import Hook, on
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import TOOL_ERROR_STAGES, TOOL_POST_STAGES, TOOL_PRE_STAGES, Stage
from callgate.providers.markers import Provide
from callgate.providers.registry import ProviderRegistry
from callgate.runtime.adapters import codec
from callgate.runtime.gate import Gate
from callgate.runtime.standalone import invoke_tool
from callgate.tools.calls import ErrorInfo, Issue, Outcome, ToolCall, ToolResult, User
from callgate.tools.component import ToolComponent
from callgate.tools.context import ToolContext
from callgate.tools.declare import as_tool, tool
from callgate.tools.definition import Effect, NoSchemaMode, ToolAnnotations, ToolDefinition
from callgate.tools.hydration import HydrationResult
from callgate.tools.parsing import Limits
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

__all__ = [
    "TOOL_ERROR_STAGES",
    "TOOL_POST_STAGES",
    "TOOL_PRE_STAGES",
    "CallgateError",
    "ControlAbort",
    "ControlRespond",
    "ControlRetryAfter",
    "DeadlineExceeded",
    "DefinitionError",
    "Denied",
    "Effect",
    "ErrorInfo",
    "Gate",
    "GateClosed",
    "Hook",
    "HookError",
    "HydrationResult",
    "Invalid",
    "InvocationError",
    "InvokeContext",
    "Issue",
    "Limits",
    "NoSchemaMode",
    "Outcome",
    "OutcomeUnknown",
    "Provide",
    "ProviderError",
    "ProviderMissing",
    "ProviderRegistry",
    "RegistrationError",
    "RetryLater",
    "SchemaRefused",
    "Stage",
    "StageError",
    "Suspended",
    "ToolAnnotations",
    "ToolCall",
    "ToolComponent",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolFailed",
    "ToolRecord",
    "ToolRegistry",
    "ToolResult",
    "UnknownTool",
    "User",
    "as_tool",
    "codec",
    "invoke_tool",
    "on",
    "tool",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        return _metadata.version("callgate")
    raise AttributeError(f"module 'callgate' has no attribute {name!r}")
