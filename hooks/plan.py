"""The plan: the steps that run for one tool. It is compiled once, walked at every call, and printable.

A plan is flat tuples of ``(kind, call, step)``. It omits stages that no hook implements, so these cost nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from callgate.hooks.approval import Source, approval_step, of_repaired, of_tool
from callgate.hooks.builtin import BuiltIns
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import Dependencies
from callgate.hooks.guards import only_where_it_applies, surrounded, traced, valueless
from callgate.hooks.host import Host, Now, Surface
from callgate.hooks.selection import Registration, may_hide, select_for_stage, sort_for_stage, why_not
from callgate.hooks.stages import RECORDS, RELEASE_OF, STAGES, Section, Stage, stages_in
from callgate.hooks.step import (
    ASYNC,
    ASYNC_LEASE,
    SYNC,
    SYNC_LEASE,
    Compiled,
    Step,
)
from callgate.tools.record import ToolRecord

Body: TypeAlias = Callable[[InvokeContext], Awaitable[Any]]


class Execution(NamedTuple):
    """The inner part of a plan: the tool's body, one attempt inside its middleware, and the conversion of arguments."""

    body: Body
    execute: Body
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None


Claiming: TypeAlias = "Callable[[Plan], tuple[Compiled, Callable[[InvokeContext], Awaitable[None]]]]"
"""Returns the step that claims an effect of a plan, and the lookup for calls that need approval."""


