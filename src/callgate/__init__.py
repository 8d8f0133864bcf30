"""Callgate: the one gate that a model's tool call passes.

This module has what most applications import. The rest is in ``callgate.hooks``, ``callgate.models``,
``callgate.stores``, ``callgate.jobs``, ``callgate.mcp``, ``callgate.picking``, ``callgate.threads``, ``callgate.tools``,
``callgate.testing`` and ``callgate.errors``. Each name is imported on first use.
"""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.errors import CallgateError as CallgateError
    from callgate.errors import DeadlineExceeded as DeadlineExceeded
    from callgate.errors import DefinitionError as DefinitionError
    from callgate.errors import Denied as Denied
    from callgate.errors import GateClosed as GateClosed
    from callgate.errors import Invalid as Invalid
    from callgate.errors import InvocationError as InvocationError
    from callgate.errors import ModelError as ModelError
    from callgate.errors import OutcomeUnknown as OutcomeUnknown
    from callgate.errors import RegistrationError as RegistrationError
    from callgate.errors import RetryLater as RetryLater
    from callgate.errors import Suspended as Suspended
    from callgate.errors import ToolError as ToolError
    from callgate.errors import ToolFailed as ToolFailed
    from callgate.errors import UnknownTool as UnknownTool
    from callgate.hooks.base import Hook as Hook
    from callgate.hooks.base import on as on
    from callgate.hooks.context import InvokeContext as InvokeContext
    from callgate.hooks.stages import Stage as Stage
    from callgate.providers.execution_scope import EffectClaim as EffectClaim
    from callgate.providers.logs import configure_logging as configure_logging
    from callgate.providers.provide import Provide as Provide
    from callgate.providers.registry import ProviderRegistry as ProviderRegistry
    from callgate.providers.scoped import Scoped as Scoped
    from callgate.runtime.conversation.converse import converse as converse
    from callgate.runtime.conversation.converse import converse_events as converse_events
    from callgate.runtime.conversation.events import Conversation as Conversation
    from callgate.runtime.gate import Gate as Gate
    from callgate.runtime.gate.bound import Bound as Bound
    from callgate.runtime.gate.explain import DryRun as DryRun
    from callgate.runtime.hosts.asgi.face import asgi as asgi
    from callgate.runtime.hosts.asgi.face import bound as bound
    from callgate.runtime.jobs.jobs import JobHandle as JobHandle
    from callgate.runtime.models import codec as codec
    from callgate.runtime.options.gate import Effects as Effects
    from callgate.runtime.options.gate import Options as Options
    from callgate.runtime.options.gate import Sessions as Sessions
    from callgate.runtime.options.gate import Suspensions as Suspensions
    from callgate.runtime.options.jobs import Jobs as Jobs
    from callgate.runtime.pipeline.standalone import hydrate_without_gate as hydrate_without_gate
    from callgate.runtime.pipeline.standalone import invoke_tool as invoke_tool
    from callgate.runtime.suspensions.decisions import Approve as Approve
    from callgate.runtime.suspensions.decisions import Decision as Decision
    from callgate.runtime.suspensions.decisions import Deny as Deny
    from callgate.runtime.suspensions.decisions import Edit as Edit
    from callgate.runtime.suspensions.decisions import Pending as Pending
    from callgate.runtime.suspensions.decisions import Respond as Respond
    from callgate.tools.approval import Approval as Approval
    from callgate.tools.approval import Question as Question
    from callgate.tools.arguments.hydration import HydrationResult as HydrationResult
    from callgate.tools.calls import ErrorInfo as ErrorInfo
    from callgate.tools.calls import Outcome as Outcome
    from callgate.tools.calls import ToolCall as ToolCall
    from callgate.tools.calls import ToolResult as ToolResult
    from callgate.tools.calls import User as User
    from callgate.tools.context import ToolContext as ToolContext
    from callgate.tools.declaring.component import ToolComponent as ToolComponent
    from callgate.tools.declaring.declare import as_tool as as_tool
    from callgate.tools.declaring.declare import tool as tool
    from callgate.tools.definition import Effect as Effect
    from callgate.tools.definition import NoSchemaMode as NoSchemaMode
    from callgate.tools.definition import ToolDefinition as ToolDefinition
    from callgate.tools.limits import Limits as Limits
    from callgate.tools.picking.pick import pick_tools as pick_tools
    from callgate.tools.record import ToolRecord as ToolRecord
    from callgate.tools.registry import ToolRegistry as ToolRegistry

    __version__: str
else:
    _find, __dir__ = lazy(
        __name__,
        {
            "Approval": "callgate.tools.approval",
            "Approve": "callgate.runtime.suspensions.decisions",
            "Bound": "callgate.runtime.gate.bound",
            "DryRun": "callgate.runtime.gate.explain",
            "CallgateError": "callgate.errors",
            "Conversation": "callgate.runtime.conversation.events",
            "DeadlineExceeded": "callgate.errors",
            "Decision": "callgate.runtime.suspensions.decisions",
            "DefinitionError": "callgate.errors",
            "Denied": "callgate.errors",
            "Deny": "callgate.runtime.suspensions.decisions",
            "Edit": "callgate.runtime.suspensions.decisions",
            "Effect": "callgate.tools.definition",
            "EffectClaim": "callgate.providers.execution_scope",
            "Effects": "callgate.runtime.options.gate",
            "ErrorInfo": "callgate.tools.calls",
            "Gate": "callgate.runtime.gate",
            "GateClosed": "callgate.errors",
            "Hook": "callgate.hooks.base",
            "HydrationResult": "callgate.tools.arguments.hydration",
            "Invalid": "callgate.errors",
            "InvocationError": "callgate.errors",
            "InvokeContext": "callgate.hooks.context",
            "JobHandle": "callgate.runtime.jobs.jobs",
            "Jobs": "callgate.runtime.options.jobs",
            "Limits": "callgate.tools.limits",
            "ModelError": "callgate.errors",
            "NoSchemaMode": "callgate.tools.definition",
            "Options": "callgate.runtime.options.gate",
            "Outcome": "callgate.tools.calls",
            "OutcomeUnknown": "callgate.errors",
            "Pending": "callgate.runtime.suspensions.decisions",
            "Provide": "callgate.providers.provide",
            "ProviderRegistry": "callgate.providers.registry",
            "Question": "callgate.tools.approval",
            "RegistrationError": "callgate.errors",
            "Respond": "callgate.runtime.suspensions.decisions",
            "RetryLater": "callgate.errors",
            "Scoped": "callgate.providers.scoped",
            "Sessions": "callgate.runtime.options.gate",
            "Stage": "callgate.hooks.stages",
            "Suspended": "callgate.errors",
            "Suspensions": "callgate.runtime.options.gate",
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
            "hydrate_without_gate": "callgate.runtime.pipeline.standalone",
            "invoke_tool": "callgate.runtime.pipeline.standalone",
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
