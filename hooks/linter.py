"""The linter of plans. Every rule is one function from a plan to findings; no rule inspects hook code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, why_not
from callgate.hooks.stages import RELEASE_OF, STAGES, Stage
from callgate.providers.ranks import Rank
from callgate.tools.definition import Effect
from callgate.tools.record import runs_again

BANDS = ("deadline", "breaker", "retry", "attempt")
"""Concerns of ``around_execute`` hooks, outermost first: deadline > breaker > retry > timeout of an attempt."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a stable ``rule``, the tool, the hook, and the advice."""

    rule: str
    tool: str
    hook: str
    advice: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.tool}: {self.hook}: {self.advice}"


def lint(plan: Plan) -> list[Finding]:
    """Return every finding about a plan, in the order of the rules."""
    return [
        Finding(rule.__name__.removeprefix("_"), plan.definition.name, hook, advice)
        for rule in RULES
        for hook, advice in rule(plan)
    ]


def _active(plan: Plan) -> Iterator[tuple[Registration, tuple[Stage, ...]]]:
    for one in plan.registrations:
        if why_not(one, plan.definition) is None:
            yield one, one.all_stages()


def _position(stage: Stage) -> int:
    return STAGES[stage].position


def _acquire_without_release(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        for acquire, release in RELEASE_OF.items():
            if acquire in stages and release not in stages:
                yield (
                    one.name,
                    f"{acquire} has no {release}: what it takes is never given back; add it, or use ctx.lease()",
                )


def _release_without_acquire(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        for acquire, release in RELEASE_OF.items():
            if release in stages and acquire not in stages:
                yield one.name, f"{release} without {acquire}: it runs whenever that stage is over, taken or not"


def _cache_before_authorise(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        early = [s for s in stages if _position(s) < _position(Stage.WILL_READ_CACHE)]
        if one.option("concern") == "cache" and early:
            yield (
                one.name,
                f"answers from a cache at {early[0]}, before the call is authorised; read it in will_read_cache",
            )


def _redact_after_audit(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        late = [s for s in stages if _position(s) >= _position(Stage.WILL_AUDIT)]
        if one.option("concern") == "redact" and late:
            yield (
                one.name,
                f"redacts at {late[0]}, when the record is being written; do it in will_redact_input or _output",
            )


def _retry_on_irreversible(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.definition.effect not in (Effect.IRREVERSIBLE, None):
        return
    for one, stages in _active(plan):
        if one.option("repeats", False) and Stage.AROUND_EXECUTE in stages and not one.option("honours_effect", False):
            effect = plan.definition.effect or "undeclared"
            yield (
                one.name,
                f"may run a tool with effect {effect} twice; leave this tool out, or declare what repeating it does",
            )


def _cache_on_effect(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.definition.effect is Effect.READ:
        return
    for one, stages in _active(plan):
        if Stage.WILL_READ_CACHE in stages:
            yield one.name, "answers a tool that is not declared read from a cache: its effect would not happen"


def _bands(plan: Plan) -> Iterator[tuple[str, str]]:
    order = [one for _, _, step in plan.around for one in plan.registrations if one.hook is step.hook]
    concerns = [(one, BANDS.index(one.option("concern"))) for one in order if one.option("concern") in BANDS]
    for (outer, first), (inner, second) in pairwise(concerns):
        if first > second:
            yield outer.name, f"wraps {inner.name}, which belongs outside it ({' > '.join(BANDS)}); change a priority"


def _no_schema(plan: Plan) -> Iterator[tuple[str, str]]:
    rules = plan.builtins.unvalidated
    if rules is not None:
        yield (
            "no schema",
            f"validated=false, no_schema_mode={rules.own.mode}: no schema validates the arguments; declare parameters",
        )


def _ends_after_outcome(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.definition.effect is Effect.READ or (supply := plan.supplies.get(plan.record)) is None:
        return
    for name, recipe in supply.wanted:
        if recipe.rank is Rank.REQUEST and recipe.has_end:
            advice = "if it commits after its yield, make it Scoped('execution', ...)"
            yield f"parameter {name!r}", f"{recipe.name} ends after the outcome of the effect is recorded; {advice}"


def _irreversible_without_key(plan: Plan) -> Iterator[tuple[str, str]]:
    if runs_again(plan.record):
        yield "tool", "is irreversible and has no key: a repeated call runs it again; declare key=(...) or dedupe"


RULES: tuple[Callable[[Plan], Iterator[tuple[str, str]]], ...] = (
    _acquire_without_release,
    _release_without_acquire,
    _cache_before_authorise,
    _redact_after_audit,
    _retry_on_irreversible,
    _cache_on_effect,
    _bands,
    _no_schema,
    _ends_after_outcome,
    _irreversible_without_key,
)
