"""Compilation of a plan: ``compile_plan`` makes it whole, and nothing changes it afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan, PlanParts
from callgate.hooks.selection import Registration, may_ask, merge_registrations, select_by_stage
from callgate.hooks.stages import RECORDS, RELEASE_OF, STAGES, Section, Stage, stages_in
from callgate.hooks.state.host import Checks, EffectOfTool, Execute, Steps
from callgate.hooks.state.step import ASYNC, SYNC, PlanStep, StepCall, plan_step
from callgate.providers.logs import LogEvent, binds_ids, emit
from callgate.runtime.pipeline.approval import Source, approval_step, of_repaired, of_tool
from callgate.runtime.pipeline.around import wrap_attempt
from callgate.runtime.pipeline.bodies import arguments_of, direct_call, make_body, runs_in_place, supplied_call
from callgate.runtime.pipeline.builtin import BuiltIns
from callgate.runtime.pipeline.guards import guarded_step, only_where_it_applies, traced, valueless
from callgate.runtime.pipeline.injection import supplies_of
from callgate.runtime.pipeline.run import attempt
from callgate.runtime.pipeline.services import Services
from callgate.tools.definition import Effect
from callgate.tools.record import ToolRecord

_Stages: TypeAlias = Mapping[Stage, Steps]
TimeLimits: TypeAlias = tuple[float | None, float | None]
"""The deadline of a tool, and its seconds without progress."""
_OF_PARTS = (Stage.WILL_REDACT_OUTPUT, Stage.WILL_VALIDATE_OUTPUT, Stage.WILL_TRANSFORM_OUTPUT)
"""The stages that shape a part of an output."""


def compile_plan(
    record: ToolRecord,
    hooks: Sequence[Registration],
    services: Services,
    *,
    builtins: BuiltIns,
    trace: bool = False,
    limits: TimeLimits = (None, None),
) -> Plan:
    """Compile the plan of one tool.

    Args:
        record: the tool.
        hooks: its hooks, in their order; see ``gather_registrations``.
        services: the gate.
        builtins: the checks of the tool; plans of one tool with other hooks share them.
        trace: write a row to the trace of a call for each step.
        limits: those of calls of a tool that declares none.

    Raises:
        RegistrationError: a hook lacks its stage, or a provider is missing.
    """
    parts = PlanParts(
        record=record,
        registrations=tuple(hooks),
        by_stage=select_by_stage(record.definition, hooks),
        host=services,
        builtins=builtins,
        supplies=supplies_of(services, record, hooks),
        running=plan_step(Stage.WILL_EXECUTE, "tool"),
        trace=trace,
        hard=services.hard_deadline if record.hard_deadline is None else record.hard_deadline,
    )
    stages = _steps_of_hooks(parts)
    sections = _sections(parts, stages, builtins, services)
    deadline, idle = limits
    own = (deadline if record.deadline is None else record.deadline, idle if record.idle is None else record.idle)
    plan = _whole(parts, stages, sections, _inside(parts, stages, sections), own)
    emit(LogEvent.PLAN_COMPILED, tool=record.id, hooks=[one.name for one in hooks])
    return plan


class _Sections(NamedTuple):
    """The steps before and after the tool, and the ledger of its effect."""

    before: Steps
    shaping: Steps
    unchecked_shaping: Steps
    effect: EffectOfTool[InvokeContext] | None
    watched: bool


class _Inside(NamedTuple):
    """The functions that run the tool."""

    fast_path: Callable[..., Awaitable[object]] | None
    body: Execute[InvokeContext]
    execute: Execute[InvokeContext]
    inlined: bool
    in_units: bool


def _whole(parts: PlanParts, stages: _Stages, sections: _Sections, inside: _Inside, limits: TimeLimits) -> Plan:
    record, supply, binds = parts.record, parts.supply, binds_ids()
    records, finals = _join(stages, *RECORDS), stages[Stage.WILL_FINALIZE_INVOKE]
    waits = next((number for number, (_, _, step) in enumerate(records) if step.waits), len(records))
    inlined, observed = inside.inlined, any(stages.values())  # hooks of other tools have no steps
    return Plan(
        record=record,
        definition=record.definition,
        tool_id=record.definition.name,
        host=parts.host,
        registrations=parts.registrations,
        trace=parts.trace,
        builtins=parts.builtins,
        supplies=parts.supplies,
        start=plan_step(Stage.WILL_CREATE_INVOKE_CONTEXT, "callgate"),
        running=parts.running,
        before=sections.before + stages[Stage.WILL_EXECUTE] if inlined else sections.before,
        cache_hit=stages[Stage.DID_CACHE_HIT],
        cache_miss=stages[Stage.DID_CACHE_MISS],
        around=stages[Stage.AROUND_EXECUTE],
        will_execute=stages[Stage.WILL_EXECUTE],
        did_execute=stages[Stage.DID_EXECUTE],
        on_retry=stages[Stage.ON_RETRY],
        on_give_up=stages[Stage.ON_GIVE_UP],
        on_error=stages[Stage.ON_ERROR],
        shaping=stages[Stage.DID_EXECUTE] + sections.shaping if inlined else sections.shaping,
        after_response=sections.shaping,  # a response skips ``did_execute``, also where it is inlined
        unchecked_shaping=sections.unchecked_shaping,
        partial_shaping=_join(stages, *_OF_PARTS),
        records=records,
        finals=finals,
        closing=records + finals,
        early=records[:waits],
        late=records[waits:],
        releases_alone={acquire: stages[release] for acquire, release in RELEASE_OF.items()},
        recorders=frozenset(id(step.hook) for _, _, step in records),
        fast_path=inside.fast_path,
        body=inside.body,
        execute=inside.execute,
        inlined=inlined,
        prepare=arguments_of(parts),
        copied=parts.builtins.copied,
        effect=sections.effect,
        in_units=inside.in_units,
        effect_in_unit=supply is not None and supply.in_unit,
        repeats=any(one.option("repeats", False) for one in parts.registrations),
        watched=sections.watched,
        limit=limits[0],
        idle=limits[1],
        timed=limits != (None, None),
        hard=parts.hard,
        observed=observed,
        restores=observed or inside.fast_path is None or binds,  # providers may set context variables, too
        binds=binds,
        typed=record.from_json is not None,
        ended=parts.host.registry.ended,
        now=parts.host.monotonic,
        surface=parts.host.surface,
    )


def plan_with_approval(plan: Plan, *, repaired: bool, answered: bool) -> Plan:
    """Return the plan of a call with the approval step, even where no rule asks for approval now.

    A repairer wrote the arguments, or an approver has answered in place of the tool.
    """
    if not repaired and not answered:
        return plan
    sources = _approvals(plan.record, plan.registrations, plan.builtins)
    if repaired:
        sources = [*sources, of_repaired(plan.host.on_repair, has_approvers=not plan.builtins.refuses)]
    asks = _built_in_step(Stage.WILL_AUTHORIZE_INPUT, "approval", approval_step(sources), plan.trace)
    steps = [one for one in plan.before if one[2].hook is not None or one[2].name != "approval"]
    steps.insert(sum(one[2].row.position <= asks[2].row.position for one in steps), asks)
    if repaired:  # a row of its own in the trace
        marks = _built_in_step(Stage.WILL_PARSE_INPUT, "repaired", lambda _: None, plan.trace)
        steps.insert(sum(one[2].row.position < marks[2].row.position for one in steps), marks)
    return dataclasses.replace(plan, before=tuple(steps))


# ---------------------------------------------------------------------- the steps of hooks


def _steps_of_hooks(parts: PlanParts) -> dict[Stage, Steps]:
    """Return the steps of every stage, without releases that have an acquire: the lease ledger runs those."""
    return {
        stage: tuple(
            guarded_step(one, stage, trace=parts.trace, hard=parts.host.hard_deadline)
            for one in chosen
            if STAGES[stage].gives_back not in one.all_stages()
        )
        for stage, chosen in parts.by_stage.items()
    }


def _join(stages: _Stages, *names: Stage) -> Steps:
    return tuple(one for name in names for one in stages[name])


# ---------------------------------------------------------------------- before and after the tool


def _sections(parts: PlanParts, stages: _Stages, builtins: BuiltIns, services: Services) -> _Sections:
    before: list[StepCall] = []
    for stage in stages_in(Section.BEFORE):
        before += stages[stage]
        own = _built_ins(stage, parts, stages, builtins)
        before += [_built_in_step(stage, name, call, parts.trace) for name, call in own]
    effect = None
    if services.effects is not None and parts.record.definition.effect is not Effect.READ:
        claim, effect = services.effects.of_tool(parts)
        before.append(claim)  # behind all others: a call that another step refuses claims nothing
    shaping = _shaping(parts, stages, builtins, builtins.check_output)
    seen = (stages[Stage.DID_CACHE_HIT], stages[Stage.AROUND_EXECUTE], stages[Stage.DID_EXECUTE], shaping)
    watched = any(step.hook is not None for section in seen for _, _, step in section)
    return _Sections(tuple(before), shaping, _shaping(parts, stages, builtins, None), effect, watched)


def _shaping(
    parts: PlanParts, stages: _Stages, builtins: BuiltIns, check: Callable[[InvokeContext], None] | None
) -> Steps:
    """Return the steps of the output stages; without *check*, those for a response that is no result."""
    steps: list[StepCall] = []
    for stage in stages_in(Section.SHAPING):
        steps += stages[stage]
        if stage is Stage.WILL_VALIDATE_OUTPUT and check is not None:
            steps.append(_built_in_step(stage, "validate", check, parts.trace))
        if stage is Stage.WILL_TRANSFORM_OUTPUT and (stages[stage] or not builtins.bounded or check is None):
            steps.append(_built_in_step(stage, "limit", builtins.limit_output, parts.trace))
    return tuple(steps)


def _built_in_step(stage: Stage, name: str, call: Callable[[InvokeContext], object], trace: bool) -> StepCall:
    step = plan_step(stage, name)
    return (ASYNC, traced(step, call), step) if trace else (SYNC, call, step)


def _built_ins(
    stage: Stage, parts: PlanParts, stages: _Stages, own: BuiltIns
) -> list[tuple[str, Callable[[InvokeContext], object]]]:
    """Return the names and functions of the runtime's own steps at the end of a stage."""
    if stage is Stage.WILL_AUTHORIZE:
        rules = own.unvalidated
        roles = [("roles", own.check_roles)] if own.roles is not None else []
        return [*roles, *([] if rules is None or rules.policy is None else [("no schema policy", rules.decide)])]
    if stage is Stage.WILL_AUTHORIZE_INPUT and (sources := _approvals(parts.record, parts.registrations, own)):
        return [("approval", approval_step(sources))]
    if stage is Stage.WILL_READ_CACHE and (stages[Stage.DID_CACHE_HIT] or stages[Stage.DID_CACHE_MISS]):
        return [("hit or miss", _hit_or_miss(parts, stages))]
    if stage in RELEASE_OF and stages[RELEASE_OF[stage]]:
        return [("hold", _holding(stages[RELEASE_OF[stage]]))]
    seen = {s: bool(stages[s]) for s in (Stage.WILL_PARSE_INPUT, Stage.WILL_VALIDATE_INPUT, Stage.WILL_NORMALIZE_INPUT)}
    shaped = seen[Stage.WILL_VALIDATE_INPUT] or seen[Stage.WILL_NORMALIZE_INPUT]
    admits, checks = ("admit", "validate") if own.unvalidated is None else ("no schema", "no schema")
    if not shaped and not parts.trace:  # no hook runs in between: parse, validate and freeze are one call
        return [(admits, own.admit)] if stage is Stage.WILL_VALIDATE_INPUT else []
    if stage is Stage.WILL_PARSE_INPUT:
        return [("parse", own.parse)]
    if stage is Stage.WILL_VALIDATE_INPUT:
        return [(checks, own.validate if seen[Stage.WILL_NORMALIZE_INPUT] else own.freeze)]
    if stage is Stage.WILL_NORMALIZE_INPUT and seen[stage]:
        return [("freeze", own.freeze)]
    return []


