"""What a gate tells of its tools and plans, and of calls that it only reads: nothing here runs a tool."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from callgate.errors import UnknownTool
from callgate.hooks.linter import Finding, lint
from callgate.runtime.faces.explain import Explanation, explain
from callgate.runtime.faces.picking import pick
from callgate.runtime.models import codec
from callgate.runtime.plans import Plans
from callgate.runtime.replay.replay import ReplayReport, Rows, replay
from callgate.tools.arguments.hydration import HydrationResult, Repairer, unknown
from callgate.tools.calls import ANONYMOUS, ToolCall, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.results import PickResult
from callgate.tools.registry import ToolRegistry


class Views:
    """The side of a ``Gate`` that is for looking."""

    registry: ToolRegistry
    lazy: bool
    _plans: Plans

    def tools_for(self, user: User = ANONYMOUS) -> list[ToolDefinition]:
        """The tools that a user may be told of: by their roles and by every hook that has a say (``may_see``)."""
        return [record.definition for record in self.registry.list() if self._plans.may_see(record, user)]

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """What a model may be told: definitions, or the request part of a wire such as ``"openai_chat"``."""
        visible = self.tools_for(user)
        return visible if wire is None else codec(wire).translate(visible).request

    def pick(self, query: Any, *, user: User = ANONYMOUS, **options: Any) -> Coroutine[Any, Any, list[PickResult]]:
        """The tools that fit a query best, of those that the user may be told of; options as for ``pick_tools``."""
        return pick(self._plans, self.registry, query, user, options)

    def explain(self, tool: Any, *, user: User | None = None) -> Explanation:
        """The plan of a tool, and why each hook is in or out; ``print`` it."""
        return explain(self._plans.of(tool), user)

    def replay(self, rows: Rows, hooks: Iterable[Any]) -> Coroutine[Any, Any, ReplayReport]:
        """Recorded calls against other hooks: which verdicts flip; see ``callgate.runtime.replay.replay``. No tool runs."""
        return replay(self, rows, hooks)

    def lint(self) -> list[Finding]:
        """What looks wrong in the plans of all tools."""
        return [finding for record in self.registry.list() for finding in lint(self._plans.of(record.id))]

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """Parse and validate one call; runs nothing. Give the result to ``call``, which does not do it again.

        *repair* is asked at most once for other arguments; what it makes is recorded and never trusted (contract 49).
        """
        if not isinstance(call.tool, str):
            return unknown(call, wire)
        try:
            plan = self._plans.of(call.tool)
        except UnknownTool:
            return unknown(call, wire)
        return plan.builtins.hydrator(plan.record, self.lazy).hydrate(call, wire, repair)

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """``hydrate`` for every call of an answer, in order; none is dropped (contract C10a)."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]
