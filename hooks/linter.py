"""The linter of plans. Every rule is one function from a plan to findings; no rule inspects hook code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, merge_registrations, why_not
from callgate.hooks.stages import RELEASE_OF, STAGES, Stage
from callgate.providers.ranks import Rank
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.naming import did_you_mean
from callgate.tools.record import runs_again

BANDS = ("deadline", "breaker", "retry", "attempt")
"""Concerns of ``around_execute`` hooks, outermost first: deadline > breaker > retry > timeout of an attempt."""
_TEXTS = frozenset({"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"})
"""Keywords of a schema that restrict no value."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a stable ``rule``, the tool (``"*"`` is the whole gate), the hook, and the advice."""

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


def lint_hooks(
    hooks: Iterable[Registration], definitions: Collection[ToolDefinition], tool: str = "*"
) -> list[Finding]:
    """Return the findings about hooks that never run: names that no tool or tenant has, and ``runs_nowhere``."""
    known = {"tools": {one.name for one in definitions}, "tags": {tag for one in definitions for tag in one.tags}}
    found = []
    for one in hooks:
        if (reason := one.runs_nowhere) is not None:
            found.append(Finding("runs_nowhere", tool, one.name, f"runs nowhere: {reason}"))
        for what in ("tools", "tags", "tenants"):
            chosen: frozenset[str] = getattr(one, what) or frozenset()
            odd = sorted(chosen - known.get(what, chosen))
            advice = [f"no tool has {what}={{{name!r}}}{did_you_mean(name, known[what])}" for name in odd]
            if not chosen - {""} and getattr(one, what) is not None:
                advice = [f"{what} has no name, so it matches no call; leave it out to match all"]
            found += [Finding("unknown_selector", tool, one.name, text) for text in advice]
    return found


def _active(plan: Plan) -> Iterator[tuple[Registration, tuple[Stage, ...]]]:
    for one in plan.registrations:
        if why_not(one, plan.definition) is None:
            yield one, one.all_stages()


def _acquire_without_release(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        for acquire, release in RELEASE_OF.items():
            if acquire in stages and release not in stages:
                advice = "what it takes is never given back; add it, or use ctx.lease()"
                yield one.name, f"{acquire} has no {release}: {advice}"


def _release_without_acquire(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        for acquire, release in RELEASE_OF.items():
            if release in stages and acquire not in stages:
                yield one.name, f"{release} without {acquire}: it runs whenever that stage is over, taken or not"


def _cache_before_authorise(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        early = [s for s in stages if STAGES[s].position < STAGES[Stage.WILL_READ_CACHE].position]
        if one.option("concern") == "cache" and early:
            advice = "before the call is authorised; read it in will_read_cache"
            yield one.name, f"answers from a cache at {early[0]}, {advice}"


def _redact_after_audit(plan: Plan) -> Iterator[tuple[str, str]]:
    for one, stages in _active(plan):
        late = [s for s in stages if STAGES[s].position >= STAGES[Stage.WILL_AUDIT].position]
        if one.option("concern") == "redact" and late:
            advice = "when the record is being written; do it in will_redact_input or _output"
            yield one.name, f"redacts at {late[0]}, {advice}"


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


def _repeated_policy(plan: Plan) -> Iterator[tuple[str, str]]:
    enforced = [one for one, _ in _active(plan) if not one.is_shadow and one.filter is None]
    for first, second in combinations(merge_registrations(enforced), 2):
        if first.tenants is not None and second.tenants is not None and first.tenants.isdisjoint(second.tenants):
            continue
        if first.option("concern") == second.option("concern") == "retry":
            yield second.name, f"multiplies the attempts of {first.name} ({first.origin}); keep one of them"
        elif type(first.hook) is type(second.hook) and first.option("made_with") == second.option("made_with", ()):
            yield second.name, f"has the settings of that of {first.origin}; register one object"


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


def _no_description(plan: Plan) -> Iterator[tuple[str, str]]:
    if not plan.definition.description:
        yield "tool", "has no description, and models choose tools by it; write a docstring or description="


def _no_type(plan: Plan) -> Iterator[tuple[str, str]]:
    properties = (plan.definition.parameters or {}).get("properties")
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(schema, Mapping) and schema.keys() <= _TEXTS:
            yield (
                f"parameter {name!r}",
                "has no type: a model may pass any value; annotate it, or give its schema a type",
            )


AT_REGISTRATION = frozenset({"no_schema", "no_description"})
"""Rules whose findings are logged as ``definition.warning`` when a tool is added."""


def _deprecated(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.definition.deprecated is not None:
        yield "tool", f"is deprecated: {plan.definition.deprecated}"


RULES: tuple[Callable[[Plan], Iterator[tuple[str, str]]], ...] = (
    _acquire_without_release,
    _release_without_acquire,
    _cache_before_authorise,
    _redact_after_audit,
    _retry_on_irreversible,
    _cache_on_effect,
    _bands,
    _repeated_policy,
    _no_schema,
    _ends_after_outcome,
    _irreversible_without_key,
    _no_description,
    _no_type,
    _deprecated,
)