def _approvals(
    record: ToolRecord, registrations: Sequence[Registration], builtins: Checks[InvokeContext]
) -> list[Source]:
    """Return the sources of approval rules: the tool, a tool without a schema, and hooks."""
    own = of_tool(record.requires_approval)
    sources = [] if own is None else [own]
    rules = builtins.unvalidated
    if rules is not None and rules.may_ask:
        sources.append(rules.demand)
    asking = merge_registrations(one for one in registrations if may_ask(one, record.definition))  # each asks once
    return [*sources, *(only_where_it_applies(one, one.hook.approval_for) for one in asking)]


def _hit_or_miss(parts: PlanParts, stages: _Stages) -> Callable[[InvokeContext], Awaitable[None] | None]:
    """Make the step that runs ``did_cache_hit`` or ``did_cache_miss``, or neither if no cache hook took part."""
    hit, miss = stages[Stage.DID_CACHE_HIT], stages[Stage.DID_CACHE_MISS]
    reads = parts.by_stage[Stage.WILL_READ_CACHE]
    always = any(one.filter is None and one.tenants is None and not one.is_shadow for one in reads)

    def answer_cache(ctx: InvokeContext) -> Awaitable[None] | None:
        if ctx.run.cache_hit is None and always:
            ctx.run.cache_hit = False
        steps = hit if ctx.run.cache_hit else miss if ctx.run.cache_hit is False else ()
        for number, (_, call, step) in enumerate(steps, 1):
            ctx.run.step = step
            answer = call(ctx)
            if answer is not None:
                return after(step, answer, ctx, steps[number:])
        return None

    async def after(waits: PlanStep, answer: object, ctx: InvokeContext, rest: Steps) -> None:
        await valueless(waits, answer)
        for _, call, step in rest:
            ctx.run.step = step
            await valueless(step, call(ctx))

    return answer_cache


