"""The stage table: the one source of order, powers and pairs."""

from __future__ import annotations

import inspect
import re

import pytest

from callgate import Hook, Stage
from callgate.hooks import TOOL_ERROR_STAGES, TOOL_POST_STAGES, TOOL_PRE_STAGES
from callgate.hooks.stages import RELEASE_OF, STAGES, May, OnFailure, Section, diagram, stages_in

DOCUMENTS = """
    willCreateInvokeContext didCreateInvokeContext willBindProviders willAuthorize willCheckConsent willCheckFeatureFlags
    willAcquireQuota willAcquireSemaphore willParseInput willValidateInput willNormalizeInput willRedactInput
    willInjectSecrets willReadCache didCacheHit didCacheMiss aroundExecute onRetry willExecute didExecute onGiveUp
    willWriteCache willRedactOutput willValidateOutput willTransformOutput onError willAudit didAudit onMetrics
    didReleaseSemaphore didReleaseQuota willFinalizeInvoke
""".split()
"""The documents' 32 stages in the order of contract 97, with the error path of C1 and the retries of 102 put in."""


def snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()


def test_the_table_has_the_documents_stages_in_their_order_and_one_of_ours() -> None:
    """Contract 90, 97, C13."""
    ours = [stage for stage in Stage if stage is not Stage.WILL_AUTHORIZE_INPUT]
    assert ours == [snake(name) for name in DOCUMENTS]
    assert list(STAGES) == list(Stage)
    order = list(Stage)
    assert order[order.index(Stage.WILL_AUTHORIZE_INPUT) - 1] is Stage.WILL_NORMALIZE_INPUT


@pytest.mark.parametrize("stage", Stage)
def test_a_hook_method_has_the_name_of_its_stage(stage: Stage) -> None:
    """Contract 90."""
    method = getattr(Hook, stage.value)
    assert method.__name__ == stage.value
    assert method.__doc__
    expected = ["self", "ctx", "next"] if stage is Stage.AROUND_EXECUTE else ["self", "ctx"]
    assert list(inspect.signature(method).parameters) == expected
    assert STAGES[stage].stage is stage
    assert STAGES[stage].position == list(Stage).index(stage)


def test_did_stages_run_in_mirrored_order_and_no_others() -> None:
    """Contract 91."""
    assert {stage for stage in Stage if STAGES[stage].mirrored} == {s for s in Stage if s.name.startswith("DID_")}


def test_the_groups_that_the_documents_export() -> None:
    """Contract 95, 104, C1."""
    assert stages_in(Section.BEFORE, Section.CACHE) == TOOL_PRE_STAGES
    assert stages_in(Section.SHAPING, Section.CLOSING) == TOOL_POST_STAGES
    assert TOOL_ERROR_STAGES == (
        Stage.ON_ERROR,
        Stage.WILL_AUDIT,
        Stage.DID_AUDIT,
        Stage.ON_METRICS,
        Stage.DID_RELEASE_SEMAPHORE,
        Stage.DID_RELEASE_QUOTA,
        Stage.WILL_FINALIZE_INVOKE,
    )
    inner = set(stages_in(Section.EXECUTE, Section.ERROR))
    assert set(TOOL_PRE_STAGES) | set(TOOL_POST_STAGES) | inner == set(Stage)


def test_what_is_acquired_first_is_given_back_last() -> None:
    """Contract 96, C1a."""
    assert RELEASE_OF == {
        Stage.WILL_ACQUIRE_QUOTA: Stage.DID_RELEASE_QUOTA,
        Stage.WILL_ACQUIRE_SEMAPHORE: Stage.DID_RELEASE_SEMAPHORE,
    }
    acquired = [stage for stage in Stage if STAGES[stage].acquires]
    assert acquired == [Stage.WILL_ACQUIRE_QUOTA, Stage.WILL_ACQUIRE_SEMAPHORE]
    given_back = [STAGES[stage].gives_back for stage in stages_in(Section.CLOSING)]
    assert [stage for stage in given_back if stage] == acquired[::-1]


def test_arguments_can_be_set_before_they_are_authorised_and_never_after() -> None:
    """Contract C16, I2."""
    frozen = STAGES[Stage.WILL_AUTHORIZE_INPUT].position
    assert all(row.position < frozen for row in STAGES.values() if May.INPUT in row.may)
    assert [row.stage for row in STAGES.values() if May.MASK in row.may] == [Stage.WILL_REDACT_INPUT]
    assert May.INPUT in STAGES[Stage.WILL_NORMALIZE_INPUT].may


def test_an_invocation_can_be_suspended_until_its_arguments_are_authorised() -> None:
    """Contract 88."""
    last = STAGES[Stage.WILL_AUTHORIZE_INPUT].position
    assert [row.stage for row in STAGES.values() if May.SUSPEND in row.may] == [*Stage][: last + 1]


def test_a_policy_that_cannot_run_denies_and_a_record_that_cannot_be_written_changes_nothing() -> None:
    """Contract C1c, C22, I6, I10."""
    policies = {row.stage for row in STAGES.values() if row.phase == "policy"}
    assert policies == {row.stage for row in STAGES.values() if row.on_failure is OnFailure.DENY}
    assert Stage.WILL_AUTHORIZE in policies
    after = stages_in(Section.ERROR, Section.CLOSING)
    assert list(after) == [stage for stage in Stage if STAGES[stage].on_failure is OnFailure.SUPPRESS]
    assert not any(STAGES[stage].may for stage in stages_in(Section.CLOSING))


def test_a_call_is_authorised_before_any_cache_is_asked() -> None:
    """Contract C15c."""
    cache = STAGES[Stage.WILL_READ_CACHE].position
    gates = [row for row in STAGES.values() if row.phase in {"policy", "capacity"} and row.section is Section.BEFORE]
    assert gates
    assert all(row.position < cache for row in gates)


def test_the_diagram_is_drawn_from_the_table() -> None:
    """Contract 97."""
    drawn = diagram()
    for row in STAGES.values():
        note = f"<br/><i>{row.built_in}</i>" if row.built_in else ""
        assert f'{row.stage.value}["{row.stage.value}{note}"]' in drawn


@pytest.mark.parametrize("section", [Section.BEFORE, Section.CACHE, Section.EXECUTE, Section.SHAPING])
def test_the_diagram_shows_every_way_out_of_a_section(section: Section) -> None:
    """Contract 97, 99, 100, 101, C1d: a response, a suspension, a refusal or an error, a cancellation."""
    may = {power for stage in stages_in(section) for power in STAGES[stage].may}
    ways = {
        f"{section.name} -. respond .-> will_write_cache": May.RESPOND in may and section is not Section.SHAPING,
        f"{section.name} -. suspend .-> will_audit": May.SUSPEND in may,
        f"{section.name} -. abort, retry_after, error .-> on_error": May.ABORT in may,
        f"{section.name} -. cancellation .-> on_error": True,
    }
    drawn = diagram().split("\n")
    assert {way: f"  {way}" in drawn for way in ways} == ways
