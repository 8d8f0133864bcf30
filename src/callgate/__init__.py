"""Callgate: the one gate that a model's tool call passes.

This module has what most applications import. The rest is in ``callgate.hooks``, ``callgate.models``,
``callgate.stores``, ``callgate.jobs``, ``callgate.picking``, ``callgate.threads``, ``callgate.tools``,
``callgate.testing`` and ``callgate.errors``. Each name is imported on first use.
"""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.errors import (
        CallgateError,
        DeadlineExceeded,
        DefinitionError,
        Denied,
        GateClosed,
        Invalid,
        InvocationError,
        ModelError,
        OutcomeUnknown,
        RegistrationError,
        RetryLater,
        Suspended,
        ToolError,
        ToolFailed,
        UnknownTool,
    )
    from callgate.hooks.base import Hook, on
    from callgate.hooks.context import InvokeContext
    from callgate.hooks.stages import Stage
    from callgate.providers.logs import configure_logging
    from callgate.providers.provide import Provide
    from callgate.providers.registry import ProviderRegistry
    from callgate.providers.scoped import Scoped
    from callgate.runtime.conversation.converse import converse, converse_events
    from callgate.runtime.conversation.events import Conversation
    from callgate.runtime.effects.ledger import Effects
    from callgate.runtime.faces.bound import Bound
    from callgate.runtime.faces.options import Options, Sessions
    from callgate.runtime.gate import Gate
    from callgate.runtime.hosts.asgi.face import asgi, bound
    from callgate.runtime.jobs.jobs import JobHandle
    from callgate.runtime.jobs.options import Jobs
    from callgate.runtime.models import codec
    from callgate.runtime.standalone import invoke_tool
    from callgate.runtime.suspensions.decisions import Approve, Decision, Deny, Edit, Respond
    from callgate.runtime.suspensions.record_keeping import Suspensions
    from callgate.runtime.suspensions.suspensions import Pending
    from callgate.tools.approval import Approval
    from callgate.tools.arguments.hydration import HydrationResult
    from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult, User
    from callgate.tools.context import ToolContext
    from callgate.tools.declaring.component import ToolComponent
    from callgate.tools.declaring.declare import as_tool, tool
    from callgate.tools.definition import Effect, NoSchemaMode, ToolDefinition
    from callgate.tools.limits import Limits
    from callgate.tools.picking.pick import pick_tools
    from callgate.tools.record import ToolRecord
    from callgate.tools.registry import ToolRegistry

    __version__: str
else:
    _find, __dir__ = lazy(
        __name__,
        {
            "Approval": "callgate.tools.approval",
            "Approve": "callgate.runtime.suspensions.decisions",
            "Bound": "callgate.runtime.faces.bound",
            "CallgateError": "callgate.errors",
            "Conversation": "callgate.runtime.conversation.events",
            "DeadlineExceeded": "callgate.errors",
            "Decision": "callgate.runtime.suspensions.decisions",
            "DefinitionError": "callgate.errors",
            "Denied": "callgate.errors",
            "Deny": "callgate.runtime.suspensions.decisions",
            "Edit": "callgate.runtime.suspensions.decisions",
            "Effect": "callgate.tools.definition",
            "Effects": "callgate.runtime.effects.ledger",
            "ErrorInfo": "callgate.tools.calls",
            "Gate": "callgate.runtime.gate",
            "GateClosed": "callgate.errors",
            "Hook": "callgate.hooks.base",
            "HydrationResult": "callgate.tools.arguments.hydration",
            "Invalid": "callgate.errors",
            "InvocationError": "callgate.errors",
            "InvokeContext": "callgate.hooks.context",
            "JobHandle": "callgate.runtime.jobs.jobs",
            "Jobs": "callgate.runtime.jobs.options",
            "Limits": "callgate.tools.limits",
            "ModelError": "callgate.errors",
            "NoSchemaMode": "callgate.tools.definition",
            "Options": "callgate.runtime.faces.options",
            "Outcome": "callgate.tools.calls",
            "OutcomeUnknown": "callgate.errors",
            "Pending": "callgate.runtime.suspensions.suspensions",
            "Provide": "callgate.providers.provide",
            "ProviderRegistry": "callgate.providers.registry",
            "RegistrationError": "callgate.errors",
            "Respond": "callgate.runtime.suspensions.decisions",
            "RetryLater": "callgate.errors",
            "Scoped": "callgate.providers.scoped",
            "Sessions": "callgate.runtime.faces.options",
            "Stage": "callgate.hooks.stages",
            "Suspended": "callgate.errors",
            "Suspensions": "callgate.runtime.suspensions.record_keeping",
            "ToolCall": "callgate.tools.calls",
            "ToolComponent": "callgate.tools.declaring.component",
            "ToolContext": "callgate.tools.context",
            "ToolDefinition": "callgate.tools.definition",
            "ToolError": "callgate.errors",
            "ToolFailed": "callgate.errors",
            "ToolRecord": "callgate.tools.record",
            "ToolRegistry": "callgate.tools.registry",
            "ToolResult": "callgate.tools.calls",
            "UnknownTool": "callgate.errors",
            "User": "callgate.tools.calls",
            "as_tool": "callgate.tools.declaring.declare",
            "asgi": "callgate.runtime.hosts.asgi.face",
            "bound": "callgate.runtime.hosts.asgi.face",
            "codec": "callgate.runtime.models",
            "configure_logging": "callgate.providers.logs",
            "converse": "callgate.runtime.conversation.converse",
            "converse_events": "callgate.runtime.conversation.converse",
            "invoke_tool": "callgate.runtime.standalone",
            "on": "callgate.hooks.base",
            "pick_tools": "callgate.tools.picking.pick",
            "tool": "callgate.tools.declaring.declare",
        },
    )

    def __getattr__(name: str) -> object:
        if name != "__version__":
            return _find(name)
        from importlib.metadata import version

        return version("callgate")


__all__ = [
    "Approval",
    "Approve",
    "Bound",
    "CallgateError",
    "Conversation",
    "DeadlineExceeded",
    "Decision",
    "DefinitionError",
    "Denied",
    "Deny",
    "Edit",
    "Effect",
    "Effects",
    "ErrorInfo",
    "Gate",
    "GateClosed",
    "Hook",
    "HydrationResult",
    "Invalid",
    "InvocationError",
    "InvokeContext",
    "JobHandle",
    "Jobs",
    "Limits",
    "ModelError",
    "NoSchemaMode",
    "Options",
    "Outcome",
    "OutcomeUnknown",
    "Pending",
    "Provide",
    "ProviderRegistry",
    "RegistrationError",
    "Respond",
    "RetryLater",
    "Scoped",
    "Sessions",
    "Stage",
    "Suspended",
    "Suspensions",
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
    "asgi",
    "bound",
    "codec",
    "configure_logging",
    "converse",
    "converse_events",
    "invoke_tool",
    "on",
    "pick_tools",
    "tool",
]
