"""Callgate: the one gate that a model's tool call passes.

The face: what applications import. Everything else lives in ``callgate.tools``, ``callgate.hooks``,
``callgate.providers`` and ``callgate.runtime``.
"""

from collections.abc import Awaitable as _Awaitable
from collections.abc import Callable as _Callable
from collections.abc import MutableMapping as _MutableMapping
from importlib import metadata as _metadata
from typing import Any as _Any

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
    ModelError,
    NotPending,
    NotRecorded,
    OutcomeUnknown,
    ProviderError,
    ProviderMissing,
    RegistrationError,
    RetryLater,
    SchemaRefused,
    StageError,
    Stale,
    StoreConflict,
    StoreError,
    StoreUnsupported,
    StreamCut,
    Suspended,
    ToolError,
    ToolFailed,
    UnknownTool,
)
from callgate.hooks.approval import RequireApproval
from callgate.hooks.base import Hook, on
from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import Committed, NoEffect
from callgate.hooks.selection import collect_hooks_for_stage, sort_for_stage
from callgate.hooks.stages import TOOL_ERROR_STAGES, TOOL_POST_STAGES, TOOL_PRE_STAGES, Stage
from callgate.hooks.stock.capacity.cache import Cache
from callgate.hooks.stock.capacity.concurrency import Concurrency
from callgate.hooks.stock.capacity.quota import Quota
from callgate.hooks.stock.policy.authorize import Authorize
from callgate.hooks.stock.policy.cedar import CedarPolicy
from callgate.hooks.stock.policy.consent import Consent
from callgate.hooks.stock.policy.feature_flags import FeatureFlags
from callgate.hooks.stock.policy.rules import Decider, Ruling, Verdict, forbid, permit
from callgate.hooks.stock.privacy.output_policy import OutputPolicy
from callgate.hooks.stock.privacy.redact import Redact
from callgate.hooks.stock.privacy.secrets import Secrets, from_env, from_keyring
from callgate.hooks.stock.records.audit import Audit
from callgate.hooks.stock.records.audit_verify import AuditReport, verify_audit, verify_rows
from callgate.hooks.stock.records.telemetry import Metrics, Tracing
from callgate.hooks.stock.resilience.circuit_breaker import CircuitBreaker
from callgate.hooks.stock.resilience.recovery import Backoff, Deadline, Retry, Timeout
from callgate.hooks.stock.sampling import sampled
from callgate.providers.blobs import FolderBlobs
from callgate.providers.logs import configure_logging
from callgate.providers.markers import Provide
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scoped import Scoped
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import AuditRow, Limit, Store
from callgate.providers.stores.effects import Effect as EffectRecord
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.jobs import JobState
from callgate.providers.stores.limits_quotas import LimitsQuotas
from callgate.providers.stores.memory import MemoryStore
from callgate.providers.stores.redis import RedisStore
from callgate.providers.stores.sql import SqlStore
from callgate.runtime.call.stage_helpers import will_bind_providers_stage, wrap_with_around
from callgate.runtime.conversation.converse import converse, converse_events
from callgate.runtime.conversation.events import (
    Called,
    CallFinished,
    CallsStarted,
    Conversation,
    ConversationEvent,
    Ended,
    Ending,
    RoundEnded,
    RoundStarted,
)
from callgate.runtime.conversation.state import StateRefused
from callgate.runtime.effects.ledger import EffectOptions
from callgate.runtime.faces.bound import Bound
from callgate.runtime.faces.principal import Authenticate as _Authenticate
from callgate.runtime.gate import Gate
from callgate.runtime.jobs.embedded import EmbeddedJobs
from callgate.runtime.jobs.jobs import JobBackend, JobHandle, JobStatus
from callgate.runtime.jobs.running import JobOptions
from callgate.runtime.models import codec, codecs
from callgate.runtime.models.anthropic import Anthropic
from callgate.runtime.models.gemini import Gemini
from callgate.runtime.models.ollama import Ollama
from callgate.runtime.models.openai_chat import OpenAIChat
from callgate.runtime.models.openai_embeddings import OpenAIEmbeddings
from callgate.runtime.models.openai_responses import OpenAIResponses
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import WireError
from callgate.runtime.models.wire.reply import CallDelta, CallReady, Done, ReasoningDelta, Reply, TextDelta, Usage
from callgate.runtime.replay.report import ReplayReport
from callgate.runtime.standalone import invoke_tool
from callgate.runtime.suspensions.decisions import Approve, Decision, Deny, Edit, Respond
from callgate.runtime.suspensions.suspensions import Pending
from callgate.runtime.tool_system.discovery import Discovery
from callgate.runtime.tool_system.observations import (
    InMemoryObservations,
    Observation,
    ObservationManager,
    ToolSystemFault,
)
from callgate.runtime.tool_system.system import ToolSystem
from callgate.runtime.tool_system.threads import ExecutionContext, InMemoryState, ParsedToolCall, StateManager
from callgate.tools.approval import Approval
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calculator import CalculatorTool
from callgate.tools.calls import ErrorInfo, Issue, Outcome, ToolCall, ToolResult, User
from callgate.tools.client.client import ClientResult, ClientToolProvider
from callgate.tools.client.definitions import safe_validate_tool_definitions, validate_tool_definitions
from callgate.tools.client.pinning import ChangedTool, Pinned, Shadowing, ToolPins
from callgate.tools.client.schema import FunctionParameters, JsonSchemaProperty, ToolDefinitionSchema
from callgate.tools.context import ToolContext
from callgate.tools.declaring.component import ToolComponent
from callgate.tools.declaring.declare import as_tool, tool
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import Effect, NoSchemaMode, ToolAnnotations, ToolDefinition
from callgate.tools.limits import Limits
from callgate.tools.picking.embedding import Embedder, EmbeddingCache
from callgate.tools.picking.embedding_store import StoredEmbeddings
from callgate.tools.picking.filters import PickContext
from callgate.tools.picking.index import ToolIndex
from callgate.tools.picking.llm import Cascade, LLMScorer, Mixture
from callgate.tools.picking.llm import Stage as CascadeStage
from callgate.tools.picking.minilm import MiniLM
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.results import Excluded, PickResult, Picks, Provenance, Score
from callgate.tools.picking.scorers import keyword_overlap
from callgate.tools.picking.semantic import SemanticScorer
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry
from callgate.tools.schemas.validation import wrap_properties

