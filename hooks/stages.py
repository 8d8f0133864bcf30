"""The stage table: the single definition of the stages, their order, and the operations that each allows.

The plan compiler, ``explain``, the linter, the diagram in the docs and the tests all read this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import pairwise

from callgate.providers.guesses import camel


class Stage(StrEnum):
    """The 33 stages, in lifecycle order; a hook method has the same name."""

    WILL_CREATE_INVOKE_CONTEXT = "will_create_invoke_context"
    DID_CREATE_INVOKE_CONTEXT = "did_create_invoke_context"
    WILL_BIND_PROVIDERS = "will_bind_providers"
    WILL_AUTHORIZE = "will_authorize"
    WILL_CHECK_CONSENT = "will_check_consent"
    WILL_CHECK_FEATURE_FLAGS = "will_check_feature_flags"
    WILL_ACQUIRE_QUOTA = "will_acquire_quota"
    WILL_ACQUIRE_SEMAPHORE = "will_acquire_semaphore"
    WILL_PARSE_INPUT = "will_parse_input"
    WILL_VALIDATE_INPUT = "will_validate_input"
    WILL_NORMALIZE_INPUT = "will_normalize_input"
    WILL_AUTHORIZE_INPUT = "will_authorize_input"
    WILL_REDACT_INPUT = "will_redact_input"
    WILL_INJECT_SECRETS = "will_inject_secrets"
    WILL_READ_CACHE = "will_read_cache"
    DID_CACHE_HIT = "did_cache_hit"
    DID_CACHE_MISS = "did_cache_miss"
    AROUND_EXECUTE = "around_execute"
    ON_RETRY = "on_retry"
    WILL_EXECUTE = "will_execute"
    DID_EXECUTE = "did_execute"
    ON_GIVE_UP = "on_give_up"
    WILL_WRITE_CACHE = "will_write_cache"
    WILL_REDACT_OUTPUT = "will_redact_output"
    WILL_VALIDATE_OUTPUT = "will_validate_output"
    WILL_TRANSFORM_OUTPUT = "will_transform_output"
    ON_ERROR = "on_error"
    WILL_AUDIT = "will_audit"
    DID_AUDIT = "did_audit"
    ON_METRICS = "on_metrics"
    DID_RELEASE_SEMAPHORE = "did_release_semaphore"
    DID_RELEASE_QUOTA = "did_release_quota"
    WILL_FINALIZE_INVOKE = "will_finalize_invoke"


for _stage in Stage:  # the source documents write ToolHookStage.willAuthorize, and methods are named will_authorize
    for _name in (_stage.value, camel(_stage.value)):
        setattr(Stage, _name, _stage)


class Section(Enum):
    """The part of the lifecycle that walks the stage (``runtime/pipeline/run.py`` has one loop for each)."""

    BEFORE = "before"  # the steps before the tool
    CACHE = "cache"  # one of the two results of will_read_cache
    EXECUTE = "execute"  # inside the middleware, once per attempt
    SHAPING = "shaping"  # on the output, also after respond
    ERROR = "error"  # only if the invocation failed
    CLOSING = "closing"  # always, on every path; a failure here is recorded and changes nothing


class OnFailure(Enum):
    """The effect on the invocation when a hook raises in this stage."""

    DENY = "deny"  # a policy that fails to run denies the call
    FAIL = "fail"  # the outcome is error
    SUPPRESS = "suppress"  # recorded in ctx.suppressed; the outcome stays


class May(Enum):
    """Members of ``ctx`` that change the invocation in a stage; in other stages they raise ``StageError``."""

    INPUT = "input"
    MASK = "masked_input"
    OUTPUT = "output"
    BIND = "bind_provider"
    RESPOND = "respond"
    ABORT = "abort"
    SUSPEND = "suspend"
    LEASE = "lease"
    REPLACE_ERROR = "error"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    ``mirrored`` stages run low priority first, so that they undo in reverse. ``gives_back`` names the acquire stage
    whose leases this stage releases. ``built_in`` names the runtime's own step there, which runs after every hook.
    """

    stage: Stage
    phase: str
    section: Section
    may: frozenset[May]
    on_failure: OnFailure = OnFailure.FAIL
    gives_back: Stage | None = None
    built_in: str | None = None
    position: int = 0

    @property
    def mirrored(self) -> bool:
        """True if higher priority runs later, as in ``did_*`` stages."""
        return self.stage.startswith("did_")

    @property
    def acquires(self) -> bool:
        """True if a hook that returns from this stage holds a lease."""
        return self.stage in ACQUIRE_STAGES