class Plan:
    """One tool's compiled lifecycle; it never changes.

    Sections have the names of ``runtime/call/invoke.py``. ``merged`` means that the tool runs exactly once, so the
    steps next to it are inlined. ``straight`` is the fast path: a coroutine function for plans that need nothing else.
    ``supplies`` maps functions and classes to the values of their marked parameters. ``prepare`` converts frozen
    arguments to those of the tool. ``in_units`` means that each attempt has a unit of work
    (``runtime/call/units.py``), ``effect_in_unit`` that the tool takes a part of it, ``carries`` that this part takes
    the claim. ``surface`` converts a failed context to the exception raised. ``limit`` is the deadline in seconds;
    ``hard`` means that the body is abandoned if it does not end soon after it.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "before",
        "closing",
        "ended",
        "finals",
        "host",
        "limit",
        "now",
        "prepare",
        "records",
        "running",
        "shaping",
        "straight",
        "surface",
        "typed",
        "watched",
    )
    before: tuple[Compiled, ...]
    straight: Callable[..., Awaitable[object]] | None
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None
    now: Now
    surface: Surface[InvokeContext]

    def __init__(
        self,
        record: ToolRecord,
        registrations: Sequence[Registration],
        builtins: BuiltIns,
        resolve: Callable[[type], object],
        host: Host[InvokeContext],
        *,
        surface: Callable[[InvokeContext], BaseException],
        supplies: Callable[[Plan], Mapping[object, Dependencies[InvokeContext]]],
        execution: Callable[[Plan], Execution],
        limit: float | None = None,
        straight: Callable[..., Awaitable[object]] | None = None,
        merges: bool = False,
        trace: bool = False,
        claim: Claiming | None = None,
    ) -> None:
        self.record, self.definition, self.tool_id = record, record.definition, record.definition.name
        self.registrations = tuple(registrations)
        self.observed = bool(registrations)  # a hook may ask when the arguments were parsed
        self.resolve = resolve
        self.trace = trace
        self.builtins = builtins
        self.copied, self.parse_again = builtins.copied, builtins.parse_again
        self.start = Step(Stage.WILL_CREATE_INVOKE_CONTEXT, "callgate")
        self.running = Step(Stage.WILL_EXECUTE, "tool")
        self.host, self.now, self.surface, self.ended = host, host.monotonic, surface, host.registry.ended
        self.supplies = supplies(self)
        self.effect_in_unit, self.carries = self._supplied("in_unit"), self._supplied("carries")
        self.limit = record.deadline if record.deadline is not None else limit
        self.typed = record.from_json is not None
        self.askable = [one for one in registrations if may_hide(one, record.definition)]
        self.repeats = any(one.option("repeats", False) for one in registrations)
        stages = self._stages()
        self.cache_hit, self.cache_miss = stages[Stage.DID_CACHE_HIT], stages[Stage.DID_CACHE_MISS]
        self.before = self._before(stages)
        self.look: Callable[[InvokeContext], Awaitable[None]] | None = None
        self._claim_last(claim)
        self.around = stages[Stage.AROUND_EXECUTE]
        self.on_retry, self.on_give_up = stages[Stage.ON_RETRY], stages[Stage.ON_GIVE_UP]
        self.will_execute, self.did_execute = stages[Stage.WILL_EXECUTE], stages[Stage.DID_EXECUTE]
        self.shaping = self.after_response = self._shaping(stages, builtins.check_output)
        self.watched = _of_hooks(self.cache_hit, self.around, self.did_execute, self.shaping)  # they may set the output
        self.unchecked_shaping = self._shaping(stages, None)
        own = not (self.around or trace)  # nothing is wrapped about the attempt
        self.in_units = host.registry.recipes.has_units and bool(
            straight is None or not own or self.will_execute or self.did_execute
        )
        self.straight = straight if own and not self.in_units else None
        self.merged = merges and own and not self.in_units
        if self.merged:  # the tool runs once, so its steps are inlined before and after it
            self.before += self.will_execute
            self.shaping = self.did_execute + self.shaping
        self.partial_shaping = _join(
            stages, Stage.WILL_REDACT_OUTPUT, Stage.WILL_VALIDATE_OUTPUT, Stage.WILL_TRANSFORM_OUTPUT
        )
        self.on_error = stages[Stage.ON_ERROR]
        self.releases_alone = {acquire: stages[release] for acquire, release in RELEASE_OF.items()}
        self._set_closing(stages)
        self.body, self.execute, self.prepare = execution(self)

    @property
    def hard(self) -> bool:
        """True if the body may be abandoned at its deadline: as the tool says, else as the gate does."""
        own = self.record.hard_deadline
        return self.host.hard_deadline if own is None else own

    def _claim_last(self, claim: Claiming | None) -> None:
        """Add the step that claims the effect, behind all others, and set the lookup of earlier effects."""
        if claim is not None:
            step, self.look = claim(self)
            self.before += (step,)

    def _set_closing(self, stages: dict[Stage, tuple[Compiled, ...]]) -> None:
        """Set the closing steps: records that cannot wait (``early``), those that may (``late``), and finals."""
        self.restores = self.observed or self.straight is None  # hooks or providers may set context variables
        self.records = _join(stages, *RECORDS)
        self.finals = stages[Stage.WILL_FINALIZE_INVOKE]
        self.closing = self.records + self.finals
        waits = next((n for n, (_, _, step) in enumerate(self.records) if step.waits), len(self.records))
        self.early, self.late = self.records[:waits], self.records[waits:]
        self.late_finals = self.late + self.finals
        self.recorders = frozenset(id(step.hook) for _, _, step in self.records)

    def _supplied(self, what: str) -> bool:
        """Return a fact about the values of the tool's marked parameters."""
        supply = self.supplies.get(self.record)
        return supply is not None and getattr(supply, what)

    def derive(self, **changes: object) -> Plan:
        """Return a copy with other attributes."""
        made = copy.copy(self)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def for_repaired(self) -> Plan:
        """Return the plan of a call whose arguments a repairer wrote: it has the step that asks for approval of them."""
        rule = of_repaired(self.host.on_repair, has_approvers=not self.builtins.refuses)
        asks = self._own(Stage.WILL_AUTHORIZE_INPUT, "approval", approval_step([*self._approvals(), rule]))
        marks = self._own(Stage.WILL_PARSE_INPUT, "repaired", lambda _: None)  # a row of its own in the trace
        steps = [one for one in self.before if one[2].hook is not None or one[2].name != "approval"]
        steps.insert(sum(one[2].row.position <= asks[2].row.position for one in steps), asks)
        steps.insert(sum(one[2].row.position < marks[2].row.position for one in steps), marks)
        return self.derive(before=tuple(steps))

    # ------------------------------------------------------------------ compiling

    def _stages(self) -> dict[Stage, tuple[Compiled, ...]]:
        """Return the steps of every stage, without releases that have an acquire: the lease ledger runs those."""
        chosen: dict[Stage, list[Registration]] = {stage: [] for stage in Stage}
        for one in self.registrations:
            if why_not(one, self.definition) is None:
                stages = one.all_stages()
                for stage in stages:
                    if STAGES[stage].gives_back not in stages:
                        chosen[stage].append(one)
        return {
            stage: tuple(self._compile(one, stage) for one in (sort_for_stage(stage, hooks) if hooks else ()))
            for stage, hooks in chosen.items()
        }

    def _compile(self, one: Registration, stage: Stage, *, bare: bool = False) -> Compiled:
        coroutine, call, step = surrounded(one, stage, bare=bare, trace=self.trace, hard=self.host.hard_deadline)
        kind = ASYNC if coroutine else SYNC
        if step.row.gives_back is not None:
            step.stays = any(stage in RECORDS for stage in one.all_stages())
        paired = RELEASE_OF.get(stage)
        if paired is not None and paired in one.all_stages():
            step.release = self._compile(one, paired, bare=True)
            kind = ASYNC_LEASE if coroutine else SYNC_LEASE
        return kind, call, step

    def _before(self, stages: dict[Stage, tuple[Compiled, ...]]) -> tuple[Compiled, ...]:
        steps: list[Compiled] = []
        for stage in stages_in(Section.BEFORE):
            steps += stages[stage]
            steps += self._built_in(stage, stages)
        return tuple(steps)

    def _built_in(self, stage: Stage, stages: dict[Stage, tuple[Compiled, ...]]) -> list[Compiled]:
        """Return the runtime's built-in step at the end of a stage."""
        if stage is Stage.WILL_AUTHORIZE:
            return self._authorising(stage)
        if stage is Stage.WILL_AUTHORIZE_INPUT and (sources := self._approvals()):
            return [self._own(stage, "approval", approval_step(sources))]
        if stage is Stage.WILL_READ_CACHE and (self.cache_hit or self.cache_miss):
            return [self._hit_or_miss()]
        if stage in RELEASE_OF and stages[RELEASE_OF[stage]]:
            return [self._own(stage, "hold", _holding(stages[RELEASE_OF[stage]]))]
        seen = {
            s: bool(stages[s]) for s in (Stage.WILL_PARSE_INPUT, Stage.WILL_VALIDATE_INPUT, Stage.WILL_NORMALIZE_INPUT)
        }
        shaped = seen[Stage.WILL_VALIDATE_INPUT] or seen[Stage.WILL_NORMALIZE_INPUT]
        own = self.builtins
        admits, checks = ("admit", "validate") if own.unvalidated is None else ("no schema", "no schema")
        if not shaped and not self.trace:  # no hook runs in between: parse, validate and freeze are one call
            return [self._own(stage, admits, own.admit)] if stage is Stage.WILL_VALIDATE_INPUT else []
        if stage is Stage.WILL_PARSE_INPUT:
            return [self._own(stage, "parse", own.parse)]
        if stage is Stage.WILL_VALIDATE_INPUT:
            return [self._own(stage, checks, own.validate if seen[Stage.WILL_NORMALIZE_INPUT] else own.freeze)]
        if stage is Stage.WILL_NORMALIZE_INPUT and seen[stage]:
            return [self._own(stage, "freeze", own.freeze)]
        return []

    def _authorising(self, stage: Stage) -> list[Compiled]:
        """Return the built-in steps of ``will_authorize``: roles, and the policy for a tool without a schema."""
        rules, steps = self.builtins.unvalidated, []
        if self.builtins.roles:
            steps.append(self._own(stage, "roles", self.builtins.check_roles))
        if rules is not None and rules.policy is not None:
            steps.append(self._own(stage, "no schema policy", rules.decide))
        return steps

    def _approvals(self) -> list[Source]:
        """Return the sources of approval rules: the tool, a tool without a schema, and hooks."""
        own = of_tool(self.record.requires_approval)
        sources = [] if own is None else [own]
        rules = self.builtins.unvalidated
        if rules is not None and rules.may_ask:
            sources.append(rules.demand)
        for one in self.registrations:
            asks = getattr(one.hook, "approval_for", None)
            if asks is not None and not (one.is_class or one.is_shadow) and why_not(one, self.definition) is None:
                sources.append(only_where_it_applies(one, asks))
        return sources

    def _hit_or_miss(self) -> Compiled:
        """Make the step that runs ``did_cache_hit`` or ``did_cache_miss``, or neither if no cache hook took part."""
        hit, miss = self.cache_hit, self.cache_miss
        looks = select_for_stage(Stage.WILL_READ_CACHE, self.definition, self.registrations)
        always = any(one.filter is None and one.tenants is None and not one.is_shadow for one in looks)

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

        async def after(waits: Step, answer: object, ctx: InvokeContext, rest: tuple[Compiled, ...]) -> None:
            await valueless(waits, answer)
            for _, call, step in rest:
                ctx.run.step = step
                await valueless(step, call(ctx))

        return self._own(Stage.WILL_READ_CACHE, "hit or miss", answer_cache)

    def _shaping(
        self, stages: dict[Stage, tuple[Compiled, ...]], check: Callable[..., object] | None
    ) -> tuple[Compiled, ...]:
        steps: list[Compiled] = []
        for stage in stages_in(Section.SHAPING):
            steps += stages[stage]
            if stage is Stage.WILL_VALIDATE_OUTPUT and check is not None:
                steps.append(self._own(stage, "validate", check))
            if stage is Stage.WILL_TRANSFORM_OUTPUT and (stages[stage] or not self.builtins.bounded or check is None):
                steps.append(self._own(stage, "limit", self.builtins.limit_output))
        return tuple(steps)

    def _own(self, stage: Stage, name: str, call: Callable[..., object]) -> Compiled:
        step = Step(stage, name)
        return (ASYNC, traced(step, call), step) if self.trace else (SYNC, call, step)

    # ------------------------------------------------------------------ reading

    def steps(self) -> Iterable[Compiled]:
        """Yield every step in lifecycle order; releases follow in reverse order of their acquires."""
        inner = () if self.merged else (*self.will_execute, *self.did_execute)
        caches = self.cache_hit + self.cache_miss
        for section in (self.before, caches, self.around, self.on_retry, inner, self.on_give_up):
            yield from section
        for section in (self.shaping, self.on_error, self.records):
            yield from section
        for _, _, step in reversed(self.before):
            if step.release is not None:
                yield step.release
            elif step.hook is None and step.stage in RELEASE_OF:
                yield from self.releases_alone[step.stage]
        yield from self.finals

    def __str__(self) -> str:
        """Return the plan as text: one line per step, built-in steps in brackets."""
        lines = [f"plan of {self.definition.name} {self.definition.version}"]
        if (rules := self.builtins.unvalidated) is not None:
            by = "" if rules.policy is None else ", or as the policy of the gate decides"
            lines.append(f"  arguments: validated=false, no_schema_mode={rules.own.mode}{by}")
        for _, _, step in self.steps():
            lines.append(f"  {step.stage:<28} {step.name if step.hook is not None else f'[{step.name}]'}")
        return "\n".join(lines)


def _holding(releases: tuple[Compiled, ...]) -> Callable[[InvokeContext], None]:
    """Make the step that registers releases without an acquire; they run once the acquire stage is over."""

    def hold(ctx: InvokeContext) -> None:
        for release in releases[::-1]:
            ctx.run.leases = (release, ctx.run.leases)

    return hold


def _of_hooks(*sections: tuple[Compiled, ...]) -> bool:
    return any(step.hook is not None for section in sections for _, _, step in section)


def _join(stages: dict[Stage, tuple[Compiled, ...]], *names: Stage) -> tuple[Compiled, ...]:
    return tuple(compiled for name in names for compiled in stages[name])


def plan_of(ctx: InvokeContext) -> Plan:
    """Return the plan of a call with all that a ``Plan`` has."""
    plan = ctx.run.plan
    assert isinstance(plan, Plan)
    return plan