_Message = _MutableMapping[str, _Any]
_Send = _Callable[[_Message], _Awaitable[None]]
_AsgiApp = _Callable[[_Message, _Callable[[], _Awaitable[_Message]], _Send], _Awaitable[None]]

__all__ = [
    "TOOL_ERROR_STAGES",
    "TOOL_POST_STAGES",
    "TOOL_PRE_STAGES",
    "Anthropic",
    "Approval",
    "Approve",
    "Audit",
    "AuditReport",
    "AuditRow",
    "Authorize",
    "Backoff",
    "Bound",
    "Cache",
    "CalculatorTool",
    "CallDelta",
    "CallFinished",
    "CallReady",
    "Called",
    "CallgateError",
    "CallsStarted",
    "Cascade",
    "CascadeStage",
    "CedarPolicy",
    "ChangedTool",
    "CircuitBreaker",
    "Client",
    "ClientResult",
    "ClientToolProvider",
    "Committed",
    "Concurrency",
    "Consent",
    "ControlAbort",
    "ControlRespond",
    "ControlRetryAfter",
    "Conversation",
    "ConversationEvent",
    "Deadline",
    "DeadlineExceeded",
    "Decider",
    "Decision",
    "DefinitionError",
    "Denied",
    "Deny",
    "Discovery",
    "Done",
    "Edit",
    "Effect",
    "EffectOptions",
    "EffectRecord",
    "EffectState",
    "EmbeddedJobs",
    "Embedder",
    "EmbeddingCache",
    "Ended",
    "Ending",
    "ErrorInfo",
    "Excluded",
    "ExecutionContext",
    "FeatureFlags",
    "FolderBlobs",
    "FunctionParameters",
    "Gate",
    "GateClosed",
    "Gemini",
    "Hook",
    "HookError",
    "HydrationResult",
    "InMemoryObservations",
    "InMemoryState",
    "Invalid",
    "InvocationError",
    "InvokeContext",
    "Issue",
    "JobBackend",
    "JobHandle",
    "JobOptions",
    "JobState",
    "JobStatus",
    "JsonSchemaProperty",
    "LLMScorer",
    "Limit",
    "Limits",
    "LimitsQuotas",
    "MemoryStore",
    "Metrics",
    "MiniLM",
    "Mixture",
    "ModelError",
    "NoEffect",
    "NoSchemaMode",
    "NotPending",
    "NotRecorded",
    "Observation",
    "ObservationManager",
    "Ollama",
    "OpenAIChat",
    "OpenAIEmbeddings",
    "OpenAIResponses",
    "Outcome",
    "OutcomeUnknown",
    "OutputPolicy",
    "ParsedToolCall",
    "Pending",
    "PickContext",
    "PickResult",
    "Picks",
    "Pinned",
    "Provenance",
    "Provide",
    "ProviderError",
    "ProviderMissing",
    "ProviderRegistry",
    "Quota",
    "ReasoningDelta",
    "Redact",
    "RedisStore",
    "RegistrationError",
    "ReplayReport",
    "Reply",
    "RequireApproval",
    "Respond",
    "Retry",
    "RetryLater",
    "RoundEnded",
    "RoundStarted",
    "Ruling",
    "SchemaRefused",
    "Scoped",
    "Score",
    "Secrets",
    "SemanticScorer",
    "Shadowing",
    "SqlStore",
    "Stage",
    "StageError",
    "Stale",
    "StateManager",
    "StateRefused",
    "Store",
    "StoreConflict",
    "StoreError",
    "StoreUnsupported",
    "StoredEmbeddings",
    "StreamCut",
    "Suspended",
    "TextDelta",
    "Timeout",
    "ToolAnnotations",
    "ToolCall",
    "ToolComponent",
    "ToolContext",
    "ToolDefinition",
    "ToolDefinitionSchema",
    "ToolError",
    "ToolFailed",
    "ToolIndex",
    "ToolPins",
    "ToolRecord",
    "ToolRegistry",
    "ToolResult",
    "ToolSchema",
    "ToolSystem",
    "ToolSystemFault",
    "Tracing",
    "UnknownTool",
    "Usage",
    "User",
    "Verdict",
    "WireError",
    "as_tool",
    "asgi",
    "codec",
    "codecs",
    "collect_hooks_for_stage",
    "configure_logging",
    "converse",
    "converse_events",
    "forbid",
    "from_env",
    "from_keyring",
    "invoke_tool",
    "keyword_overlap",
    "on",
    "permit",
    "pick_tools",
    "safe_validate_tool_definitions",
    "sampled",
    "sort_for_stage",
    "store_at",
    "tool",
    "validate_tool_definitions",
    "verify_audit",
    "verify_rows",
    "will_bind_providers_stage",
    "wrap_properties",
    "wrap_with_around",
]