_STEER = {May.RESPOND, May.ABORT, May.LEASE}
_ASK = {*_STEER, May.SUSPEND, May.BIND}
_RAW = {*_ASK, May.INPUT}
RECORDS = (Stage.WILL_AUDIT, Stage.DID_AUDIT, Stage.ON_METRICS)
ACQUIRE_STAGES = frozenset({Stage.WILL_ACQUIRE_QUOTA, Stage.WILL_ACQUIRE_SEMAPHORE})


def _rows() -> Iterator[Row]:
    def row(
        stage: Stage,
        phase: str,
        section: Section,
        may: set[May],
        on_failure: OnFailure = OnFailure.FAIL,
        gives_back: Stage | None = None,
        built_in: str | None = None,
    ) -> Row:
        return Row(stage, phase, section, frozenset(may), on_failure, gives_back, built_in, list(Stage).index(stage))

    before, deny, suppress = Section.BEFORE, OnFailure.DENY, OnFailure.SUPPRESS
    yield row(Stage.WILL_CREATE_INVOKE_CONTEXT, "context", before, _RAW)
    yield row(Stage.DID_CREATE_INVOKE_CONTEXT, "context", before, _RAW)
    yield row(Stage.WILL_BIND_PROVIDERS, "providers", before, _RAW)
    yield row(Stage.WILL_AUTHORIZE, "policy", before, _ASK, deny, built_in="allowed roles")
    yield row(Stage.WILL_CHECK_CONSENT, "policy", before, _ASK, deny)
    yield row(Stage.WILL_CHECK_FEATURE_FLAGS, "policy", before, _ASK, deny)
    yield row(Stage.WILL_ACQUIRE_QUOTA, "capacity", before, _ASK)
    yield row(Stage.WILL_ACQUIRE_SEMAPHORE, "capacity", before, _ASK)
    yield row(Stage.WILL_PARSE_INPUT, "input", before, _RAW, built_in="parse")
    yield row(Stage.WILL_VALIDATE_INPUT, "input", before, _RAW, built_in="validate")
    yield row(Stage.WILL_NORMALIZE_INPUT, "input", before, _RAW, built_in="validate again, freeze")
    yield row(Stage.WILL_AUTHORIZE_INPUT, "policy", before, _ASK, deny, built_in="approval")
    yield row(Stage.WILL_REDACT_INPUT, "input", before, {*_STEER, May.BIND, May.MASK})
    yield row(Stage.WILL_INJECT_SECRETS, "input", before, {*_STEER, May.BIND})
    yield row(Stage.WILL_READ_CACHE, "cache", before, _STEER, built_in="hit or miss")
    yield row(Stage.DID_CACHE_HIT, "cache", Section.CACHE, {*_STEER, May.OUTPUT})
    yield row(Stage.DID_CACHE_MISS, "cache", Section.CACHE, _STEER)
    yield row(
        Stage.AROUND_EXECUTE, "execute", Section.EXECUTE, {*_STEER, May.OUTPUT, May.BIND}, built_in="claim the effect"
    )
    yield row(Stage.ON_RETRY, "execute", Section.EXECUTE, _STEER)
    yield row(Stage.WILL_EXECUTE, "execute", Section.EXECUTE, {*_STEER, May.BIND}, built_in="run the tool")
    yield row(Stage.DID_EXECUTE, "execute", Section.EXECUTE, {*_STEER, May.OUTPUT})
    yield row(Stage.ON_GIVE_UP, "error", Section.ERROR, {May.REPLACE_ERROR}, suppress)
    shape = {May.OUTPUT, May.RESPOND, May.ABORT}
    yield row(Stage.WILL_WRITE_CACHE, "cache", Section.SHAPING, {May.RESPOND, May.ABORT})
    yield row(Stage.WILL_REDACT_OUTPUT, "output", Section.SHAPING, shape)
    yield row(Stage.WILL_VALIDATE_OUTPUT, "output", Section.SHAPING, shape, built_in="validate")
    yield row(Stage.WILL_TRANSFORM_OUTPUT, "output", Section.SHAPING, shape, built_in="limit")
    yield row(Stage.ON_ERROR, "error", Section.ERROR, {May.REPLACE_ERROR}, suppress)
    closing = Section.CLOSING
    yield row(Stage.WILL_AUDIT, "records", closing, set(), suppress)
    yield row(Stage.DID_AUDIT, "records", closing, set(), suppress, built_in="settle the effect")
    yield row(Stage.ON_METRICS, "records", closing, set(), suppress)
    yield row(
        Stage.DID_RELEASE_SEMAPHORE, "capacity", closing, set(), suppress, gives_back=Stage.WILL_ACQUIRE_SEMAPHORE
    )
    yield row(Stage.DID_RELEASE_QUOTA, "capacity", closing, set(), suppress, gives_back=Stage.WILL_ACQUIRE_QUOTA)
    yield row(Stage.WILL_FINALIZE_INVOKE, "final", closing, set(), suppress)


