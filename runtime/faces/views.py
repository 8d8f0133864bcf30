"""The read-only methods of a gate, about its tools, plans and calls. They run no tool."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, Unpack

from callgate.errors import InvocationError, UnknownTool
from callgate.hooks.linter import Finding, lint
from callgate.runtime.call.calls import context_of_none, refuse_user
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.results import run_to_result
from callgate.runtime.faces.explain import Explanation, explain
from callgate.runtime.plans import Plans
from callgate.runtime.replay.report import ReplayReport, Rows
from callgate.tools.arguments.hydration import HydrationResult, Repairer, unknown
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.results import PickResult
from callgate.tools.registry import ToolRegistry


class Views:
    """Read-only methods of ``Gate``."""

    registry: ToolRegistry
    lazy: bool
    _plans: Plans

    def tools_for(self, user: User = ANONYMOUS) -> list[ToolDefinition]:
        """Return the tools that a user may see, by their roles and by the ``may_see`` of every hook."""
        refuse_user(user)
        return [record.definition for record in self.registry.list() if self._plans.may_see(record, user)]

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """Return the definitions that a user may see, or the request part of a wire such as ``"openai_chat"``."""
        visible = self.tools_for(user)
        if wire is None:
            return visible
        from callgate.runtime.models import codec

        return codec(wire).translate(visible).request

    def pick(self, query: Any, *, user: User = ANONYMOUS, **options: Any) -> Coroutine[Any, Any, list[PickResult]]:
        """Return the tools that fit a query best, among those that the user may see; options as for ``pick_tools``."""
        refuse_user(user)
        from callgate.runtime.faces.picking import pick

        return pick(self._plans, self.registry, query, user, options)

    def explain(self, tool: Any, *, user: User | None = None) -> Explanation:
        """Return the plan of a tool, with the reason for each hook that it has or leaves out; ``print`` it."""
        return explain(self._plans.of(tool), user)

    def replay(self, rows: Rows, hooks: Iterable[Any]) -> Coroutine[Any, Any, ReplayReport]:
        """Replay recorded calls against other hooks and report the verdicts that change. No tool runs."""
        from callgate.runtime.replay.replay import replay

        return replay(self, rows, hooks)

    def lint(self) -> list[Finding]:
        """Return the findings of the linter about the plans of all tools."""
        return [finding for record in self.registry.list() for finding in lint(self._plans.of(record.id))]

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """Parse and validate one call without running it. ``call`` takes the result and does not validate again.

        *repair* is called at most once, for other arguments. They are recorded, and never trusted.
        """
        if not isinstance(call.name, str):
            return unknown(call, wire)
        try:
            plan = self._plans.of(call.name)
        except UnknownTool:
            return unknown(call, wire)
        return plan.builtins.hydrator(plan.record, self.lazy).hydrate(call, wire, repair)

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """Run ``hydrate`` for every call of a response; the results have their order."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]

    async def refuse(
        self, call: ToolCall, error: InvocationError, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """End a call with *error* before anything runs; hooks that observe errors or write records see it."""
        return await run_to_result(context_of_none(self._plans.of_none(), call, user, error, options))

    def deadline_of(self, tool: str) -> float | None:
        """Return the seconds that a call of a tool may take; None without a deadline."""
        return self._plans.of(tool).limit
