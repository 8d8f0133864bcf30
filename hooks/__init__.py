"""The public module for hooks: the base class, the stages, and the stock hooks. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.hooks.base import Hook as Hook
    from callgate.hooks.base import Next as Next
    from callgate.hooks.base import on as on
    from callgate.hooks.context import InvokeContext as InvokeContext
    from callgate.hooks.effects import Committed as Committed
    from callgate.hooks.effects import NoEffect as NoEffect
    from callgate.hooks.effects import Reconciler as Reconciler
    from callgate.hooks.installed import load as load
    from callgate.hooks.selection import by_stage as by_stage
    from callgate.hooks.selection import collect_hooks_for_stage as collect_hooks_for_stage
    from callgate.hooks.selection import sort_for_stage as sort_for_stage
    from callgate.hooks.stages import TOOL_ERROR_STAGES as TOOL_ERROR_STAGES
    from callgate.hooks.stages import TOOL_POST_STAGES as TOOL_POST_STAGES
    from callgate.hooks.stages import TOOL_PRE_STAGES as TOOL_PRE_STAGES
    from callgate.hooks.stages import Stage as Stage
    from callgate.hooks.stock.capacity.cache import Cache as Cache
    from callgate.hooks.stock.capacity.concurrency import Concurrency as Concurrency
    from callgate.hooks.stock.capacity.rate_limit import Quota as Quota
    from callgate.hooks.stock.options import HookOptions as HookOptions
    from callgate.hooks.stock.policy.approvals import RequireApproval as RequireApproval
    from callgate.hooks.stock.policy.authorize import Authorize as Authorize
    from callgate.hooks.stock.policy.cedar import CedarPolicy as CedarPolicy
    from callgate.hooks.stock.policy.consent import Consent as Consent
    from callgate.hooks.stock.policy.feature_flags import FeatureFlags as FeatureFlags
    from callgate.hooks.stock.policy.rules import Decider as Decider
    from callgate.hooks.stock.policy.rules import Rule as Rule
    from callgate.hooks.stock.policy.rules import Ruling as Ruling
    from callgate.hooks.stock.policy.rules import Verdict as Verdict
    from callgate.hooks.stock.policy.rules import forbid as forbid
    from callgate.hooks.stock.policy.rules import permit as permit
    from callgate.hooks.stock.privacy.output_policy import OutputPolicy as OutputPolicy
    from callgate.hooks.stock.privacy.redact import Redact as Redact
    from callgate.hooks.stock.privacy.secrets import SecretMissing as SecretMissing
    from callgate.hooks.stock.privacy.secrets import Secrets as Secrets
    from callgate.hooks.stock.privacy.secrets import from_env as from_env
    from callgate.hooks.stock.privacy.secrets import from_keyring as from_keyring
    from callgate.hooks.stock.records.audit import Audit as Audit
    from callgate.hooks.stock.records.audit_anchors import AnchorEndpoint as AnchorEndpoint
    from callgate.hooks.stock.records.audit_anchors import AnchorFile as AnchorFile
    from callgate.hooks.stock.records.audit_export import AuditFile as AuditFile
    from callgate.hooks.stock.records.audit_export import export_audit as export_audit
    from callgate.hooks.stock.records.audit_export import read_audit_file as read_audit_file
    from callgate.hooks.stock.records.audit_otlp import AuditOtlp as AuditOtlp
    from callgate.hooks.stock.records.audit_retention import AuditPruning as AuditPruning
    from callgate.hooks.stock.records.audit_retention import prune_audit as prune_audit
    from callgate.hooks.stock.records.audit_verify import AuditProblem as AuditProblem
    from callgate.hooks.stock.records.audit_verify import AuditReport as AuditReport
    from callgate.hooks.stock.records.audit_verify import verify_audit as verify_audit
    from callgate.hooks.stock.records.audit_verify import verify_rows as verify_rows
    from callgate.hooks.stock.records.telemetry import Metrics as Metrics
    from callgate.hooks.stock.records.telemetry import Tracing as Tracing
    from callgate.hooks.stock.resilience.circuit_breaker import CircuitBreaker as CircuitBreaker
    from callgate.hooks.stock.resilience.retry import Backoff as Backoff
    from callgate.hooks.stock.resilience.retry import Retry as Retry
    from callgate.hooks.stock.resilience.timeout import Deadline as Deadline
    from callgate.hooks.stock.resilience.timeout import Timeout as Timeout
    from callgate.hooks.stock.sampling import sampled as sampled
    from callgate.providers.stores.base import AuditRow as AuditRow
    from callgate.providers.stores.base import Limit as Limit
    from callgate.runtime.pipeline.stage_helpers import will_bind_providers_stage as will_bind_providers_stage
    from callgate.runtime.pipeline.stage_helpers import wrap_with_around as wrap_with_around
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "TOOL_ERROR_STAGES": "callgate.hooks.stages",
            "TOOL_POST_STAGES": "callgate.hooks.stages",
            "TOOL_PRE_STAGES": "callgate.hooks.stages",
            "AnchorEndpoint": "callgate.hooks.stock.records.audit_anchors",
            "AnchorFile": "callgate.hooks.stock.records.audit_anchors",
            "Audit": "callgate.hooks.stock.records.audit",
            "AuditFile": "callgate.hooks.stock.records.audit_export",
            "AuditOtlp": "callgate.hooks.stock.records.audit_otlp",
            "AuditProblem": "callgate.hooks.stock.records.audit_verify",
            "AuditPruning": "callgate.hooks.stock.records.audit_retention",
            "AuditReport": "callgate.hooks.stock.records.audit_verify",
            "AuditRow": "callgate.providers.stores.base",
            "Authorize": "callgate.hooks.stock.policy.authorize",
            "Backoff": "callgate.hooks.stock.resilience.retry",
            "Cache": "callgate.hooks.stock.capacity.cache",
            "CedarPolicy": "callgate.hooks.stock.policy.cedar",
            "CircuitBreaker": "callgate.hooks.stock.resilience.circuit_breaker",
            "Committed": "callgate.hooks.effects",
            "Concurrency": "callgate.hooks.stock.capacity.concurrency",
            "Consent": "callgate.hooks.stock.policy.consent",
            "Deadline": "callgate.hooks.stock.resilience.timeout",
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
            "Quota": "callgate.hooks.stock.capacity.rate_limit",
            "Reconciler": "callgate.hooks.effects",
            "Redact": "callgate.hooks.stock.privacy.redact",
            "RequireApproval": "callgate.hooks.stock.policy.approvals",
            "Retry": "callgate.hooks.stock.resilience.retry",
            "Rule": "callgate.hooks.stock.policy.rules",
            "Ruling": "callgate.hooks.stock.policy.rules",
            "SecretMissing": "callgate.hooks.stock.privacy.secrets",
            "Secrets": "callgate.hooks.stock.privacy.secrets",
            "Stage": "callgate.hooks.stages",
            "Timeout": "callgate.hooks.stock.resilience.timeout",
            "Tracing": "callgate.hooks.stock.records.telemetry",
            "Verdict": "callgate.hooks.stock.policy.rules",
            "by_stage": "callgate.hooks.selection",
            "collect_hooks_for_stage": "callgate.hooks.selection",
            "export_audit": "callgate.hooks.stock.records.audit_export",
            "forbid": "callgate.hooks.stock.policy.rules",
            "from_env": "callgate.hooks.stock.privacy.secrets",
            "from_keyring": "callgate.hooks.stock.privacy.secrets",
            "load": "callgate.hooks.installed",
            "on": "callgate.hooks.base",
            "permit": "callgate.hooks.stock.policy.rules",
            "prune_audit": "callgate.hooks.stock.records.audit_retention",
            "read_audit_file": "callgate.hooks.stock.records.audit_export",
            "sampled": "callgate.hooks.stock.sampling",
            "sort_for_stage": "callgate.hooks.selection",
            "verify_audit": "callgate.hooks.stock.records.audit_verify",
            "verify_rows": "callgate.hooks.stock.records.audit_verify",
            "will_bind_providers_stage": "callgate.runtime.pipeline.stage_helpers",
            "wrap_with_around": "callgate.runtime.pipeline.stage_helpers",
        },
    )