STAGES: dict[Stage, Row] = {row.stage: row for row in _rows()}
RELEASE_OF: dict[Stage, Stage] = {row.gives_back: row.stage for row in STAGES.values() if row.gives_back is not None}


def stages_in(*sections: Section) -> tuple[Stage, ...]:
    """Return the stages of the given sections, in lifecycle order."""
    return tuple(row.stage for row in STAGES.values() if row.section in sections)


TOOL_PRE_STAGES = stages_in(Section.BEFORE, Section.CACHE)
"""Stages before the tool runs."""
TOOL_POST_STAGES = stages_in(Section.SHAPING, Section.CLOSING)
"""Stages after the tool ran, or after ``respond``."""
TOOL_ERROR_STAGES = (Stage.ON_ERROR, *stages_in(Section.CLOSING))
"""Stages of a failed invocation."""


def diagram() -> str:
    """Return the lifecycle as a Mermaid flow chart; a test compares it with ``docs/reference/stages.md``."""
    lines = ["```mermaid", "flowchart TD"]
    for section in Section:
        lines.append(f"  subgraph {section.name}[{section.value}]")
        stages = stages_in(section)
        for stage in stages:
            note = f"<br/><i>{STAGES[stage].built_in}</i>" if STAGES[stage].built_in else ""
            lines.append(f'    {stage.value}["{stage.value}{note}"]')
        lines.extend(
            f"    {first.value} --> {second.value}"
            for first, second in pairwise(stages)
            if section not in (Section.CACHE, Section.ERROR)
        )
        lines.append("  end")
    lines += [
        "  will_read_cache -- hit --> did_cache_hit",
        "  will_read_cache -- miss --> did_cache_miss",
        "  did_cache_hit -- no respond --> around_execute",
        "  did_cache_miss --> around_execute",
        "  will_inject_secrets -. no cache hook .-> around_execute",
        "  did_execute --> will_write_cache",
        *_ways_out(),
        "  EXECUTE -. error .-> on_give_up -. after retries .-> on_error",
        "  will_transform_output --> will_audit",
        "  on_error --> will_audit",
        "```",
    ]
    return "\n".join(lines)


def _ways_out() -> Iterator[str]:
    """Yield the early exits of each section: by its hooks, by errors, and by a cancellation from outside."""
    shaping, closing = stages_in(Section.SHAPING)[0], stages_in(Section.CLOSING)[0]
    for section in (Section.BEFORE, Section.CACHE, Section.EXECUTE, Section.SHAPING):
        may = frozenset[May]().union(*(STAGES[stage].may for stage in stages_in(section)))
        if (
            May.RESPOND in may and section is not Section.SHAPING
        ):  # in SHAPING, respond only continues with the next stage
            yield f"  {section.name} -. respond .-> {shaping.value}"
        if May.SUSPEND in may:
            yield f"  {section.name} -. suspend .-> {closing.value}"
        refused = "abort, retry_after, error" if May.ABORT in may else "error"
        yield f"  {section.name} -. {refused} .-> {Stage.ON_ERROR.value}"
        yield f"  {section.name} -. cancellation .-> {Stage.ON_ERROR.value}"