def _holding(releases: Steps) -> Callable[[InvokeContext], None]:
    """Make the step that registers releases without an acquire; they run once the acquire stage is over."""

    def hold(ctx: InvokeContext) -> None:
        for release in releases[::-1]:
            ctx.run.leases = (release, ctx.run.leases)

    return hold


# ---------------------------------------------------------------------- the tool itself


def _inside(parts: PlanParts, stages: _Stages, sections: _Sections) -> _Inside:
    """Choose what runs the tool: its own function, one attempt in the task of the call, or attempts in middleware."""
    record, around = parts.record, stages[Stage.AROUND_EXECUTE]
    # A call of the fast path has no wrapper that could see the error of its body, so nothing may need one.
    direct = direct_call(record, hard=parts.hard)
    bare = not (around or parts.trace)  # nothing is wrapped about the attempt
    inner_hooks = bool(stages[Stage.WILL_EXECUTE] or stages[Stage.DID_EXECUTE])
    in_units = parts.host.registry.recipes.has_units and (direct is None or not bare or inner_hooks)
    inlined = bare and not in_units and runs_in_place(record, hard=parts.hard)
    fast_path = direct if bare and not in_units else None
    own = make_body(parts)
    body: Execute[InvokeContext] = traced(parts.running, own) if parts.trace else own
    execute: Execute[InvokeContext] = attempt
    if around or in_units:
        execute = wrap_attempt(attempt, parts, around, in_units=in_units)
    elif inlined and fast_path is None:
        execute = supplied_call(parts, watched=sections.watched)
    return _Inside(fast_path, body, execute, inlined, in_units)
