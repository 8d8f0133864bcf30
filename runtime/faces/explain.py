"""``gate.explain``: the plan of a tool, and the reason for each hook that it has or leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from callgate.hooks.linter import Finding, lint
from callgate.hooks.plan import Plan
from callgate.hooks.selection import why_not
from callgate.providers.principal import User


@dataclass(frozen=True, slots=True)
class HookChoice:
    """One registered hook: included in the plan or not, and the reason."""

    name: str
    origin: str
    included: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a tool, the choice about every hook, and the findings of the linter; ``str()`` is for people."""

    plan: Plan
    choices: tuple[HookChoice, ...]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [str(self.plan), "hooks"]
        lines += [
            f"  {'in ' if choice.included else 'out'} {choice.name} ({choice.origin}): {choice.reason}"
            for choice in self.choices
        ]
        lines += [f"lint {finding}" for finding in self.findings]
        return "\n".join(lines)


def explain(plan: Plan, user: User | None = None) -> Explanation:
    """Explain a plan; with *user*, also the hooks that are limited to other tenants."""
    choices = []
    for one in plan.registrations:
        reason = why_not(one, plan.definition)
        if reason is None and user is not None and one.tenants is not None and user.tenant not in one.tenants:
            reason = f"limited to tenants {sorted(one.tenants)}; the user's is {user.tenant!r}"
        if reason is not None:
            choices.append(HookChoice(one.name, one.origin, False, reason))
            continue
        stages = ", ".join(one.all_stages())
        asks = " when its filter says so" if one.filter is not None else ""
        choices.append(HookChoice(one.name, one.origin, True, f"priority {one.priority:g}, runs at {stages}{asks}"))
    return Explanation(plan, tuple(choices), tuple(lint(plan)))
