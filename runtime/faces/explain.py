"""``gate.explain``: the plan of a tool, and the reason for each hook. The verdict of ``gate.would`` is here, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callgate.hooks.linter import Finding, lint
from callgate.hooks.plan import Plan
from callgate.hooks.selection import why_not
from callgate.providers.principal import User
from callgate.tools.approval import Approval
from callgate.tools.calls import Issue


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


@dataclass(frozen=True, slots=True)
class DryRun:
    """The verdict on a call that was not made.

    ``verdict`` is ``"pass"``, ``"deny"`` (also for arguments that are not valid), or ``"suspend"``: the call would wait for
    a decision. ``code`` and ``reason`` are those of the refusal, or of the request for a decision; the caller may read
    them. ``issues`` say what is wrong with the arguments. ``rules`` name who may approve.
    """

    verdict: Literal["pass", "deny", "suspend"]
    code: str | None = None
    reason: str | None = None
    issues: tuple[Issue, ...] = ()
    rules: tuple[Approval, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "pass"