def asgi(
    gate: Gate,
    *,
    authenticate: _Authenticate | None = None,
    challenge: str | None = "Bearer",
    read_timeout: float = 10.0,
    write_timeout: float = 30.0,
    ping: float = 15.0,
) -> _AsgiApp:
    """An ASGI application that lists, calls and streams the tools of *gate*; needs the extra ``asgi``.

    Serve it by itself, and it opens and closes the gate; or mount it in an application that opens the gate.
    ``authenticate`` takes a Starlette ``Request`` (headers, no body) and gives a ``User``, or None for 401; default: that
    of the gate. Without one every request is refused. ``challenge`` is the ``WWW-Authenticate`` that goes with a 401.
    In seconds: ``read_timeout`` is for a whole body, ``write_timeout`` for a client to take a part of an answer, and
    after ``ping`` without an event a stream shows that it is alive. Bodies are bounded by the tool's ``Limits``.

    Raises:
        RegistrationError: Starlette is not installed.
    """
    from callgate.runtime.hosts.asgi import application

    return application(
        gate, authenticate, challenge=challenge, read_timeout=read_timeout, write_timeout=write_timeout, ping=ping
    )


def __getattr__(name: str) -> str:
    if name == "__version__":
        return _metadata.version("callgate")
    raise AttributeError(f"module 'callgate' has no attribute {name!r}")
