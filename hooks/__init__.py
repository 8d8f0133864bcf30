"""The public module for hooks: the base class, the stages, and the stock hooks. Each name is imported on first use.

Each name appears in the type-checker import, in the table, and in ``__all__``. A test compares the three.
"""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.hooks.base import Hook, Next, on
    from callgate.hooks.context import InvokeContext
    from callgate.hooks.effects import Committed, NoEffect, Reconciler
    from callgate.hooks.installed import load
    from callgate.hooks.selection import collect_hooks_for_stage, sort_for_stage
    from callgate.hooks.stages import TOOL_ERROR_STAGES, TOOL_POST_STAGES, TOOL_PRE_STAGES, Stage
    from callgate.hooks.stock.capacity.cache import Cache
    from callgate.hooks.stock.capacity.concurrency import Concurrency
    from callgate.hooks.stock.capacity.quota import Quota
    from callgate.hooks.stock.options import HookOptions
    from callgate.hooks.stock.policy.approvals import RequireApproval
    from callgate.hooks.stock.policy.authorize import Authorize
    from callgate.hooks.stock.policy.cedar import CedarPolicy
    from callgate.hooks.stock.policy.consent import Consent
    from callgate.hooks.stock.policy.feature_flags import FeatureFlags
    from callgate.hooks.stock.policy.rules import Decider, Rule, Ruling, Verdict, forbid, permit
    from callgate.hooks.stock.privacy.output_policy import OutputPolicy
    from callgate.hooks.stock.privacy.redact import Redact
    from callgate.hooks.stock.privacy.secrets import SecretMissing, Secrets, from_env, from_keyring
    from callgate.hooks.stock.records.audit import Audit
    from callgate.hooks.stock.records.audit_verify import AuditProblem, AuditReport, verify_audit, verify_rows
    from callgate.hooks.stock.records.telemetry import Metrics, Tracing
    from callgate.hooks.stock.resilience.circuit_breaker import CircuitBreaker
    from callgate.hooks.stock.resilience.recovery import Backoff, Deadline, Retry, Timeout
    from callgate.hooks.stock.sampling import sampled
    from callgate.providers.stores.base import AuditRow, Limit
    from callgate.runtime.call.stage_helpers import will_bind_providers_stage, wrap_with_around
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "TOOL_ERROR_STAGES": "callgate.hooks.stages",
            "TOOL_POST_STAGES": "callgate.hooks.stages",
            "TOOL_PRE_STAGES": "callgate.hooks.stages",
            "Audit": "callgate.hooks.stock.records.audit",
            "AuditProblem": "callgate.hooks.stock.records.audit_verify",
            "AuditReport": "callgate.hooks.stock.records.audit_verify",
            "AuditRow": "callgate.providers.stores.base",
            "Authorize": "callgate.hooks.stock.policy.authorize",
            "Backoff": "callgate.hooks.stock.resilience.recovery",
            "Cache": "callgate.hooks.stock.capacity.cache",
            "CedarPolicy": "callgate.hooks.stock.policy.cedar",
            "CircuitBreaker": "callgate.hooks.stock.resilience.circuit_breaker",
            "Committed": "callgate.hooks.effects",
            "Concurrency": "callgate.hooks.stock.capacity.concurrency",
            "Consent": "callgate.hooks.stock.policy.consent",
            "Deadline": "callgate.hooks.stock.resilience.recovery",
            "Decider": "callgate.hooks.stock.policy.rules",
            "FeatureFlags": "callgate.hooks.stock.policy.feature_flags",
            "Hook": "callgate.hooks.base",
            "HookOptions": "callgate.hooks.stock.options",
            "InvokeContext": "callgate.hooks.context",
            "Limit": "callgate.providers.stores.base",
            "Metrics": "callgate.hooks.stock.records.telemetry",
            "Next": "callgate.hooks.base",
            "NoEffect": "callgate.hooks.effects",
            "OutputPolicy": "callgate.hooks.stock.privacy.output_policy",
            "Quota": "callgate.hooks.stock.capacity.quota",
            "Reconciler": "callgate.hooks.effects",
            "Redact": "callgate.hooks.stock.privacy.redact",
            "RequireApproval": "callgate.hooks.stock.policy.approvals",
            "Retry": "callgate.hooks.stock.resilience.recovery",
            "Rule": "callgate.hooks.stock.policy.rules",
            "Ruling": "callgate.hooks.stock.policy.rules",
            "SecretMissing": "callgate.hooks.stock.privacy.secrets",
            "Secrets": "callgate.hooks.stock.privacy.secrets",
            "Stage": "callgate.hooks.stages",
            "Timeout": "callgate.hooks.stock.resilience.recovery",
            "Tracing": "callgate.hooks.stock.records.telemetry",
            "Verdict": "callgate.hooks.stock.policy.rules",
            "collect_hooks_for_stage": "callgate.hooks.selection",
            "forbid": "callgate.hooks.stock.policy.rules",
            "from_env": "callgate.hooks.stock.privacy.secrets",
            "from_keyring": "callgate.hooks.stock.privacy.secrets",
            "load": "callgate.hooks.installed",
            "on": "callgate.hooks.base",
            "permit": "callgate.hooks.stock.policy.rules",
            "sampled": "callgate.hooks.stock.sampling",
            "sort_for_stage": "callgate.hooks.selection",
            "verify_audit": "callgate.hooks.stock.records.audit_verify",
            "verify_rows": "callgate.hooks.stock.records.audit_verify",
            "will_bind_providers_stage": "callgate.runtime.call.stage_helpers",
            "wrap_with_around": "callgate.runtime.call.stage_helpers",
        },
    )

__all__ = [
    "TOOL_ERROR_STAGES",
    "TOOL_POST_STAGES",
    "TOOL_PRE_STAGES",
    "Audit",
    "AuditProblem",
    "AuditReport",
    "AuditRow",
    "Authorize",
    "Backoff",
    "Cache",
    "CedarPolicy",
    "CircuitBreaker",
    "Committed",
    "Concurrency",
    "Consent",
    "Deadline",
    "Decider",
    "FeatureFlags",
    "Hook",
    "HookOptions",
    "InvokeContext",
    "Limit",
    "Metrics",
    "Next",
    "NoEffect",
    "OutputPolicy",
    "Quota",
    "Reconciler",
    "Redact",
    "RequireApproval",
    "Retry",
    "Rule",
    "Ruling",
    "SecretMissing",
    "Secrets",
    "Stage",
    "Timeout",
    "Tracing",
    "Verdict",
    "collect_hooks_for_stage",
    "forbid",
    "from_env",
    "from_keyring",
    "load",
    "on",
    "permit",
    "sampled",
    "sort_for_stage",
    "verify_audit",
    "verify_rows",
    "will_bind_providers_stage",
    "wrap_with_around",
]
