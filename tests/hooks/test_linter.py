"""What the linter says of a plan, and that it says nothing of a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from callgate import Gate, Hook, Stage
from callgate.hooks.linter import BANDS, RULES, Finding, lint
from callgate.hooks.stages import RELEASE_OF
from callgate.tools.definition import Effect
from tests.hooks.making import DEFINITION, acting, at, echoing, plan_of, record


def hook(*stages: Stage, name: str = "Odd", **options: Any) -> Hook:
    return acting({stage: lambda ctx: None for stage in stages}, name=name, **options)()


def with_effect(effect: Effect | None) -> Any:
    return record(definition=replace(DEFINITION, effect=effect, key=("n",) if effect is Effect.KEYED else ()))


QUOTA, SEMAPHORE = Stage.WILL_ACQUIRE_QUOTA, Stage.WILL_ACQUIRE_SEMAPHORE
AROUND, READ, AUDIT = Stage.AROUND_EXECUTE, Stage.WILL_READ_CACHE, Stage.WILL_AUDIT

APART: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tools": {"other"}}, {}),
    ({}, {"effects": {"keyed"}}),
    ({"tenants": {"acme"}}, {"tenants": {"umbrella"}}),
    ({"filter": lambda self, ctx: True}, {}),
]
"""Options of two hooks that no call meets both, or of which a filter decides."""
BAD: dict[str, list[tuple[Any, list[Any]]]] = {
    "acquire_without_release": [(record(), [hook(acquire)]) for acquire in RELEASE_OF]
    + [(record(), [hook(QUOTA, Stage.DID_RELEASE_SEMAPHORE, SEMAPHORE)])],
    "release_without_acquire": [(record(), [hook(release)]) for release in RELEASE_OF.values()]
    + [(record(), [hook(release, Stage.WILL_AUTHORIZE)]) for release in RELEASE_OF.values()],
    "cache_before_authorise": [
        (record(), [hook(Stage.WILL_AUTHORIZE, READ, concern="cache")]),
        (record(), [hook(Stage.WILL_CREATE_INVOKE_CONTEXT, concern="cache")]),
    ],
    "redact_after_audit": [
        (record(), [hook(AUDIT, concern="redact")]),
        (record(), [hook(Stage.WILL_REDACT_OUTPUT, Stage.WILL_FINALIZE_INVOKE, concern="redact")]),
    ],
    "retry_on_irreversible": [
        (with_effect(Effect.IRREVERSIBLE), [hook(AROUND, repeats=True)]),
        (with_effect(None), [hook(AROUND, repeats=True)]),
    ],
    "cache_on_effect": [
        (with_effect(effect), [hook(READ)]) for effect in (None, Effect.IDEMPOTENT, Effect.KEYED, Effect.IRREVERSIBLE)
    ],
    "bands": [
        (record(), [hook(AROUND, concern=inner, priority=2), hook(AROUND, name="Outer", concern=outer, priority=1)])
        for number, outer in enumerate(BANDS)
        for inner in BANDS[number + 1 :]
    ],
    "repeated_policy": [
        (record(), [hook(AROUND, name="First", concern="retry"), hook(AROUND, concern="retry", **options)])
        for options in cast("list[dict[str, Any]]", [{}, {"tenants": {"acme"}}, {"tags": {"maths"}}])
    ],
}
GOOD: dict[str, list[tuple[Any, list[Any]]]] = {
    "acquire_without_release": [(record(), [hook(a, r)]) for a, r in RELEASE_OF.items()],
    "release_without_acquire": [(record(), [hook(a, r), hook(Stage.WILL_AUTHORIZE)]) for a, r in RELEASE_OF.items()],
    "cache_before_authorise": [
        (record(), [hook(READ, Stage.WILL_WRITE_CACHE, Stage.DID_CACHE_HIT, concern="cache")]),
        (record(), [hook(Stage.WILL_AUTHORIZE, concern="access")]),
    ],
    "redact_after_audit": [
        (record(), [hook(Stage.WILL_REDACT_INPUT, Stage.WILL_REDACT_OUTPUT, concern="redact")]),
        (record(), [hook(AUDIT, concern="audit")]),
    ],
    "retry_on_irreversible": [
        *(
            (with_effect(effect), [hook(AROUND, repeats=True)])
            for effect in (Effect.READ, Effect.IDEMPOTENT, Effect.KEYED)
        ),
        (with_effect(Effect.IRREVERSIBLE), [hook(AROUND)]),
        (with_effect(Effect.IRREVERSIBLE), [hook(AROUND, repeats=True, honours_effect=True)]),
        (with_effect(None), [hook(AROUND, repeats=True, honours_effect=True)]),
        (with_effect(Effect.IRREVERSIBLE), [hook(AROUND, repeats=True, tools={"other"})]),
    ],
    "cache_on_effect": [
        (record(), [hook(READ)]),
        (with_effect(Effect.KEYED), [hook(READ, tags={"other"})]),
    ],
    "bands": [
        (record(), [hook(AROUND, concern=concern, priority=-number) for number, concern in enumerate(BANDS)]),
        (
            record(),
            [hook(AROUND, concern="retry", priority=1), hook(AROUND, priority=2), hook(AROUND, concern="retry")],
        ),
    ],
    "repeated_policy": [
        *(
            (record(), [hook(AROUND, concern="retry", **first), hook(AROUND, concern="retry", **second)])
            for first, second in APART
        ),
        (record(), [hook(AROUND, concern="retry")] * 2),
        (record(), [hook(QUOTA, Stage.DID_RELEASE_QUOTA, concern="quota") for _ in range(2)]),
    ],
}


def found(tool: Any, hooks: list[Any]) -> dict[str, set[str]]:
    findings: dict[str, set[str]] = {}
    for finding in lint(plan_of(tool, *hooks)):
        findings.setdefault(finding.rule, set()).add(finding.hook)
    return findings


def test_every_rule_has_a_bad_plan_and_a_good_one_here() -> None:
    """Contract C1e, C15c."""
    # runtime/gate/test_no_schema.py, test_findings.py, test_source_documents.py, runtime/effects/test_units.py,
    # test_may_have_happened.py
    elsewhere = {
        "no_schema",
        "ends_after_outcome",
        "irreversible_without_key",
        "no_description",
        "no_type",
        "deprecated",
    }
    of_hooks = {rule.__name__.removeprefix("_") for rule in RULES} - elsewhere
    assert of_hooks == BAD.keys() == GOOD.keys()


@pytest.mark.parametrize("rule", BAD)
@pytest.mark.parametrize("make", [lambda hook: hook, type], ids=["object", "class"])
def test_a_rule_fires_on_a_plan_that_breaks_it(rule: str, make: Callable[[Any], Any]) -> None:
    """Contract 96, C1a, C1e, C15c."""
    for tool, hooks in BAD[rule]:
        assert found(tool, [make(one) for one in hooks])[rule] == {"Odd"}, hooks


@pytest.mark.parametrize("rule", GOOD)
def test_a_rule_is_silent_about_a_good_plan(rule: str) -> None:
    """Contract 96, C1a, C1e, C15c."""
    for tool, hooks in GOOD[rule]:
        assert rule not in found(tool, hooks), hooks


def test_a_plan_without_hooks_and_a_whole_good_one_have_no_findings() -> None:
    """Contract 96."""
    good = [
        hook(Stage.WILL_AUTHORIZE),
        hook(QUOTA, Stage.DID_RELEASE_QUOTA),
        hook(READ, Stage.WILL_WRITE_CACHE, concern="cache"),
        hook(Stage.WILL_REDACT_INPUT, concern="redact"),
        hook(AROUND, concern="deadline", priority=30),
        hook(AROUND, concern="retry", priority=10, repeats=True),
        hook(AUDIT),
    ]
    assert lint(plan_of(record())) == []
    assert lint(plan_of(record(), *good)) == []


def test_a_listing_that_enrols_the_release_is_no_finding() -> None:
    """Contract C1e."""
    both = hook(QUOTA, Stage.DID_RELEASE_QUOTA)
    gate = Gate([record()], hooks=[{"will_acquire_quota": [both]}])
    assert gate.lint() == []
    only_release = Gate([record()], hooks=[{"did_release_quota": [both]}])
    assert [finding.rule for finding in only_release.lint()] == ["release_without_acquire"]


def test_findings_name_the_tool_and_say_what_to_do() -> None:
    """Contract C15c."""
    gate = Gate([record(), echoing()], [at(AUDIT, lambda ctx: None, name="Late", concern="redact", tools={"double"})])
    (finding,) = gate.lint()
    assert isinstance(finding, Finding)
    assert (finding.rule, finding.tool, finding.hook) == ("redact_after_audit", "double", "Late")
    assert "will_redact_input" in finding.advice
    assert str(finding).startswith("redact_after_audit: double: Late: redacts at will_audit")
    assert gate.explain("double").findings == (finding,)
    assert f"lint {finding}" in str(gate.explain("double"))
    assert gate.explain("echo").findings == ()
