"""The plan of one tool with its hooks, as data. It is printable. ``runtime/pipeline/compile.py`` makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from callgate.hooks.context import InvokeContext
from callgate.hooks.selection import Registration
from callgate.hooks.stages import RELEASE_OF, Stage
from callgate.hooks.state.facts import Dependencies
from callgate.hooks.state.host import CallPlan, Checks, Host, Steps
from callgate.hooks.state.step import PlanStep, StepCall
from callgate.tools.record import ToolRecord


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlanParts:
    """The sources of a plan: the tool, its hooks, the gate, and the values of marked parameters."""

    record: ToolRecord
    registrations: tuple[Registration, ...]
    by_stage: Mapping[Stage, Sequence[Registration]]
    host: Host[InvokeContext]
    builtins: Checks[InvokeContext]
    supplies: Mapping[object, Dependencies[InvokeContext]]
    running: PlanStep
    trace: bool
    hard: bool

    @property
    def supply(self) -> Dependencies[InvokeContext] | None:
        """The values of the tool's own marked parameters."""
        return self.supplies.get(self.record)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Plan(CallPlan[InvokeContext]):
    """One tool's compiled lifecycle."""

    registrations: tuple[Registration, ...]
    trace: bool  # each step writes a row to the trace of its call
    cache_miss: Steps
    inlined: bool  # the tool runs exactly once, so the steps next to it are part of ``before`` and ``shaping``

    def steps(self) -> Iterable[StepCall]:
        """Yield every step in lifecycle order; releases follow in reverse order of their acquires."""
        inner = () if self.inlined else (*self.will_execute, *self.did_execute)
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


def plan_of(ctx: InvokeContext) -> Plan:
    """Return the plan of a call with all that a ``Plan`` has."""
    plan = ctx.run.plan
    assert isinstance(plan, Plan)
    return plan
